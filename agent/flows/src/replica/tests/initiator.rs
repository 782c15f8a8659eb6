//! Who opened a flow: what proves it, what is remembered, and when it is assumed.

use agent_common::{TcpInfo, tcp::Role};

use super::*;

/// The initiators, and whether they are assumed.
fn initiators(records: &[Record]) -> Vec<(u8, bool)> {
    let of = |record: &Record| (record.initiator, record.initiator_assumed);
    records.iter().map(of).collect()
}

fn first_by(mut counters: FlowCounters, initiator: u8) -> FlowCounters {
    began(&mut counters, initiator, 0);
    counters
}

#[test]
fn a_handshake_proves_who_opened_and_nothing_else_does() {
    for initiator in [0, 1] {
        for (packets, is_assumed) in [
            ([&[SYN][..], &[][..]], false),
            ([&[SYN, ACK], &[SYN | ACK]], false),
            ([&[ACK], &[SYN | ACK]], false),
            // A SYN with ACK alone, or refused by the host that never asked, or by a firewall in its name.
            ([&[], &[SYN | ACK]], true),
            ([&[RST], &[SYN | ACK]], true),
            ([&[RST | ACK], &[SYN | ACK]], true),
            // Only one direction is seen.
            ([&[], &[SYN | ACK, PSH | ACK]], false),
            ([&[ACK], &[ACK]], true),
            ([&[ACK], &[]], true),
            ([&[RST | ACK], &[]], true),
            // Both ends ask at once.
            ([&[SYN], &[SYN]], true),
        ] {
            let [sent, answered] = packets;
            let both = if initiator == 0 {
                counters(1, sent, answered)
            } else {
                counters(1, answered, sent)
            };
            let records = scan(&mut replica(8), 1, &[(1, first_by(both, initiator))]);
            let expected = [(initiator, is_assumed)];
            assert_eq!(initiators(&records), expected, "{packets:?}");
        }
    }
}

#[test]
fn a_stray_syn_with_ack_is_proof_once_it_is_answered() {
    let mut replica = replica(8);
    let records = scan(
        &mut replica,
        1,
        &[(1, first_by(counters(1, &[], &[SYN | ACK]), 0))],
    );
    assert_eq!(initiators(&records), [(0, true)]);
    let records = scan(&mut replica, 2, &[(1, counters(2, &[ACK], &[]))]);
    assert_eq!(initiators(&records), [(0, false)]);
}

#[test]
fn a_connection_that_was_quiet_keeps_its_initiator_whoever_speaks_first() {
    for (opening, is_assumed) in [
        (counters(1, &[SYN, ACK], &[SYN | ACK]), false),
        (counters(1, &[ACK], &[ACK]), true),
    ] {
        let mut replica = replica(8);
        let server_first = |second| first_by(counters(second, &[], &[PSH | ACK]), 1);
        scan(&mut replica, 1, &[(1, opening)]);
        for pause in 1..=2 {
            let ended = scan(&mut replica, 100 * pause - 10, &[]);
            assert_eq!(reasons(&ended), [Some(EndReason::IdleTimeout)]);
            let second = 100 * pause;
            let records = scan(&mut replica, second, &[(1, server_first(second))]);
            assert_eq!(initiators(&records), [(0, is_assumed)], "{pause}");
            assert_eq!(records[0].community_id, community_id(&key(1), 0));
            scan(&mut replica, second, &[(1, counters(second, &[ACK], &[]))]);
        }
        assert_eq!(replica.forgotten_initiators(), 0);
    }
}

#[test]
fn a_connection_keeps_its_initiator_over_pauses_between_which_one_end_speaks_alone() {
    for (opening, is_assumed) in [
        (counters(1, &[SYN, ACK], &[SYN | ACK]), false),
        (counters(1, &[ACK], &[ACK]), true),
    ] {
        let mut replica = replica(8);
        scan(&mut replica, 1, &[(1, opening)]);
        for pause in 1..=3 {
            let ended = scan(&mut replica, 100 * pause - 10, &[]);
            assert_eq!(reasons(&ended), [Some(EndReason::IdleTimeout)]);
            let second = 100 * pause;
            let repeated = first_by(counters(second, &[], &[PSH | ACK]), 1);
            let records = scan(&mut replica, second, &[(1, repeated)]);
            assert_eq!(initiators(&records), [(0, is_assumed)], "{pause}");
        }
    }
}

#[test]
fn a_connection_goes_on_with_its_initiator_where_both_directions_arrive() {
    let mut replica = replica(8);
    let halves = |second, sent: &[u8], answered: &[u8]| {
        [
            (
                key(1).with_side(1),
                first_by(counters(second, &[], answered), 1),
            ),
            (key(1), counters(second, sent, &[])),
        ]
    };
    scan_keys(&mut replica, 1, &halves(1, &[SYN, ACK], &[SYN | ACK]));
    assert_eq!(scan(&mut replica, 50, &[]).len(), 1);
    let [server, client] = halves(100, &[ACK], &[PSH | ACK]);
    let records = scan_keys(&mut replica, 100, &[server, client]);
    assert_eq!(initiators(&records), [(0, false)]);
    assert_eq!(records[0].direction(), records[0].reverse_direction());
}

#[test]
fn a_new_connection_with_the_same_ports_has_its_own_initiator() {
    let mut replica = replica(8);
    scan(
        &mut replica,
        1,
        &[(1, counters(1, &[SYN, ACK], &[SYN | ACK]))],
    );
    scan(&mut replica, 50, &[]);
    let records = scan(
        &mut replica,
        60,
        &[(1, first_by(counters(60, &[], &[SYN]), 1))],
    );
    assert_eq!(initiators(&records), [(1, false)]);
}

#[test]
fn what_is_remembered_of_a_connection_is_over_with_the_next_ones_syn() {
    let mut replica = replica(8);
    scan(
        &mut replica,
        1,
        &[(1, counters(1, &[SYN, ACK], &[SYN | ACK]))],
    );
    scan(&mut replica, 50, &[]);
    // The other end opens a connection, which ends by FIN.
    let next = counters(60, &[SYN | ACK, FIN | ACK], &[SYN, ACK, FIN | ACK]);
    let records = scan(&mut replica, 60, &[(1, first_by(next, 1))]);
    assert_eq!(initiators(&records), [(1, false)]);
    scan(&mut replica, 90, &[]);
    // The beginning of a third connection is not seen.
    let later = first_by(counters(100, &[], &[PSH | ACK]), 1);
    let records = scan(&mut replica, 100, &[(1, later)]);
    assert_eq!(initiators(&records), [(1, true)]);
}

/// A connection goes on after a pause, and its other end opens another one with the same ports.
#[test]
fn a_syn_of_the_other_end_goes_before_what_is_remembered() {
    for (first, more) in [
        // Within one scan, and in the next one, after a packet that may belong to either.
        (counters(60, &[], &[ACK, SYN]), None),
        (counters(60, &[], &[ACK]), Some(counters(61, &[], &[SYN]))),
        (
            counters(60, &[], &[RST]),
            Some(counters(61, &[SYN | ACK], &[SYN])),
        ),
    ] {
        let mut replica = replica(8);
        scan(
            &mut replica,
            1,
            &[(1, counters(1, &[SYN, ACK], &[SYN | ACK]))],
        );
        scan(&mut replica, 50, &[]);
        let mut records = scan(&mut replica, 60, &[(1, first_by(first, 1))]);
        if let Some(more) = more {
            records = scan(&mut replica, 61, &[(1, first_by(more, 1))]);
        }
        let last = records.last().unwrap();
        assert_eq!((last.initiator, last.initiator_assumed), (1, false));
        assert_eq!(last.community_id, community_id(&key(1), 1));
    }
}

/// Otherwise a port scan would push out the remembered connections.
#[test]
fn a_connection_that_was_never_established_is_not_remembered() {
    for answer in [RST | ACK, SYN | ACK] {
        let mut replica = replica(8);
        scan(&mut replica, 1, &[(1, counters(1, &[SYN], &[answer]))]);
        scan(&mut replica, 90, &[]);
        let later = first_by(counters(100, &[], &[PSH | ACK]), 1);
        let records = scan(&mut replica, 100, &[(1, later)]);
        assert_eq!(initiators(&records), [(1, true)], "{answer:#x}");
    }
}

#[test]
fn what_fin_has_closed_is_not_remembered_and_what_made_room_is() {
    let mut replica = replica(1);
    let closed = counters(1, &[SYN, ACK, FIN | ACK], &[SYN | ACK, FIN | ACK]);
    scan(&mut replica, 1, &[(1, closed)]);
    // Each flow is evicted for the next one.
    scan(
        &mut replica,
        2,
        &[(2, counters(2, &[SYN, ACK], &[SYN | ACK]))],
    );
    let late = |second| first_by(counters(second, &[], &[ACK]), 1);
    let records = scan(&mut replica, 3, &[(1, late(3))]);
    assert_eq!(initiators(&records[1..]), [(1, true)]);
    let records = scan(&mut replica, 4, &[(2, late(4))]);
    assert_eq!(initiators(&records[1..]), [(0, false)]);
}

/// A flow of UDP.
fn udp(number: u32) -> FlowKey {
    FlowKey {
        protocol: 17,
        ..key(number)
    }
}

#[test]
fn a_flow_without_handshake_is_known_to_begin_after_a_pause_that_was_seen() {
    let mut replica = replica(8);
    let of = |second| counters(second, &[0], &[0]);
    scan_keys(&mut replica, 1, &[(udp(1), of(1))]);
    replica.watch(InterfaceId::default());
    // The interface is watched from here on; a flow seen within the idle timeout may be older.
    for (second, is_assumed) in [(10, true), (39, true), (40, false)] {
        let records = scan_keys(&mut replica, second, &[(udp(second as u32), of(second))]);
        let began = records.iter().filter(|record| record.end_reason.is_none());
        let assumed: Vec<_> = began.map(|record| record.initiator_assumed).collect();
        assert_eq!(assumed, [is_assumed], "{second}");
    }
    // Other filter rules, another sample rate, or a full table.
    replica.note_gap();
    let records = scan_keys(&mut replica, 50, &[(udp(50), of(50))]);
    assert_eq!(initiators(&records), [(0, true)]);
    let records = scan_keys(&mut replica, 81, &[(udp(81), of(81))]);
    assert!(!records[0].initiator_assumed);
    // Flows of other interfaces are not affected.
    let elsewhere = FlowKey {
        ifindex: 7,
        ..udp(82)
    };
    let records = scan_keys(&mut replica, 81, &[(elsewhere, of(81))]);
    assert_eq!(initiators(&records), [(0, true)]);
}

#[test]
fn one_direction_proves_no_beginning_while_rules_may_leave_out_the_other() {
    let mut replica = replica(8);
    replica.watch(InterfaceId::default());
    replica.follow_rules(true);
    scan(&mut replica, 1, &[]);
    let answer = |second| first_by(counters(second, &[], &[0]), 1);
    let records = scan_keys(&mut replica, 100, &[(udp(1), answer(100))]);
    assert_eq!(initiators(&records), [(1, true)]);
    // The rules count both directions of this one.
    let asked = first_by(counters(100, &[0], &[]), 0);
    let records = scan_keys(&mut replica, 100, &[(udp(2), asked)]);
    assert_eq!(initiators(&records), [(0, true)]);
    let records = scan_keys(&mut replica, 101, &[(udp(2), answer(101))]);
    assert_eq!(initiators(&records), [(0, false)]);
    // Without the rules the first flow's question is finally counted.
    replica.follow_rules(false);
    let asked = first_by(counters(102, &[0], &[]), 0);
    let both = [(udp(1), asked), (udp(2), asked)];
    let records = scan_keys(&mut replica, 102, &both);
    assert_eq!(initiators(&records), [(1, true), (0, false)]);
    let records = scan_keys(&mut replica, 140, &[(udp(3), answer(140))]);
    let began = records.iter().filter(|record| record.end_reason.is_none());
    assert!(began.map(|record| record.initiator_assumed).eq([false]));
}

#[test]
fn an_answer_alone_proves_no_question() {
    let mut replica = replica(8);
    replica.watch(InterfaceId::default());
    scan(&mut replica, 1, &[]);
    let echo = FlowKey {
        protocol: 1,
        l4_kind: 3,
        ..key(1)
    };
    let reply = first_by(counters(100, &[], &[0]), 0);
    let records = scan_keys(&mut replica, 100, &[(echo, reply)]);
    assert_eq!(initiators(&records), [(0, true)]);
    let records = scan_keys(&mut replica, 101, &[(echo, counters(101, &[0], &[0]))]);
    assert_eq!(initiators(&records), [(0, false)]);
}

#[test]
fn who_sent_a_request_of_icmp_is_known_and_who_sent_an_error_is_not() {
    for initiator in [0, 1] {
        for (l4_kind, is_assumed) in [(3, false), (2, true)] {
            let icmp = FlowKey {
                protocol: 1,
                l4_kind,
                ..key(1)
            };
            let both = first_by(counters(1, &[0], &[0]), initiator);
            let records = scan_keys(&mut replica(8), 1, &[(icmp, both)]);
            assert_eq!(initiators(&records), [(initiator, is_assumed)], "{l4_kind}");
        }
    }
}

/// Takes in a flow with the roles that sockets of this host show, by direction.
fn scan_roles(
    replica: &mut Replica,
    second: u64,
    (key, counters): (FlowKey, FlowCounters),
    roles: [Role; 2],
) -> Vec<Record> {
    let mut records = Vec::new();
    let mut sink = |record: &Record| records.push(*record);
    let tcp = roles.map(|role| {
        let known = TcpInfo {
            rtt_us: 7,
            min_rtt_us: 1,
            ..TcpInfo::default()
        };
        known.with_role(role)
    });
    let senders = Senders {
        tcp,
        ..Senders::default()
    };
    replica.begin_scan(clock(second));
    replica.update_with(&[key], &[counters], &[senders], &mut sink);
    replica.end_scan(&BTreeSet::new(), &mut sink);
    records
}

#[test]
fn a_socket_of_this_host_shows_who_opened_a_connection_that_is_older() {
    const NONE: Role = Role::Unknown;
    for (roles, expected) in [
        ([NONE; 2], (1, true)),
        ([Role::Opened, NONE], (0, false)),
        ([Role::Accepted, NONE], (1, false)),
        ([NONE, Role::Accepted], (0, false)),
        ([NONE, Role::Opened], (1, false)),
        ([Role::Opened, Role::Accepted], (0, false)),
    ] {
        let older = (key(1), first_by(counters(1, &[ACK], &[PSH | ACK]), 1));
        let records = scan_roles(&mut replica(8), 1, older, roles);
        assert_eq!(initiators(&records), [expected], "{roles:?}");
        assert_eq!(records[0].tcp()[0].rtt_us, 7);
    }
}

#[test]
fn a_socket_that_comes_later_confirms_the_initiator_or_begins_another_flow() {
    const OPENED: [Role; 2] = [Role::Opened, Role::Unknown];
    for first in [0, 1] {
        let mut replica = replica(8);
        let older = first_by(counters(1, &[ACK], &[PSH | ACK]), first);
        scan(&mut replica, 1, &[(1, older)]);
        let more = (key(1), counters(2, &[ACK], &[]));
        let records = scan_roles(&mut replica, 2, more, OPENED);
        if first == 0 {
            assert_eq!(initiators(&records), [(0, false)]);
        } else {
            assert_eq!(reasons(&records), [Some(EndReason::ForcedEnd), None]);
            assert_eq!(initiators(&records), [(1, true), (0, false)]);
            assert_eq!(records[1].delta()[0].packets, 1);
        }
        let records = scan(&mut replica, 3, &[(1, counters(3, &[], &[ACK]))]);
        assert_eq!(initiators(&records), [(0, false)]);
        assert_eq!(replica.len(), 1);
    }
}

#[test]
fn a_handshake_goes_before_what_a_socket_shows() {
    let opening = (key(1), counters(1, &[SYN, ACK], &[SYN | ACK]));
    let records = scan_roles(&mut replica(8), 1, opening, [Role::Accepted, Role::Unknown]);
    assert_eq!(initiators(&records), [(0, false)]);
}
