//! Flows whose packets are seen on both sides of the interface.

use super::*;

const SYN_ACK: u8 = SYN | ACK;
const INGRESS: Direction = Direction::Ingress;
const EGRESS: Direction = Direction::Egress;

/// Counters of packets in `direction` at `hook`, or of their answers at the other hook.
fn half(direction: u8, hook: Direction, counters: FlowCounters) -> (FlowKey, FlowCounters) {
    at(direction ^ u8::from(hook == EGRESS), counters)
}

/// The flow as counted on one side of the interface.
fn at(side: u8, counters: FlowCounters) -> (FlowKey, FlowCounters) {
    (key(1).with_side(side), counters)
}

/// The two updates in both orders.
pub(super) fn orders<T: Clone>(updates: &[T; 2]) -> [Vec<T>; 2] {
    let [one, other] = updates;
    [
        vec![one.clone(), other.clone()],
        vec![other.clone(), one.clone()],
    ]
}

pub(super) fn directions(record: &Record) -> [Direction; 2] {
    [record.direction(), record.reverse_direction()]
}

fn packets(pairs: [Counts; 2]) -> [u64; 2] {
    pairs.map(|pair| pair.packets)
}

#[test]
fn a_record_says_at_which_side_the_initiator_is() {
    type Segments = [&'static [u8]; 2];
    let cases: [(u8, Segments, u8, Direction); 6] = [
        (0, [&[SYN, ACK], &[SYN_ACK]], 0, INGRESS),
        (1, [&[SYN, ACK], &[SYN_ACK]], 0, EGRESS),
        (0, [&[SYN_ACK], &[SYN, ACK]], 1, EGRESS),
        (1, [&[SYN_ACK], &[SYN, ACK]], 1, INGRESS),
        // Only the request, only the answer.
        (0, [&[ACK], &[]], 0, INGRESS),
        (0, [&[SYN_ACK], &[]], 1, EGRESS),
    ];
    for (side, [a_to_b, b_to_a], initiator, direction) in cases {
        let mut replica = replica(8);
        let records = scan_keys(&mut replica, 1, &[at(side, counters(1, a_to_b, b_to_a))]);
        assert_eq!(reasons(&records), [None]);
        assert_eq!(records[0].initiator, initiator, "{a_to_b:?} {b_to_a:?}");
        assert_eq!(directions(&records[0]), [direction, direction.opposite()]);
    }
}

#[test]
fn both_directions_arriving_are_one_record_a_scan_whatever_comes_first() {
    for (side, direction) in [(0, INGRESS), (1, EGRESS)] {
        let opened = [
            at(side, counters(2, &[SYN, ACK], &[])),
            at(1 - side, counters(1, &[], &[SYN_ACK])),
        ];
        for opened in orders(&opened) {
            let mut replica = replica(8);
            let record = scan_keys(&mut replica, 2, &opened);
            assert_eq!(reasons(&record), [None]);
            assert_eq!(record[0].initiator, 0, "the SYN's sender");
            assert_eq!(directions(&record[0]), [direction; 2]);
            assert_eq!(packets(record[0].delta()), [2, 1]);
            assert_eq!(record[0].first_seen_unix_ns, UNIX as u64 + SECOND);
            assert_eq!(record[0].last_seen_unix_ns, UNIX as u64 + 2 * SECOND);
            assert_eq!(record[0].tcp_flags(), [SYN | ACK, SYN | ACK]);
            assert_eq!(replica.len(), 1);

            let goes_on = [
                at(side, counters(3, &[ACK; 3], &[])),
                at(1 - side, counters(3, &[], &[ACK; 4])),
            ];
            for (second, goes_on) in (3..).zip(orders(&goes_on)) {
                let record = scan_keys(&mut replica, second, &goes_on);
                assert_eq!(reasons(&record), [None]);
                assert_eq!(packets(record[0].delta()), [3, 4]);
                assert_eq!(directions(&record[0]), [direction; 2]);
            }
            let record = scan_keys(&mut replica, 5, &goes_on[1..]);
            assert_eq!(reasons(&record), [None]);
            assert_eq!(packets(record[0].delta()), [0, 4]);
            assert_eq!(packets(record[0].total()), [8, 13]);
        }
    }
}

#[test]
fn the_first_packet_of_both_halves_tells_the_initiator_where_no_syn_does() {
    for (first, hook) in [(0, INGRESS), (1, INGRESS), (0, EGRESS), (1, EGRESS)] {
        let mut halves = [
            half(0, hook, counters(2, &[ACK], &[])),
            half(1, hook, counters(2, &[], &[ACK])),
        ];
        began(&mut halves[1].1, 1, 0);
        halves[first].1.first_seen_ns -= 1;
        began(&mut halves[first].1, 0, 46);
        for halves in orders(&halves) {
            let record = scan_keys(&mut replica(8), 2, &halves)[0];
            assert_eq!(usize::from(record.initiator), first);
            assert_eq!(
                (record.src.dscp.or(record.dst.dscp), directions(&record)),
                (Some(46), [hook; 2])
            );
            assert_eq!(record.community_id, community_id(&key(1), record.initiator));
        }
    }
}

#[test]
fn halves_of_different_scans_are_one_flow() {
    let mut replica = replica(8);
    let syn = scan_keys(&mut replica, 1, &[at(0, counters(1, &[SYN], &[]))]);
    assert_eq!(directions(&syn[0]), [INGRESS, EGRESS]);
    let answer = scan_keys(&mut replica, 2, &[at(1, counters(2, &[], &[SYN_ACK]))]);
    assert_eq!(reasons(&answer), [None]);
    assert_eq!(directions(&answer[0]), [INGRESS; 2]);
    assert_eq!(packets(answer[0].delta()), [0, 1]);
    assert_eq!(packets(answer[0].total()), [1, 1]);
    assert_eq!(replica.len(), 1);
}

#[test]
fn a_known_half_and_the_other_one_make_one_record_where_the_other_one_comes_first() {
    let mut replica = replica(8);
    scan_keys(&mut replica, 1, &[at(0, counters(1, &[SYN], &[]))]);
    let both = [
        at(1, counters(2, &[], &[SYN_ACK])),
        at(0, counters(2, &[ACK; 2], &[])),
    ];
    let record = scan_keys(&mut replica, 2, &both);
    assert_eq!(reasons(&record), [None]);
    assert_eq!(packets(record[0].delta()), [2, 1]);
}

#[test]
fn a_half_that_comes_twice_is_counted_twice() {
    let mut replica = replica(8);
    let halves = [
        at(0, counters(1, &[SYN], &[])),
        at(1, counters(1, &[], &[SYN_ACK])),
    ];
    scan_keys(&mut replica, 1, &halves);
    let updates = [
        at(0, counters(2, &[ACK], &[])),
        at(0, counters(2, &[ACK; 2], &[])),
        at(1, counters(2, &[], &[ACK])),
        at(1, counters(2, &[], &[ACK; 3])),
    ];
    let records = scan_keys(&mut replica, 2, &updates);
    assert!(records.iter().all(|record| record.end_reason.is_none()));
    assert_eq!(packets(records.last().unwrap().total()), [4, 5]);
}

#[test]
fn an_answer_told_before_its_question_ends_where_they_are_halves() {
    let mut replica = replica(8);
    let answer = scan_keys(&mut replica, 1, &[at(1, counters(1, &[], &[SYN_ACK]))]);
    assert_eq!((answer[0].initiator, answer[0].direction()), (0, EGRESS));
    let question = scan_keys(&mut replica, 2, &[at(0, counters(2, &[SYN], &[]))]);
    assert_eq!(reasons(&question), [Some(EndReason::ForcedEnd), None]);
    let answer = scan_keys(&mut replica, 3, &[at(1, counters(3, &[], &[SYN_ACK]))]);
    assert_eq!(
        (answer[0].initiator, directions(&answer[0])),
        (0, [INGRESS; 2])
    );
    assert_eq!(packets(answer[0].total()), [1, 1]);
    assert_eq!(replica.len(), 1);
}

#[test]
fn one_direction_at_both_sides_makes_two_records_with_one_community_id() {
    let one_way: [&[u8]; 2] = [&[ACK; 5], &[]];
    let both_ways: [&[u8]; 2] = [&[SYN, ACK], &[SYN_ACK, ACK, ACK]];
    for [a_to_b, b_to_a] in [one_way, both_ways] {
        let routed = [0, 1].map(|side| at(side, counters(1, a_to_b, b_to_a)));
        for routed in orders(&routed) {
            let mut replica = replica(8);
            let mut records = scan_keys(&mut replica, 1, &routed);
            records.sort_by_key(Parts::direction);
            assert_eq!(reasons(&records), [None, None]);
            let seen = [a_to_b.len() as u64, b_to_a.len() as u64];
            for (record, direction) in records.iter().zip([INGRESS, EGRESS]) {
                assert_eq!(directions(record), [direction, direction.opposite()]);
                assert_eq!(packets(record.delta()), seen);
                assert_eq!(
                    (record.initiator, record.community_id),
                    (0, records[0].community_id)
                );
            }
            assert_eq!(replica.len(), 2);
        }
    }
}

#[test]
fn the_side_that_begins_to_look_later_has_the_same_initiator() {
    let mut replica = replica(8);
    scan_keys(&mut replica, 1, &[at(0, counters(1, &[ACK], &[ACK]))]);
    let mut later = counters(2, &[], &[ACK]);
    began(&mut later, 1, 0);
    let record = scan_keys(&mut replica, 2, &[at(1, later)])[0];
    assert_eq!((record.initiator, record.direction()), (0, EGRESS));
    assert_eq!(packets(record.delta()), [0, 1]);
}

/// First a half arrives, then the same packets leave.
#[test]
fn a_side_that_saw_the_handshake_knows_the_initiator_by_itself() {
    let mut replica = replica(8);
    let mut answer = counters(1, &[], &[ACK]);
    began(&mut answer, 1, 0);
    assert_eq!(scan_keys(&mut replica, 1, &[at(0, answer)])[0].initiator, 1);
    let opened = at(1, counters(2, &[SYN], &[SYN_ACK]));
    let record = scan_keys(&mut replica, 2, &[opened])[0];
    assert_eq!(record.initiator, 0);
    assert_eq!(record.community_id, community_id(&key(1), 0));
}

#[test]
fn an_entry_is_beside_the_other_side_of_its_own_flow_alone_and_while_it_lives() {
    let mut entry = Entry::new(&key(1), &counters(1, &[ACK], &[]), clock(1), 1);
    let other_side = key(1).with_side(1);
    assert!(entry.is_beside(&other_side) && !entry.is(&other_side));
    assert!(entry.is(&key(1)) && !entry.is_beside(&key(1)));
    assert!(!entry.is_beside(&key(2).with_side(1)));
    entry.sides = Sides::Joined;
    assert!(entry.is(&other_side));
    entry.state = State::Free;
    assert!(!entry.is_beside(&other_side) && !entry.is(&other_side) && !entry.is(&key(1)));
}

#[test]
fn a_half_whose_direction_comes_at_the_other_side_goes_on_beside_it() {
    let routed: [&[FlowCounters]; 3] = [
        &[counters(2, &[ACK], &[])],
        &[counters(2, &[ACK], &[ACK])],
        &[counters(2, &[], &[ACK]), counters(3, &[ACK], &[])],
    ];
    for egress in routed {
        let mut replica = replica(8);
        scan_keys(&mut replica, 1, &[at(0, counters(1, &[ACK], &[]))]);
        let mut records = Vec::new();
        for (second, egress) in (2..).zip(egress) {
            // The answers that this side sees come after it, in the same scan.
            let updates = [at(1, *egress), at(0, counters(2, &[], &[ACK]))];
            records.extend(scan_keys(&mut replica, second, &updates));
        }
        assert!(records.iter().all(|record| record.end_reason.is_none()));
        let last = |direction| {
            let mut records = records.iter().rev();
            records
                .find(|record| record.direction() == direction)
                .unwrap()
        };
        let scans = egress.len() as u64;
        assert_eq!(packets(last(INGRESS).total()), [1, scans]);
        let left = egress.iter().map(|counters| counters.packets);
        let left = left.fold([0, 0], |sum, packets| {
            [sum[0] + packets[0], sum[1] + packets[1]]
        });
        assert_eq!(packets(last(EGRESS).total()), left);
        assert_eq!(last(EGRESS).reverse_direction(), INGRESS);
    }
}

#[test]
fn a_joined_flow_ends_where_a_direction_comes_at_both_sides_and_two_begin() {
    for hook in [INGRESS, EGRESS] {
        let halves = [
            half(0, hook, counters(1, &[SYN, ACK], &[])),
            half(1, hook, counters(1, &[], &[SYN_ACK])),
        ];
        let routed = [
            half(0, hook, counters(2, &[ACK], &[ACK; 2])),
            half(1, hook, counters(2, &[], &[ACK; 2])),
        ];
        for routed in orders(&routed) {
            let mut replica = replica(8);
            scan_keys(&mut replica, 1, &halves);
            let records = scan_keys(&mut replica, 2, &routed);
            assert_eq!(reasons(&records), [Some(EndReason::ForcedEnd), None, None]);
            assert_eq!(packets(records[0].total()), [2, 1]);
            assert_eq!(directions(&records[0]), [hook; 2]);
            let mut sides = [&records[1], &records[2]];
            sides.sort_by_key(|record| record.direction() != hook);
            let beside = hook.opposite();
            assert_eq!(sides.map(directions), [[hook, beside], [beside, hook]]);
            assert_eq!(
                sides.map(|record| packets(record.total())),
                [[1, 2], [0, 2]]
            );
            // They stay apart.
            let halves = [
                half(0, hook, counters(3, &[ACK], &[])),
                half(1, hook, counters(3, &[], &[ACK])),
            ];
            let records = scan_keys(&mut replica, 3, &halves);
            assert_eq!(reasons(&records), [None, None]);
            assert_eq!(replica.len(), 2);
        }
    }
}

#[test]
fn sides_stay_apart_when_one_of_them_has_ended() {
    let mut replica = replica(8);
    let routed = [0, 1].map(|side| at(side, counters(1, &[ACK], &[])));
    scan_keys(&mut replica, 1, &routed);
    scan_keys(&mut replica, 20, &[at(0, counters(20, &[ACK], &[]))]);
    let ended = scan_keys(&mut replica, 31, &[]);
    assert_eq!(reasons(&ended), [Some(EndReason::IdleTimeout)]);
    let answer = scan_keys(&mut replica, 32, &[at(1, counters(32, &[], &[ACK]))]);
    assert_eq!(directions(&answer[0]), [EGRESS, INGRESS]);
    assert_eq!(replica.len(), 2);
}

#[test]
fn a_mirrored_flow_closes_when_both_halves_are_done() {
    let half_closed = [
        at(0, counters(1, &[SYN, FIN | ACK], &[])),
        at(1, counters(1, &[], &[SYN_ACK, ACK])),
    ];
    for half_closed in orders(&half_closed) {
        let mut replica = replica(8);
        scan_keys(&mut replica, 1, &half_closed);
        assert!(scan_keys(&mut replica, 20, &[]).is_empty());
        scan_keys(&mut replica, 21, &[at(1, counters(21, &[], &[FIN | ACK]))]);
        let late = scan_keys(&mut replica, 22, &[at(0, counters(22, &[ACK], &[]))]);
        assert_eq!(reasons(&late), [None]);
        let ended = scan_keys(&mut replica, 27, &[]);
        assert_eq!(reasons(&ended), [Some(EndReason::EndOfFlow)]);
        assert_eq!(packets(ended[0].total()), [3, 3]);
    }
}

#[test]
fn a_mirrored_connection_with_used_ports_is_the_next_flow_with_both_halves() {
    let established = [
        at(0, counters(1, &[SYN, ACK], &[])),
        at(1, counters(1, &[], &[SYN_ACK])),
    ];
    let mut next = [
        at(0, counters(2, &[SYN, ACK], &[])),
        at(1, counters(2, &[], &[SYN_ACK])),
    ];
    began(&mut next[0].1, 0, 46);
    next[1].1.first_seen_ns += 1;
    for next in orders(&next) {
        let mut replica = replica(8);
        scan_keys(&mut replica, 1, &established);
        let records = scan_keys(&mut replica, 2, &next);
        assert_eq!(reasons(&records), [Some(EndReason::EndOfFlow), None]);
        assert_eq!(packets(records[0].total()), [2, 1]);
        assert_eq!(packets(records[1].total()), [2, 1]);
        assert_eq!(directions(&records[1]), [INGRESS; 2]);
        assert_eq!(records[1].first_seen_unix_ns, UNIX as u64 + 2 * SECOND);
        assert_eq!(records[1].src.dscp, Some(46));
    }
}

#[test]
fn a_used_port_from_the_other_end_turns_the_mirrored_flow_around() {
    for hook in [INGRESS, EGRESS] {
        let mut replica = replica(8);
        let established = [
            half(0, hook, counters(1, &[SYN, ACK], &[])),
            half(1, hook, counters(1, &[], &[SYN_ACK])),
        ];
        scan_keys(&mut replica, 1, &established);
        let next = [
            half(0, hook, counters(2, &[SYN_ACK], &[])),
            half(1, hook, counters(2, &[], &[SYN, ACK])),
        ];
        let records = scan_keys(&mut replica, 2, &next);
        assert_eq!(reasons(&records), [Some(EndReason::EndOfFlow), None]);
        assert_eq!(records[0].initiator, 0);
        assert_eq!(
            (records[1].initiator, directions(&records[1])),
            (1, [hook; 2])
        );
        let goes_on = [
            half(1, hook, counters(3, &[], &[ACK; 3])),
            half(0, hook, counters(3, &[ACK; 2], &[])),
        ];
        let record = scan_keys(&mut replica, 3, &goes_on)[0];
        assert_eq!((record.initiator, directions(&record)), (1, [hook; 2]));
        assert_eq!(packets(record.total()), [5, 3]);
    }
}

#[test]
fn a_flow_with_a_waiting_half_is_no_quiet_one() {
    let mut replica = replica(2);
    let halves = [
        at(0, counters(1, &[ACK], &[])),
        at(1, counters(1, &[], &[ACK])),
    ];
    scan_keys(&mut replica, 1, &halves);
    scan_keys(&mut replica, 2, &[(key(2), counters(2, &[ACK], &[ACK]))]);
    let updates = [
        at(0, counters(3, &[ACK], &[])),
        (key(3), counters(3, &[ACK], &[ACK])),
        at(1, counters(3, &[], &[ACK])),
    ];
    let records = scan_keys(&mut replica, 3, &updates);
    let ended: Vec<_> = records
        .iter()
        .filter(|record| record.end_reason.is_some())
        .collect();
    assert_eq!((ended.len(), ended[0].key), (1, key(2)));
    let told = records
        .iter()
        .filter(|record| record.key.with_side(0) == key(1));
    let told = told.fold([0, 0], |sum, record| {
        let delta = packets(record.delta());
        [sum[0] + delta[0], sum[1] + delta[1]]
    });
    assert_eq!(told, [1, 1]);
}

#[test]
fn an_untold_flow_that_has_to_leave_is_told_first() {
    let mut replica = replica(1);
    let updates = [1, 2].map(|number| (number, counters(1, &[ACK], &[])));
    let records = scan(&mut replica, 1, &updates);
    assert_eq!(
        reasons(&records),
        [None, Some(EndReason::LackOfResources), None]
    );
    assert_eq!(packets(records[0].delta()), [1, 0]);
}
