//! Writes batches as JSON Lines: a line for each flow, account and loss.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    io::{self, Write},
    net::IpAddr,
};

use base64::{display::Base64Display, engine::general_purpose::STANDARD};
use serde::{Serialize, Serializer};

use self::dns::DnsLine;
use self::senders::{
    DESTINATION, DESTINATION_HOST, DESTINATION_PROCESS, DESTINATION_ROUND_TRIP, DESTINATION_TCP,
    HostOfEnd, OfEnd, ProcessOfEnd, RoundTripOfEnd, SOURCE, SOURCE_HOST, SOURCE_PROCESS,
    SOURCE_ROUND_TRIP, SOURCE_TCP, TcpOfEnd,
};
use super::{LostSoFar, harmless, human};
use crate::{
    cgroups::Sender,
    dns::Host,
    known_interfaces::KnownInterfaces,
    processes::Maker,
    proto::{
        Account, AgentIdentity, Count, Direction, EndReason, Failure, FlowBatch, FlowRecord,
        Interface,
    },
    round_trip::RoundTrip,
    tcp::Tcp,
};

mod dns;
mod senders;

/// Writes each batch whole, then flushes.
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

/// Makes the lines of a batch: `begin`, then its flows, then `end`.
#[derive(Default)]
pub struct JsonLines {
    line: Vec<u8>,
    interfaces: KnownInterfaces,
}

impl JsonLines {
    /// What was lost before the batch.
    pub(crate) fn begin(
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

    /// The flows of a whole batch with their numbers in it, by which a line can be told from one that came again.
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

    /// The exchanges of the DNS.
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

/// The one of ASCII's control characters that JSON has not escaped.
const DELETE: u8 = 0x7f;

fn write_line(out: &mut impl Write, buffer: &mut Vec<u8>, line: &impl Serialize) -> io::Result<()> {
    buffer.clear();
    serde_json::to_writer(&mut *buffer, line)?;
    buffer.push(b'\n');
    if buffer.is_ascii() && !buffer.contains(&DELETE) {
        return out.write_all(buffer);
    }
    // A person may read it on a terminal.
    let line = String::from_utf8_lossy(buffer);
    out.write_all(harmless::json(&line).as_bytes())
}

/// Where a batch comes from that went through a collector. Others are of one agent, which whoever reads them knows.
#[derive(Clone, Copy, Serialize)]
struct Origin<'a> {
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
            ..
        } = batch.agent.as_ref()?;
        (batch.stream_id != 0).then_some(Self {
            agent_id,
            hostname,
            boot_id,
            instance_id,
            stream_id: StreamId(batch.stream_id),
        })
    }
}

/// 16 hexadecimal digits, since many readers of JSON have numbers of 53 bits.
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
    /// Only in what a collector stores.
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<u32>,
    /// Only if it is.
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
    tcp_flags: Option<u32>,
    reverse_tcp_flags: Option<u32>,
    dscp: Option<u32>,
    end_reason: Option<&'static str>,
    /// Only of those that failed.
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
    /// Only if the agent looks for them, and of the end that has one.
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
        let [source, destination] = Sender::both(batch, record);
        let [source_process, destination_process] = Maker::both(batch, record);
        let [source_host, destination_host] = Host::both(batch, record);
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
            total_reverse_dropped_packets: some(record.total_reverse_dropped_packets),
            sample_rate: batch.sample_rate,
        }
    }
}

/// `None` of none.
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

/// What came of a flow that failed.
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

/// What this consumer lost just before the next batch, and in total.
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::proto::{Cgroup, Encapsulation, HostName, Interface, NameSource, Process};

    fn lines(batches: &[FlowBatch]) -> Vec<Value> {
        let mut out = Vec::new();
        let mut writer = JsonWriter::new(&mut out);
        for batch in batches {
            writer.batch(batch).unwrap();
        }
        String::from_utf8(out)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn tcp_record() -> FlowRecord {
        FlowRecord {
            protocol: 6,
            src_addr: vec![10, 0, 0, 1].into(),
            dst_addr: vec![10, 0, 0, 2].into(),
            src_port: Some(40_000),
            dst_port: Some(443),
            delta_packets: 1,
            delta_bytes: 60,
            delta_reverse_packets: 2,
            delta_reverse_bytes: 140,
            total_packets: 3,
            total_bytes: 180,
            total_reverse_packets: 5,
            total_reverse_bytes: 350,
            delta_ip_bytes: 40,
            delta_reverse_ip_bytes: 112,
            total_ip_bytes: 138,
            total_reverse_ip_bytes: 280,
            first_seen_unix_ns: 1_700_000_000_000_000_001,
            last_seen_unix_ns: 1_700_000_000_000_000_002,
            ip_version: 4,
            ifindex: 2,
            netns: 5,
            vlan_ids: vec![100],
            tcp_flags: Some(0),
            reverse_tcp_flags: Some(0x12),
            dscp: Some(0),
            community_id: vec![0; 20].into(),
            direction: Direction::Egress.into(),
            ..FlowRecord::default()
        }
    }

    fn batch(records: Vec<FlowRecord>) -> FlowBatch {
        let interfaces = vec![Interface {
            ifindex: 2,
            name: "eth0".into(),
            netns: 5,
            ..Interface::default()
        }];
        FlowBatch {
            scan_id: 7,
            batch_index: 1,
            stream_seq: 9,
            interfaces,
            records,
            ..FlowBatch::default()
        }
    }

    #[test]
    fn a_flow_line_has_every_field_and_null_where_none_applies() {
        let lines = lines(&[FlowBatch {
            sample_rate: 100,
            ..batch(vec![tcp_record()])
        }]);
        let mut expected = json!({
            "type": "flow", "scan_id": 7, "batch": 1, "stream_seq": 9,
            "interface": "eth0", "ifindex": 2,
            "direction": "egress", "reverse_direction": "ingress",
            "netns": 5, "netns_name": null, "vlan_ids": [100],
            "ip_version": 4, "protocol": 6,
            "src_addr": "10.0.0.1", "src_port": 40_000, "dst_addr": "10.0.0.2", "dst_port": 443,
            "icmp_type": null, "icmp_code": null, "icmp_identifier": null, "later_fragment": false,
            "packets": 1, "bytes": 60, "reverse_packets": 2, "reverse_bytes": 140,
            "total_packets": 3, "total_bytes": 180,
            "total_reverse_packets": 5, "total_reverse_bytes": 350,
            "first_seen_ns": 1_700_000_000_000_000_001_u64,
            "last_seen_ns": 1_700_000_000_000_000_002_u64,
            "tcp_flags": 0, "reverse_tcp_flags": 18, "dscp": 0, "end_reason": null,
            "community_id": "1:AAAAAAAAAAAAAAAAAAAAAAAAAAA=",
            "encapsulation": null, "tunnel_id": null,
            "outer_src_addr": null, "outer_dst_addr": null, "sample_rate": 100,
        });
        // More than one macro takes.
        for (name, value) in [
            ("ip_bytes", 40),
            ("reverse_ip_bytes", 112),
            ("total_ip_bytes", 138),
            ("total_reverse_ip_bytes", 280),
        ] {
            expected[name] = json!(value);
        }
        // Added here, since the macro does not take so many fields.
        expected["outer_vlan_ids"] = json!([]);
        expected["outer_pppoe_session"] = json!(null);
        assert_eq!(lines, [expected]);
    }

    #[test]
    fn a_flow_out_of_a_tunnel_has_the_tunnels_endpoints() {
        let record = FlowRecord {
            encapsulation: Some(Encapsulation::Vxlan.into()),
            tunnel_id: Some(42),
            outer_src_addr: vec![192, 0, 2, 1].into(),
            outer_dst_addr: vec![192, 0, 2, 2].into(),
            outer_vlan_ids: vec![7, 8],
            outer_pppoe_session: Some(0),
            ..tcp_record()
        };
        let line = &lines(&[batch(vec![record])])[0];
        assert_eq!(
            (&line["encapsulation"], &line["tunnel_id"]),
            (&json!("vxlan"), &json!(42))
        );
        assert_eq!(
            (&line["outer_src_addr"], &line["outer_dst_addr"]),
            (&json!("192.0.2.1"), &json!("192.0.2.2"))
        );
        assert_eq!(
            (&line["outer_vlan_ids"], &line["outer_pppoe_session"]),
            (&json!([7, 8]), &json!(0))
        );
    }

    #[test]
    fn a_network_namespace_has_the_name_by_which_it_was_asked_for() {
        let mut batch = batch(vec![tcp_record()]);
        batch.interfaces[0].netns_name = "blue".into();
        let line = &lines(&[batch])[0];
        assert_eq!(
            (&line["interface"], &line["netns"], &line["netns_name"]),
            (&json!("eth0"), &json!(5), &json!("blue"))
        );
    }

    #[test]
    fn whoever_sent_the_packets_is_named_at_the_end_that_is_known() {
        let cgroup = |id, unit: &str| Cgroup {
            id,
            path: format!("/system.slice/{unit}"),
            unit: unit.into(),
            slice: "system.slice".into(),
            ..Cgroup::default()
        };
        let records = [
            (Some(7), None),
            (Some(9), Some(7)),
            (Some(8), None),
            (None, None),
        ];
        let records = records.map(|(src_cgroup_id, dst_cgroup_id)| FlowRecord {
            src_cgroup_id,
            dst_cgroup_id,
            ..tcp_record()
        });
        let lines = lines(&[FlowBatch {
            cgroups: vec![cgroup(7, "a.service"), cgroup(9, "b.service")],
            ..batch(records.to_vec())
        }]);
        let texts = |name: &str| {
            let of = lines.iter().map(|line| line.get(name).cloned());
            of.collect::<Vec<_>>()
        };
        let (a, b) = (Some(json!("a.service")), Some(json!("b.service")));
        // Its cgroup is not in the batch, so its id is all.
        let unnamed = Some(json!(null));
        assert_eq!(texts("src_unit"), [a.clone(), b, unnamed.clone(), None]);
        assert_eq!(texts("dst_unit"), [None, a, None, None]);
        assert_eq!(
            texts("src_cgroup_id"),
            [Some(json!(7)), Some(json!(9)), Some(json!(8)), None]
        );
        assert_eq!(lines[0]["src_cgroup"], "/system.slice/a.service");
        assert_eq!(lines[0]["src_slice"], "system.slice");
        assert_eq!(lines[0]["src_container_id"], json!(null));
    }

    #[test]
    fn the_process_of_an_end_has_its_number_even_where_it_has_no_name() {
        let [named, nameless] = [7, 8].map(|pid| pid << 32 | 1);
        let lines = lines(&[FlowBatch {
            processes: vec![Process {
                key: named,
                pid: 7,
                name: "nginx".to_owned(),
                uid: Some(33),
            }],
            ..batch(vec![FlowRecord {
                src_process_key: Some(named),
                dst_process_key: Some(nameless),
                ..tcp_record()
            }])
        }]);
        for (name, value) in [
            ("src_process", json!("nginx")),
            ("src_pid", json!(7)),
            ("src_uid", json!(33)),
            ("dst_process", json!(null)),
            ("dst_pid", json!(8)),
            ("dst_uid", json!(null)),
        ] {
            assert_eq!(lines[0][name], value, "{name}");
        }
        assert!(lines[0].get("src_unit").is_none());
    }

    #[test]
    fn an_end_has_its_name_and_how_that_was_learned() {
        let named = FlowRecord {
            dst_host_id: Some(5),
            dst_host_source: NameSource::HostsFile.into(),
            // What the batch does not name.
            src_host_id: Some(6),
            src_host_source: NameSource::Dns.into(),
            ..tcp_record()
        };
        let lines = lines(&[FlowBatch {
            hosts: vec![HostName {
                id: 5,
                name: "www.example".to_owned(),
            }],
            ..batch(vec![named])
        }]);
        assert_eq!(lines[0]["dst_host"], "www.example");
        assert_eq!(lines[0]["dst_host_source"], "hosts_file");
        assert!(lines[0].get("src_host").is_none());
        assert!(lines[0].get("src_host_source").is_none());
    }

    #[test]
    fn what_tcp_knows_is_said_of_the_ends_that_are_here() {
        let lines = lines(&[batch(vec![FlowRecord {
            dst_tcp_min_rtt_us: Some(70),
            dst_tcp_total_retrans: Some(0),
            dst_tcp_delivered: Some(5),
            dst_tcp_delivered_ce: Some(1),
            dst_tcp_data_segs_out: Some(4),
            ..tcp_record()
        }])]);
        for (name, value) in [
            ("dst_tcp_rtt_us", json!(null)),
            ("dst_tcp_min_rtt_us", json!(70)),
            ("dst_tcp_total_retrans", json!(0)),
            ("dst_tcp_delivered", json!(5)),
            ("dst_tcp_delivered_ce", json!(1)),
            ("dst_tcp_data_segs_out", json!(4)),
        ] {
            assert_eq!(lines[0][name], value, "{name}");
        }
        assert!(lines[0].get("src_tcp_delivered").is_none());
    }

    #[test]
    fn round_trips_that_were_measured_are_said_of_each_end() {
        let lines = lines(&[batch(vec![FlowRecord {
            src_handshake_rtt_us: Some(1),
            dst_handshake_rtt_us: Some(2),
            dst_ack_rtt_us: Some(u32::MAX),
            total_reverse_dropped_packets: 3,
            ..tcp_record()
        }])]);
        assert_eq!(lines[0]["src_handshake_rtt_us"], 1);
        assert_eq!(lines[0]["dst_handshake_rtt_us"], 2);
        assert_eq!(lines[0]["dst_ack_rtt_us"], u32::MAX);
        assert!(lines[0].get("src_ack_rtt_us").is_none());
        assert_eq!(lines[0]["total_reverse_dropped_packets"], 3);
        assert!(lines[0].get("total_dropped_packets").is_none());
    }

    #[test]
    fn both_directions_of_a_mirror_port_arrive() {
        let record = FlowRecord {
            direction: Direction::Ingress.into(),
            reverse_direction: Direction::Ingress.into(),
            ..tcp_record()
        };
        let line = &lines(&[batch(vec![record])])[0];
        assert_eq!(line["direction"], "ingress");
        assert_eq!(line["reverse_direction"], "ingress");
    }

    #[test]
    fn an_icmp_flow_that_ended_has_no_ports_and_says_why() {
        let record = FlowRecord {
            protocol: 58,
            ip_version: 6,
            src_addr: vec![0xfe; 16].into(),
            src_port: None,
            dst_port: None,
            icmp_type: Some(128),
            icmp_code: Some(0),
            tcp_flags: None,
            ifindex: 99,
            end_reason: Some(EndReason::IdleTimeout.into()),
            ..tcp_record()
        };
        let line = &lines(&[batch(vec![record])])[0];
        assert_eq!(line["src_addr"], "fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe");
        assert!(
            line["src_port"].is_null()
                && line["tcp_flags"].is_null()
                && line["interface"].is_null()
        );
        assert_eq!(
            (&line["icmp_type"], &line["icmp_code"]),
            (&json!(128), &json!(0))
        );
        assert_eq!(line["end_reason"], "idle_timeout");
    }

    #[test]
    fn losses_come_before_the_batch_and_the_account_after_it() {
        let hook = agent_common::HookAccount::default();
        let last = FlowBatch {
            stream_seq: 10,
            lost_batches: 3,
            lost_records: 30,
            lost_packets: 31,
            lost_bytes: 32,
            left_out_records: 40,
            left_out_packets: 41,
            left_out_bytes: 42,
            table_occupancy: Some(1),
            account: Some(Account::from_hook(&hook, true)),
            ..batch(vec![tcp_record()])
        };
        let lines = lines(&[
            batch(Vec::new()),
            last.clone(),
            FlowBatch {
                account: None,
                ..last
            },
        ]);
        let types: Vec<&str> = lines
            .iter()
            .map(|line| line["type"].as_str().unwrap())
            .collect();
        assert_eq!(types, ["lost", "flow", "account", "flow"]);
        assert_eq!(
            (&lines[0]["batches"], &lines[0]["lost_records"]),
            (&json!(3), &json!(30))
        );
        assert_eq!(lines[2]["final"], true);
        for (field, value) in [
            ("lost_records", 30),
            ("lost_packets", 31),
            ("lost_bytes", 32),
            ("left_out_records", 40),
            ("left_out_packets", 41),
            ("left_out_bytes", 42),
        ] {
            assert_eq!(lines[2][field], value, "{field}");
        }
        assert_eq!(
            lines[2]["not_inserted"]["table_full"],
            json!({"packets": 0, "bytes": 0})
        );
        let unparsed = lines[2]["unparsed"].as_object().unwrap();
        assert_eq!(unparsed.len(), agent_common::Reason::UNPARSED.len());
    }
}
