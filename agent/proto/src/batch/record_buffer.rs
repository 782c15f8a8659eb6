//! Encodes [`Fields`] as those of a `FlowRecord` message, in one buffer that all records share.

#![expect(
    clippy::inline_always,
    reason = "a writer's length is in a register only if all that writes is one function"
)]

use prost::encoding::encode_varint;

use super::fields::RECORDS;
use crate::record::{Address, EndFields, Fields, VlanIds};

/// Wire types of the protobuf encoding.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LEN: u32 = 2;

pub(super) const RECORDS_TAG: u8 = (RECORDS << 3 | LEN) as u8;
/// The tag, and a length of at most two bytes.
const PREFIX_LEN_BYTES: usize = 3;
/// A short varint is written as a word of this many bytes; only its first bytes may belong to the varint.
const WORD_LEN_BYTES: usize = 8;

pub struct RecordBuffer {
    bytes: Room,
}

type Room = [u8; RecordBuffer::LEN_BYTES + WORD_LEN_BYTES];

impl Default for RecordBuffer {
    fn default() -> Self {
        Self {
            bytes: [0; size_of::<Room>()],
        }
    }
}

impl RecordBuffer {
    /// A record with every field at its longest takes some 710 bytes, prefix included.
    pub const LEN_BYTES: usize = 800;

    /// Encodes a record as an element of `FlowBatch.records`.
    #[inline]
    pub fn write(&mut self, record: &Fields) -> &[u8] {
        let mut writer = Writer {
            bytes: &mut self.bytes,
            len: PREFIX_LEN_BYTES,
        };
        writer.record(record);
        let end = writer.len;
        let start = writer.put_prefix();
        &self.bytes[start..end]
    }
}

include!(concat!(env!("OUT_DIR"), "/writer.rs"));

/// Appends the fields of a record. It is a local variable of one function, and all methods are inlined into
/// that function: this keeps `len`, on which the place of each field depends, in a register.
struct Writer<'a> {
    bytes: &'a mut Room,
    len: usize,
}

impl Writer<'_> {
    /// Writes tag and length before the fields. Returns the offset of the tag.
    #[inline(always)]
    fn put_prefix(self) -> usize {
        let len = self.len - PREFIX_LEN_BYTES;
        let [high, low] = [(len >> 7) as u8, (len & 0x7f) as u8];
        if high == 0 {
            self.bytes[1..PREFIX_LEN_BYTES].copy_from_slice(&[RECORDS_TAG, low]);
            1
        } else {
            self.bytes[..PREFIX_LEN_BYTES].copy_from_slice(&[RECORDS_TAG, low | 0x80, high]);
            0
        }
    }

    /// Writes an endpoint: a message whose length is known once it is written.
    #[inline(always)]
    fn endpoint<const FIELD: u32>(&mut self, end: &EndFields) {
        self.tag::<FIELD, LEN>();
        let start = self.len;
        self.byte(0);
        self.end(end);
        let len = self.len - start - 1;
        if len < 0x80 {
            self.bytes[start] = len as u8;
        } else {
            self.len = put_long_len(self.bytes, start, len);
        }
    }

    /// An empty address is not written.
    #[inline(always)]
    fn address<const FIELD: u32>(&mut self, address: &Address) {
        match address.len {
            0 => {}
            4 => self.bytes::<FIELD>(address.bytes.first_chunk::<4>().expect("there are 16")),
            _ => self.bytes::<FIELD>(&address.bytes),
        }
    }

    #[inline(always)]
    fn vlan_ids<const FIELD: u32>(&mut self, VlanIds(ids): VlanIds) {
        if ids == [0, 0] {
            return;
        }
        self.tag::<FIELD, LEN>();
        let len = self.len;
        self.byte(0);
        for id in ids.into_iter().filter(|&id| id != 0) {
            self.varint(u64::from(id));
        }
        self.bytes[len] = (self.len - len - 1) as u8;
    }

    /// Writes a field whose absence means zero.
    #[inline(always)]
    fn count<const FIELD: u32>(&mut self, value: u64) {
        if value != 0 {
            self.value::<FIELD>(value);
        }
    }

    /// Writes an `optional` field, even if it is zero.
    #[inline(always)]
    fn value<const FIELD: u32>(&mut self, value: u64) {
        self.tag::<FIELD, VARINT>();
        self.varint(value);
    }

    /// Like `count`, for values that usually take one byte.
    #[inline(always)]
    fn short_count<const FIELD: u32>(&mut self, value: u64) {
        if value != 0 {
            self.short_value::<FIELD>(value);
        }
    }

    /// Like `value`, for values that usually take one byte.
    #[inline(always)]
    fn short_value<const FIELD: u32>(&mut self, value: u64) {
        self.tag::<FIELD, VARINT>();
        if value < 0x80 {
            self.byte(value as u8);
        } else {
            self.len = put_long_varint(self.bytes, self.len, value);
        }
    }

    #[inline(always)]
    fn fixed64<const FIELD: u32>(&mut self, value: u64) {
        self.tag::<FIELD, FIXED64>();
        self.append(&value.to_le_bytes());
    }

    #[inline(always)]
    fn bytes<const FIELD: u32>(&mut self, bytes: &[u8]) {
        self.tag::<FIELD, LEN>();
        self.byte(bytes.len() as u8);
        self.append(bytes);
    }

    #[inline(always)]
    fn tag<const FIELD: u32, const WIRE_TYPE: u32>(&mut self) {
        let tag = FIELD << 3 | WIRE_TYPE;
        if tag < 0x80 {
            self.byte(tag as u8);
        } else {
            self.append(&[tag as u8 | 0x80, (tag >> 7) as u8]);
        }
    }

    #[inline(always)]
    fn varint(&mut self, value: u64) {
        if value >= 1 << (7 * WORD_LEN_BYTES) {
            self.len = put_long_varint(self.bytes, self.len, value);
            return;
        }
        let (word, len) = short_varint(value);
        self.bytes[self.len..self.len + WORD_LEN_BYTES].copy_from_slice(&word.to_le_bytes());
        self.len += len;
    }

    #[inline(always)]
    fn byte(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    #[inline(always)]
    fn append(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// Makes room for a second byte of a length and writes it. Returns the offset behind the message.
#[cold]
fn put_long_len(bytes: &mut Room, start: usize, len: usize) -> usize {
    let end = start + 1 + len;
    bytes.copy_within(start + 1..end, start + 2);
    bytes[start] = (len & 0x7f) as u8 | 0x80;
    bytes[start + 1] = (len >> 7) as u8;
    end + 1
}

/// Writes a varint that is longer than its field's usually are. Returns the offset behind it.
#[cold]
fn put_long_varint(bytes: &mut Room, at: usize, value: u64) -> usize {
    let mut rest = &mut bytes[at..];
    encode_varint(value, &mut rest);
    size_of::<Room>() - rest.len()
}

/// Encodes 56 bits as a varint in the lower bytes of a word. Returns the word and the varint's length in
/// bytes. It does not branch for each byte: lengths vary from field to field, so branches would be
/// mispredicted.
#[inline(always)]
fn short_varint(value: u64) -> (u64, usize) {
    // Gives each seven bits a byte, by halves.
    let halves = value & 0x0fff_ffff | (value & 0x00ff_ffff_f000_0000) << 4;
    let quarters = halves & 0x0000_3fff_0000_3fff | (halves & 0x0fff_c000_0fff_c000) << 2;
    let sevens = quarters & 0x007f_007f_007f_007f | (quarters & 0x3f80_3f80_3f80_3f80) << 1;
    let len = WORD_LEN_BYTES - (sevens | 1).leading_zeros() as usize / 8;
    let before_last = (1 << (8 * (len - 1))) - 1;
    (sevens | 0x8080_8080_8080_8080 & before_last, len)
}
