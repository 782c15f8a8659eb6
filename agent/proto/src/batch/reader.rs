//! Decodes batches, for consumers inside the agent.
//!
//! Records are decoded by hand, which takes at most half as long as prost. If any byte of a batch is not as
//! the agent writes it, prost decodes the batch and reports its errors.

use std::ops::Range;

use bytes::Bytes;
use prost::{DecodeError, Message as _};

use super::record_buffer::RECORDS_TAG;
use crate::{Endpoint, FlowBatch, FlowRecord};

/// An IPv4 record is a little longer.
const USUAL_RECORD_LEN_BYTES: usize = 100;

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;

/// Decodes a `FlowBatch`. Addresses and identifiers are slices of `bytes`, not copies.
pub fn read(bytes: &Bytes) -> Result<FlowBatch, DecodeError> {
    by_hand(bytes).map_or_else(|| FlowBatch::decode(bytes.clone()), Ok)
}

/// Decodes a `FlowBatch` without prost for the records. `None` if anything is not as the agent writes it.
pub fn by_hand(bytes: &Bytes) -> Option<FlowBatch> {
    let mut input = Input::new(bytes);
    let mut records = Vec::with_capacity(bytes.len() / USUAL_RECORD_LEN_BYTES);
    let mut others = Vec::new();
    while !input.is_empty() {
        let start = input.at;
        let key = input.varint()?;
        if key != u64::from(RECORDS_TAG) {
            input.skip(key as u32 & 7)?;
            others.extend_from_slice(&bytes[start..input.at]);
            continue;
        }
        let range = input.range()?;
        // A record is long: it is made where it stays.
        records.push(FlowRecord::default());
        let last = records.last_mut().expect("it was just pushed");
        read_message(bytes, range, last)?;
    }
    let batch = FlowBatch::decode(&others[..]).ok()?;
    Some(FlowBatch { records, ..batch })
}

/// A message whose fields are set by number: `FlowRecord` and `Endpoint`. `None` for a number or wire type that the
/// message does not have. A number too long for its field loses its upper bits, as protobuf specifies.
trait ReadFields {
    fn varint(&mut self, number: u32, value: u64) -> Option<()>;
    fn fixed64(&mut self, number: u32, value: u64) -> Option<()>;
    fn length(&mut self, number: u32, bytes: &Bytes, range: Range<usize>) -> Option<()>;
}

include!(concat!(env!("OUT_DIR"), "/reader.rs"));

/// Decodes a message into an empty one. `None` if it has an unknown field, or anything is not as the agent writes
/// it.
fn read_message(bytes: &Bytes, range: Range<usize>, message: &mut impl ReadFields) -> Option<()> {
    let mut input = Input {
        bytes: bytes.get(..range.end)?,
        at: range.start,
    };
    while !input.is_empty() {
        let key = input.varint()?;
        let number = u32::try_from(key >> 3).ok()?;
        match key as u32 & 7 {
            VARINT => message.varint(number, input.varint()?)?,
            FIXED64 => message.fixed64(number, input.fixed64()?)?,
            LENGTH => message.length(number, bytes, input.range()?)?,
            _ => return None,
        }
    }
    Some(())
}

/// Appends the packed numbers in `bytes`. `None` if they are cut off.
fn numbers(bytes: &[u8], into: &mut Vec<u32>) -> Option<()> {
    let mut input = Input::new(bytes);
    while !input.is_empty() {
        into.push(input.varint()? as u32);
    }
    Some(())
}

/// The unread rest of a message. Every read returns `None` at the end.
struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Reads a varint. `None` also for one of ten bytes, whose last byte may be too large.
    #[inline]
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..63).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    #[inline]
    fn fixed64(&mut self) -> Option<u64> {
        let value = self.bytes.get(self.at..)?.first_chunk()?;
        self.at += size_of::<u64>();
        Some(u64::from_le_bytes(*value))
    }

    /// Reads the length of a field and returns the range of its content.
    #[inline]
    fn range(&mut self) -> Option<Range<usize>> {
        let len = usize::try_from(self.varint()?).ok()?;
        let start = self.at;
        self.at = start.checked_add(len)?;
        (self.at <= self.bytes.len()).then_some(start..self.at)
    }

    /// Skips the content of a field of this wire type.
    fn skip(&mut self, wire_type: u32) -> Option<()> {
        match wire_type {
            VARINT => self.varint().map(drop),
            FIXED64 => self.fixed64().map(drop),
            LENGTH => self.range().map(drop),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};
    use prost_types::{
        DescriptorProto, FieldDescriptorProto, FileDescriptorSet,
        field_descriptor_proto::{Label, Type},
    };

    use super::*;

    const START_GROUP: u32 = 3;
    const END_GROUP: u32 = 4;

    /// Writes a varint with `padding` bytes more than it needs.
    fn put(into: &mut Vec<u8>, mut value: u64, padding: usize) {
        while value > 0x7f {
            into.push(value as u8 | 0x80);
            value >>= 7;
        }
        into.push(value as u8);
        for _ in 0..padding {
            *into.last_mut().unwrap() |= 0x80;
            into.push(0);
        }
    }

    fn put_key(into: &mut Vec<u8>, number: u64, wire_type: u32, padding: usize) {
        put(into, number << 3 | u64::from(wire_type), padding);
    }

    /// The number of bytes that a varint has more than it needs.
    fn padding(most: usize) -> impl Strategy<Value = usize> {
        prop_oneof![19 => Just(0), 1 => 0..=most]
    }

    prop_compose! {
        /// A field of any number and wire type, valid or not.
        fn field()(
            number in 0_u64..80,
            wire_type in 0_u32..8,
            value: u64,
            shift in 0_u32..64,
            [of_key, of_value] in [padding(10), padding(10)],
            bytes in vec(any::<u8>(), 0..24),
        ) -> Vec<u8> {
            let mut field = Vec::new();
            put_key(&mut field, number, wire_type, of_key);
            match wire_type {
                VARINT => put(&mut field, value >> shift, of_value),
                FIXED64 => field.extend(value.to_le_bytes()),
                _ => {
                    put(&mut field, bytes.len() as u64, of_value);
                    field.extend(&bytes);
                }
            }
            field
        }
    }

    /// The numbers and wire types of the fields of a message.
    fn wire_types(message: &str) -> Vec<(u64, u32)> {
        let of = |field: &FieldDescriptorProto| {
            let wire_type = match (field.r#type(), field.label()) {
                (Type::Fixed64, _) => FIXED64,
                (Type::Bytes | Type::Message, _) | (_, Label::Repeated) => LENGTH,
                _ => VARINT,
            };
            (field.number().try_into().unwrap(), wire_type)
        };
        descriptor(message).field.iter().map(of).collect()
    }

    fn descriptor(name: &str) -> DescriptorProto {
        let all = FileDescriptorSet::decode(crate::DESCRIPTORS).unwrap();
        let mut messages = all.file.into_iter().flat_map(|file| file.message_type);
        messages.find(|message| message.name() == name).unwrap()
    }

    prop_compose! {
        /// A field with the number and wire type of a record's field, without varints of ten bytes.
        fn usual()(
            (number, wire_type) in select(wire_types("FlowRecord")),
            end in vec(plain("Endpoint"), 0..8),
            plain in plain("FlowRecord"),
            [of_key, of_value] in [padding(3), padding(3)],
        ) -> Vec<u8> {
            if wire_type != LENGTH || number > 2 {
                return plain;
            }
            let mut field = Vec::new();
            let end = end.concat();
            put_key(&mut field, number, LENGTH, of_key);
            put(&mut field, end.len() as u64, of_value);
            field.extend(end);
            field
        }
    }

    prop_compose! {
        /// A field of this message that is no message itself.
        fn plain(message: &'static str)(
            (number, wire_type) in select(wire_types(message))
                .prop_filter("it is a message", move |(number, _)| message != "FlowRecord" || *number > 2),
            value: u64,
            shift in 1_usize..64,
            [of_key, of_value] in [padding(3), padding(3)],
            bytes in vec(0_u8..0x80, 0..24),
        ) -> Vec<u8> {
            let mut field = Vec::new();
            match wire_type {
                FIXED64 => {
                    put_key(&mut field, number, FIXED64, of_key);
                    field.extend(value.to_le_bytes());
                }
                LENGTH => {
                    put_key(&mut field, number, LENGTH, of_key);
                    put(&mut field, bytes.len() as u64, of_value);
                    field.extend(&bytes);
                }
                _ => {
                    put_key(&mut field, number, VARINT, of_key);
                    put(&mut field, value >> shift, of_value.min((shift - 1) / 7));
                }
            }
            field
        }
    }

    fn record_of(fields: &[u8], [of_key, of_len]: [usize; 2]) -> Vec<u8> {
        let mut record = Vec::new();
        put(&mut record, RECORDS_TAG.into(), of_key);
        put(&mut record, fields.len() as u64, of_len);
        record.extend(fields);
        record
    }

    prop_compose! {
        fn record()(fields in vec(usual(), 0..20), paddings in [padding(3), padding(3)]) -> Vec<u8> {
            record_of(&fields.concat(), paddings)
        }
    }

    prop_compose! {
        /// A record with one field that may be anything.
        fn odd_record()(before in vec(usual(), 0..5), odd in field(), after in vec(usual(), 0..5)) -> Vec<u8> {
            record_of(&[before.concat(), odd, after.concat()].concat(), [0; 2])
        }
    }

    prop_compose! {
        /// `scan_id`, `batch_index` or `table_capacity` of a batch. A batch may have each of them several
        /// times.
        fn other()(number in prop_oneof![Just(5_u64), Just(6), Just(12)], value: u32, of_key in padding(3)) -> Vec<u8> {
            let mut field = Vec::new();
            put_key(&mut field, number, VARINT, of_key);
            put(&mut field, value.into(), 0);
            field
        }
    }

    fn of_both(bytes: &[u8]) -> [Option<FlowBatch>; 2] {
        let bytes = Bytes::copy_from_slice(bytes);
        [read(&bytes).ok(), FlowBatch::decode(bytes).ok()]
    }

    proptest! {
        #[test]
        fn records_among_other_fields_are_read_by_hand(
            parts in vec(prop_oneof![3 => record(), 2 => other()], 0..10),
        ) {
            let bytes = Bytes::from(parts.concat());
            let theirs = FlowBatch::decode(bytes.clone()).unwrap();
            prop_assert_eq!(by_hand(&bytes), Some(theirs));
        }

        #[test]
        fn whatever_prost_reads_is_read_alike(
            before in vec(prop_oneof![record(), other()], 0..5),
            odd in prop_oneof![2 => odd_record(), 1 => field()],
            after in vec(prop_oneof![record(), other()], 0..5),
        ) {
            let [ours, theirs] = of_both(&[before.concat(), odd, after.concat()].concat());
            prop_assert_eq!(ours, theirs);
        }

        #[test]
        fn what_is_cut_or_changed_is_read_alike(
            first in record(),
            rest in vec(prop_oneof![record(), other()], 0..3),
            cut: prop::sample::Index,
            at: prop::sample::Index,
            bit in 0_u32..8,
        ) {
            let mut batch = [first, rest.concat()].concat();
            let index = at.index(batch.len());
            batch[index] ^= 1 << bit;
            let [ours, theirs] = of_both(&batch);
            prop_assert_eq!(ours, theirs);
            let [ours, theirs] = of_both(&batch[..cut.index(batch.len())]);
            prop_assert_eq!(ours, theirs);
        }
    }

    /// Inside a batch, a record may be nested one level less than on its own.
    #[test]
    fn an_unknown_field_may_be_as_deep_as_prost_allows() {
        let mut read_at_all = 0;
        for depth in 90..110 {
            let mut fields = Vec::new();
            for wire_type in [START_GROUP, END_GROUP] {
                for _ in 0..depth {
                    put_key(&mut fields, 1000, wire_type, 0);
                }
            }
            let [ours, theirs] = of_both(&record_of(&fields, [0; 2]));
            assert_eq!(ours, theirs, "{depth}");
            read_at_all += u32::from(ours.is_some());
        }
        assert!((1..20).contains(&read_at_all), "{read_at_all}");
    }

    #[test]
    fn every_field_is_read_without_prost() {
        for (number, wire_type) in wire_types("FlowRecord") {
            let value = match wire_type {
                FIXED64 => &[5, 0, 0, 0, 0, 0, 0, 0][..],
                // An empty address, or one number.
                LENGTH => &[0][..],
                _ => &[5][..],
            };
            read_alike::<FlowRecord>(number, wire_type, value);
        }
        for (number, wire_type) in wire_types("Endpoint") {
            let value = if wire_type == LENGTH {
                &[1, 5][..]
            } else {
                &[5][..]
            };
            read_alike::<Endpoint>(number, wire_type, value);
        }
    }

    fn read_alike<M: prost::Message + ReadFields + Default + PartialEq + std::fmt::Debug>(
        number: u64,
        wire_type: u32,
        value: &[u8],
    ) {
        let mut bytes = Vec::new();
        put_key(&mut bytes, number, wire_type, 0);
        bytes.extend(value);
        let bytes = Bytes::from(bytes);
        let mut ours = M::default();
        assert!(read_message(&bytes, 0..bytes.len(), &mut ours).is_some());
        assert_eq!(ours, M::decode(bytes).unwrap(), "{number}");
        assert!(wire_type == LENGTH || ours != M::default(), "{number}");
    }
}
