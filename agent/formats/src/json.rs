//! Writes batches as JSON Lines: one line for each flow, account and loss.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    io::{self, Write},
    net::IpAddr,
};

use base64::{display::Base64Display, engine::general_purpose::STANDARD};
use proto::{
    Account, AgentIdentity, Count, Direction, EndReason, Failure, FlowBatch, FlowRecord, Interface,
    ends::{EndCgroup, EndHost, EndProcess},
    known_interfaces::KnownInterfaces,
    round_trip::RoundTrip,
    tcp::Tcp,
};
use serde::{Serialize, Serializer};

use self::dns::DnsLine;
use self::senders::{
    DESTINATION, DESTINATION_HOST, DESTINATION_PROCESS, DESTINATION_ROUND_TRIP, DESTINATION_TCP,
    HostOfEnd, OfEnd, ProcessOfEnd, RoundTripOfEnd, SOURCE, SOURCE_HOST, SOURCE_PROCESS,
    SOURCE_ROUND_TRIP, SOURCE_TCP, TcpOfEnd,
};
use super::{LostSoFar, harmless, human};

mod dns;
mod senders;
#[cfg(test)]
mod tests;

/// Writes whole batches, and flushes after each.
pub struct JsonWriter<W: Write> {
    out: W,
    lines: JsonLines,
    lost: LostSoFar,
}

impl<W: Write> JsonWriter<W> {
    pub fn new(out: W) -> Self {
        Self {
            out,
            lines: JsonLines::default(),
            lost: LostSoFar::default(),
        }
    }

    pub fn batch(&mut self, batch: &FlowBatch) -> io::Result<()> {
        let Self { out, lines, lost } = self;
        lines.begin(out, batch, lost)?;
        lines.flows(out, batch, &batch.records)?;
        lines.exchanges(out, batch)?;
        lines.end(out, batch)?;
        out.flush()
    }
}

/// Makes the lines of a batch. Call `begin`, then write its flows, then `end`.
#[derive(Default)]
pub struct JsonLines {
    line: Vec<u8>,
    interfaces: KnownInterfaces,
}

impl JsonLines {
    /// The line for losses before the batch.
    pub fn begin(
        &mut self,
        out: &mut impl Write,
        batch: &FlowBatch,
        lost: &mut LostSoFar,
    ) -> io::Result<()> {
        self.interfaces.note_all(batch);
        if let Some((batches, records)) = lost.growth(batch) {
            let line = LostLine {
                r#type: "lost",
                origin: Origin::of(batch),
                stream_seq: batch.stream_seq,
                batches,
                records,
                lost_batches: batch.lost_batches,
                lost_records: batch.lost_records,
                lost_packets: batch.lost_packets,
                lost_bytes: batch.lost_bytes,
            };
            write_line(out, &mut self.line, &line)?;
        }
        Ok(())
    }

    pub fn flows(
        &mut self,
        out: &mut impl Write,
        batch: &FlowBatch,
        flows: &[FlowRecord],
    ) -> io::Result<()> {
        for record in flows {
            let interface = self.interfaces.of(record);
            let line = FlowLine::new(batch, record, interface);
            write_line(out, &mut self.line, &line)?;
        }
        Ok(())
    }

    /// The flows of a whole batch with their numbers in it, so that a reader can recognize a line that was sent twice.
    pub fn numbered_flows(&mut self, out: &mut impl Write, batch: &FlowBatch) -> io::Result<()> {
        for (record, number) in batch.records.iter().zip(0..) {
            let interface = self.interfaces.of(record);
            let line = FlowLine {
                record: Some(number),
                ..FlowLine::new(batch, record, interface)
            };
            write_line(out, &mut self.line, &line)?;
        }
        Ok(())
    }

    /// The DNS exchanges.
    pub fn exchanges(&mut self, out: &mut impl Write, batch: &FlowBatch) -> io::Result<()> {
        for (exchange, number) in batch.dns_exchanges.iter().zip(0..) {
            let interface = self.interfaces.of(&exchange.flow());
            let line = DnsLine::new(batch, exchange, number, interface);
            write_line(out, &mut self.line, &line)?;
        }
        Ok(())
    }

    /// The account, if the batch has one.
    pub fn end(&mut self, out: &mut impl Write, batch: &FlowBatch) -> io::Result<()> {
        let Some(account) = &batch.account else {
            return Ok(());
        };
        write_line(out, &mut self.line, &AccountLine::new(batch, account))
    }
}

/// The only ASCII control character that JSON does not escape.
const DELETE: u8 = 0x7f;

fn write_line(out: &mut impl Write, buffer: &mut Vec<u8>, line: &impl Serialize) -> io::Result<()> {
    buffer.clear();
    serde_json::to_writer(&mut *buffer, line)?;
    buffer.push(b'\n');
    if buffer.is_ascii() && !buffer.contains(&DELETE) {
        return out.write_all(buffer);
    }
    // The output may go to a terminal.
    let line = String::from_utf8_lossy(buffer);
    out.write_all(harmless::json(&line).as_bytes())
}

/// The origin of a batch that went through a collector. Other batches come from one agent, which the reader knows.
#[derive(Clone, Copy, Serialize)]
struct Origin<'a> {
    /// Absent in files of older collectors.
    #[serde(skip_serializing_if = "str::is_empty")]
    identity: &'a str,
    agent_id: &'a str,
    hostname: &'a str,
    boot_id: &'a str,
    instance_id: &'a str,
    stream_id: StreamId,
}

impl<'a> Origin<'a> {
    fn of(batch: &'a FlowBatch) -> Option<Self> {
        let AgentIdentity {
            agent_id,
            hostname,
            boot_id,
            instance_id,
            identity,
            ..
        } = batch.agent.as_ref()?;
        (batch.stream_id != 0).then_some(Self {
            identity,
            agent_id,
            hostname,
            boot_id,
            instance_id,
            stream_id: StreamId(batch.stream_id),
        })
    }
}

/// 16 hexadecimal digits, since many JSON readers keep only 53 bits of a number.
#[derive(Clone, Copy)]
pub struct StreamId(pub u64);

impl Serialize for StreamId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

#[derive(Serialize)]
struct FlowLine<'a> {
    r#type: &'static str,
    #[serde(flatten)]
    origin: Option<Origin<'a>>,
    scan_id: u64,
    batch: u32,
    stream_seq: u64,
    /// Only in a collector's storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<u32>,
    /// Only if true.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    snapshot: bool,
    interface: Option<&'a str>,
    ifindex: u32,
    direction: Option<&'static str>,
    reverse_direction: Option<&'static str>,
    netns: u32,
    netns_name: Option<&'a str>,
    vlan_ids: &'a [u32],
    ip_version: u32,
    protocol: u32,
    src_addr: Option<IpAddr>,
    src_port: Option<u32>,
    dst_addr: Option<IpAddr>,
    dst_port: Option<u32>,
    icmp_type: Option<u32>,
    icmp_code: Option<u32>,
    icmp_identifier: Option<u32>,
    later_fragment: bool,
    initiator_assumed: bool,
    packets: u64,
    bytes: u64,
    reverse_packets: u64,
    reverse_bytes: u64,
    ip_bytes: u64,
    reverse_ip_bytes: u64,
    total_packets: u64,
    total_bytes: u64,
    total_reverse_packets: u64,
    total_reverse_bytes: u64,
    total_ip_bytes: u64,
    total_reverse_ip_bytes: u64,
    first_seen_ns: u64,
    last_seen_ns: u64,
    duration_ns: u64,
    tcp_flags: Option<u32>,
    reverse_tcp_flags: Option<u32>,
    dscp: Option<u32>,
    end_reason: Option<&'static str>,
    /// Only for failed flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp_error_type: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp_error_code: Option<u32>,
    community_id: CommunityId<'a>,
    encapsulation: Option<&'static str>,
    tunnel_id: Option<u32>,
    outer_src_addr: Option<IpAddr>,
    outer_dst_addr: Option<IpAddr>,
    outer_vlan_ids: &'a [u32],
    outer_pppoe_session: Option<u32>,
    /// Only if the agent looks up senders, and only for an end that has one.
    #[serde(flatten)]
    source: Option<OfEnd<'a>>,
    #[serde(flatten)]
    destination: Option<OfEnd<'a>>,
    #[serde(flatten)]
    source_process: Option<ProcessOfEnd<'a>>,
    #[serde(flatten)]
    destination_process: Option<ProcessOfEnd<'a>>,
    #[serde(flatten)]
    source_host: Option<HostOfEnd<'a>>,
    #[serde(flatten)]
    destination_host: Option<HostOfEnd<'a>>,
    #[serde(flatten)]
    source_tcp: Option<TcpOfEnd>,
    #[serde(flatten)]
    destination_tcp: Option<TcpOfEnd>,
    #[serde(flatten)]
    source_round_trip: RoundTripOfEnd,
    #[serde(flatten)]
    destination_round_trip: RoundTripOfEnd,
    /// Only if true.
    #[serde(skip_serializing_if = "Option::is_none")]
    src_sender_shared: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dst_sender_shared: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_dropped_packets: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_reverse_dropped_packets: Option<u64>,
    sample_rate: u32,
}

impl<'a> FlowLine<'a> {
    fn new(batch: &'a FlowBatch, record: &'a FlowRecord, interface: Option<&'a Interface>) -> Self {
        let [direction, reverse_direction] =
            human::directions(record).map(|side| side.map(direction_name));
        let [source, destination] = EndCgroup::both(batch, record);
        let [source_process, destination_process] = EndProcess::both(batch, record);
        let [source_host, destination_host] = EndHost::both(batch, record);
        let [source_tcp, destination_tcp] = Tcp::both(record);
        let [to_source, to_destination] = RoundTrip::both(record);
        Self {
            r#type: "flow",
            origin: Origin::of(batch),
            scan_id: batch.scan_id,
            batch: batch.batch_index,
            stream_seq: batch.stream_seq,
            record: None,
            snapshot: batch.snapshot,
            interface: interface.map(|interface| interface.name.as_str()),
            ifindex: record.ifindex,
            direction,
            reverse_direction,
            netns: record.netns,
            netns_name: interface
                .map(|interface| interface.netns_name.as_str())
                .filter(|name| !name.is_empty()),
            vlan_ids: &record.vlan_ids,
            ip_version: record.ip_version,
            protocol: record.protocol,
            src_addr: human::address(&record.src_addr),
            src_port: record.src_port,
            dst_addr: human::address(&record.dst_addr),
            dst_port: record.dst_port,
            icmp_type: record.icmp_type,
            icmp_code: record.icmp_code,
            icmp_identifier: record.icmp_identifier,
            later_fragment: record.later_fragment,
            initiator_assumed: record.initiator_assumed,
            packets: record.delta_packets,
            bytes: record.delta_bytes,
            reverse_packets: record.delta_reverse_packets,
            reverse_bytes: record.delta_reverse_bytes,
            ip_bytes: record.delta_ip_bytes,
            reverse_ip_bytes: record.delta_reverse_ip_bytes,
            total_packets: record.total_packets,
            total_bytes: record.total_bytes,
            total_reverse_packets: record.total_reverse_packets,
            total_reverse_bytes: record.total_reverse_bytes,
            total_ip_bytes: record.total_ip_bytes,
            total_reverse_ip_bytes: record.total_reverse_ip_bytes,
            first_seen_ns: record.first_seen_unix_ns,
            last_seen_ns: record.last_seen_unix_ns,
            duration_ns: record.delta_duration_ns,
            tcp_flags: record.tcp_flags,
            reverse_tcp_flags: record.reverse_tcp_flags,
            dscp: record.dscp,
            end_reason: end_reason(record),
            failure: failure(record),
            icmp_error_type: record.icmp_error_type,
            icmp_error_code: record.icmp_error_code,
            community_id: CommunityId(&record.community_id),
            encapsulation: human::encapsulation(record),
            tunnel_id: record.tunnel_id,
            outer_src_addr: human::address(&record.outer_src_addr),
            outer_dst_addr: human::address(&record.outer_dst_addr),
            outer_vlan_ids: &record.outer_vlan_ids,
            outer_pppoe_session: record.outer_pppoe_session,
            source: source.map(|sender| OfEnd(SOURCE, sender)),
            destination: destination.map(|sender| OfEnd(DESTINATION, sender)),
            source_process: source_process.map(|maker| ProcessOfEnd(SOURCE_PROCESS, maker)),
            destination_process: destination_process
                .map(|maker| ProcessOfEnd(DESTINATION_PROCESS, maker)),
            source_host: source_host.map(|host| HostOfEnd(SOURCE_HOST, host)),
            destination_host: destination_host.map(|host| HostOfEnd(DESTINATION_HOST, host)),
            source_tcp: source_tcp.map(|tcp| TcpOfEnd(SOURCE_TCP, tcp)),
            destination_tcp: destination_tcp.map(|tcp| TcpOfEnd(DESTINATION_TCP, tcp)),
            source_round_trip: RoundTripOfEnd(SOURCE_ROUND_TRIP, to_source),
            destination_round_trip: RoundTripOfEnd(DESTINATION_ROUND_TRIP, to_destination),
            total_dropped_packets: some(record.total_dropped_packets),
            src_sender_shared: record.src_sender_shared.then_some(true),
            dst_sender_shared: record.dst_sender_shared.then_some(true),
            total_reverse_dropped_packets: some(record.total_reverse_dropped_packets),
            sample_rate: batch.sample_rate,
        }
    }
}

/// `None` for 0.
fn some(packets: u64) -> Option<u64> {
    (packets != 0).then_some(packets)
}

/// The name of the end reason; `None` while the flow lives.
pub fn end_reason(record: &FlowRecord) -> Option<&'static str> {
    let name = match EndReason::try_from(record.end_reason?) {
        Ok(EndReason::IdleTimeout) => "idle_timeout",
        Ok(EndReason::ActiveTimeout) => "active_timeout",
        Ok(EndReason::EndOfFlow) => "end_of_flow",
        Ok(EndReason::ForcedEnd) => "forced_end",
        Ok(EndReason::LackOfResources) => "lack_of_resources",
        Ok(EndReason::Unspecified) | Err(_) => "unknown",
    };
    Some(name)
}

/// The failure of a flow, if it failed.
pub fn failure(record: &FlowRecord) -> Option<&'static str> {
    let name = match Failure::try_from(record.failure?) {
        Ok(Failure::Refused) => "refused",
        Ok(Failure::Unanswered) => "unanswered",
        Ok(Failure::Unreachable) => "unreachable",
        Ok(Failure::Reset) => "reset",
        Ok(Failure::Unspecified) | Err(_) => "unknown",
    };
    Some(name)
}

pub fn direction_name(side: Direction) -> &'static str {
    match side {
        Direction::Unspecified => "unknown",
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}

/// Appends the Community ID, if the record has one.
pub fn community_id(record: &FlowRecord, text: &mut String) -> Option<()> {
    let digest = &record.community_id;
    (!digest.is_empty()).then(|| write!(text, "{}", CommunityId(digest)).ok())?
}

/// `1:` and base64, or null if the agent sent none.
struct CommunityId<'a>(&'a [u8]);

impl Serialize for CommunityId<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_empty() {
            return serializer.serialize_none();
        }
        serializer.collect_str(self)
    }
}

impl fmt::Display for CommunityId<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "1:{}", Base64Display::new(self.0, &STANDARD))
    }
}

#[derive(Serialize)]
struct Sampling {
    sample_rate: u32,
    sample_rate_asked: bool,
}

#[derive(Serialize)]
struct AccountLine<'a> {
    r#type: &'static str,
    #[serde(flatten)]
    origin: Option<Origin<'a>>,
    scan_id: u64,
    stream_seq: u64,
    r#final: bool,
    seen: Count,
    flows: Count,
    filtered: Count,
    sampled_out: Count,
    #[serde(flatten)]
    sampling: Sampling,
    unparsed: &'a BTreeMap<String, Count>,
    not_inserted: &'a BTreeMap<String, Count>,
    beside: &'a BTreeMap<String, Count>,
    window_start_ns: u64,
    window_end_ns: u64,
    report_interval_ns: u64,
    report_interval_asked: bool,
    refused_in_window: bool,
    table_occupancy: Option<u64>,
    table_capacity: u64,
    tracked_flows: Option<u64>,
    lost_batches: u64,
    lost_records: u64,
    lost_packets: u64,
    lost_bytes: u64,
    left_out_records: u64,
    left_out_packets: u64,
    left_out_bytes: u64,
}

impl<'a> AccountLine<'a> {
    fn new(batch: &'a FlowBatch, account: &'a Account) -> Self {
        Self {
            r#type: "account",
            origin: Origin::of(batch),
            scan_id: batch.scan_id,
            stream_seq: batch.stream_seq,
            r#final: account.r#final,
            seen: account.seen.unwrap_or_default(),
            flows: account.flows.unwrap_or_default(),
            filtered: account.filtered.unwrap_or_default(),
            sampled_out: account.sampled_out.unwrap_or_default(),
            sampling: Sampling {
                sample_rate: account.sample_rate,
                sample_rate_asked: batch.sample_rate_asked,
            },
            unparsed: &account.unparsed,
            not_inserted: &account.not_inserted,
            beside: &account.beside,
            window_start_ns: batch.window_start_unix_ns,
            window_end_ns: batch.window_end_unix_ns,
            report_interval_ns: batch.report_interval_ns,
            report_interval_asked: batch.report_interval_asked,
            refused_in_window: batch.refused_in_window,
            table_occupancy: batch.table_occupancy,
            table_capacity: batch.table_capacity,
            tracked_flows: batch.tracked_flows,
            lost_batches: batch.lost_batches,
            lost_records: batch.lost_records,
            lost_packets: batch.lost_packets,
            lost_bytes: batch.lost_bytes,
            left_out_records: batch.left_out_records,
            left_out_packets: batch.left_out_packets,
            left_out_bytes: batch.left_out_bytes,
        }
    }
}

/// This consumer's losses just before the next batch, and in total.
#[derive(Serialize)]
struct LostLine<'a> {
    r#type: &'static str,
    #[serde(flatten)]
    origin: Option<Origin<'a>>,
    stream_seq: u64,
    batches: u64,
    records: u64,
    lost_batches: u64,
    lost_records: u64,
    lost_packets: u64,
    lost_bytes: u64,
}
