//! Reports that wait for the report interval.

use super::*;

fn packets(records: &[Record]) -> Vec<(u64, Option<EndReason>)> {
    records
        .iter()
        .map(|record| (record.delta()[0].packets, record.end_reason))
        .collect()
}

#[test]
fn a_long_flow_is_reported_once_in_an_interval_and_at_its_end() {
    let mut replica = replica(8);
    replica.report_every(Duration::from_mins(1));
    let one = |second| (1, counters(second, &[ACK], &[]));
    let mut told = Vec::new();
    for second in (0..=120).step_by(10) {
        for (packets, reason) in packets(&scan(&mut replica, second, &[one(second)])) {
            told.push((second, packets, reason));
        }
    }
    assert_eq!(told, [(60, 7, None), (120, 6, None)]);
    scan(&mut replica, 130, &[one(130)]);
    let ended = packets(&scan(&mut replica, 160, &[]));
    assert_eq!(ended, [(1, Some(EndReason::IdleTimeout))]);
}

#[test]
fn what_waits_is_reported_in_time_although_nothing_more_comes() {
    let mut replica = replica(8);
    replica.keep_flows_for(Duration::from_hours(1), Duration::ZERO);
    replica.report_every(Duration::from_mins(1));
    scan(&mut replica, 0, &[(1, counters(0, &[ACK], &[]))]);
    assert_eq!(packets(&scan(&mut replica, 50, &[])), []);
    // A scan that comes a little early still counts as in time.
    assert_eq!(packets(&scan(&mut replica, 58, &[])), [(1, None)]);
    assert_eq!(packets(&scan(&mut replica, 200, &[])), []);
}

#[test]
fn without_an_interval_any_more_what_waits_comes_with_the_next_scan() {
    let mut replica = replica(8);
    replica.report_every(Duration::from_mins(1));
    let counted = (1, counters(1, &[ACK], &[]));
    scan(&mut replica, 1, &[counted]);
    replica.report_every(Duration::ZERO);
    assert_eq!(packets(&scan(&mut replica, 2, &[])), [(1, None)]);
    assert_eq!(packets(&scan(&mut replica, 3, &[counted])), [(1, None)]);
}

#[test]
fn all_that_waits_is_reported_where_a_scan_is_the_last_of_its_kind_and_the_next_one_waits_again() {
    let mut replica = replica(8);
    replica.keep_flows_for(Duration::from_hours(1), Duration::ZERO);
    replica.report_every(Duration::from_mins(1));
    let counted = |second| [(1, counters(second, &[ACK], &[]))];
    assert_eq!(packets(&scan(&mut replica, 0, &counted(0))), []);
    assert_eq!(packets(&scan(&mut replica, 10, &counted(10))), []);
    replica.report_all();
    let last = scan(&mut replica, 20, &counted(20));
    assert_eq!(packets(&last), [(3, None)]);
    assert_eq!(packets(&scan(&mut replica, 30, &counted(30))), []);
    assert_eq!(packets(&scan(&mut replica, 90, &[])), [(1, None)]);
    // The scan may also turn off the interval.
    scan(&mut replica, 100, &counted(100));
    replica.report_every(Duration::ZERO);
    replica.report_all();
    let last = scan(&mut replica, 110, &counted(110));
    assert_eq!(packets(&last), [(2, None)]);
    replica.report_all();
    let next = scan(&mut replica, 120, &counted(120));
    assert_eq!(packets(&next), [(1, None)]);
}

#[test]
fn a_record_lasts_from_the_first_to_the_last_packet_that_it_counts() {
    // The counters that a scan at this second drains, by the seconds of the first and the last packet.
    let between = |first: u64, last: u64| {
        let mut both = counters(first, &[ACK], &[]);
        both.unite(&counters(last, &[ACK], &[ACK]));
        (1, both)
    };
    let durations = |records: &[Record]| -> Vec<_> {
        let seconds = records
            .iter()
            .map(|record| record.delta_duration_ns / SECOND);
        seconds.collect()
    };
    for (interval, expected) in [
        (0, [vec![3], vec![2], vec![0], vec![0]]),
        (60, [vec![], vec![], vec![], vec![24]]),
    ] {
        let mut replica = replica(8);
        replica.report_every(Duration::from_secs(interval));
        let told = [
            scan(&mut replica, 5, &[between(2, 5)]),
            scan(&mut replica, 15, &[between(12, 14)]),
            // A single packet.
            scan(&mut replica, 40, &[(1, counters(26, &[ACK], &[]))]),
            scan(&mut replica, 90, &[]),
        ];
        assert_eq!(told.each_ref().map(|records| durations(records)), expected);
        assert_eq!(told[3][0].end_reason, Some(EndReason::IdleTimeout));
    }
    // Both halves of a flow at a mirror port; the second half came first.
    let mut replica = replica(8);
    let [mut there, mut back] = [counters(3, &[ACK], &[]), counters(1, &[], &[ACK])];
    began(&mut there, 0, 0);
    began(&mut back, 1, 0);
    let keys = [key(1).with_side(0), key(1).with_side(1)];
    let records = scan_keys(&mut replica, 5, &[(keys[0], there), (keys[1], back)]);
    assert_eq!(durations(&records), [2]);
}

#[test]
fn a_snapshot_lasts_no_longer_than_the_packets_that_it_counts() {
    let mut replica = replica(8);
    replica.report_every(Duration::from_mins(1));
    let snapshot = |replica: &Replica, second| {
        let mut records = Vec::new();
        replica.flows(0..8, clock(second), &mut |record| records.push(*record));
        let [record] = records[..] else {
            panic!("one flow")
        };
        (record.delta()[0].packets, record.delta_duration_ns / SECOND)
    };
    for second in (0..=60).step_by(10) {
        scan(&mut replica, second, &[(1, counters(second, &[ACK], &[]))]);
    }
    assert_eq!(snapshot(&replica, 65), (7, 60));
    // These two are not reported yet.
    for second in [70, 80] {
        scan(&mut replica, second, &[(1, counters(second, &[ACK], &[]))]);
    }
    assert_eq!(snapshot(&replica, 85), (7, 60));
}

#[test]
fn a_closed_flow_says_so_until_its_end() {
    let mut replica = replica(8);
    let closing = |records: &[Record]| -> Vec<_> {
        let all = records.iter();
        all.map(|record| (record.closing, record.end_reason))
            .collect()
    };
    let open = scan(&mut replica, 1, &[(1, counters(1, &[ACK], &[ACK]))]);
    assert_eq!(closing(&open), [(false, None)]);
    let closed = counters(2, &[FIN | ACK], &[FIN | ACK]);
    let closed = scan(&mut replica, 2, &[(1, closed)]);
    assert_eq!(closing(&closed), [(true, None)]);
    let ended = scan(&mut replica, 20, &[]);
    assert_eq!(closing(&ended), [(false, Some(EndReason::EndOfFlow))]);
}

#[test]
fn the_next_flow_with_the_same_ports_begins_with_nothing_of_the_last() {
    let mut replica = replica(8);
    replica.report_every(Duration::from_mins(1));
    let established = (1, counters(1, &[SYN, ACK], &[SYN | ACK, ACK]));
    scan(&mut replica, 1, &[established]);
    let again = (1, counters(2, &[SYN], &[]));
    let ended = scan(&mut replica, 2, &[again]);
    assert_eq!(packets(&ended), [(2, Some(EndReason::EndOfFlow))]);
    let mut rest = Vec::new();
    replica.finish(&mut |record| rest.push(*record));
    assert_eq!(packets(&rest), [(1, Some(EndReason::ForcedEnd))]);
}

#[test]
fn a_report_interval_of_six_scans_makes_a_sixth_of_the_records_however_many_scans_come_early() {
    const FLOWS: u32 = 5_000;
    // The records of a minute in which each scan counts a packet of each flow, and the packets that they report.
    let minute = |interval: Duration, scan_seconds: u64| {
        let mut replica = replica(FLOWS as usize);
        replica.report_every(interval);
        let mut reported = (0, 0);
        for second in (0..=120).step_by(scan_seconds as usize) {
            let counted = counters(second, &[ACK], &[]);
            let updates: Vec<_> = (0..FLOWS).map(|flow| (flow, counted)).collect();
            let records = scan(&mut replica, second, &updates);
            // The minute before that has the flows' beginnings.
            if second > 60 {
                let packets = records.iter().map(|record| record.delta()[0].packets);
                reported.0 += records.len();
                reported.1 += packets.sum::<u64>();
            }
        }
        reported
    };
    assert_eq!(minute(Duration::ZERO, 10), (30_000, 30_000));
    assert_eq!(minute(Duration::from_mins(1), 10), (5_000, 30_000));
    assert_eq!(minute(Duration::ZERO, 4), (75_000, 75_000));
    assert_eq!(minute(Duration::from_mins(1), 4), (5_000, 75_000));
}

#[test]
fn flows_that_are_not_whole_are_refused() {
    let mut replica = replica(8);
    replica.report_every(Duration::from_mins(1));
    scan(&mut replica, 1, &[(1, counters(1, &[SYN, ACK], &[ACK]))]);
    let held = all_unreported(&replica);
    let read = |bytes: &[u8]| read_unreported(bytes, clock(2), &mut |_| {}).is_ok();
    assert!(read(&held) && read(&[]));
    assert!((1..held.len()).all(|end| !read(&held[..end])));
    // The last word has the side, the origin and others, and some bytes that stay empty.
    let with_last_word = |change: fn(u64) -> u64| {
        let mut bytes = held.clone();
        let word = bytes.last_chunk_mut().unwrap();
        *word = change(u64::from_le_bytes(*word)).to_le_bytes();
        bytes
    };
    assert!(read(&with_last_word(|word| word)));
    assert!(!read(&with_last_word(|word| word | 1 << 40)));
    assert!(!read(&with_last_word(|word| word | 3 << 2)));
    assert!(!read(&with_last_word(|word| word | 0xf0)));
}
