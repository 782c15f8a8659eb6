//! Encodes one direction of a flow as a `Record`. Field numbers are those of netobserv's `flow.proto`. Nested messages
//! are shorter than 128 bytes, so their lengths take one byte.

use std::net::IpAddr;

use agent_common::protocol::TCP;
use bytes::{BufMut, BytesMut};
use proto::{Direction, FlowRecord};

/// Protobuf wire types.
const VARINT: u8 = 0;
const LEN: u8 = 2;
const FIXED32: u8 = 5;

const NANOS_PER_S: u64 = 1_000_000_000;

const ETHERTYPE_IPV4: u64 = 0x0800;
const ETHERTYPE_IPV6: u64 = 0x86dd;

const FIN: u32 = 0x01;
const SYN: u32 = 0x02;
const ACK: u32 = 0x10;
/// netobserv's bits for packets with both flags. It does not count such a packet under the single flags.
const SYN_ACK: u32 = 0x100;
const FIN_ACK: u32 = 0x200;

/// The fields that differ between flows.
pub(super) struct Head {
    bytes: [u8; Self::LEN_BYTES],
    len: usize,
}

impl Head {
    /// With every field at its longest it takes less than 140 bytes.
    const LEN_BYTES: usize = 160;

    /// `is_answer`: encode the packets sent by the record's destination.
    #[inline]
    pub fn of(flow: &FlowRecord, direction: Direction, is_answer: bool) -> Self {
        let mut head = Self {
            bytes: [0; Self::LEN_BYTES],
            len: 0,
        };
        let [mut from, mut to] = flow.ends();
        if is_answer {
            (from, to) = (to, from);
        }
        head.number::<1>(match flow.ip_version {
            6 => ETHERTYPE_IPV6,
            _ => ETHERTYPE_IPV4,
        });
        head.number::<2>(number_of(direction));
        let [start, end] = flow.delta_times();
        head.message::<3>(|head| head.time(start));
        head.message::<4>(|head| head.time(end));
        // netobserv's decoder reads these two messages without checking that they exist.
        head.message::<6>(|head| {
            head.message::<1>(|head| head.address(&from.addr));
            head.message::<2>(|head| head.address(&to.addr));
            head.number::<3>(from.dscp.unwrap_or_default().into());
        });
        head.message::<7>(|head| {
            head.number::<1>(from.port.unwrap_or_default().into());
            head.number::<2>(to.port.unwrap_or_default().into());
            head.number::<3>(flow.protocol.into());
        });
        head.number::<8>(from.delta_bytes);
        head.number::<9>(from.delta_packets);
        if flow.protocol == u32::from(TCP) {
            let flags = flags_of(from.tcp_flags.unwrap_or_default(), is_answer);
            head.number::<13>(flags.into());
        }
        if let Some(icmp_type) = flow.icmp_type {
            let kind = if is_answer {
                flow.icmp_type_of_answers()
            } else {
                icmp_type
            };
            head.number::<14>(kind.into());
            head.number::<15>(flow.icmp_code.unwrap_or_default().into());
        }
        head
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// A `google.protobuf.Timestamp`.
    #[inline]
    fn time(&mut self, unix_ns: u64) {
        self.number::<1>(unix_ns / NANOS_PER_S);
        self.number::<2>(unix_ns % NANOS_PER_S);
    }

    /// An `IP` message.
    #[inline]
    fn address(&mut self, address: &[u8]) {
        if let Ok(v4) = <[u8; 4]>::try_from(address) {
            self.append(&[1 << 3 | FIXED32]);
            self.append(&u32::from_be_bytes(v4).to_le_bytes());
        } else if let Ok(v6) = <[u8; 16]>::try_from(address) {
            self.append(&[2 << 3 | LEN, 16]);
            self.append(&v6);
        }
    }

    /// Writes a varint field. Zero is omitted, since absence means zero.
    #[inline]
    fn number<const FIELD: u8>(&mut self, mut value: u64) {
        if value == 0 {
            return;
        }
        self.append(&[FIELD << 3 | VARINT]);
        while value >= 0x80 {
            self.append(&[value as u8 | 0x80]);
            value >>= 7;
        }
        self.append(&[value as u8]);
    }

    #[inline]
    fn message<const FIELD: u8>(&mut self, write: impl FnOnce(&mut Self)) {
        self.append(&[FIELD << 3 | LEN, 0]);
        let begin = self.len;
        write(self);
        self.bytes[begin - 1] = (self.len - begin) as u8;
    }

    #[inline]
    fn append(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// The fields that all records of one interface and direction share.
#[derive(Default)]
pub(super) struct Tail(BytesMut);

impl Tail {
    pub fn new(
        interface: &str,
        direction: Direction,
        agent_ip: Option<IpAddr>,
        sample_rate: u32,
    ) -> Self {
        let mut tail = BytesMut::new();
        // Older decoders read this field, newer ones the list.
        put_text(&mut tail, 10, interface);
        if let Some(address) = agent_ip {
            let mut message = BytesMut::new();
            match address {
                IpAddr::V4(v4) => {
                    message.put_u8(1 << 3 | FIXED32);
                    message.put_u32_le(v4.to_bits());
                }
                IpAddr::V6(v6) => put_bytes(&mut message, 2, &v6.octets()),
            }
            put_bytes(&mut tail, 12, &message);
        }
        let mut seen_at = BytesMut::new();
        put_text(&mut seen_at, 1, interface);
        if number_of(direction) != 0 {
            put_tag(&mut seen_at, 2, VARINT);
            put_varint(&mut seen_at, number_of(direction));
        }
        put_bytes(&mut tail, 26, &seen_at);
        if sample_rate > 1 {
            put_tag(&mut tail, 29, VARINT);
            put_varint(&mut tail, sample_rate.into());
        }
        Self(tail)
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn put_text(out: &mut BytesMut, field: u32, text: &str) {
    if !text.is_empty() {
        put_bytes(out, field, text.as_bytes());
    }
}

fn put_bytes(out: &mut BytesMut, field: u32, bytes: &[u8]) {
    put_tag(out, field, LEN);
    put_varint(out, bytes.len() as u64);
    out.put_slice(bytes);
}

fn put_tag(out: &mut BytesMut, field: u32, wire_type: u8) {
    put_varint(out, u64::from(field << 3) | u64::from(wire_type));
}

#[inline]
pub(super) fn put_varint(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// The value of IPFIX element 61.
fn number_of(direction: Direction) -> u64 {
    u64::from(direction == Direction::Egress)
}

/// Converts a union of flags to netobserv's flags, which have one bit per packet. The union does not say which flags
/// were set together. But a SYN from the responder comes with ACK, since the initiator sends the one without, and FIN
/// comes with ACK in both directions (RFC 9293, section 3.10.7.4: a segment without ACK is dropped).
#[inline]
fn flags_of(union: u32, is_answer: bool) -> u32 {
    let mut flags = union;
    if union & ACK != 0 {
        if is_answer && union & SYN != 0 {
            flags = flags & !SYN | SYN_ACK;
        }
        if union & FIN != 0 {
            flags = flags & !FIN | FIN_ACK;
        }
    }
    flags
}
