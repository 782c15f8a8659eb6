//! Encodes a [`Record`] as the fields of a `FlowRecord` message, in one buffer that all records share.

#![expect(
    clippy::inline_always,
    reason = "a writer's length is in a register only if all that writes is one function"
)]

use agent_common::{Direction, Encapsulation, FlowKey, L4Kind, TcpInfo, protocol::TCP};

use prost::encoding::encode_varint;

use super::fields::RECORDS;
use crate::{
    record::{Failure, Record, RecordName},
    round_trip::RoundTrip,
    tcp::Tcp,
};

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
    /// A record with every field at its longest takes 600 bytes, prefix included.
    pub const LEN_BYTES: usize = 612;

    /// Encodes a record as an element of `FlowBatch.records`.
    #[inline]
    pub fn write(&mut self, record: &Record) -> &[u8] {
        let mut writer = Writer {
            bytes: &mut self.bytes,
            len: PREFIX_LEN_BYTES,
        };
        writer.fields(record);
        let end = writer.len;
        let start = writer.put_prefix();
        &self.bytes[start..end]
    }
}

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

    /// Writes all fields. The field numbers are those of `FlowRecord` in `flow.proto`.
    #[inline(always)]
    fn fields(&mut self, record: &Record) {
        let key = &record.key;
        let reversed = record.initiator != 0;

        self.count::<1>(u64::from(key.protocol));
        let (source, destination) = in_order(&key.addr_a, &key.addr_b, reversed);
        if key.ip_version == 4 {
            self.bytes::<2>(source.first_chunk::<4>().expect("an address has 16 bytes"));
            self.bytes::<3>(
                destination
                    .first_chunk::<4>()
                    .expect("an address has 16 bytes"),
            );
        } else {
            self.bytes::<2>(source);
            self.bytes::<3>(destination);
        }
        let kind = key.kind();
        if kind == Some(L4Kind::Ports) {
            let (source, destination) = in_order(&key.port_a, &key.port_b, reversed);
            self.value::<4>(u64::from(*source));
            self.value::<5>(u64::from(*destination));
        }
        self.count::<6>(record.delta[0].packets);
        self.count::<7>(record.delta[0].bytes);
        self.count::<8>(record.delta[1].packets);
        self.count::<9>(record.delta[1].bytes);
        self.count::<10>(record.total[0].packets);
        self.count::<11>(record.total[0].bytes);
        self.count::<12>(record.total[1].packets);
        self.count::<13>(record.total[1].bytes);
        self.fixed64::<14>(record.first_seen_unix_ns);
        self.fixed64::<15>(record.last_seen_unix_ns);
        self.count::<16>(u64::from(key.ip_version));
        self.count::<17>(u64::from(key.ifindex));
        self.count::<18>(u64::from(key.netns));
        self.vlan_ids::<19>(key.vlan_ids);
        self.icmp(key, kind);
        if kind == Some(L4Kind::Fragment) {
            self.value::<23>(1);
        }
        if kind == Some(L4Kind::Ports) && key.protocol == TCP {
            self.value::<24>(u64::from(record.tcp_flags[0]));
            self.value::<25>(u64::from(record.tcp_flags[1]));
        }
        self.value::<26>(u64::from(record.dscp));
        if let Some(reason) = record.end_reason {
            self.value::<27>(reason as u64);
        }
        self.bytes::<28>(&record.community_id);
        if key.encapsulation != 0 {
            self.encapsulation(record, reversed);
        }
        self.value::<34>(direction(record.direction));
        if record.reverse_direction == record.direction {
            self.value::<35>(direction(record.reverse_direction));
        }
        if let Some(outer) = &record.outer {
            self.vlan_ids::<36>(outer.vlan_ids);
            if outer.has_pppoe_session != 0 {
                self.value::<37>(u64::from(outer.pppoe_session));
            }
        }
        self.count::<38>(record.delta[0].ip_bytes);
        self.count::<39>(record.delta[1].ip_bytes);
        self.count::<40>(record.total[0].ip_bytes);
        self.count::<41>(record.total[1].ip_bytes);
        let [source, destination] = record.cgroup_ids;
        self.count::<42>(source);
        self.count::<43>(destination);
        let [source, destination] = record.process_keys;
        self.count::<44>(source);
        self.count::<45>(destination);
        if record.tcp.iter().any(TcpInfo::is_known) {
            self.len = put_tcp(self.bytes, self.len, record);
        }
        if record.names != [None, None] {
            self.len = put_names(self.bytes, self.len, record);
        }
        if let Some(failure) = record.failure {
            self.value::<62>(failure.number());
            if let Failure::Unreachable(error) = failure {
                self.value::<63>(error.icmp_type.into());
                self.value::<64>(error.code.into());
            }
        }
        if record.round_trips != [RoundTrip::default(); 2] {
            self.len = put_round_trips(self.bytes, self.len, record);
        }
        let [source, destination] = record.dropped;
        self.count::<69>(source);
        self.count::<70>(destination);
        self.count::<71>(record.initiator_assumed.into());
        let [source, destination] = record.senders_shared;
        self.count::<72>(source.into());
        self.count::<73>(destination.into());
        self.count::<75>(record.delta_duration_ns);
        self.count::<76>(record.is_closing.into());
    }

    /// Writes in the order of the field numbers, which alternate between source and destination.
    #[inline(always)]
    fn tcp(&mut self, record: &Record) {
        let [source, destination] = record.tcp.map(Tcp::of);
        self.optional::<46>(source.rtt_us);
        self.optional::<47>(destination.rtt_us);
        self.optional::<48>(source.min_rtt_us);
        self.optional::<49>(destination.min_rtt_us);
        self.optional::<50>(source.total_retrans);
        self.optional::<51>(destination.total_retrans);
        self.optional::<52>(source.delivered);
        self.optional::<53>(destination.delivered);
        self.optional::<54>(source.delivered_ce);
        self.optional::<55>(destination.delivered_ce);
        self.optional::<56>(source.data_segs_out);
        self.optional::<57>(destination.data_segs_out);
    }

    /// Writes in the order of the field numbers, which alternate between source and destination.
    #[inline(always)]
    fn names(&mut self, record: &Record) {
        let [source, destination] = record.names;
        let id = |name: Option<RecordName>| name.map_or(0, |name| name.id);
        let learned = |name: Option<RecordName>| name.map_or(0, |name| name.source as u64);
        self.count::<58>(id(source));
        self.count::<59>(id(destination));
        self.count::<60>(learned(source));
        self.count::<61>(learned(destination));
    }

    /// Writes in the order of the field numbers, which alternate between source and destination.
    #[inline(always)]
    fn round_trips(&mut self, record: &Record) {
        let [source, destination] = record.round_trips;
        self.count::<65>(source.handshake_us.into());
        self.count::<66>(destination.handshake_us.into());
        self.count::<67>(source.ack_us.into());
        self.count::<68>(destination.ack_us.into());
    }

    #[inline(always)]
    fn optional<const FIELD: u32>(&mut self, value: Option<u32>) {
        if let Some(value) = value {
            self.value::<FIELD>(value.into());
        }
    }

    #[inline(always)]
    fn vlan_ids<const FIELD: u32>(&mut self, ids: [u16; 2]) {
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

    #[inline(always)]
    fn icmp(&mut self, key: &FlowKey, kind: Option<L4Kind>) {
        if !matches!(kind, Some(L4Kind::Icmp | L4Kind::IcmpQuery)) {
            return;
        }
        let [icmp_type, code] = key.port_a.to_be_bytes();
        self.value::<20>(u64::from(icmp_type));
        self.value::<21>(u64::from(code));
        if kind == Some(L4Kind::IcmpQuery) {
            self.value::<22>(u64::from(key.port_b));
        }
    }

    /// The enum in `flow.proto` has the numbers in a flow's key, except that GRE without a GRE key is GRE.
    #[inline(always)]
    fn encapsulation(&mut self, record: &Record, reversed: bool) {
        let key = &record.key;
        let (number, id) = match Encapsulation::from_u8(key.encapsulation) {
            Some(Encapsulation::Mpls | Encapsulation::IpInIp) => (key.encapsulation, None),
            Some(Encapsulation::GreWithoutKey) => (Encapsulation::Gre as u8, Some(0)),
            _ => (key.encapsulation, Some(key.tunnel_id)),
        };
        self.value::<30>(u64::from(number));
        if let Some(id) = id {
            self.value::<31>(u64::from(id));
        }
        let Some(outer) = &record.outer else {
            return;
        };
        let (source, destination) = in_order(&outer.addr_a, &outer.addr_b, reversed);
        let len = if outer.ip_version == 4 { 4 } else { 16 };
        self.bytes::<32>(&source[..len]);
        self.bytes::<33>(&destination[..len]);
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

/// Writes the TCP fields, which few records have. Returns the offset behind them.
#[cold]
fn put_tcp(bytes: &mut Room, at: usize, record: &Record) -> usize {
    let mut writer = Writer { bytes, len: at };
    writer.tcp(record);
    writer.len
}

/// Writes the host names, which few records have. Returns the offset behind them.
#[cold]
fn put_names(bytes: &mut Room, at: usize, record: &Record) -> usize {
    let mut writer = Writer { bytes, len: at };
    writer.names(record);
    writer.len
}

/// Writes the round-trip times, which few records have. Returns the offset behind them.
#[cold]
fn put_round_trips(bytes: &mut Room, at: usize, record: &Record) -> usize {
    let mut writer = Writer { bytes, len: at };
    writer.round_trips(record);
    writer.len
}

/// Writes a varint that does not fit into a word. Returns the offset behind it.
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

/// The number in the enum in `flow.proto`, where 0 is unspecified.
fn direction(direction: Direction) -> u64 {
    direction as u64 + 1
}

/// Returns source and destination for a and b.
fn in_order<'a, T>(a: &'a T, b: &'a T, reversed: bool) -> (&'a T, &'a T) {
    if reversed { (b, a) } else { (a, b) }
}
