//! The columns of a file: their names and types, and where a row's values come from. docs/parquet.md says what they mean.

use std::{fmt::Write as _, ops::Range, sync::Arc};

use bytes::Bytes;
use parquet::{
    basic::{LogicalType, Repetition, TimeUnit, Type as Physical},
    column::writer::{ColumnWriter, get_typed_column_writer_mut},
    data_type::{BoolType, ByteArray, ByteArrayType, Int32Type, Int64Type},
    errors::Result,
    schema::types::{Type, TypePtr},
};

use crate::{
    output::{
        human,
        json::{StreamId, community_id, direction_name, end_reason},
    },
    proto::{AgentIdentity, FlowBatch, FlowRecord, Interface},
};

/// A flow report.
pub(super) struct Row<'a> {
    pub(super) batch: &'a FlowBatch,
    /// The record's number in the batch, from 0.
    pub(super) number: u32,
    pub(super) record: &'a FlowRecord,
    pub(super) interface: Option<&'a Interface>,
}

pub(super) struct Column {
    name: &'static str,
    values: Values,
}

enum Values {
    Boolean(fn(&Row) -> bool),
    /// Unsigned, with this many bits.
    Number(i8, fn(&Row) -> u32),
    Optional(i8, fn(&Row) -> Option<u32>),
    /// Of 16 bits.
    List(for<'a> fn(&Row<'a>) -> &'a [u32]),
    /// Unsigned, with 64 bits.
    Counter(fn(&Row) -> u64),
    /// Gets Unix time in nanoseconds. Columns have microseconds, which every reader knows.
    Time(fn(&Row) -> u64),
    /// Appends the value, if there is one.
    Text(fn(&Row, &mut String) -> Option<()>),
}

use Values::{Boolean, Counter, List, Number, Optional, Text, Time};

const fn column(name: &'static str, values: Values) -> Column {
    Column { name, values }
}

/// In front of the others in what a collector stores, which comes from many agents, and may come again.
pub(super) const OF_A_COLLECTOR: &[Column] = &[
    column(
        "agent_id",
        Text(|row, text| agent(row, text, |one| &one.agent_id)),
    ),
    column(
        "hostname",
        Text(|row, text| agent(row, text, |one| &one.hostname)),
    ),
    column(
        "boot_id",
        Text(|row, text| agent(row, text, |one| &one.boot_id)),
    ),
    column(
        "instance_id",
        Text(|row, text| agent(row, text, |one| &one.instance_id)),
    ),
    column("stream_id", Text(stream_id)),
    column("record", Number(32, |row| row.number)),
];

pub(super) const COLUMNS: &[Column] = &[
    column("scan_id", Counter(|row| row.batch.scan_id)),
    column("stream_seq", Counter(|row| row.batch.stream_seq)),
    column("window_start", Time(|row| row.batch.window_start_unix_ns)),
    column("window_end", Time(|row| row.batch.window_end_unix_ns)),
    column("interface", Text(interface)),
    column("ifindex", Number(32, |row| row.record.ifindex)),
    column("netns", Number(32, |row| row.record.netns)),
    column("netns_name", Text(netns_name)),
    column("direction", Text(|row, text| direction(row, 0, text))),
    column(
        "reverse_direction",
        Text(|row, text| direction(row, 1, text)),
    ),
    column("vlan_ids", List(|row| &row.record.vlan_ids)),
    column("ip_version", Number(8, |row| row.record.ip_version)),
    column("protocol", Number(8, |row| row.record.protocol)),
    column(
        "src_addr",
        Text(|row, text| address(&row.record.src_addr, text)),
    ),
    column("src_port", Optional(16, |row| row.record.src_port)),
    column(
        "dst_addr",
        Text(|row, text| address(&row.record.dst_addr, text)),
    ),
    column("dst_port", Optional(16, |row| row.record.dst_port)),
    column("icmp_type", Optional(8, |row| row.record.icmp_type)),
    column("icmp_code", Optional(8, |row| row.record.icmp_code)),
    column(
        "icmp_identifier",
        Optional(16, |row| row.record.icmp_identifier),
    ),
    column("later_fragment", Boolean(|row| row.record.later_fragment)),
    column("packets", Counter(|row| row.record.delta_packets)),
    column("bytes", Counter(|row| row.record.delta_bytes)),
    column(
        "reverse_packets",
        Counter(|row| row.record.delta_reverse_packets),
    ),
    column(
        "reverse_bytes",
        Counter(|row| row.record.delta_reverse_bytes),
    ),
    column("ip_bytes", Counter(|row| row.record.delta_ip_bytes)),
    column(
        "reverse_ip_bytes",
        Counter(|row| row.record.delta_reverse_ip_bytes),
    ),
    column("total_packets", Counter(|row| row.record.total_packets)),
    column("total_bytes", Counter(|row| row.record.total_bytes)),
    column(
        "total_reverse_packets",
        Counter(|row| row.record.total_reverse_packets),
    ),
    column(
        "total_reverse_bytes",
        Counter(|row| row.record.total_reverse_bytes),
    ),
    column("total_ip_bytes", Counter(|row| row.record.total_ip_bytes)),
    column(
        "total_reverse_ip_bytes",
        Counter(|row| row.record.total_reverse_ip_bytes),
    ),
    column("first_seen", Time(|row| row.record.first_seen_unix_ns)),
    column("last_seen", Time(|row| row.record.last_seen_unix_ns)),
    column("tcp_flags", Optional(8, |row| row.record.tcp_flags)),
    column(
        "reverse_tcp_flags",
        Optional(8, |row| row.record.reverse_tcp_flags),
    ),
    column("dscp", Optional(8, |row| row.record.dscp)),
    column(
        "end_reason",
        Text(|row, text| push(text, end_reason(row.record))),
    ),
    column(
        "community_id",
        Text(|row, text| community_id(row.record, text)),
    ),
    column(
        "encapsulation",
        Text(|row, text| push(text, human::encapsulation(row.record))),
    ),
    column("tunnel_id", Optional(32, |row| row.record.tunnel_id)),
    column(
        "outer_src_addr",
        Text(|row, text| address(&row.record.outer_src_addr, text)),
    ),
    column(
        "outer_dst_addr",
        Text(|row, text| address(&row.record.outer_dst_addr, text)),
    ),
    column("outer_vlan_ids", List(|row| &row.record.outer_vlan_ids)),
    column(
        "outer_pppoe_session",
        Optional(16, |row| row.record.outer_pppoe_session),
    ),
    column("sample_rate", Number(32, |row| row.batch.sample_rate)),
];

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
            Text(_) => {
                let text = Some(LogicalType::String);
                (Physical::BYTE_ARRAY, Repetition::OPTIONAL, text)
            }
            List(_) => return self.list(),
        };
        Type::primitive_type_builder(self.name, physical)
            .with_repetition(repetition)
            .with_logical_type(logical)
            .build()
    }

    /// Three levels, as the format's specification says.
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

    /// Appends the values of these rows to the column's writer.
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
            Text(of) => {
                // One allocation for all values.
                let (mut text, mut levels) = (String::new(), Vec::with_capacity(rows.len()));
                let mut ranges: Vec<Range<usize>> = Vec::with_capacity(rows.len());
                for row in rows {
                    let begin = text.len();
                    let is_there = of(row, &mut text).is_some();
                    levels.push(is_there.into());
                    ranges.extend(is_there.then_some(begin..text.len()));
                }
                let text = Bytes::from(text);
                let values = ranges.into_iter().map(|range| text.slice(range));
                let values: Vec<ByteArray> = values.map(ByteArray::from).collect();
                let writer = get_typed_column_writer_mut::<ByteArrayType>(writer);
                writer.write_batch(&values, Some(&levels), None)
            }
        }
        .map(drop)
    }
}

fn push(text: &mut String, value: Option<&str>) -> Option<()> {
    text.push_str(value?);
    Some(())
}

fn agent(row: &Row, text: &mut String, of: fn(&AgentIdentity) -> &String) -> Option<()> {
    push(text, Some(of(row.batch.agent.as_ref()?)))
}

fn stream_id(row: &Row, text: &mut String) -> Option<()> {
    write!(text, "{}", StreamId(row.batch.stream_id)).ok()
}

fn interface(row: &Row, text: &mut String) -> Option<()> {
    push(text, Some(&row.interface?.name))
}

fn netns_name(row: &Row, text: &mut String) -> Option<()> {
    let name = row.interface?.netns_name.as_str();
    push(text, (!name.is_empty()).then_some(name))
}

fn direction(row: &Row, way: usize, text: &mut String) -> Option<()> {
    push(text, human::directions(row.record)[way].map(direction_name))
}

fn address(address: &[u8], text: &mut String) -> Option<()> {
    write!(text, "{}", human::address(address)?).ok()
}
