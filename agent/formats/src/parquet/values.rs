//! Column types, and how to write the values of rows.

use std::{
    fmt::Write as _,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

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
use proto::columns;

use super::columns::Row;
use crate::{human, json::community_id};

const ADDRESS_LEN_BYTES: i32 = 16;
/// Most text of one column in memory at once. Each row may repeat a long interface name.
const MUCH_TEXT_BYTES: usize = 1 << 20;

#[derive(Clone, Copy)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) values: Values,
    /// For a database: times as nanoseconds, up to the year 2262, and addresses as IPv6 addresses, or IPv4-mapped ones.
    /// In files, times are microseconds, which every reader supports, and addresses are text.
    is_native: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Values {
    Boolean(fn(&Row) -> bool),
    /// Unsigned, with this many bits.
    Number(i8, fn(&Row) -> u32),
    /// Unsigned, with 64 bits.
    Counter(fn(&Row) -> u64),
    /// Unix time in nanoseconds.
    Time(fn(&Row) -> u64),
    /// Appends the value. Returns `None` if there is none.
    Text(fn(&Row, &mut String) -> Option<()>),
    /// A fact about the flow.
    Fact(columns::Values),
}

use Values::{Boolean, Counter, Fact, Number, Text, Time};

pub(super) const fn column(name: &'static str, values: Values) -> Column {
    Column {
        name,
        values,
        is_native: false,
    }
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
    pub(super) const fn native(self) -> Self {
        Self {
            is_native: true,
            ..self
        }
    }

    fn field(&self) -> Result<Type> {
        let unsigned = |bits: i8| Some(LogicalType::integer(bits, false));
        let repetition = |is_required| {
            if is_required {
                Repetition::REQUIRED
            } else {
                Repetition::OPTIONAL
            }
        };
        let (physical, is_required, logical) = match self.values {
            Boolean(_) | Fact(columns::Values::Flag(_)) => (Physical::BOOLEAN, true, None),
            Number(bits, _) => (Physical::INT32, true, unsigned(bits)),
            Fact(columns::Values::Number {
                bits, is_required, ..
            }) => (Physical::INT32, is_required, unsigned(bits)),
            Counter(_) | Fact(columns::Values::Counter(_)) => (Physical::INT64, true, unsigned(64)),
            Fact(columns::Values::Id(_)) => (Physical::INT64, false, unsigned(64)),
            Time(_) | Fact(columns::Values::Time(_)) => {
                let unit = if self.is_native {
                    TimeUnit::NANOS
                } else {
                    TimeUnit::MICROS
                };
                let logical = LogicalType::timestamp(true, unit);
                (Physical::INT64, true, Some(logical))
            }
            Fact(columns::Values::Address { is_required, .. }) if self.is_native => {
                (Physical::FIXED_LEN_BYTE_ARRAY, is_required, None)
            }
            Text(_)
            | Fact(
                columns::Values::Address { .. }
                | columns::Values::Digest(_)
                | columns::Values::Text(_),
            ) => (Physical::BYTE_ARRAY, false, Some(LogicalType::String)),
            Fact(columns::Values::Numbers(_)) => return self.list(),
        };
        Type::primitive_type_builder(self.name, physical)
            .with_repetition(repetition(is_required))
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
        let facts = || rows.iter().map(|row| &row.facts);
        match self.values {
            Boolean(of) => flags(writer, rows.iter().map(of)),
            Number(_, of) => numbers(writer, rows.iter().map(|row| Some(of(row))), true),
            Counter(of) => counters(writer, rows.iter().map(of)),
            Time(of) => self.times(writer, rows.iter().map(of)),
            Text(of) => write_texts(get_typed_column_writer_mut(writer), rows, of),
            Fact(fact) => match fact {
                columns::Values::Flag(of) => flags(writer, facts().map(of)),
                columns::Values::Number {
                    is_required, of, ..
                } => numbers(writer, facts().map(of), is_required),
                columns::Values::Counter(of) => counters(writer, facts().map(of)),
                columns::Values::Id(of) => ids(writer, facts().map(of)),
                columns::Values::Time(of) => self.times(writer, facts().map(of)),
                columns::Values::Address { is_required, of } if self.is_native => {
                    addresses(writer, facts().map(of), is_required)
                }
                columns::Values::Numbers(of) => lists(writer, facts().map(of)),
                columns::Values::Address { of, .. } => texts(writer, rows, |row, text| {
                    write!(text, "{}", human::address(of(&row.facts))?).ok()
                }),
                columns::Values::Digest(of) => texts(writer, rows, |row, text| {
                    write!(text, "{}", community_id(of(&row.facts))?).ok()
                }),
                columns::Values::Text(of) => texts(writer, rows, |row, text| {
                    text.push_str(of(&row.facts)?);
                    Some(())
                }),
            },
        }
        .map(drop)
    }

    fn times(
        &self,
        writer: &mut ColumnWriter<'_>,
        unix_ns: impl Iterator<Item = u64>,
    ) -> Result<usize> {
        let most = i64::MAX.cast_unsigned();
        let of = |unix_ns: u64| {
            if self.is_native {
                unix_ns.min(most)
            } else {
                unix_ns / 1_000
            }
        };
        counters(writer, unix_ns.map(of))
    }
}

fn flags(writer: &mut ColumnWriter<'_>, values: impl Iterator<Item = bool>) -> Result<usize> {
    let values: Vec<bool> = values.collect();
    get_typed_column_writer_mut::<BoolType>(writer).write_batch(&values, None, None)
}

fn counters(writer: &mut ColumnWriter<'_>, values: impl Iterator<Item = u64>) -> Result<usize> {
    let values: Vec<i64> = values.map(u64::cast_signed).collect();
    get_typed_column_writer_mut::<Int64Type>(writer).write_batch(&values, None, None)
}

fn ids(
    writer: &mut ColumnWriter<'_>,
    all: impl Iterator<Item = Option<u64>> + Clone,
) -> Result<usize> {
    let levels = levels(all.clone());
    let values: Vec<i64> = all.flatten().map(u64::cast_signed).collect();
    get_typed_column_writer_mut::<Int64Type>(writer).write_batch(&values, Some(&levels), None)
}

fn numbers(
    writer: &mut ColumnWriter<'_>,
    all: impl Iterator<Item = Option<u32>> + Clone,
    is_required: bool,
) -> Result<usize> {
    let levels = (!is_required).then(|| levels(all.clone()));
    let values: Vec<i32> = all.flatten().map(u32::cast_signed).collect();
    let writer = get_typed_column_writer_mut::<Int32Type>(writer);
    writer.write_batch(&values, levels.as_deref(), None)
}

fn lists<'a>(
    writer: &mut ColumnWriter<'_>,
    lists: impl Iterator<Item = &'a [u32]>,
) -> Result<usize> {
    let (mut defined, mut repeated, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for list in lists {
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

/// Addresses of the database. A missing address of an end is `::`.
fn addresses<'a>(
    writer: &mut ColumnWriter<'_>,
    addresses: impl Iterator<Item = &'a [u8]> + Clone,
    is_required: bool,
) -> Result<usize> {
    let all = addresses.map(ipv6);
    let writer = get_typed_column_writer_mut::<FixedLenByteArrayType>(writer);
    if is_required {
        let or_none = |address: Option<Ipv6Addr>| address.unwrap_or(Ipv6Addr::UNSPECIFIED);
        let values: Vec<_> = all.map(or_none).map(bytes_of).collect();
        return writer.write_batch(&values, None, None);
    }
    let levels = levels(all.clone());
    let values: Vec<_> = all.flatten().map(bytes_of).collect();
    writer.write_batch(&values, Some(&levels), None)
}

fn ipv6(address: &[u8]) -> Option<Ipv6Addr> {
    Some(match human::address(address)? {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    })
}

/// Whether each value is there.
fn levels<T>(values: impl Iterator<Item = Option<T>>) -> Vec<i16> {
    values.map(|value| value.is_some().into()).collect()
}

fn texts(
    writer: &mut ColumnWriter<'_>,
    rows: &[Row],
    of: impl Fn(&Row, &mut String) -> Option<()>,
) -> Result<usize> {
    write_texts(get_typed_column_writer_mut(writer), rows, of)
}

/// Writes texts. Returns their number.
fn write_texts(
    writer: &mut ColumnWriterImpl<'_, ByteArrayType>,
    rows: &[Row],
    of: impl Fn(&Row, &mut String) -> Option<()>,
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
