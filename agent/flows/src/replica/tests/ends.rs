//! When a flow ends by itself, and which one is evicted when there is no room.

use super::*;

#[test]
fn a_quiet_flow_ends_at_the_idle_timeout_and_not_before() {
    let mut replica = replica(8);
    scan(&mut replica, 10, &[(1, counters(10, &[ACK], &[ACK]))]);
    assert!(scan(&mut replica, 39, &[]).is_empty());
    let ended = scan(&mut replica, 40, &[]);
    assert_eq!(reasons(&ended), [Some(EndReason::IdleTimeout)]);
    assert_eq!(ended[0].delta(), [Counts::default(); 2]);
    assert_eq!(ended[0].total()[0].packets, 1);
    assert_eq!(ended[0].last_seen_unix_ns, UNIX as u64 + 10 * SECOND);
    assert!(replica.is_empty());
}

#[test]
fn a_closed_flow_takes_in_what_comes_late_until_the_linger_is_over() {
    for closing in [
        counters(1, &[FIN | ACK], &[FIN | ACK]),
        counters(1, &[ACK], &[RST]),
        counters(1, &[RST], &[RST]),
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
        assert_eq!(ended[0].total(), late[0].total());
        assert!(replica.is_empty());
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
fn other_times_hold_from_the_next_scan_on() {
    let seconds = Duration::from_secs;
    let mut replica = replica(8);
    let living = (1, counters(10, &[ACK], &[ACK]));
    let closing = (2, counters(10, &[ACK], &[RST]));
    scan(&mut replica, 10, &[living, closing]);
    replica.keep_flows_for(seconds(2), seconds(100));
    let ended = scan(&mut replica, 12, &[]);
    assert_eq!(reasons(&ended), [Some(EndReason::IdleTimeout)]);
    replica.keep_flows_for(seconds(100), seconds(2));
    let ended = scan(&mut replica, 12, &[]);
    assert_eq!(reasons(&ended), [Some(EndReason::EndOfFlow)]);
}

/// With the first times the closed flow is evicted, with the others the living one.
#[test]
fn other_times_decide_which_flow_makes_room() {
    let mut replica = replica(2);
    let living = (1, counters(1, &[ACK], &[ACK]));
    let closing = (2, counters(1, &[ACK], &[RST]));
    scan(&mut replica, 1, &[living, closing]);
    replica.keep_flows_for(Duration::from_secs(20), Duration::from_secs(100));
    let records = scan(&mut replica, 2, &[(3, counters(2, &[ACK], &[ACK]))]);
    assert_eq!(reasons(&records), [Some(EndReason::LackOfResources), None]);
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
fn a_flow_with_packets_in_the_scan_of_a_sleep_outlives_it() {
    const SLEPT: u64 = 1000;
    let mut replica = replica(8);
    let busy = |second| (key(1), counters(second, &[ACK], &[ACK]));
    let quiet = (key(2), counters(1, &[ACK], &[ACK]));
    scan_keys(&mut replica, 1, &[busy(1), quiet]);
    // The ticks stood still, so the last packet came at second 2 or 1002.
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
    replica.end_scan(&BTreeSet::new(), &mut sink);
    assert_eq!(reasons(&records), [None, Some(EndReason::IdleTimeout)]);
    let last_seen = records
        .iter()
        .map(|record| record.last_seen_unix_ns - UNIX as u64);
    assert_eq!(last_seen.collect::<Vec<_>>(), [2 * SECOND, SECOND]);
    // From here on the machine does not sleep.
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
fn a_full_replica_lets_the_flow_go_that_was_quiet_the_longest() {
    let mut replica = replica(3);
    let opened = [3, 1, 2].map(|second| (second as u32, counters(second, &[ACK], &[])));
    scan(&mut replica, 4, &opened);
    scan(&mut replica, 5, &[(1, counters(5, &[ACK], &[]))]);
    let records = scan(&mut replica, 6, &[(9, counters(6, &[ACK], &[]))]);
    assert_eq!(reasons(&records), [Some(EndReason::LackOfResources), None]);
    assert_eq!(records[0].key, key(2));
    assert_eq!(records[0].delta(), [Counts::default(); 2]);
    assert_eq!((replica.len(), replica.evicted()), (3, 1));
}

#[test]
fn what_many_flows_took_is_given_back_when_they_have_ended_and_the_others_go_on() {
    const MANY: u32 = 20_000;
    let mut replica = replica(MANY as usize);
    replica.report_every(Duration::from_secs(10));
    let all: Vec<_> = (0..MANY)
        .map(|flow| (flow, counters(1, &[ACK], &[ACK])))
        .collect();
    assert_eq!(scan(&mut replica, 1, &all).len(), 0);
    let full = (replica.slab.end(), replica.index.capacity());
    assert_eq!(full.0, MANY);
    // The first and a later flow live, and a new one takes the first free slot.
    let two = [3, 5000].map(|flow| (flow, counters(20, &[ACK], &[])));
    scan(&mut replica, 20, &two);
    let ended = scan(&mut replica, 31, &[]);
    assert_eq!(ended.len(), MANY as usize - 2);
    assert_eq!(replica.slab.end(), MANY, "more may come soon");
    for _ in 3..16 {
        scan(&mut replica, 31, &[]);
    }
    let sum: u64 = ended.iter().map(|record| record.delta()[0].packets).sum();
    assert_eq!(sum, 0, "they were reported before");
    assert_eq!(replica.slab.end(), 8192);
    assert!(replica.index.capacity() < full.1 / 4);
    let more = [
        (3, counters(32, &[ACK], &[])),
        (7, counters(32, &[ACK], &[])),
    ];
    scan(&mut replica, 32, &more);
    assert_eq!(replica.len(), 3);
    let ends = |records: &[Record]| {
        let ended = records.iter().filter(|record| record.end_reason.is_some());
        let mut totals: Vec<_> = ended.map(|record| record.total()[0].packets).collect();
        totals.sort_unstable();
        totals
    };
    assert_eq!(ends(&scan(&mut replica, 61, &[])), [2]);
    assert_eq!(ends(&scan(&mut replica, 62, &[])), [1, 3]);
    for _ in 19..32 {
        scan(&mut replica, 62, &[]);
    }
    assert_eq!(replica.slab.end(), 0);
}
