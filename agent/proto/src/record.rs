//! The record that the flow cache makes of one flow after one scan, before it is encoded.

use std::ops::{Deref, DerefMut};

use agent_common::{Counts, Encapsulation, FlowKey, L4Kind, Outer, TcpInfo};

use bytes::Bytes;

include!(concat!(env!("OUT_DIR"), "/record.rs"));

/// An IP address in a message: 4 or 16 bytes, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    pub(crate) bytes: [u8; 16],
    pub(crate) len: u8,
}

impl Address {
    /// An address as the programs keep it: 16 bytes, of which IPv4 uses the first four.
    #[inline]
    pub fn new(ip_version: u8, bytes: [u8; 16]) -> Self {
        let len = if ip_version == 4 { 4 } else { 16 };
        Self { bytes, len }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Up to two VLAN ids, the outer one first; 0 if absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VlanIds(pub [u16; 2]);

impl VlanIds {
    /// The ids that are present.
    pub fn numbers(self) -> impl Iterator<Item = u32> {
        self.0.into_iter().filter(|&id| id != 0).map(u32::from)
    }
}

/// One flow after one scan, as the flow cache reports it.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub key: FlowKey,
    /// The endpoint of the key that is the initiator and therefore the record's source: 0 is a, 1 is b.
    pub initiator: u8,
    pub fields: Fields,
}

impl Deref for Record {
    type Target = Fields;

    fn deref(&self) -> &Fields {
        &self.fields
    }
}

impl DerefMut for Record {
    fn deref_mut(&mut self) -> &mut Fields {
        &mut self.fields
    }
}

impl Record {
    /// A record with the fields of the key.
    #[inline]
    pub fn new(key: FlowKey, initiator: u8) -> Self {
        let kind = key.kind();
        let has_ports = kind == Some(L4Kind::Ports);
        let is_query = kind == Some(L4Kind::IcmpQuery);
        let [icmp_type, icmp_code] = key.port_a.to_be_bytes();
        let is_icmp = is_query || kind == Some(L4Kind::Icmp);
        let [src, dst] = in_order(
            initiator,
            [(key.addr_a, key.port_a), (key.addr_b, key.port_b)],
        );
        let [encapsulation, tunnel_id] = tunnel(&key);
        // A record is long: it is filled where it stays.
        let mut record = Self {
            key,
            initiator,
            fields: Fields::default(),
        };
        let fields = &mut record.fields;
        for (end, (addr, port)) in [(&mut fields.src, src), (&mut fields.dst, dst)] {
            end.addr = Address::new(key.ip_version, addr);
            end.port = has_ports.then_some(port.into());
        }
        fields.protocol = key.protocol.into();
        fields.ip_version = key.ip_version.into();
        fields.ifindex = key.ifindex;
        fields.netns = key.netns;
        fields.vlan_ids = VlanIds(key.vlan_ids);
        fields.icmp_type = is_icmp.then_some(icmp_type.into());
        fields.icmp_code = is_icmp.then_some(icmp_code.into());
        fields.icmp_identifier = is_query.then_some(key.port_b.into());
        fields.later_fragment = kind == Some(L4Kind::Fragment);
        fields.encapsulation =
            encapsulation.and_then(|number| number.cast_signed().try_into().ok());
        fields.tunnel_id = tunnel_id;
        record
    }

    /// Sets the headers around its tunnel.
    pub fn set_outer(&mut self, outer: &Outer) {
        let addresses = [outer.addr_a, outer.addr_b].map(|one| Address::new(outer.ip_version, one));
        if self.key.encapsulation != 0 {
            [self.src.outer_addr, self.dst.outer_addr] = in_order(self.initiator, addresses);
        }
        self.outer_vlan_ids = VlanIds(outer.vlan_ids);
        self.outer_pppoe_session =
            (outer.has_pppoe_session != 0).then_some(outer.pppoe_session.into());
    }

    #[inline]
    pub fn ends(&self) -> [&EndFields; 2] {
        [&self.fields.src, &self.fields.dst]
    }

    /// What source and destination have sent since the flow's last record.
    #[inline]
    pub fn delta(&self) -> [Counts; 2] {
        self.ends().map(EndFields::delta)
    }

    /// What source and destination have sent since the flow began.
    #[inline]
    pub fn total(&self) -> [Counts; 2] {
        self.ends().map(EndFields::total)
    }
}

/// The number in the enum in `flow.proto` and the tunnel's own. The enum has the numbers in a flow's key, except that
/// GRE without a GRE key is GRE.
fn tunnel(key: &FlowKey) -> [Option<u32>; 2] {
    let number = key.encapsulation;
    match Encapsulation::from_u8(number) {
        _ if number == 0 => [None, None],
        Some(Encapsulation::Mpls | Encapsulation::IpInIp) => [Some(number.into()), None],
        Some(Encapsulation::GreWithoutKey) => [Some(Encapsulation::Gre as u32), Some(0)],
        _ => [Some(number.into()), Some(key.tunnel_id)],
    }
}

/// Source and destination for a and b.
#[inline]
fn in_order<T>(initiator: u8, [a, b]: [T; 2]) -> [T; 2] {
    if initiator == 0 { [a, b] } else { [b, a] }
}

impl EndFields {
    /// Since the flow's last record.
    #[inline]
    fn delta(&self) -> Counts {
        Counts {
            packets: self.delta_packets,
            bytes: self.delta_bytes,
            ip_bytes: self.delta_ip_bytes,
        }
    }

    /// Since the flow began.
    #[inline]
    fn total(&self) -> Counts {
        Counts {
            packets: self.total_packets,
            bytes: self.total_bytes,
            ip_bytes: self.total_ip_bytes,
        }
    }

    /// Sets the counts that this end has sent since the flow's last record, and since the flow began.
    #[inline]
    pub fn set_counts(&mut self, delta: Counts, total: Counts) {
        self.delta_packets = delta.packets;
        self.delta_bytes = delta.bytes;
        self.delta_ip_bytes = delta.ip_bytes;
        self.total_packets = total.packets;
        self.total_bytes = total.bytes;
        self.total_ip_bytes = total.ip_bytes;
    }

    /// Sets the figures of the kernel's TCP for this end, if there are any.
    #[inline]
    pub fn set_tcp(&mut self, info: TcpInfo) {
        if !info.is_known() {
            return;
        }
        self.tcp_rtt_us = (info.rtt_us != 0).then_some(info.rtt_us);
        self.tcp_min_rtt_us = (info.min_rtt_us != TcpInfo::NO_RTT).then_some(info.min_rtt_us);
        self.tcp_total_retrans = Some(info.total_retrans);
        self.tcp_delivered = Some(info.delivered);
        self.tcp_delivered_ce = Some(info.delivered_ce);
        self.tcp_data_segs_out = Some(info.data_segs_out);
        self.tcp_snd_cwnd = Some(info.snd_cwnd);
        self.tcp_delivery_rate = info.delivery_rate();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_that_was_not_measured_is_not_said() {
        let fresh = TcpInfo {
            min_rtt_us: TcpInfo::NO_RTT,
            ..TcpInfo::default()
        };
        let mut end = EndFields::default();
        end.set_tcp(fresh);
        assert_eq!((end.tcp_rtt_us, end.tcp_min_rtt_us), (None, None));
        assert_eq!(
            (end.tcp_total_retrans, end.tcp_delivered),
            (Some(0), Some(0))
        );
        let mut unknown = EndFields::default();
        unknown.set_tcp(TcpInfo::default());
        assert_eq!(unknown, EndFields::default());
    }
}
