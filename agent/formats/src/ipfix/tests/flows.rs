//! Flows to encode.

use bytes::Bytes;
use proto::{
    Account, Count, Direction, Encapsulation, EndReason, Endpoint, FlowBatch, FlowRecord, Interface,
};

const FIRST_NS: u64 = 1_700_000_000_123_456_789;
const LAST_NS: u64 = 1_700_000_001_000_000_001;

pub fn v4(last: u8) -> Bytes {
    Bytes::copy_from_slice(&[192, 0, 2, last])
}

pub fn v6(last: u8) -> Bytes {
    let mut address = [0; 16];
    address[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    address[15] = last;
    Bytes::copy_from_slice(&address)
}

/// A flow of three packets there and two back, on the interface 7.
pub fn flow(protocol: u32) -> FlowRecord {
    FlowRecord {
        src: Some(Endpoint {
            dscp: Some(46),
            addr: v4(1),
            delta_packets: 3,
            delta_bytes: 300,
            delta_ip_bytes: 258,
            total_ip_bytes: 2580,
            total_packets: 30,
            total_bytes: 3000,
            direction: Direction::Egress.into(),
            ..Endpoint::default()
        }),
        dst: Some(Endpoint {
            addr: v4(2),
            delta_packets: 2,
            delta_bytes: 2000,
            delta_ip_bytes: 1972,
            total_ip_bytes: 19720,
            total_packets: 20,
            total_bytes: 20000,
            ..Endpoint::default()
        }),
        protocol,
        first_seen_unix_ns: FIRST_NS,
        last_seen_unix_ns: LAST_NS,
        delta_duration_ns: 500_000_000,
        ip_version: 4,
        ifindex: 7,
        netns: 4_026_531_840,
        community_id: Bytes::from_static(&[9; 20]),
        ..FlowRecord::default()
    }
}

pub fn tcp() -> FlowRecord {
    FlowRecord {
        src: Some(Endpoint {
            port: Some(40_000),
            tcp_flags: Some(0x1b),
            ..flow(6).src().clone()
        }),
        dst: Some(Endpoint {
            port: Some(443),
            tcp_flags: Some(0x12),
            ..flow(6).dst().clone()
        }),
        end_reason: Some(EndReason::EndOfFlow.into()),
        ..flow(6)
    }
}

/// At a mirror port, so both directions arrive.
pub fn udp_with_tags() -> FlowRecord {
    FlowRecord {
        src: Some(Endpoint {
            port: Some(5353),
            direction: Direction::Ingress.into(),
            ..flow(17).src().clone()
        }),
        dst: Some(Endpoint {
            port: Some(53),
            direction: Direction::Ingress.into(),
            ..flow(17).dst().clone()
        }),
        vlan_ids: vec![100, 200],
        ..flow(17)
    }
}

pub fn ping6() -> FlowRecord {
    FlowRecord {
        src: Some(Endpoint {
            addr: v6(1),
            ..flow(58).src().clone()
        }),
        dst: Some(Endpoint {
            addr: v6(2),
            ..flow(58).dst().clone()
        }),
        ip_version: 6,
        icmp_type: Some(128),
        icmp_code: Some(0),
        icmp_identifier: Some(77),
        ..flow(58)
    }
}

pub fn in_vxlan() -> FlowRecord {
    FlowRecord {
        src: Some(Endpoint {
            outer_addr: v4(9),
            ..tcp().src().clone()
        }),
        dst: Some(Endpoint {
            outer_addr: v4(8),
            ..tcp().dst().clone()
        }),
        encapsulation: Some(Encapsulation::Vxlan.into()),
        tunnel_id: Some(0x00ab_cdef),
        vlan_ids: vec![5],
        outer_vlan_ids: vec![11, 12],
        ..tcp()
    }
}

/// Without ports, and without a packet back.
pub fn fragments() -> FlowRecord {
    FlowRecord {
        dst: Some(Endpoint {
            delta_packets: 0,
            delta_bytes: 0,
            delta_ip_bytes: 0,
            ..flow(17).dst().clone()
        }),
        later_fragment: true,
        ..flow(17)
    }
}

/// It ended while it was quiet.
pub fn quiet() -> FlowRecord {
    FlowRecord {
        src: Some(Endpoint {
            delta_packets: 0,
            delta_bytes: 0,
            delta_ip_bytes: 0,
            ..udp_with_tags().src().clone()
        }),
        dst: Some(Endpoint {
            delta_packets: 0,
            delta_bytes: 0,
            delta_ip_bytes: 0,
            ..udp_with_tags().dst().clone()
        }),
        delta_duration_ns: 0,
        end_reason: Some(EndReason::IdleTimeout.into()),
        ..udp_with_tags()
    }
}

pub fn interface(ifindex: u32, name: &str) -> Interface {
    Interface {
        ifindex,
        name: name.to_owned(),
        netns: 4_026_531_840,
        ..Interface::default()
    }
}

/// A batch in the middle of a scan, without interfaces.
pub fn batch(scan_id: u64) -> FlowBatch {
    FlowBatch {
        scan_id,
        ..FlowBatch::default()
    }
}

/// The last batch of a scan, with an account.
pub fn last_batch(scan_id: u64) -> FlowBatch {
    let count = |packets, bytes| Count { packets, bytes };
    let by_reason = |name: &str, count| [(name.to_owned(), count)].into_iter().collect();
    FlowBatch {
        last_of_scan: true,
        lost_batches: 1,
        lost_records: 4,
        lost_packets: 50,
        lost_bytes: 6_000,
        account: Some(Account {
            unparsed: by_reason("not_ip", count(10, 600)),
            not_inserted: by_reason("table_full", count(1, 66)),
            filtered: Some(count(1_000, 1_000_000)),
            ..Account::default()
        }),
        ..batch(scan_id)
    }
}
