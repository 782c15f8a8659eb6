//! Encodes a [`Record`] as the fields of a `FlowRecord` message, in one buffer for all records.

use agent_common::{Direction, Encapsulation, FlowKey, L4Kind, protocol::TCP};

use crate::record::Record;

/// Wire types of protobuf's encoding.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LEN: u32 = 2;

pub(super) struct RecordBuffer {
    bytes: [u8; Self::LEN_BYTES],
    len: usize,
}

impl RecordBuffer {
    /// A record takes 348 bytes if every field is at its longest.
    pub(super) const LEN_BYTES: usize = 368;

    pub(super) fn new() -> Self {
        Self {
            bytes: [0; Self::LEN_BYTES],
            len: 0,
        }
    }

    /// Encodes a record. The field numbers are those of `FlowRecord` in `flow.proto`.
    #[inline]
    pub(super) fn write(&mut self, record: &Record) -> &[u8] {
        self.len = 0;
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
        &self.bytes[..self.len]
    }

    fn vlan_ids<const FIELD: u32>(&mut self, ids: [u16; 2]) {
        let mut packed = Self {
            bytes: [0; Self::LEN_BYTES],
            len: 0,
        };
        if ids == [0, 0] {
            return;
        }
        for id in ids.into_iter().filter(|&id| id != 0) {
            packed.varint(u64::from(id));
        }
        self.tag::<FIELD, LEN>();
        self.varint(packed.len as u64);
        self.append(&packed.bytes[..packed.len]);
    }

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

    /// The numbers of the enum in `flow.proto` are those in a flow's key, except for GRE without a GRE key.
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

    /// A field whose absence means zero.
    #[inline]
    fn count<const FIELD: u32>(&mut self, value: u64) {
        if value != 0 {
            self.value::<FIELD>(value);
        }
    }

    /// An `optional` field, in which zero is written too.
    #[inline]
    fn value<const FIELD: u32>(&mut self, value: u64) {
        self.tag::<FIELD, VARINT>();
        self.varint(value);
    }

    #[inline]
    fn fixed64<const FIELD: u32>(&mut self, value: u64) {
        self.tag::<FIELD, FIXED64>();
        self.append(&value.to_le_bytes());
    }

    #[inline]
    fn bytes<const FIELD: u32>(&mut self, bytes: &[u8]) {
        self.tag::<FIELD, LEN>();
        self.varint(bytes.len() as u64);
        self.append(bytes);
    }

    #[inline]
    fn tag<const FIELD: u32, const WIRE_TYPE: u32>(&mut self) {
        let tag = FIELD << 3 | WIRE_TYPE;
        if tag < 0x80 {
            self.append(&[tag as u8]);
        } else {
            self.append(&[tag as u8 | 0x80, (tag >> 7) as u8]);
        }
    }

    #[inline]
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.append(&[value as u8 | 0x80]);
            value >>= 7;
        }
        self.append(&[value as u8]);
    }

    #[inline]
    fn append(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// A value of the enum in `flow.proto`, where 0 is unspecified.
fn direction(direction: Direction) -> u64 {
    direction as u64 + 1
}

/// Source and destination from a and b.
fn in_order<'a, T>(a: &'a T, b: &'a T, reversed: bool) -> (&'a T, &'a T) {
    if reversed { (b, a) } else { (a, b) }
}
