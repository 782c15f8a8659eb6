//! Who sent the packets: it stays with its flow, and is that of no other.

use agent_common::Senders;

use super::*;

/// Takes in flows with who sent them.
fn scan_sent(
    replica: &mut Replica,
    second: u64,
    updates: &[(FlowKey, FlowCounters, [u64; 2])],
) -> Vec<Record> {
    let mut records = Vec::new();
    let mut sink = |record: &Record| records.push(*record);
    let keys: Vec<_> = updates.iter().map(|one| one.0).collect();
    let counters: Vec<_> = updates.iter().map(|one| one.1).collect();
    // Both kinds at once: what is no cgroup's has a process, and the root is none's.
    let senders = updates.iter().map(|one| Senders {
        cgroup_ids: one.2,
        process_keys: one
            .2
            .map(|id| if id == Senders::ROOT { 0 } else { id << 32 }),
    });
    let senders: Vec<_> = senders.collect();
    replica.begin_scan(clock(second));
    replica.update_with(&keys, &counters, &senders, &mut sink);
    replica.end_scan(&BTreeSet::new(), &mut sink);
    records
}

/// The cgroups; the processes go with them.
fn named(records: &[Record]) -> Vec<[u64; 2]> {
    let of = |record: &Record| {
        for (id, key) in record.cgroup_ids.into_iter().zip(record.process_keys) {
            let expected = if id == Senders::ROOT { 0 } else { id << 32 };
            assert_eq!(key, expected, "{record:?}");
        }
        record.cgroup_ids
    };
    records.iter().map(of).collect()
}

#[test]
fn what_was_seen_last_is_said_from_the_initiator_on() {
    let mut replica = replica(8);
    let mut at = |second: u64, senders: [u64; 2]| {
        let mut both = counters(second, &[ACK], &[ACK]);
        // b began.
        began(&mut both, 1, 0);
        named(&scan_sent(&mut replica, second, &[(key(1), both, senders)]))
    };
    assert_eq!(at(1, [0, 7]), [[7, 0]]);
    assert_eq!(at(2, [0, 0]), [[7, 0]]);
    assert_eq!(at(3, [8, 0]), [[7, 8]]);
    assert_eq!(at(4, [0, 9]), [[9, 8]]);
    // The kernel's own sockets are in the root.
    assert_eq!(at(5, [1, 1]), [[9, 8]]);
    let mut quiet = named(&scan_sent(&mut replica, 60, &[]));
    assert_eq!(quiet.pop(), Some([9, 8]), "at its end");
    assert!(replica.is_empty());
}

#[test]
fn the_root_is_said_where_nothing_else_is_known() {
    let mut replica = replica(8);
    let mut at = |second: u64, senders: [u64; 2]| {
        let both = counters(second, &[ACK], &[]);
        named(&scan_sent(&mut replica, second, &[(key(1), both, senders)]))
    };
    assert_eq!(at(1, [1, 0]), [[1, 0]]);
    assert_eq!(at(2, [5, 0]), [[5, 0]]);
}

#[test]
fn the_next_flow_with_the_same_ports_has_senders_of_its_own() {
    let mut replica = replica(8);
    let whole = counters(1, &[SYN, ACK, FIN], &[SYN | ACK, FIN]);
    scan_sent(&mut replica, 1, &[(key(1), whole, [7, 8])]);
    let next = counters(2, &[SYN], &[]);
    let records = scan_sent(&mut replica, 2, &[(key(1), next, [0, 9])]);
    assert_eq!(named(&records), [[7, 8], [0, 9]]);
    assert_eq!(reasons(&records), [Some(EndReason::EndOfFlow), None]);
    // The slot of a flow that has ended is another one's.
    scan_sent(&mut replica, 60, &[]);
    assert!(replica.is_empty());
    let other = counters(61, &[ACK], &[]);
    let records = scan_sent(&mut replica, 61, &[(key(2), other, [0, 0])]);
    assert_eq!(named(&records), [[0, 0]]);
}

#[test]
fn who_makes_room_for_a_flow_does_not_get_its_senders() {
    let mut replica = replica(1);
    let forth = counters(1, &[ACK], &[]);
    let back = counters(1, &[], &[ACK]);
    // A mirror port: both directions arrive, and are joined.
    let other_side = key(1).with_side(1);
    scan_sent(
        &mut replica,
        1,
        &[(key(1), forth, [0; 2]), (other_side, back, [0; 2])],
    );
    let more = counters(2, &[ACK], &[]);
    let updates = [(key(1), more, [0; 2]), (key(2), more, [7, 0])];
    let records = scan_sent(&mut replica, 2, &updates);
    for record in &records {
        let expected = if record.key == key(2) { [7, 0] } else { [0; 2] };
        assert_eq!(record.cgroup_ids, expected, "{record:?}");
    }
    assert!(records.iter().any(|record| record.key == key(2)));
    assert_eq!(replica.evicted(), 1);
}

#[test]
fn the_senders_of_both_halves_of_a_mirror_port_are_known() {
    let mut replica = replica(8);
    let halves = |second: u64, senders: [[u64; 2]; 2]| {
        let forth = counters(second, &[ACK], &[]);
        let back = counters(second, &[], &[ACK]);
        [
            (key(1), forth, senders[0]),
            (key(1).with_side(1), back, senders[1]),
        ]
    };
    let records = scan_sent(&mut replica, 1, &halves(1, [[7, 0], [0, 8]]));
    assert_eq!(named(&records), [[7, 8]]);
    let records = scan_sent(&mut replica, 2, &halves(2, [[0, 0], [0, 9]]));
    assert_eq!(records.last().unwrap().cgroup_ids, [7, 9]);
}

#[test]
fn memory_for_senders_is_taken_and_given_back_with_the_flows() {
    let mut known = KnownSenders::default();
    known.begin(1000, Senders::default());
    assert_eq!(known.room(), 0, "nobody is known");
    let senders = Senders {
        cgroup_ids: [1, 2],
        ..Senders::default()
    };
    known.begin(1000, senders);
    assert_eq!(known.room(), 1001);
    known.begin(1000, Senders::default());
    assert_eq!(known.of(1000), Senders::default());
    known.shrink(10);
    assert_eq!(known.room(), 10);
}

#[test]
fn a_half_that_begins_the_next_flow_takes_its_sender_along() {
    let mut replica = replica(8);
    let halves = |second: u64, flags: [&[u8]; 2], senders: [[u64; 2]; 2]| {
        let forth = counters(second, flags[0], &[]);
        let back = counters(second, &[], flags[1]);
        [
            (key(1), forth, senders[0]),
            (key(1).with_side(1), back, senders[1]),
        ]
    };
    let closed = [&[SYN, ACK, FIN][..], &[SYN | ACK, FIN]];
    scan_sent(&mut replica, 1, &halves(1, closed, [[7, 0], [0, 8]]));
    let opened = [&[SYN][..], &[SYN | ACK]];
    let mut next = halves(2, opened, [[9, 0], [0, 10]]);
    let records = scan_sent(&mut replica, 2, &next);
    assert_eq!(named(&records), [[7, 8], [9, 10]]);
    // Whichever comes first.
    scan_sent(&mut replica, 3, &halves(3, closed, [[9, 0], [0, 10]]));
    next = halves(4, opened, [[11, 0], [0, 12]]);
    next.reverse();
    let records = scan_sent(&mut replica, 4, &next);
    assert_eq!(named(&records), [[9, 10], [11, 12]]);
}
