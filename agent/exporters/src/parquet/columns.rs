//! The columns of a file: their names and how to get a row's values. docs/parquet.md describes them.

use std::fmt::Write as _;

use formats::{
    human,
    json::{StreamId, community_id, direction_name, end_reason, failure},
};
use proto::{
    AgentIdentity, FlowBatch, FlowRecord, Interface,
    ends::{EndCgroup, EndHost, EndProcess},
};

use super::values::{
    Column,
    Values::{Boolean, Counter, List, Number, Optional, Text, Time},
    column,
};

/// One flow report.
pub(super) struct Row<'a> {
    pub(super) batch: &'a FlowBatch,
    /// The record's index in the batch, from 0.
    pub(super) number: u32,
    pub(super) record: &'a FlowRecord,
    pub(super) interface: Option<&'a Interface>,
}

/// Leading columns in a collector's storage, which has flows of many agents, and possibly duplicates.
pub(super) const OF_A_COLLECTOR: &[Column] = &[
    column(
        "identity",
        Text(|row, text| agent(row, text, |one| &one.identity)),
    ),
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
    column(
        "initiator_assumed",
        Boolean(|row| row.record.initiator_assumed),
    ),
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
    column("duration_ns", Counter(|row| row.record.delta_duration_ns)),
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
    column(
        "src_unit",
        Text(|row, text| sender(row, 0, text, EndCgroup::unit)),
    ),
    column(
        "dst_unit",
        Text(|row, text| sender(row, 1, text, EndCgroup::unit)),
    ),
    column(
        "src_container_id",
        Text(|row, text| sender(row, 0, text, EndCgroup::container_id)),
    ),
    column(
        "dst_container_id",
        Text(|row, text| sender(row, 1, text, EndCgroup::container_id)),
    ),
    column(
        "src_cgroup",
        Text(|row, text| sender(row, 0, text, EndCgroup::path)),
    ),
    column(
        "dst_cgroup",
        Text(|row, text| sender(row, 1, text, EndCgroup::path)),
    ),
    column(
        "src_process",
        Text(|row, text| push(text, maker(row, 0)?.name())),
    ),
    column(
        "dst_process",
        Text(|row, text| push(text, maker(row, 1)?.name())),
    ),
    column(
        "src_sender_shared",
        Boolean(|row| row.record.src_sender_shared),
    ),
    column(
        "dst_sender_shared",
        Boolean(|row| row.record.dst_sender_shared),
    ),
    column(
        "src_pid",
        Optional(32, |row| maker(row, 0).map(EndProcess::pid)),
    ),
    column(
        "dst_pid",
        Optional(32, |row| maker(row, 1).map(EndProcess::pid)),
    ),
    column("src_uid", Optional(32, |row| maker(row, 0)?.uid())),
    column("dst_uid", Optional(32, |row| maker(row, 1)?.uid())),
    column(
        "src_tcp_rtt_us",
        Optional(32, |row| row.record.src_tcp_rtt_us),
    ),
    column(
        "dst_tcp_rtt_us",
        Optional(32, |row| row.record.dst_tcp_rtt_us),
    ),
    column(
        "src_tcp_min_rtt_us",
        Optional(32, |row| row.record.src_tcp_min_rtt_us),
    ),
    column(
        "dst_tcp_min_rtt_us",
        Optional(32, |row| row.record.dst_tcp_min_rtt_us),
    ),
    column(
        "src_tcp_total_retrans",
        Optional(32, |row| row.record.src_tcp_total_retrans),
    ),
    column(
        "dst_tcp_total_retrans",
        Optional(32, |row| row.record.dst_tcp_total_retrans),
    ),
    column(
        "src_tcp_delivered",
        Optional(32, |row| row.record.src_tcp_delivered),
    ),
    column(
        "dst_tcp_delivered",
        Optional(32, |row| row.record.dst_tcp_delivered),
    ),
    column(
        "src_tcp_delivered_ce",
        Optional(32, |row| row.record.src_tcp_delivered_ce),
    ),
    column(
        "dst_tcp_delivered_ce",
        Optional(32, |row| row.record.dst_tcp_delivered_ce),
    ),
    column(
        "src_tcp_data_segs_out",
        Optional(32, |row| row.record.src_tcp_data_segs_out),
    ),
    column(
        "dst_tcp_data_segs_out",
        Optional(32, |row| row.record.dst_tcp_data_segs_out),
    ),
    column(
        "src_handshake_rtt_us",
        Optional(32, |row| row.record.src_handshake_rtt_us),
    ),
    column(
        "dst_handshake_rtt_us",
        Optional(32, |row| row.record.dst_handshake_rtt_us),
    ),
    column(
        "src_ack_rtt_us",
        Optional(32, |row| row.record.src_ack_rtt_us),
    ),
    column(
        "dst_ack_rtt_us",
        Optional(32, |row| row.record.dst_ack_rtt_us),
    ),
    column(
        "total_dropped_packets",
        Counter(|row| row.record.total_dropped_packets),
    ),
    column(
        "total_reverse_dropped_packets",
        Counter(|row| row.record.total_reverse_dropped_packets),
    ),
    column("failure", Text(|row, text| push(text, failure(row.record)))),
    column(
        "icmp_error_type",
        Optional(8, |row| row.record.icmp_error_type),
    ),
    column(
        "icmp_error_code",
        Optional(8, |row| row.record.icmp_error_code),
    ),
    column(
        "src_host",
        Text(|row, text| push(text, Some(host(row, 0)?.name))),
    ),
    column(
        "dst_host",
        Text(|row, text| push(text, Some(host(row, 1)?.name))),
    ),
    column(
        "src_host_source",
        Text(|row, text| push(text, Some(host(row, 0)?.source()))),
    ),
    column(
        "dst_host_source",
        Text(|row, text| push(text, Some(host(row, 1)?.source()))),
    ),
    column("sample_rate", Number(32, |row| row.batch.sample_rate)),
];

fn maker<'a>(row: &Row<'a>, end: usize) -> Option<EndProcess<'a>> {
    EndProcess::both(row.batch, row.record)[end]
}

fn host<'a>(row: &Row<'a>, end: usize) -> Option<EndHost<'a>> {
    EndHost::both(row.batch, row.record)[end]
}

fn sender<'a>(
    row: &Row<'a>,
    end: usize,
    text: &mut String,
    of: fn(EndCgroup<'a>) -> Option<&'a str>,
) -> Option<()> {
    push(text, of(EndCgroup::both(row.batch, row.record)[end]?))
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
