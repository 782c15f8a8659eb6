use std::collections::{HashMap, HashSet};

use agent_common::{
    Outer,
    flow::{TcpFlagBytes, tcp_flags::*},
};
use proptest::prelude::*;

use super::*;
use crate::{community_id::community_id, record::Direction};

mod sides;

const SECOND: u64 = 1_000_000_000;
const UNIX: i64 = 1_700_000_000_000_000_000;

fn replica(max_flows: usize) -> Replica {
    Replica::new(ReplicaSettings {
        max_flows,
        idle_timeout: Duration::from_secs(30),
        linger: Duration::from_secs(5),
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

fn flags(segments: &[u8]) -> TcpFlagBytes {
    let mut bytes = TcpFlagBytes::default();
    for &segment in segments {
        bytes.store(segment);
    }
    bytes
}

/// One packet in each direction with segments; a packet seen at `second`.
fn counters(second: u64, a_to_b: &[u8], b_to_a: &[u8]) -> FlowCounters {
    let packets = [a_to_b.len() as u64, b_to_a.len() as u64];
    FlowCounters {
        packets,
        bytes: packets.map(|packets| packets * 60),
        first_seen_ns: second * SECOND,
        last_seen_jiffies: second,
        tcp_flags: [flags(a_to_b), flags(b_to_a)],
        ..FlowCounters::default()
    }
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
    replica.end_scan(&mut sink);
    records
}

fn reasons(records: &[Record]) -> Vec<Option<EndReason>> {
    records.iter().map(|record| record.end_reason).collect()
}

#[test]
fn a_quiet_flow_ends_at_the_idle_timeout_and_not_before() {
    let mut replica = replica(8);
    scan(&mut replica, 10, &[(1, counters(10, &[ACK], &[ACK]))]);
    assert!(scan(&mut replica, 39, &[]).is_empty());
    let ended = scan(&mut replica, 40, &[]);
    assert_eq!(reasons(&ended), [Some(EndReason::IdleTimeout)]);
    assert_eq!(ended[0].delta, [Pair::default(); 2]);
    assert_eq!(ended[0].total[0].packets, 1);
    assert_eq!(ended[0].last_seen_unix_ns, UNIX as u64 + 10 * SECOND);
    assert!(replica.is_empty());
}

#[test]
fn a_closed_flow_takes_in_what_comes_late_until_the_linger_is_over() {
    for closing in [
        counters(1, &[FIN | ACK], &[FIN | ACK]),
        counters(1, &[ACK], &[RST]),
        counters(1, &[FIN | ACK], &[]),
        counters(1, &[], &[FIN | ACK]),
    ] {
        let mut replica = replica(8);
        assert_eq!(reasons(&scan(&mut replica, 1, &[(1, closing)])), [None]);
        assert!(scan(&mut replica, 2, &[]).is_empty());
        assert!(scan(&mut replica, 5, &[]).is_empty());
        // A repeated FIN makes it wait again.
        let late = scan(&mut replica, 5, &[(1, counters(5, &[FIN | ACK], &[]))]);
        assert_eq!(reasons(&late), [None]);
        let late = scan(&mut replica, 9, &[(1, counters(7, &[ACK], &[]))]);
        assert_eq!(reasons(&late), [None]);
        assert!(scan(&mut replica, 11, &[]).is_empty());
        let ended = scan(&mut replica, 12, &[]);
        assert_eq!(reasons(&ended), [Some(EndReason::EndOfFlow)]);
        assert_eq!(ended[0].total, late[0].total);
        assert!(replica.is_empty());
    }
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
fn a_flow_that_was_closed_long_before_its_scan_ends_with_it() {
    let mut replica = replica(8);
    let closed = counters(1, &[FIN | ACK], &[FIN | ACK]);
    let records = scan(&mut replica, 10, &[(1, closed)]);
    assert_eq!(reasons(&records), [None, Some(EndReason::EndOfFlow)]);
}

#[test]
fn the_agents_end_ends_what_lingers_as_closed() {
    let mut replica = replica(8);
    scan(&mut replica, 1, &[(1, counters(1, &[ACK], &[RST]))]);
    let mut ends = Vec::new();
    replica.finish(&mut |record| ends.push(record.end_reason));
    assert_eq!(ends, [Some(EndReason::EndOfFlow)]);
}

#[test]
fn a_closed_flow_leaves_before_a_living_one_that_was_quiet_for_longer() {
    let mut replica = replica(2);
    scan(&mut replica, 1, &[(1, counters(1, &[ACK], &[ACK]))]);
    scan(&mut replica, 8, &[(2, counters(8, &[ACK], &[RST]))]);
    let records = scan(&mut replica, 9, &[(3, counters(9, &[ACK], &[ACK]))]);
    assert_eq!(reasons(&records), [Some(EndReason::EndOfFlow), None]);
    assert_eq!(records[0].key, key(2));
    assert_eq!(replica.evicted(), 1);
}

#[test]
fn a_syn_on_an_established_flow_opens_the_next_one() {
    const SYN_ACK: u8 = SYN | ACK;
    // What each window has, and how many flows there were.
    type Window = (&'static [u8], &'static [u8]);
    let cases: [(&[Window], usize); 9] = [
        (&[(&[SYN, ACK], &[SYN_ACK]), (&[SYN], &[])], 2),
        (&[(&[SYN, ACK], &[SYN_ACK]), (&[], &[SYN])], 2),
        (&[(&[ACK], &[ACK]), (&[SYN, ACK], &[SYN_ACK])], 2),
        // Of one window is not known what came first.
        (&[(&[SYN, ACK, SYN], &[SYN_ACK, SYN_ACK])], 1),
        // Repeated, until the answer arrives.
        (&[(&[SYN], &[]), (&[SYN], &[SYN_ACK]), (&[SYN], &[])], 1),
        (&[(&[], &[SYN_ACK]), (&[SYN], &[])], 1),
        (&[(&[SYN], &[SYN_ACK]), (&[ACK], &[]), (&[SYN], &[])], 2),
        // Only one side is seen.
        (&[(&[SYN, ACK], &[]), (&[SYN], &[])], 2),
        // An answer alone begins nothing.
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
            last.delta == last.total,
            windows.len() == 1 || flows == 2,
            "{windows:?}"
        );
        assert_eq!(replica.len(), 1);
    }
}

#[test]
fn a_flow_out_of_a_tunnel_keeps_the_tunnels_endpoints_to_its_end() {
    let mut replica = replica(8);
    let flow = FlowKey {
        encapsulation: Encapsulation::Vxlan as u8,
        tunnel_id: 42,
        ..key(1)
    };
    let outer = Outer {
        addr_a: [1; 16],
        ..Outer::default()
    };
    let mut scan = |second: u64, updates: &[FlowCounters], known: Option<Outer>| {
        let mut records = Vec::new();
        let mut sink = |record: &Record| records.push(record.outer);
        replica.begin_scan(clock(second));
        for counters in updates {
            replica.note_outer(&flow, || known);
            replica.update(&[flow], &[*counters], &mut sink);
        }
        replica.end_scan(&mut sink);
        records
    };
    let closing = counters(1, &[SYN, FIN | ACK], &[FIN | ACK]);
    assert_eq!(scan(1, &[closing], Some(outer)), [Some(outer)]);
    // Ends and begins again.
    assert_eq!(scan(2, &[closing], None), [Some(outer); 2]);
    assert_eq!(scan(7, &[], None), [Some(outer)]);
    assert_eq!(scan(8, &[counters(8, &[SYN], &[])], None), [None]);
}

#[test]
fn a_flow_that_leaves_for_another_of_its_scan_keeps_the_tunnels_endpoints() {
    let mut replica = replica(1);
    let flow = |number| FlowKey {
        encapsulation: Encapsulation::Vxlan as u8,
        tunnel_id: 42,
        ..key(number)
    };
    let outer = |number: u32| Outer {
        addr_a: [number as u8; 16],
        ..Outer::default()
    };
    let mut scan = |second: u64, numbers: &[u32], are_known: bool| {
        let mut records = Vec::new();
        replica.begin_scan(clock(second));
        for &number in numbers {
            replica.note_outer(&flow(number), || are_known.then(|| outer(number)));
        }
        let keys: Vec<FlowKey> = numbers.iter().map(|&number| flow(number)).collect();
        let both_ways = counters(second, &[ACK], &[ACK]);
        let mut sink = |record: &Record| records.push((record.key, record.outer));
        replica.update(&keys, &vec![both_ways; keys.len()], &mut sink);
        records
    };
    let told = |numbers: &[u32]| -> Vec<_> {
        let of = |&number: &u32| (flow(number), Some(outer(number)));
        numbers.iter().map(of).collect()
    };
    assert_eq!(scan(1, &[1], true), told(&[1]));
    // The second flow takes the place of the first, which comes behind it.
    assert_eq!(scan(2, &[2, 1], true), told(&[1, 2, 2, 1]));
    // What would be kept of the second, which is gone, would be the next flow's with its key.
    assert_eq!(scan(3, &[2], false)[1], (flow(2), None));
}

#[test]
fn a_flow_with_packets_in_the_scan_of_a_sleep_outlives_it() {
    const SLEPT: u64 = 1000;
    let mut replica = replica(8);
    let busy = |second| (key(1), counters(second, &[ACK], &[ACK]));
    let quiet = (key(2), counters(1, &[ACK], &[ACK]));
    scan_keys(&mut replica, 1, &[busy(1), quiet]);
    // By the ticks, which stood still: at second 2 or 1002.
    let woken = ScanClock {
        boot_ns: (3 + SLEPT) * SECOND,
        jiffies: 3,
        slept_ns: SLEPT * SECOND,
        ..clock(3)
    };
    let mut records = Vec::new();
    let mut sink = |record: &Record| records.push(*record);
    replica.begin_scan(woken);
    replica.update(&[key(1)], &[busy(2).1], &mut sink);
    replica.end_scan(&mut sink);
    assert_eq!(reasons(&records), [None, Some(EndReason::IdleTimeout)]);
    let last_seen = records
        .iter()
        .map(|record| record.last_seen_unix_ns - UNIX as u64);
    assert_eq!(last_seen.collect::<Vec<_>>(), [2 * SECOND, SECOND]);
    // Then it does not.
    let ended = scan_keys(&mut replica, 4 + SLEPT, &[]);
    assert_eq!(reasons(&ended), [Some(EndReason::IdleTimeout)]);
}

#[test]
fn a_flow_half_closed_lives() {
    let mut replica = replica(8);
    scan(&mut replica, 1, &[(1, counters(1, &[FIN | ACK], &[ACK]))]);
    assert!(scan(&mut replica, 2, &[]).is_empty());
    assert!(scan(&mut replica, 20, &[]).is_empty());
    scan(&mut replica, 21, &[(1, counters(21, &[], &[FIN | ACK]))]);
    let ended = scan(&mut replica, 26, &[]);
    assert_eq!(reasons(&ended), [Some(EndReason::EndOfFlow)]);
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
    assert_eq!(records[1].total, records[1].delta);
    assert_eq!(records[1].tcp_flags, [SYN, 0]);
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
        counted.first_direction = first_direction;
        counted.packets = [10, 20];
        let mut replica = replica(8);
        let record = scan(&mut replica, 1, &[(1, counted)])[0];
        assert_eq!(record.initiator, expected, "{a_to_b:?} {b_to_a:?}");
        let forward = counted.packets[usize::from(expected)];
        assert_eq!(record.delta[0].packets, forward);
        assert_eq!(record.community_id, community_id(&key(1), expected));

        let later = counters(2, &[], &[SYN_ACK]);
        let record = scan(&mut replica, 2, &[(1, later)])[0];
        assert_eq!(record.initiator, expected, "decided once");
    }
}

#[test]
fn times_and_flags_only_grow() {
    let mut replica = replica(8);
    let mut first = counters(5, &[PSH], &[ACK]);
    first.dscp = 46;
    scan(&mut replica, 6, &[(1, first)]);
    let record = scan(&mut replica, 7, &[(1, counters(4, &[URG], &[]))])[0];
    assert_eq!(record.first_seen_unix_ns, UNIX as u64 + 5 * SECOND);
    assert_eq!(record.last_seen_unix_ns, UNIX as u64 + 5 * SECOND);
    assert_eq!((record.tcp_flags, record.dscp), ([PSH | URG, ACK], 46));
}

#[test]
fn an_update_without_packets_is_a_record() {
    let mut replica = replica(8);
    let records = scan(&mut replica, 1, &[(1, counters(1, &[], &[]))]);
    assert_eq!(reasons(&records), [None]);
}

#[test]
fn a_full_replica_lets_the_flow_go_that_was_quiet_the_longest() {
    let mut replica = replica(3);
    let opened = [3, 1, 2].map(|second| (second as u32, counters(second, &[ACK], &[])));
    scan(&mut replica, 4, &opened);
    scan(&mut replica, 5, &[(1, counters(5, &[ACK], &[]))]);
    let records = scan(&mut replica, 6, &[(9, counters(6, &[ACK], &[]))]);
    assert_eq!(reasons(&records), [Some(EndReason::LackOfResources), None]);
    assert_eq!(records[0].key, key(2));
    assert_eq!(records[0].delta, [Pair::default(); 2]);
    assert_eq!((replica.len(), replica.evicted()), (3, 1));
}

#[test]
fn a_flow_takes_at_most_200_bytes_and_steady_state_allocates_nothing() {
    /// A little more than seven eighths of a power of two: where a hash map has just grown, and takes the
    /// most memory a flow.
    const FLOWS: u32 = 120_000;
    let mut replica = replica(FLOWS as usize);
    let mut ignore = |_: &Record| {};
    let mut turn_over = |replica: &mut Replica, from: u32| {
        for number in from..from + FLOWS {
            let counted = counters(u64::from(number), &[ACK], &[]);
            replica.update(&[key(number)], &[counted], &mut ignore);
        }
        assert_eq!(replica.len(), FLOWS as usize);
        replica.memory_bytes()
    };
    turn_over(&mut replica, 0);
    let after_churn = turn_over(&mut replica, FLOWS);
    assert_eq!(turn_over(&mut replica, 2 * FLOWS), after_churn);
    assert!(
        after_churn <= 200 * FLOWS as usize,
        "{}",
        after_churn / FLOWS as usize
    );
}

/// What the records so far say of a living flow.
#[derive(Default)]
struct Told {
    delta: [Pair; 2],
    last_seen_unix_ns: u64,
    /// Consumers take records of one flow together by these and its key.
    names: Option<(u8, Direction)>,
}

/// Listens to the records and holds the replica to its promises.
#[derive(Default)]
struct Listener {
    living: HashMap<FlowKey, Told>,
    all: Pair,
    has_no_closed_flows: bool,
}

impl Listener {
    fn hear(&mut self, record: &Record) {
        let Some(reason) = record.end_reason else {
            let told = self.living.entry(record.key).or_default();
            for (sum, &delta) in told.delta.iter_mut().zip(&record.delta) {
                *sum += delta;
                self.all += delta;
            }
            told.last_seen_unix_ns = record.last_seen_unix_ns;
            let names = (record.initiator, record.direction);
            assert_eq!(*told.names.get_or_insert(names), names);
            assert_eq!(record.total, told.delta);
            return;
        };
        let told = self
            .living
            .remove(&record.key)
            .expect("a flow ends only once");
        assert_eq!(record.total, told.delta);
        assert_eq!(record.delta, [Pair::default(); 2]);
        if reason == EndReason::LackOfResources && self.has_no_closed_flows {
            let mut others = self.living.values();
            assert!(others.all(|other| other.last_seen_unix_ns >= record.last_seen_unix_ns));
        }
    }
}

/// Key, seconds before the scan, flags in both directions, packets.
type Op = (u32, u64, [u8; 2], [u64; 2]);

/// Plays scans, and checks after each that the listener knows what the replica holds.
fn play(max_flows: usize, scans: &[Vec<Op>]) -> u64 {
    let mut replica = replica(max_flows);
    let has_no_closed_flows = scans
        .iter()
        .flatten()
        .all(|(_, _, flags, _)| flags.iter().all(|flags| flags & (FIN | RST) == 0));
    let mut listener = Listener {
        has_no_closed_flows,
        ..Listener::default()
    };
    let mut fed = Pair::default();
    for (second, ops) in (20..).step_by(7).zip(scans) {
        replica.begin_scan(clock(second));
        let mut page = (Vec::new(), Vec::new());
        for &(number, ago, [a_to_b, b_to_a], packets) in ops {
            let mut counted = counters(second - ago, &[a_to_b], &[b_to_a]);
            counted.packets = packets;
            counted.bytes = packets.map(|packets| packets * 100);
            fed += Pair {
                packets: packets[0] + packets[1],
                bytes: (packets[0] + packets[1]) * 100,
            };
            page.0.push(key(number));
            page.1.push(counted);
        }
        replica.update(&page.0, &page.1, &mut |record| {
            listener.hear(record);
            assert!(listener.living.len() <= max_flows);
        });
        assert!(replica.len() <= max_flows);
        replica.end_scan(&mut |record| listener.hear(record));
        assert_eq!(replica.len(), listener.living.len());
    }
    let living: HashSet<FlowKey> = listener.living.keys().copied().collect();
    let mut forced = HashSet::new();
    replica.finish(&mut |record| {
        listener.hear(record);
        forced.insert(record.key);
    });
    assert_eq!(forced, living);
    assert!(replica.is_empty() && listener.living.is_empty());
    assert_eq!(listener.all, fed);
    replica.evicted()
}

fn any_flags() -> impl Strategy<Value = u8> {
    prop_oneof![4 => Just(ACK), 1 => Just(SYN), 1 => Just(FIN), 1 => Just(RST)]
}

fn scans<F: Strategy<Value = u8>>(
    keys: u32,
    ops: usize,
    flags: impl Fn() -> F,
) -> impl Strategy<Value = Vec<Vec<Op>>> {
    let op = (
        0..keys,
        0u64..20,
        [flags(), flags()],
        [0u64..1000, 0u64..1000],
    );
    prop::collection::vec(prop::collection::vec(op, 0..ops), 1..12)
}

proptest! {
    #[test]
    fn no_packet_is_lost_or_told_twice_and_every_flow_ends_once(
        max_flows in 1usize..8, scans in scans(10, 12, any_flags),
    ) {
        play(max_flows, &scans);
    }

    #[test]
    fn the_oldest_leaves_whatever_came_between(
        max_flows in 128usize..400, scans in scans(600, 300, || Just(ACK)),
    ) {
        play(max_flows, &scans);
    }
}
