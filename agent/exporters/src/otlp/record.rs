//! A flow's report as a log record: its attributes and their encoding. `docs/otlp.md` lists them.

use std::fmt::Write as _;

use agent_common::Direction;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use formats::{human, json};
use proto::{
    FlowBatch, FlowRecord, Interface,
    ends::{EndCgroup, EndHost, EndProcess},
    protocols,
    round_trip::RoundTrip,
    tcp::Tcp,
};

use super::wire::{Attributes, Key, Text, varint};

/// Tags of `ScopeLogs.log_records` and of the fields of `LogRecord`.
const LOG_RECORDS: u8 = 2 << 3 | 2;
const TIME_UNIX_NANO: u8 = 1 << 3 | 1;
const SEVERITY_NUMBER: u8 = 2 << 3;
const BODY: u8 = 5 << 3 | 2;
const ATTRIBUTES: u8 = 6 << 3 | 2;
const OBSERVED_TIME_UNIX_NANO: u8 = 11 << 3 | 1;
const EVENT_NAME: u8 = 12 << 3 | 2;
/// A tag of `AnyValue`.
const STRING_VALUE: u8 = 1 << 3 | 2;

const INFO: u8 = 9;
pub(super) const EVENT: &str = "flow.report";

/// The longest text form of an address.
const ADDRESS_LEN_BYTES: usize = 45;
/// Longest user-chosen name. Interface names are shorter.
const NAME_LEN_BYTES: usize = 255;

macro_rules! keys {
    ($($constant:ident = $name:literal;)*) => {
        $(pub(super) const $constant: &Key = &Key::new($name);)*
    };
}

/// Names from the semantic conventions where they exist (1.40, `network`, `source`, `destination`), otherwise our own.
pub(super) mod key {
    use super::Key;

    keys! {
        SOURCE_ADDRESS = "source.address";
        SOURCE_PORT = "source.port";
        DESTINATION_ADDRESS = "destination.address";
        DESTINATION_PORT = "destination.port";
        NETWORK_TRANSPORT = "network.transport";
        NETWORK_TYPE = "network.type";
        INTERFACE_NAME = "network.interface.name";
        IO_DIRECTION = "network.io.direction";

        PACKETS = "flow.packets";
        BYTES = "flow.bytes";
        REVERSE_PACKETS = "flow.reverse.packets";
        REVERSE_BYTES = "flow.reverse.bytes";
        IP_BYTES = "flow.ip_bytes";
        REVERSE_IP_BYTES = "flow.reverse.ip_bytes";
        TOTAL_PACKETS = "flow.total.packets";
        TOTAL_BYTES = "flow.total.bytes";
        TOTAL_REVERSE_PACKETS = "flow.total.reverse.packets";
        TOTAL_REVERSE_BYTES = "flow.total.reverse.bytes";
        TOTAL_IP_BYTES = "flow.total.ip_bytes";
        TOTAL_REVERSE_IP_BYTES = "flow.total.reverse.ip_bytes";
        FIRST_SEEN = "flow.first_seen";
        LAST_SEEN = "flow.last_seen";
        DURATION = "flow.duration";
        END_REASON = "flow.end_reason";
        FAILURE = "flow.failure";
        ICMP_ERROR_TYPE = "flow.icmp_error.type";
        ICMP_ERROR_CODE = "flow.icmp_error.code";
        COMMUNITY_ID = "flow.community_id";
        TCP_FLAGS = "flow.tcp_flags";
        REVERSE_TCP_FLAGS = "flow.reverse.tcp_flags";
        DSCP = "flow.dscp";
        ICMP_TYPE = "flow.icmp.type";
        ICMP_CODE = "flow.icmp.code";
        ICMP_IDENTIFIER = "flow.icmp.identifier";
        LATER_FRAGMENT = "flow.later_fragment";
        INITIATOR_ASSUMED = "flow.initiator_assumed";
        SOURCE_SENDER_SHARED = "flow.source.sender_shared";
        DESTINATION_SENDER_SHARED = "flow.destination.sender_shared";
        REVERSE_DIRECTION = "flow.reverse.direction";
        INTERFACE_INDEX = "flow.interface.index";
        NETNS = "flow.netns.id";
        NETNS_NAME = "flow.netns.name";
        VLAN = "flow.vlan.id";
        INNER_VLAN = "flow.vlan.inner_id";
        TUNNEL = "flow.tunnel.type";
        TUNNEL_ID = "flow.tunnel.id";
        TUNNEL_SOURCE = "flow.tunnel.source.address";
        TUNNEL_DESTINATION = "flow.tunnel.destination.address";
        TUNNEL_VLAN = "flow.tunnel.vlan.id";
        TUNNEL_INNER_VLAN = "flow.tunnel.vlan.inner_id";
        TUNNEL_PPPOE = "flow.tunnel.pppoe_session";
        SAMPLE_RATE = "flow.sample_rate";
        SOURCE_UNIT = "flow.source.unit";
        SOURCE_CONTAINER_ID = "flow.source.container.id";
        SOURCE_CONTAINER_RUNTIME = "flow.source.container.runtime";
        SOURCE_CGROUP = "flow.source.cgroup";
        DESTINATION_UNIT = "flow.destination.unit";
        DESTINATION_CONTAINER_ID = "flow.destination.container.id";
        DESTINATION_CONTAINER_RUNTIME = "flow.destination.container.runtime";
        DESTINATION_CGROUP = "flow.destination.cgroup";
        SOURCE_PROCESS = "flow.source.process.name";
        SOURCE_PID = "flow.source.process.pid";
        SOURCE_UID = "flow.source.process.real_user.id";
        DESTINATION_PROCESS = "flow.destination.process.name";
        DESTINATION_PID = "flow.destination.process.pid";
        DESTINATION_UID = "flow.destination.process.real_user.id";
        SOURCE_HOST = "flow.source.host.name";
        SOURCE_HOST_SOURCE = "flow.source.host.name_source";
        DESTINATION_HOST = "flow.destination.host.name";
        DESTINATION_HOST_SOURCE = "flow.destination.host.name_source";
        SOURCE_TCP_RTT_US = "flow.source.tcp.rtt_us";
        SOURCE_TCP_MIN_RTT_US = "flow.source.tcp.min_rtt_us";
        SOURCE_TCP_TOTAL_RETRANS = "flow.source.tcp.total_retrans";
        SOURCE_TCP_DELIVERED = "flow.source.tcp.delivered";
        SOURCE_TCP_DELIVERED_CE = "flow.source.tcp.delivered_ce";
        SOURCE_TCP_DATA_SEGS_OUT = "flow.source.tcp.data_segs_out";
        DESTINATION_TCP_RTT_US = "flow.destination.tcp.rtt_us";
        DESTINATION_TCP_MIN_RTT_US = "flow.destination.tcp.min_rtt_us";
        DESTINATION_TCP_TOTAL_RETRANS = "flow.destination.tcp.total_retrans";
        DESTINATION_TCP_DELIVERED = "flow.destination.tcp.delivered";
        DESTINATION_TCP_DELIVERED_CE = "flow.destination.tcp.delivered_ce";
        DESTINATION_TCP_DATA_SEGS_OUT = "flow.destination.tcp.data_segs_out";
        SOURCE_HANDSHAKE_RTT_US = "flow.source.handshake_rtt_us";
        SOURCE_ACK_RTT_US = "flow.source.ack_rtt_us";
        DESTINATION_HANDSHAKE_RTT_US = "flow.destination.handshake_rtt_us";
        DESTINATION_ACK_RTT_US = "flow.destination.ack_rtt_us";
        TOTAL_DROPPED_PACKETS = "flow.total.dropped_packets";
        TOTAL_REVERSE_DROPPED_PACKETS = "flow.total.reverse.dropped_packets";
    }
}

/// The encoded attributes that all flows of an interface share.
pub(super) fn of_interface(ifindex: u32, netns: u32, known: Option<&Interface>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut attributes = Attributes::new(&mut bytes, ATTRIBUTES);
    if let Some(known) = known {
        attributes.text(key::INTERFACE_NAME, short(&known.name));
        if !known.netns_name.is_empty() {
            attributes.text(key::NETNS_NAME, short(&known.netns_name));
        }
    }
    attributes.number(key::INTERFACE_INDEX, ifindex);
    attributes.number(key::NETNS, netns);
    bytes
}

/// The direction of an interface in the semantic conventions.
pub(super) fn io_direction(side: Direction) -> &'static str {
    match side {
        Direction::Ingress => "receive",
        Direction::Egress => "transmit",
    }
}

/// Appends the flow's report to the records of a `ScopeLogs`.
#[inline]
pub(super) fn write(out: &mut Vec<u8>, batch: &FlowBatch, flow: &FlowRecord, interface: &[u8]) {
    // The length takes two bytes: a record has some 1,500 bytes, and at most ten user-chosen names.
    out.extend_from_slice(&[LOG_RECORDS, 0, 0]);
    let start = out.len();
    out.push(TIME_UNIX_NANO);
    out.extend_from_slice(&flow.last_seen_unix_ns.to_le_bytes());
    out.push(OBSERVED_TIME_UNIX_NANO);
    out.extend_from_slice(&batch.window_end_unix_ns.to_le_bytes());
    out.extend_from_slice(&[SEVERITY_NUMBER, INFO, EVENT_NAME, EVENT.len() as u8]);
    out.extend_from_slice(EVENT.as_bytes());

    let [source, destination] = [&flow.src_addr, &flow.dst_addr].map(|address| text_of(address));
    let number = Text::<10>::of(flow.protocol);
    let protocol = u8::try_from(flow.protocol).ok().and_then(protocols::name);
    let protocol = protocol.unwrap_or(number.as_str());
    body(out, flow, protocol, [source.as_str(), destination.as_str()]);

    let mut attributes = Attributes::new(out, ATTRIBUTES);
    let attributes = &mut attributes;
    attributes.text(key::SOURCE_ADDRESS, source.as_str());
    if let Some(port) = flow.src_port {
        attributes.number(key::SOURCE_PORT, port);
    }
    attributes.text(key::DESTINATION_ADDRESS, destination.as_str());
    if let Some(port) = flow.dst_port {
        attributes.number(key::DESTINATION_PORT, port);
    }
    attributes.text(key::NETWORK_TRANSPORT, protocol);
    let version = if flow.ip_version == 6 { "ipv6" } else { "ipv4" };
    attributes.text(key::NETWORK_TYPE, version);
    attributes.written(interface);
    if let Some(side) = flow.direction().side() {
        attributes.text(key::IO_DIRECTION, io_direction(side));
    }
    if let Some(side) = flow.reverse_direction().side() {
        attributes.text(key::REVERSE_DIRECTION, io_direction(side));
    }
    counts(attributes, flow);
    transport(attributes, flow);
    if let Some(dscp) = flow.dscp {
        attributes.number(key::DSCP, dscp);
    }
    let [outer, inner] = [key::VLAN, key::INNER_VLAN];
    tags(attributes, [outer, inner], &flow.vlan_ids);
    if flow.encapsulation.is_some() {
        tunnel(attributes, flow);
    }
    found_out(attributes, batch, flow);
    if batch.sample_rate > 1 {
        attributes.number(key::SAMPLE_RATE, batch.sample_rate);
    }
    if let Ok(digest) = <&[u8; 20]>::try_from(&flow.community_id[..]) {
        attributes.text(key::COMMUNITY_ID, community_id(digest).as_str());
    }
    if let Some(failure) = json::failure(flow) {
        attributes.text(key::FAILURE, failure);
    }
    if let Some(number) = flow.icmp_error_type {
        attributes.number(key::ICMP_ERROR_TYPE, number);
    }
    if let Some(number) = flow.icmp_error_code {
        attributes.number(key::ICMP_ERROR_CODE, number);
    }
    if let Some(reason) = json::end_reason(flow) {
        attributes.text(key::END_REASON, reason);
    }

    let len = out.len() - start;
    out[start - 2] = len as u8 | 0x80;
    out[start - 1] = u8::try_from(len >> 7).expect("a record is shorter than 16 KiB");
}

/// Adds what the agent knows about a flow beyond its packets.
#[inline]
fn found_out(attributes: &mut Attributes, batch: &FlowBatch, flow: &FlowRecord) {
    let [of_source, of_destination] = EndCgroup::both(batch, flow);
    if let Some(known) = of_source {
        sender(attributes, SOURCE, known);
    }
    if let Some(known) = of_destination {
        sender(attributes, DESTINATION, known);
    }
    let [of_source, of_destination] = EndProcess::both(batch, flow);
    if let Some(known) = of_source {
        process(attributes, SOURCE_PROCESS, known);
    }
    if let Some(known) = of_destination {
        process(attributes, DESTINATION_PROCESS, known);
    }
    let [of_source, of_destination] = EndHost::both(batch, flow);
    if let Some(known) = of_source {
        attributes.text(key::SOURCE_HOST, short(known.name));
        attributes.text(key::SOURCE_HOST_SOURCE, known.source());
    }
    if let Some(known) = of_destination {
        attributes.text(key::DESTINATION_HOST, short(known.name));
        attributes.text(key::DESTINATION_HOST_SOURCE, known.source());
    }
    let [of_source, of_destination] = Tcp::both(flow);
    if let Some(known) = of_source {
        tcp(attributes, SOURCE_TCP, known);
    }
    if let Some(known) = of_destination {
        tcp(attributes, DESTINATION_TCP, known);
    }
    let [to_source, to_destination] = RoundTrip::both(flow);
    for (key, us) in [
        (key::SOURCE_HANDSHAKE_RTT_US, to_source.handshake_us),
        (key::SOURCE_ACK_RTT_US, to_source.ack_us),
        (
            key::DESTINATION_HANDSHAKE_RTT_US,
            to_destination.handshake_us,
        ),
        (key::DESTINATION_ACK_RTT_US, to_destination.ack_us),
    ] {
        if us != 0 {
            attributes.number(key, us);
        }
    }
    for (key, packets) in [
        (key::TOTAL_DROPPED_PACKETS, flow.total_dropped_packets),
        (
            key::TOTAL_REVERSE_DROPPED_PACKETS,
            flow.total_reverse_dropped_packets,
        ),
    ] {
        if packets != 0 {
            attributes.number(key, packets);
        }
    }
}

/// Writes a body for people: `tcp 192.0.2.1:40000 > 192.0.2.2:443`.
#[inline]
fn body(out: &mut Vec<u8>, flow: &FlowRecord, protocol: &str, addresses: [&str; 2]) {
    out.extend_from_slice(&[BODY, 0, STRING_VALUE, 0]);
    let start = out.len();
    out.extend_from_slice(protocol.as_bytes());
    out.push(b' ');
    let [source, destination] = addresses;
    endpoint(out, source, flow.src_port);
    out.extend_from_slice(b" > ");
    endpoint(out, destination, flow.dst_port);
    // Two addresses and ports and a protocol name: the length fits one byte.
    let len = (out.len() - start) as u8;
    out[start - 3] = len + 2;
    out[start - 1] = len;
}

#[inline]
fn endpoint(out: &mut Vec<u8>, address: &str, port: Option<u32>) {
    let Some(port) = port else {
        out.extend_from_slice(address.as_bytes());
        return;
    };
    let has_colons = address.contains(':');
    if has_colons {
        out.push(b'[');
    }
    out.extend_from_slice(address.as_bytes());
    if has_colons {
        out.push(b']');
    }
    out.push(b':');
    out.extend_from_slice(Text::<10>::of(port).as_str().as_bytes());
}

#[inline]
fn counts(attributes: &mut Attributes, flow: &FlowRecord) {
    attributes.number(key::PACKETS, flow.delta_packets);
    attributes.number(key::BYTES, flow.delta_bytes);
    attributes.number(key::REVERSE_PACKETS, flow.delta_reverse_packets);
    attributes.number(key::REVERSE_BYTES, flow.delta_reverse_bytes);
    attributes.number(key::IP_BYTES, flow.delta_ip_bytes);
    attributes.number(key::REVERSE_IP_BYTES, flow.delta_reverse_ip_bytes);
    attributes.number(key::TOTAL_PACKETS, flow.total_packets);
    attributes.number(key::TOTAL_BYTES, flow.total_bytes);
    attributes.number(key::TOTAL_REVERSE_PACKETS, flow.total_reverse_packets);
    attributes.number(key::TOTAL_REVERSE_BYTES, flow.total_reverse_bytes);
    attributes.number(key::TOTAL_IP_BYTES, flow.total_ip_bytes);
    attributes.number(key::TOTAL_REVERSE_IP_BYTES, flow.total_reverse_ip_bytes);
    attributes.number(key::FIRST_SEEN, flow.first_seen_unix_ns);
    attributes.number(key::LAST_SEEN, flow.last_seen_unix_ns);
    attributes.number(key::DURATION, flow.delta_duration_ns);
}

#[inline]
fn transport(attributes: &mut Attributes, flow: &FlowRecord) {
    if let Some(flags) = flow.tcp_flags {
        attributes.number(key::TCP_FLAGS, flags);
    }
    if let Some(flags) = flow.reverse_tcp_flags {
        attributes.number(key::REVERSE_TCP_FLAGS, flags);
    }
    if let Some(kind) = flow.icmp_type {
        attributes.number(key::ICMP_TYPE, kind);
        attributes.number(key::ICMP_CODE, flow.icmp_code.unwrap_or_default());
    }
    if let Some(identifier) = flow.icmp_identifier {
        attributes.number(key::ICMP_IDENTIFIER, identifier);
    }
    if flow.later_fragment {
        attributes.boolean(key::LATER_FRAGMENT, true);
    }
    if flow.initiator_assumed {
        attributes.boolean(key::INITIATOR_ASSUMED, true);
    }
    if flow.src_sender_shared {
        attributes.boolean(key::SOURCE_SENDER_SHARED, true);
    }
    if flow.dst_sender_shared {
        attributes.boolean(key::DESTINATION_SENDER_SHARED, true);
    }
}

/// The outer tag first.
#[inline]
fn tags(attributes: &mut Attributes, keys: [&Key; 2], ids: &[u32]) {
    for (key, &id) in keys.into_iter().zip(ids) {
        attributes.number(key, id);
    }
}

/// Keys for unit, container ID, container runtime and cgroup.
type SenderKeys = [&'static Key; 4];
const SOURCE: SenderKeys = [
    key::SOURCE_UNIT,
    key::SOURCE_CONTAINER_ID,
    key::SOURCE_CONTAINER_RUNTIME,
    key::SOURCE_CGROUP,
];
const DESTINATION: SenderKeys = [
    key::DESTINATION_UNIT,
    key::DESTINATION_CONTAINER_ID,
    key::DESTINATION_CONTAINER_RUNTIME,
    key::DESTINATION_CGROUP,
];

/// Adds what is known about the sender of one end's packets.
fn sender(attributes: &mut Attributes, keys: SenderKeys, sender: EndCgroup<'_>) {
    let texts = [
        sender.unit(),
        sender.container_id(),
        sender.container_runtime(),
        sender.path(),
    ];
    for (key, text) in keys.into_iter().zip(texts) {
        if let Some(text) = text {
            attributes.text(key, short(text));
        }
    }
}

/// Keys for process name, PID and user.
type ProcessKeys = [&'static Key; 3];
const SOURCE_PROCESS: ProcessKeys = [key::SOURCE_PROCESS, key::SOURCE_PID, key::SOURCE_UID];
const DESTINATION_PROCESS: ProcessKeys = [
    key::DESTINATION_PROCESS,
    key::DESTINATION_PID,
    key::DESTINATION_UID,
];

/// Adds what is known about the process that created one end's socket.
fn process(attributes: &mut Attributes, [name, pid, uid]: ProcessKeys, maker: EndProcess<'_>) {
    if let Some(text) = maker.name() {
        attributes.text(name, short(text));
    }
    attributes.number(pid, maker.pid());
    if let Some(number) = maker.uid() {
        attributes.number(uid, number);
    }
}

/// Keys in the order of the values.
type TcpKeys = [&'static Key; 6];
const SOURCE_TCP: TcpKeys = [
    key::SOURCE_TCP_RTT_US,
    key::SOURCE_TCP_MIN_RTT_US,
    key::SOURCE_TCP_TOTAL_RETRANS,
    key::SOURCE_TCP_DELIVERED,
    key::SOURCE_TCP_DELIVERED_CE,
    key::SOURCE_TCP_DATA_SEGS_OUT,
];
const DESTINATION_TCP: TcpKeys = [
    key::DESTINATION_TCP_RTT_US,
    key::DESTINATION_TCP_MIN_RTT_US,
    key::DESTINATION_TCP_TOTAL_RETRANS,
    key::DESTINATION_TCP_DELIVERED,
    key::DESTINATION_TCP_DELIVERED_CE,
    key::DESTINATION_TCP_DATA_SEGS_OUT,
];

/// Adds TCP's measurements at one end.
fn tcp(attributes: &mut Attributes, keys: TcpKeys, known: Tcp) {
    let values = [
        known.rtt_us,
        known.min_rtt_us,
        known.total_retrans,
        known.delivered,
        known.delivered_ce,
        known.data_segs_out,
    ];
    for (key, value) in keys.into_iter().zip(values) {
        if let Some(number) = value {
            attributes.number(key, number);
        }
    }
}

fn tunnel(attributes: &mut Attributes, flow: &FlowRecord) {
    if let Some(kind) = human::encapsulation(flow) {
        attributes.text(key::TUNNEL, kind);
    }
    if let Some(id) = flow.tunnel_id {
        attributes.number(key::TUNNEL_ID, id);
    }
    if !flow.outer_src_addr.is_empty() {
        attributes.text(key::TUNNEL_SOURCE, text_of(&flow.outer_src_addr).as_str());
        let destination = text_of(&flow.outer_dst_addr);
        attributes.text(key::TUNNEL_DESTINATION, destination.as_str());
    }
    let [outer, inner] = [key::TUNNEL_VLAN, key::TUNNEL_INNER_VLAN];
    tags(attributes, [outer, inner], &flow.outer_vlan_ids);
    if let Some(session) = flow.outer_pppoe_session {
        attributes.number(key::TUNNEL_PPPOE, session);
    }
}

#[inline]
fn text_of(address: &[u8]) -> Text<ADDRESS_LEN_BYTES> {
    let mut text = Text::new();
    if let Ok(bytes) = <&[u8; 4]>::try_from(address) {
        for (place, &byte) in bytes.iter().enumerate() {
            if place > 0 {
                text.push(".");
            }
            text.number(byte.into());
        }
    } else if let Some(address) = human::address(address) {
        write!(text, "{address}").expect("there is room for every address");
    }
    text
}

fn community_id(digest: &[u8; 20]) -> Text<30> {
    let mut base64 = [0; 28];
    let encoded = STANDARD.encode_slice(digest, &mut base64);
    encoded.expect("20 bytes become 28 letters");
    let mut text = Text::new();
    text.push("1:");
    text.push(str::from_utf8(&base64).expect("base64 is ASCII"));
    text
}

impl<const LEN: usize> Text<LEN> {
    fn of(number: u32) -> Self {
        let mut text = Self::new();
        text.number(number);
        text
    }
}

pub(super) fn short(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_LEN_BYTES)]
}

/// Writes the common head in front of the records, into the `room` bytes reserved there: an `ExportLogsServiceRequest`
/// with one `ResourceLogs` with one `ScopeLogs`. Returns the offset where the message begins.
pub(super) fn put_head(message: &mut [u8], room: usize, head: &super::Head) -> usize {
    let records = message.len() - room;
    let scope_logs = head.scope.len() + records;
    let mut front = Vec::with_capacity(room);
    let mut scope_logs_head = vec![2 << 3 | 2];
    varint(&mut scope_logs_head, scope_logs as u64);
    let resource_logs = head.resource.len() + scope_logs_head.len() + scope_logs;
    front.push(1 << 3 | 2);
    varint(&mut front, resource_logs as u64);
    front.extend_from_slice(&head.resource);
    front.extend_from_slice(&scope_logs_head);
    front.extend_from_slice(&head.scope);
    let start = room - front.len();
    message[start..room].copy_from_slice(&front);
    start
}
