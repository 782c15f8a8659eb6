//! The failures of flows, by their flags and by ICMP errors.

use proto::Failure;

use super::*;

const ERROR: IcmpError = IcmpError {
    icmp_type: 3,
    code: 1,
};
const ECE_AND_CWR: u8 = 0xc0;

/// The failures in the records of each scan. A TCP flow starts with `packets`, from the initiator and back, and is
/// then quiet until it has ended.
fn failures(initiator: u8, [sent, answered]: [&[u8]; 2]) -> Vec<Option<Failure>> {
    let mut replica = replica(8);
    let mut both = if initiator == 0 {
        counters(1, sent, answered)
    } else {
        counters(1, answered, sent)
    };
    began(&mut both, initiator, 0);
    let mut records = scan(&mut replica, 1, &[(1, both)]);
    records.extend(scan(&mut replica, 60, &[]));
    records.iter().map(|record| record.failure).collect()
}

#[test]
fn flags_tell_what_came_of_a_connection() {
    const ALL: &[u8] = &[SYN, ACK, FIN | ACK, ACK];
    let refused = Some(Failure::Refused);
    // A connection may ignore an RST, as long as its flow has not ended.
    let reset = [None, Some(Failure::Reset)];
    for initiator in [0, 1] {
        for (packets, expected) in [
            ([&[SYN][..], &[RST | ACK][..]], [refused; 2]),
            ([&[SYN | ECE_AND_CWR], &[RST | ACK]], [refused; 2]),
            ([&[SYN, SYN], &[]], [None, Some(Failure::Unanswered)]),
            // An initiator that goes on has received something.
            ([&[SYN, ACK], &[]], [None; 2]),
            ([&[SYN, ACK], &[SYN | ACK]], [None; 2]),
            // A half-open connection is no failure of its initiator.
            ([&[SYN], &[SYN | ACK]], [None; 2]),
            ([ALL, &[SYN | ACK, FIN | ACK]], [None; 2]),
            // A segment that comes too late.
            ([ALL, &[SYN | ACK, FIN | ACK, RST]], [None; 2]),
            ([&[SYN, ACK], &[SYN | ACK, RST]], reset),
            ([&[SYN, ACK, RST], &[SYN | ACK]], reset),
            ([&[SYN, ACK, FIN | ACK], &[SYN | ACK, RST]], reset),
            // A scanner that only wants to know whether the port is open has no connection.
            ([&[SYN, RST], &[SYN | ACK]], [None; 2]),
            // Only one direction is seen.
            ([&[SYN, ACK, RST | ACK], &[]], reset),
            ([&[SYN, ACK, FIN | ACK, RST], &[]], [None; 2]),
            // A segment after a close, or a stray one.
            ([&[ACK], &[RST]], [None; 2]),
            ([&[FIN | ACK], &[RST]], [None; 2]),
            ([&[RST], &[]], [None; 2]),
            ([&[RST | ACK], &[]], [None; 2]),
            ([&[RST | ACK, RST | ACK], &[]], [None; 2]),
            (
                [&[RST | ACK, RST | ACK], &[SYN | ACK, SYN | ACK]],
                [None; 2],
            ),
            // In the middle of a connection.
            ([&[ACK], &[ACK, RST]], reset),
            ([&[ACK], &[]], [None; 2]),
        ] {
            assert_eq!(
                failures(initiator, packets),
                expected,
                "{initiator} {packets:?}"
            );
        }
    }
}

/// A flow of UDP.
fn udp(number: u32) -> FlowKey {
    FlowKey {
        protocol: 17,
        ..key(number)
    }
}

fn unreachable(records: &[Record]) -> Vec<bool> {
    let of = |record: &Record| {
        let error = [record.icmp_error_type, record.icmp_error_code];
        let is_unreachable = record.failure == Some(Failure::Unreachable);
        assert_eq!(error != [None, None], is_unreachable, "{record:?}");
        is_unreachable && error == [Some(ERROR.icmp_type.into()), Some(ERROR.code.into())]
    };
    records.iter().map(of).collect()
}

#[test]
fn an_error_is_its_flows_whether_that_comes_before_with_it_or_after() {
    let flow = (udp(1), counters(1, &[0], &[]));
    for comes in [0, 1, 2] {
        let mut replica = replica(8);
        let mut records = Vec::new();
        for second in 1..=3 {
            if second == 2 {
                replica.note_error(&flow.0, 0, ERROR, u64::MAX);
            }
            let now: &[_] = if second == comes + 1 { &[flow] } else { &[] };
            records.extend(scan_keys(&mut replica, second, now));
        }
        records.extend(scan_keys(&mut replica, 60, &[]));
        let known = match comes {
            0 => [false, true],
            _ => [true, true],
        };
        assert_eq!(unreachable(&records), known, "{comes}");
    }
}

#[test]
fn an_error_waits_for_two_scans_and_no_longer() {
    let mut replica = replica(8);
    replica.note_error(&udp(1), 0, ERROR, u64::MAX);
    for second in 1..=2 {
        scan_keys(&mut replica, second, &[]);
    }
    let records = scan_keys(&mut replica, 3, &[(udp(1), counters(3, &[0], &[]))]);
    assert_eq!(unreachable(&records), [false]);
}

#[test]
fn an_error_counts_for_the_initiators_packets_as_long_as_nothing_is_answered() {
    let mut replica = replica(8);
    let flow = |second, answers: &[u8]| (udp(1), counters(second, &[0], answers));
    // The error quotes an answer.
    replica.note_error(&udp(1), 1, ERROR, u64::MAX);
    let records = scan_keys(&mut replica, 1, &[flow(1, &[])]);
    assert_eq!(unreachable(&records), [false]);
    replica.note_error(&udp(1), 0, ERROR, u64::MAX);
    let records = scan_keys(&mut replica, 2, &[flow(2, &[])]);
    assert_eq!(unreachable(&records), [true]);
    // An error that quotes an answer takes nothing back.
    replica.note_error(&udp(1), 1, ERROR, u64::MAX);
    let records = scan_keys(&mut replica, 3, &[flow(3, &[])]);
    assert_eq!(unreachable(&records), [true]);
    let records = scan_keys(&mut replica, 4, &[flow(4, &[0])]);
    assert_eq!(unreachable(&records), [false]);
}

#[test]
fn a_connection_that_goes_on_is_not_unreachable_though_only_one_way_is_seen() {
    let mut replica = replica(8);
    replica.note_error(&key(1), 0, ERROR, u64::MAX);
    let records = scan(&mut replica, 1, &[(1, counters(1, &[SYN, ACK], &[]))]);
    assert_eq!(unreachable(&records), [false]);
    replica.note_error(&key(2), 0, ERROR, u64::MAX);
    let records = scan(&mut replica, 2, &[(2, counters(2, &[SYN], &[]))]);
    assert_eq!(unreachable(&records), [true]);
}

/// Both arrive, so the error is looked up at the wrong side.
#[test]
fn at_a_mirror_port_an_error_finds_its_flow_too() {
    let mut replica = replica(8);
    replica.note_error(&udp(1).with_side(1), 0, ERROR, u64::MAX);
    let flow = (udp(1), counters(1, &[0], &[]));
    scan_keys(&mut replica, 1, &[flow]);
    let records = scan_keys(&mut replica, 60, &[]);
    assert_eq!(unreachable(&records), [true]);
    assert_eq!(replica.unmatched_errors(), 0);
}

#[test]
fn an_error_that_came_before_a_flow_is_of_the_one_before() {
    let mut replica = replica(8);
    replica.note_error(&udp(1), 0, ERROR, SECOND);
    let records = scan_keys(&mut replica, 2, &[(udp(1), counters(2, &[0], &[]))]);
    assert_eq!(unreachable(&records), [false]);
}

#[test]
fn a_flow_that_is_ended_by_force_may_still_be_answered() {
    let mut replica = replica(8);
    scan(&mut replica, 1, &[(1, counters(1, &[SYN], &[]))]);
    let mut failures = Vec::new();
    replica.begin_scan(clock(2));
    replica.finish(&mut |record| failures.push(record.failure));
    assert_eq!(failures, [None]);
}

#[test]
fn the_next_flow_in_a_slot_has_no_error_of_the_one_before() {
    let mut replica = replica(1);
    replica.note_error(&udp(1), 0, ERROR, u64::MAX);
    let records = scan_keys(&mut replica, 1, &[(udp(1), counters(1, &[0], &[]))]);
    assert_eq!(unreachable(&records), [true]);
    // The first flow is evicted.
    let records = scan_keys(&mut replica, 2, &[(udp(2), counters(2, &[0], &[]))]);
    assert_eq!(unreachable(&records), [true, false]);
}

#[test]
fn there_is_a_bound_and_each_flow_that_ended_with_a_failure_is_counted_once() {
    let mut replica = replica(8);
    for number in 0..20_000 {
        replica.note_error(&udp(number), 0, ERROR, u64::MAX);
    }
    assert_eq!(replica.unmatched_errors(), 20_000 - 8192);
    let flows = [1, 2].map(|number| (udp(number), counters(1, &[0], &[])));
    scan_keys(&mut replica, 1, &flows);
    scan(&mut replica, 2, &[(3, counters(2, &[SYN], &[RST | ACK]))]);
    assert_eq!(replica.failed(), Failed::default());
    assert_eq!(replica.unmatched_errors(), 20_000 - 2);
    scan_keys(&mut replica, 60, &[]);
    let expected = Failed {
        unreachable: 2,
        refused: 1,
        ..Failed::default()
    };
    assert_eq!(replica.failed(), expected);
}
