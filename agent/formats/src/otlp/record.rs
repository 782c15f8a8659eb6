//! A flow's report as a log record: its attributes and their encoding. `docs/otlp.md` lists them.

use std::fmt::Write as _;

use agent_common::Direction;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use proto::{
    FlowBatch, FlowRecord, Interface,
    columns::{COLUMNS, Row, Visitor, visit},
    protocols,
};

use super::wire::{Attributes, Key, Text, varint};
use crate::human;

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

/// The attributes of the columns, each with one name, or two for the first two values of a list.
static KEYS: [[Key; 2]; COLUMNS.len()] = {
    let mut keys = [[Key::new(""); 2]; COLUMNS.len()];
    let mut column = 0;
    while column < keys.len() {
        let names = COLUMNS[column].otlp;
        let mut place = 0;
        while place < names.len() {
            keys[column][place] = Key::new(names[place]);
            place += 1;
        }
        column += 1;
    }
    keys
};

/// Written here: they are part of the body too, belong to the interface, or have the words of the semantic conventions
/// (1.40, `network`, `source`, `destination`).
pub(super) mod key {
    use super::Key;

    macro_rules! keys {
        ($($constant:ident = $name:literal;)*) => {
            pub(super) const NAMES: &[&str] = &[$($name),*];
            $(pub(in crate::otlp) static $constant: &Key = &Key::new($name);)*
        };
    }

    keys! {
        SOURCE_ADDRESS = "source.address";
        DESTINATION_ADDRESS = "destination.address";
        NETWORK_TRANSPORT = "network.transport";
        NETWORK_TYPE = "network.type";
        INTERFACE_NAME = "network.interface.name";
        IO_DIRECTION = "network.io.direction";
        REVERSE_DIRECTION = "flow.reverse.direction";
        INTERFACE_INDEX = "flow.interface.index";
        NETNS = "flow.netns.id";
        NETNS_NAME = "flow.netns.name";
    }

    /// Belongs to the batch.
    pub(super) static SAMPLE_RATE: &Key = &Key::new("flow.sample_rate");
}

/// Whether the column's attribute is written for all columns alike.
const fn is_plain(column: usize) -> bool {
    let [name] = COLUMNS[column].otlp else {
        return !COLUMNS[column].otlp.is_empty();
    };
    let mut place = 0;
    while place < key::NAMES.len() {
        if is_same(name.as_bytes(), key::NAMES[place].as_bytes()) {
            return false;
        }
        place += 1;
    }
    true
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// Writes the columns' attributes. Attributes without a value are left out.
struct Facts<'a, 'o>(&'a mut Attributes<'o>);

impl<'a> Visitor<'a> for Facts<'_, '_> {
    #[inline]
    fn number<const C: usize>(&mut self, value: Option<u32>) {
        if const { is_plain(C) }
            && let Some(value) = value
        {
            self.0.number(&KEYS[C][0], value);
        }
    }

    #[inline]
    fn counter<const C: usize>(&mut self, value: u64) {
        if const { is_plain(C) } && (value != 0 || !const { COLUMNS[C].is_left_out }) {
            self.0.number(&KEYS[C][0], value);
        }
    }

    #[inline]
    fn id<const C: usize>(&mut self, value: Option<u64>) {
        if const { is_plain(C) }
            && let Some(value) = value
        {
            self.0.number(&KEYS[C][0], value);
        }
    }

    #[inline]
    fn flag<const C: usize>(&mut self, value: bool) {
        if const { is_plain(C) } && value {
            self.0.boolean(&KEYS[C][0], true);
        }
    }

    #[inline]
    fn time<const C: usize>(&mut self, unix_ns: u64) {
        if const { is_plain(C) } {
            self.0.number(&KEYS[C][0], unix_ns);
        }
    }

    #[inline]
    fn address<const C: usize>(&mut self, bytes: &'a [u8]) {
        if const { is_plain(C) } && !bytes.is_empty() {
            self.0.text(&KEYS[C][0], text_of(bytes).as_str());
        }
    }

    #[inline]
    fn digest<const C: usize>(&mut self, bytes: &'a [u8]) {
        if const { is_plain(C) }
            && let Ok(digest) = bytes.try_into()
        {
            self.0.text(&KEYS[C][0], community_id(digest).as_str());
        }
    }

    #[inline]
    fn numbers<const C: usize>(&mut self, values: &'a [u32]) {
        let count = const { COLUMNS[C].otlp.len() };
        for (key, &value) in KEYS[C][..count].iter().zip(values) {
            self.0.number(key, value);
        }
    }

    #[inline]
    fn text<const C: usize>(&mut self, value: Option<&'a str>) {
        if const { is_plain(C) }
            && let Some(value) = value
        {
            self.0.text(&KEYS[C][0], short(value));
        }
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
    // The length takes two bytes: a record has some 1,500 bytes, and at most 16 user-chosen names.
    out.extend_from_slice(&[LOG_RECORDS, 0, 0]);
    let start = out.len();
    out.push(TIME_UNIX_NANO);
    out.extend_from_slice(&flow.last_seen_unix_ns.to_le_bytes());
    out.push(OBSERVED_TIME_UNIX_NANO);
    out.extend_from_slice(&batch.window_end_unix_ns.to_le_bytes());
    out.extend_from_slice(&[SEVERITY_NUMBER, INFO, EVENT_NAME, EVENT.len() as u8]);
    out.extend_from_slice(EVENT.as_bytes());

    let ends = flow.ends();
    let [source, destination] = ends.map(|end| text_of(&end.addr));
    let number = Text::<10>::of(flow.protocol);
    let protocol = u8::try_from(flow.protocol).ok().and_then(protocols::name);
    let protocol = protocol.unwrap_or(number.as_str());
    body(out, flow, protocol, [source.as_str(), destination.as_str()]);

    let mut attributes = Attributes::new(out, ATTRIBUTES);
    let attributes = &mut attributes;
    attributes.text(key::SOURCE_ADDRESS, source.as_str());
    attributes.text(key::DESTINATION_ADDRESS, destination.as_str());
    attributes.text(key::NETWORK_TRANSPORT, protocol);
    let version = if flow.ip_version == 6 { "ipv6" } else { "ipv4" };
    attributes.text(key::NETWORK_TYPE, version);
    attributes.written(interface);
    let [forward, reverse] = ends.map(|end| end.direction().side());
    if let Some(side) = forward {
        attributes.text(key::IO_DIRECTION, io_direction(side));
    }
    // Usually it is the opposite.
    if let Some(side) = reverse.filter(|_| forward == reverse) {
        attributes.text(key::REVERSE_DIRECTION, io_direction(side));
    }
    visit(&Row::new(batch, flow, None), &mut Facts(attributes));
    if batch.sample_rate > 1 {
        attributes.number(key::SAMPLE_RATE, batch.sample_rate);
    }

    let len = out.len() - start;
    out[start - 2] = len as u8 | 0x80;
    out[start - 1] = u8::try_from(len >> 7).expect("a record is shorter than 16 KiB");
}

/// Writes a body for people: `tcp 192.0.2.1:40000 > 192.0.2.2:443`.
#[inline]
fn body(out: &mut Vec<u8>, flow: &FlowRecord, protocol: &str, addresses: [&str; 2]) {
    out.extend_from_slice(&[BODY, 0, STRING_VALUE, 0]);
    let start = out.len();
    out.extend_from_slice(protocol.as_bytes());
    out.push(b' ');
    let [source, destination] = addresses;
    endpoint(out, source, flow.src().port);
    out.extend_from_slice(b" > ");
    endpoint(out, destination, flow.dst().port);
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
