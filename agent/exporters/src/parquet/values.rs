//! Column types, and how to write the values of rows.

use std::{net::Ipv6Addr, sync::Arc};

use bytes::Bytes;
use parquet::{
    basic::{LogicalType, Repetition, TimeUnit, Type as Physical},
    column::writer::{ColumnWriter, ColumnWriterImpl, get_typed_column_writer_mut},
    data_type::{
        BoolType, ByteArray, ByteArrayType, FixedLenByteArray, FixedLenByteArrayType, Int32Type,
        Int64Type,
    },
    errors::Result,
    schema::types::{Type, TypePtr},
};

use super::columns::Row;

const ADDRESS_LEN_BYTES: i32 = 16;
/// Most text of one column in memory at once. Each row may repeat a long interface name.
const MUCH_TEXT_BYTES: usize = 1 << 20;

#[derive(Clone, Copy)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) values: Values,
}

#[derive(Clone, Copy)]
pub(super) enum Values {
    Boolean(fn(&Row) -> bool),
    /// Unsigned, with this many bits.
    Number(i8, fn(&Row) -> u32),
    Optional(i8, fn(&Row) -> Option<u32>),
    /// A list of 16-bit numbers.
    List(for<'a> fn(&Row<'a>) -> &'a [u32]),
    /// Unsigned, with 64 bits.
    Counter(fn(&Row) -> u64),
    /// From Unix time in nanoseconds. The column has microseconds, which every reader supports.
    Time(fn(&Row) -> u64),
    /// The same as nanoseconds, up to the year 2262.
    Nanos(fn(&Row) -> u64),
    /// An IPv6 address, or an IPv4-mapped one.
    Address(fn(&Row) -> Ipv6Addr),
    OptionalAddress(fn(&Row) -> Option<Ipv6Addr>),
    /// Appends the value. Returns `None` if there is none.
    Text(fn(&Row, &mut String) -> Option<()>),
}

use Values::{
    Address, Boolean, Counter, List, Nanos, Number, Optional, OptionalAddress, Text, Time,
};

pub(super) const fn column(name: &'static str, values: Values) -> Column {
    Column { name, values }
}

pub(super) fn schema(columns: &[&Column]) -> Result<TypePtr> {
    let fields: Result<Vec<TypePtr>> = columns
        .iter()
        .map(|column| column.field().map(Arc::new))
        .collect();
    let schema = Type::group_type_builder("flow").with_fields(fields?);
    Ok(Arc::new(schema.build()?))
}

impl Column {
    fn field(&self) -> Result<Type> {
        let unsigned = |bits: i8| Some(LogicalType::integer(bits, false));
        let (physical, repetition, logical) = match self.values {
            Boolean(_) => (Physical::BOOLEAN, Repetition::REQUIRED, None),
            Number(bits, _) => (Physical::INT32, Repetition::REQUIRED, unsigned(bits)),
            Optional(bits, _) => (Physical::INT32, Repetition::OPTIONAL, unsigned(bits)),
            Counter(_) => (Physical::INT64, Repetition::REQUIRED, unsigned(64)),
            Time(_) => {
                let micros = LogicalType::timestamp(true, TimeUnit::MICROS);
                (Physical::INT64, Repetition::REQUIRED, Some(micros))
            }
            Nanos(_) => {
                let nanos = LogicalType::timestamp(true, TimeUnit::NANOS);
                (Physical::INT64, Repetition::REQUIRED, Some(nanos))
            }
            Address(_) => (Physical::FIXED_LEN_BYTE_ARRAY, Repetition::REQUIRED, None),
            OptionalAddress(_) => (Physical::FIXED_LEN_BYTE_ARRAY, Repetition::OPTIONAL, None),
            Text(_) => {
                let text = Some(LogicalType::String);
                (Physical::BYTE_ARRAY, Repetition::OPTIONAL, text)
            }
            List(_) => return self.list(),
        };
        Type::primitive_type_builder(self.name, physical)
            .with_repetition(repetition)
            .with_logical_type(logical)
            // Other types have no length, which is -1.
            .with_length(if physical == Physical::FIXED_LEN_BYTE_ARRAY {
                ADDRESS_LEN_BYTES
            } else {
                -1
            })
            .build()
    }

    /// A list type with three levels, as the Parquet specification requires.
    fn list(&self) -> Result<Type> {
        let element = Type::primitive_type_builder("element", Physical::INT32)
            .with_repetition(Repetition::REQUIRED)
            .with_logical_type(Some(LogicalType::integer(16, false)))
            .build()?;
        let list = Type::group_type_builder("list")
            .with_repetition(Repetition::REPEATED)
            .with_fields(vec![Arc::new(element)])
            .build()?;
        Type::group_type_builder(self.name)
            .with_repetition(Repetition::REQUIRED)
            .with_logical_type(Some(LogicalType::List))
            .with_fields(vec![Arc::new(list)])
            .build()
    }

    /// Appends the values of these rows to the column writer.
    pub(super) fn write(&self, writer: &mut ColumnWriter<'_>, rows: &[Row]) -> Result<()> {
        match self.values {
            Boolean(of) => {
                let values: Vec<bool> = rows.iter().map(of).collect();
                get_typed_column_writer_mut::<BoolType>(writer).write_batch(&values, None, None)
            }
            Number(_, of) => {
                let values: Vec<i32> = rows.iter().map(|row| of(row).cast_signed()).collect();
                get_typed_column_writer_mut::<Int32Type>(writer).write_batch(&values, None, None)
            }
            Optional(_, of) => {
                let all = rows.iter().map(of);
                let levels: Vec<i16> = all.clone().map(|value| value.is_some().into()).collect();
                let values: Vec<i32> = all.flatten().map(u32::cast_signed).collect();
                let writer = get_typed_column_writer_mut::<Int32Type>(writer);
                writer.write_batch(&values, Some(&levels), None)
            }
            List(of) => {
                let (mut defined, mut repeated, mut values) = (Vec::new(), Vec::new(), Vec::new());
                for list in rows.iter().map(of) {
                    let more = list.len().saturating_sub(1);
                    defined.push((!list.is_empty()).into());
                    defined.extend(std::iter::repeat_n(1, more));
                    repeated.push(0);
                    repeated.extend(std::iter::repeat_n(1, more));
                    values.extend(list.iter().map(|value| value.cast_signed()));
                }
                let writer = get_typed_column_writer_mut::<Int32Type>(writer);
                writer.write_batch(&values, Some(&defined), Some(&repeated))
            }
            Counter(of) => {
                let values: Vec<i64> = rows.iter().map(|row| of(row).cast_signed()).collect();
                get_typed_column_writer_mut::<Int64Type>(writer).write_batch(&values, None, None)
            }
            Time(of) => {
                let micros = |row| (of(row) / 1_000).cast_signed();
                let values: Vec<i64> = rows.iter().map(micros).collect();
                get_typed_column_writer_mut::<Int64Type>(writer).write_batch(&values, None, None)
            }
            Nanos(of) => {
                let most = i64::MAX.cast_unsigned();
                let nanos = |row| of(row).min(most).cast_signed();
                let values: Vec<i64> = rows.iter().map(nanos).collect();
                get_typed_column_writer_mut::<Int64Type>(writer).write_batch(&values, None, None)
            }
            Address(of) => {
                let values: Vec<_> = rows.iter().map(|row| bytes_of(of(row))).collect();
                let writer = get_typed_column_writer_mut::<FixedLenByteArrayType>(writer);
                writer.write_batch(&values, None, None)
            }
            OptionalAddress(of) => {
                let all = rows.iter().map(of);
                let levels: Vec<i16> = all.clone().map(|value| value.is_some().into()).collect();
                let values: Vec<_> = all.flatten().map(bytes_of).collect();
                let writer = get_typed_column_writer_mut::<FixedLenByteArrayType>(writer);
                writer.write_batch(&values, Some(&levels), None)
            }
            Text(of) => write_texts(get_typed_column_writer_mut(writer), rows, of),
        }
        .map(drop)
    }
}

/// Writes texts. Returns their number.
fn write_texts(
    writer: &mut ColumnWriterImpl<'_, ByteArrayType>,
    rows: &[Row],
    of: fn(&Row, &mut String) -> Option<()>,
) -> Result<usize> {
    let (mut rest, mut written) = (rows.iter(), 0);
    while rest.len() > 0 {
        // Allocate once for many values.
        let (mut text, mut levels, mut ranges) = (String::new(), Vec::new(), Vec::new());
        for row in rest.by_ref() {
            let begin = text.len();
            let is_there = of(row, &mut text).is_some();
            levels.push(is_there.into());
            ranges.extend(is_there.then_some(begin..text.len()));
            if text.len() >= MUCH_TEXT_BYTES {
                break;
            }
        }
        let text = Bytes::from(text);
        let values = ranges.into_iter().map(|range| text.slice(range));
        let values: Vec<ByteArray> = values.map(ByteArray::from).collect();
        written += writer.write_batch(&values, Some(&levels), None)?;
    }
    Ok(written)
}

fn bytes_of(address: Ipv6Addr) -> FixedLenByteArray {
    ByteArray::from(address.octets().to_vec()).into()
}
