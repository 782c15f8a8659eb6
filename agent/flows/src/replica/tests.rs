use std::collections::BTreeSet;

use agent_common::{
    Counts, Direction, Outer, TcpInfo,
    flow::{Classes, FlowBits, tcp_flags::*},
};
use proto::{NameSource, community_id::community_id};

use super::{round_trip::RoundTrip, *};

mod ends;
mod failures;
mod initiator;
mod names;
mod promises;
mod reports;
mod resets;
mod senders;
mod sides;
mod tunnels;

const SECOND: u64 = 1_000_000_000;
const UNIX: i64 = 1_700_000_000_000_000_000;

/// The content of records in the terms of the tests: `[0]` is the source's, `[1]` the destination's.
trait Parts {
    fn tcp_flags(&self) -> [u8; 2];
    fn direction(&self) -> Direction;
    fn reverse_direction(&self) -> Direction;
    fn names(&self) -> [Option<(u64, NameSource)>; 2];
    fn cgroup_ids(&self) -> [u64; 2];
    fn process_keys(&self) -> [u64; 2];
    fn senders_shared(&self) -> [bool; 2];
    fn tcp(&self) -> [TcpInfo; 2];
    fn round_trips(&self) -> [RoundTrip; 2];
    fn outer(&self) -> Option<Outer>;
}

impl Parts for Record {
    fn tcp_flags(&self) -> [u8; 2] {
        self.ends()
            .map(|end| end.tcp_flags.unwrap_or_default() as u8)
    }

    fn direction(&self) -> Direction {
        self.src.direction.side().unwrap()
    }

    fn reverse_direction(&self) -> Direction {
        self.dst.direction.side().unwrap()
    }

    fn names(&self) -> [Option<(u64, NameSource)>; 2] {
        self.ends().map(|end| Some((end.host_id?, end.host_source)))
    }

    fn cgroup_ids(&self) -> [u64; 2] {
        self.ends().map(|end| end.cgroup_id.unwrap_or_default())
    }

    fn process_keys(&self) -> [u64; 2] {
        self.ends().map(|end| end.process_key.unwrap_or_default())
    }

    fn senders_shared(&self) -> [bool; 2] {
        self.ends().map(|end| end.sender_shared)
    }

    fn tcp(&self) -> [TcpInfo; 2] {
        self.ends().map(|end| match end.tcp_delivered {
            None => TcpInfo::default(),
            Some(delivered) => TcpInfo {
                rtt_us: end.tcp_rtt_us.unwrap_or_default(),
                min_rtt_us: end.tcp_min_rtt_us.unwrap_or(TcpInfo::NO_RTT),
                delivered,
                data_segs_out: end.tcp_data_segs_out.unwrap(),
                ..TcpInfo::default()
            },
        })
    }

    fn round_trips(&self) -> [RoundTrip; 2] {
        self.ends().map(|end| RoundTrip {
            handshake_us: end.handshake_rtt_us.unwrap_or_default(),
            ack_us: end.ack_rtt_us.unwrap_or_default(),
        })
    }

    fn outer(&self) -> Option<Outer> {
        let [source, destination] = self.ends().map(|end| end.outer_addr.as_bytes().to_vec());
        let ip_version = match source.len() {
            0 => return None,
            4 => 4,
            _ => 6,
        };
        let mut addresses = [source, destination].map(|bytes| {
            let mut address = [0; 16];
            address[..bytes.len()].copy_from_slice(&bytes);
            address
        });
        if self.initiator == 1 {
            addresses.reverse();
        }
        let [addr_a, addr_b] = addresses;
        let session = self.outer_pppoe_session;
        Some(Outer {
            addr_a,
            addr_b,
            ip_version,
            has_pppoe_session: session.is_some().into(),
            pppoe_session: session.unwrap_or_default() as u16,
            vlan_ids: self.outer_vlan_ids.0,
        })
    }
}

fn replica(max_flows: usize) -> Replica {
    Replica::new(ReplicaSettings {
        max_flows,
        idle_timeout: Duration::from_secs(30),
        linger: Duration::from_secs(5),
        report_interval: Duration::ZERO,
    })
}

fn key(number: u32) -> FlowKey {
    let mut key = FlowKey {
        ip_version: 4,
        protocol: 6,
        l4_kind: 1,
        ..FlowKey::default()
    };
    key.addr_a[..4].copy_from_slice(&number.to_be_bytes());
    key.addr_b[0] = 255;
    key
}

fn segments(direction: u8, flags: &[u8]) -> FlowBits {
    let segments = flags
        .iter()
        .map(|&flags| FlowBits::segment(direction, flags));
    segments.fold(FlowBits::default(), FlowBits::and)
}

/// Counters seen at `second`, with a packet for each of these flag bytes in each direction.
fn counters(second: u64, a_to_b: &[u8], b_to_a: &[u8]) -> FlowCounters {
    let packets = [a_to_b.len() as u64, b_to_a.len() as u64];
    FlowCounters {
        packets,
        bytes: packets.map(|packets| packets * 60),
        first_seen_ns: second * SECOND,
        last_seen_jiffies: second as u32,
        bits: segments(0, a_to_b).and(segments(1, b_to_a)),
        ..FlowCounters::default()
    }
}

/// Sets who sent the packet that made the entry, and with which DSCP.
fn began(counters: &mut FlowCounters, direction: u8, dscp: u8) {
    counters.bits = counters.bits.and(FlowBits::first(direction));
    counters.classes = Classes::first(direction, dscp);
}

fn clock(second: u64) -> ScanClock {
    ScanClock {
        boot_ns: second * SECOND,
        jiffies: second,
        tick_ns: SECOND,
        boot_to_unix_ns: UNIX,
        slept_ns: 0,
    }
}

fn scan(replica: &mut Replica, second: u64, updates: &[(u32, FlowCounters)]) -> Vec<Record> {
    let keyed: Vec<_> = updates.iter().map(|&(n, c)| (key(n), c)).collect();
    scan_keys(replica, second, &keyed)
}

fn scan_keys(
    replica: &mut Replica,
    second: u64,
    updates: &[(FlowKey, FlowCounters)],
) -> Vec<Record> {
    let mut records = Vec::new();
    let mut sink = |record: &Record| records.push(*record);
    replica.begin_scan(clock(second));
    let (keys, counters): (Vec<_>, Vec<_>) = updates.iter().copied().unzip();
    replica.update(&keys, &counters, &mut sink);
    replica.end_scan(&BTreeSet::new(), &mut sink);
    records
}

/// The flows that wait for a report, as their process leaves them.
fn all_unreported(replica: &Replica) -> Vec<u8> {
    let mut places = vec![[0; _]; replica.waiting_flows()];
    let mut all = Vec::new();
    replica.write_unreported(&mut places, &mut |written| {
        all.extend_from_slice(written.as_flattened());
    });
    assert_eq!(all, places.as_flattened());
    all
}

fn reasons(records: &[Record]) -> Vec<Option<EndReason>> {
    records.iter().map(|record| record.end_reason).collect()
}

#[test]
fn no_flow_is_last_seen_before_its_first_packet_where_unix_time_is_set_back() {
    let mut replica = replica(8);
    scan(&mut replica, 1, &[(1, counters(1, &[ACK], &[]))]);
    for set_back_ns in [39, 3_600_000_000_000] {
        let mut records = Vec::new();
        replica.begin_scan(ScanClock {
            boot_to_unix_ns: UNIX - set_back_ns,
            ..clock(2)
        });
        let late = counters(1, &[ACK], &[]);
        replica.update(&[key(1)], &[late], &mut |record| records.push(*record));
        assert_eq!(records[0].first_seen_unix_ns, UNIX as u64 + SECOND);
        assert_eq!(records[0].last_seen_unix_ns, UNIX as u64 + SECOND);
    }
}

#[test]
fn a_syn_on_an_established_flow_opens_the_next_one() {
    const SYN_ACK: u8 = SYN | ACK;
    // The flags in each window, and the expected number of flows.
    type Window = (&'static [u8], &'static [u8]);
    let cases: [(&[Window], usize); 9] = [
        (&[(&[SYN, ACK], &[SYN_ACK]), (&[SYN], &[])], 2),
        (&[(&[SYN, ACK], &[SYN_ACK]), (&[], &[SYN])], 2),
        (&[(&[ACK], &[ACK]), (&[SYN, ACK], &[SYN_ACK])], 2),
        // The order within one window is unknown.
        (&[(&[SYN, ACK, SYN], &[SYN_ACK, SYN_ACK])], 1),
        // The SYN is repeated until the answer arrives.
        (&[(&[SYN], &[]), (&[SYN], &[SYN_ACK]), (&[SYN], &[])], 1),
        (&[(&[], &[SYN_ACK]), (&[SYN], &[])], 1),
        (&[(&[SYN], &[SYN_ACK]), (&[ACK], &[]), (&[SYN], &[])], 2),
        // Only one side is seen.
        (&[(&[SYN, ACK], &[]), (&[SYN], &[])], 2),
        // An answer alone begins no flow.
        (&[(&[SYN, ACK], &[SYN_ACK]), (&[], &[SYN_ACK])], 1),
    ];
    for (windows, flows) in cases {
        let mut replica = replica(8);
        let mut records = Vec::new();
        for (second, (a_to_b, b_to_a)) in (1..).zip(windows) {
            let counted = counters(second, a_to_b, b_to_a);
            records.extend(scan(&mut replica, second, &[(1, counted)]));
        }
        let ends: Vec<_> = records
            .iter()
            .filter_map(|record| record.end_reason)
            .collect();
        assert_eq!(ends, vec![EndReason::EndOfFlow; flows - 1], "{windows:?}");
        let last = records.last().unwrap();
        assert_eq!(
            last.delta() == last.total(),
            windows.len() == 1 || flows == 2,
            "{windows:?}"
        );
        assert_eq!(replica.len(), 1);
    }
}

#[test]
fn a_flow_has_the_new_time_where_unix_time_is_set() {
    for set_by_ns in [-3_600_000_000_000, 3_600_000_000_000] {
        let mut replica = replica(8);
        scan(&mut replica, 1, &[(1, counters(1, &[ACK], &[]))]);
        let mut records = Vec::new();
        replica.begin_scan(ScanClock {
            boot_to_unix_ns: UNIX + set_by_ns,
            ..clock(3)
        });
        replica.follow_set_clock(set_by_ns);
        let more = counters(2, &[ACK], &[]);
        replica.update(&[key(1)], &[more], &mut |record| records.push(*record));
        let then = (UNIX + set_by_ns).cast_unsigned();
        assert_eq!(records[0].first_seen_unix_ns, then + SECOND);
        assert_eq!(records[0].last_seen_unix_ns, then + 2 * SECOND);
    }
}

#[test]
fn a_syn_after_the_close_opens_a_new_flow() {
    let mut replica = replica(1);
    scan(&mut replica, 1, &[(1, counters(1, &[ACK], &[RST]))]);
    let records = scan(&mut replica, 2, &[(1, counters(2, &[], &[SYN]))]);
    assert_eq!(reasons(&records), [Some(EndReason::EndOfFlow), None]);
    assert_eq!(records[0].first_seen_unix_ns, UNIX as u64 + SECOND);
    assert_eq!(records[1].first_seen_unix_ns, UNIX as u64 + 2 * SECOND);
    assert_eq!(records[1].initiator, 1);
    assert_eq!(records[1].total(), records[1].delta());
    assert_eq!(records[1].tcp_flags(), [SYN, 0]);
    assert_eq!((replica.len(), replica.evicted()), (1, 0));
}

#[test]
fn a_syn_in_the_scan_of_the_close_merges() {
    let mut replica = replica(8);
    let both = [
        (1, counters(1, &[ACK], &[RST])),
        (1, counters(1, &[SYN], &[])),
    ];
    let records = scan(&mut replica, 1, &both);
    assert_eq!(reasons(&records), [None, None]);
    assert_eq!(replica.len(), 1);
}

#[test]
fn the_handshake_tells_the_initiator_else_the_first_packet() {
    const SYN_ACK: u8 = SYN | ACK;
    let cases: [(&[u8], &[u8], u8, u8); 9] = [
        (&[SYN], &[SYN_ACK], 1, 0),
        (&[SYN_ACK], &[SYN], 0, 1),
        (&[SYN], &[ACK], 1, 0),
        (&[SYN_ACK], &[ACK], 0, 1),
        (&[ACK], &[SYN_ACK], 1, 0),
        (&[SYN], &[SYN], 1, 1),
        (&[SYN, SYN_ACK], &[SYN], 0, 1),
        (&[SYN_ACK], &[SYN_ACK], 1, 1),
        (&[ACK], &[ACK], 1, 1),
    ];
    for (a_to_b, b_to_a, first_direction, expected) in cases {
        let mut counted = counters(1, a_to_b, b_to_a);
        began(&mut counted, first_direction, 0);
        counted.packets = [10, 20];
        let mut replica = replica(8);
        let record = scan(&mut replica, 1, &[(1, counted)])[0];
        assert_eq!(record.initiator, expected, "{a_to_b:?} {b_to_a:?}");
        let forward = counted.packets[usize::from(expected)];
        assert_eq!(record.delta()[0].packets, forward);
        assert_eq!(record.community_id, community_id(&key(1), expected));

        let later = counters(2, &[], &[SYN_ACK]);
        let record = scan(&mut replica, 2, &[(1, later)])[0];
        assert_eq!(record.initiator, expected, "decided once");
    }
}

#[test]
fn each_end_keeps_the_dscp_of_its_first_packet_and_is_marked_once_another_follows() {
    let mut replica = replica(8);
    let mut scan_with = |second: u64, dscp: [u8; 2]| {
        let mut counters = counters(second, &[ACK], &[ACK]);
        began(&mut counters, 0, dscp[0]);
        counters.classes = counters.classes.and_later(Classes::first(1, dscp[1]));
        let record = scan(&mut replica, second, &[(1, counters)])[0];
        [record.src, record.dst].map(|end| (end.dscp, end.dscp_changed))
    };
    let (first, second) = (Some(46), Some(10));
    assert_eq!(scan_with(5, [46, 10]), [(first, false), (second, false)]);
    assert_eq!(scan_with(6, [46, 12]), [(first, false), (second, true)]);
    // It goes back, and the other end has another one.
    assert_eq!(scan_with(7, [0, 10]), [(first, true), (second, true)]);
}

#[test]
fn times_and_flags_only_grow() {
    let mut replica = replica(8);
    let mut first = counters(5, &[PSH], &[ACK]);
    began(&mut first, 0, 46);
    scan(&mut replica, 6, &[(1, first)]);
    let record = scan(&mut replica, 7, &[(1, counters(4, &[URG], &[]))])[0];
    assert_eq!(record.first_seen_unix_ns, UNIX as u64 + 5 * SECOND);
    assert_eq!(record.last_seen_unix_ns, UNIX as u64 + 5 * SECOND);
    assert_eq!(
        (
            record.tcp_flags(),
            record.src.dscp.or(record.dst.dscp).unwrap()
        ),
        ([PSH | URG, ACK], 46)
    );
}

#[test]
fn an_update_without_packets_is_a_record() {
    let mut replica = replica(8);
    let records = scan(&mut replica, 1, &[(1, counters(1, &[], &[]))]);
    assert_eq!(reasons(&records), [None]);
    // It closes no flow, either.
    assert!(scan(&mut replica, 20, &[]).is_empty());
}

#[test]
fn a_replica_has_room_for_as_many_flows_as_it_is_told_and_for_one_at_least() {
    for (max_flows, capacity) in [(8, 8), (0, 1)] {
        let mut replica = replica(max_flows);
        assert_eq!((replica.capacity(), replica.is_empty()), (capacity, true));
        scan(&mut replica, 1, &[(1, counters(1, &[ACK], &[]))]);
        assert_eq!((replica.len(), replica.is_empty()), (1, false));
    }
}

#[test]
fn a_hash_depends_on_all_of_a_key_but_the_side_of_the_interface() {
    let seed = replica(1).seed;
    let hash = |change: fn(&mut FlowKey)| {
        let mut key = key(1);
        change(&mut key);
        assert_eq!(hash_of(&seed, &key), hash_of(&seed, &key.with_side(1)));
        hash_of(&seed, &key)
    };
    let mut hashes = [
        hash(|_| {}),
        hash(|key| key.addr_a[15] = 1),
        hash(|key| key.addr_b[15] = 1),
        hash(|key| key.netns = 1),
        hash(|key| key.ifindex = 1),
        hash(|key| key.vlan_ids[0] = 1),
        hash(|key| key.vlan_ids[1] = 1),
        hash(|key| key.port_a = 1),
        hash(|key| key.port_b = 1),
        hash(|key| key.ip_version = 6),
        hash(|key| key.protocol = 17),
        hash(|key| key.l4_kind = 0),
        hash(|key| key.encapsulation = 1),
        hash(|key| key.tunnel_id = 1),
    ];
    hashes.sort_unstable();
    assert!(hashes.is_sorted_by(|one, next| one < next));
}
