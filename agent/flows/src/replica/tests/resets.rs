//! What an RST does to a flow whose connection may ignore it.

use agent_common::{TcpInfo, tcp::EndedConnection};
use proto::Failure;

use super::*;

fn opening() -> FlowCounters {
    counters(1, &[SYN, ACK, PSH | ACK], &[SYN | ACK, ACK])
}

fn both(second: u64) -> FlowCounters {
    counters(second, &[PSH | ACK], &[ACK])
}

#[test]
fn a_connection_that_goes_on_after_an_rst_is_the_same_flow_and_has_not_failed() {
    let mut replica = replica(8);
    let mut records = scan(&mut replica, 1, &[(1, opening())]);
    records.extend(scan(&mut replica, 2, &[(1, counters(2, &[], &[RST]))]));
    records.extend(scan(&mut replica, 3, &[(1, both(3))]));
    // Longer than a closed flow lingers.
    records.extend(scan(&mut replica, 20, &[(1, both(20))]));
    assert_eq!(reasons(&records), [None; 4]);
    assert_eq!(records[3].total()[0].packets, 5);
    assert!(records[3].tcp_flags()[1] & RST != 0);
    let ended = scan(&mut replica, 60, &[]);
    assert_eq!(reasons(&ended), [Some(EndReason::IdleTimeout)]);
    assert!(records.iter().chain(&ended).all(|it| it.failure.is_none()));
    assert_eq!(replica.failed(), Failed::default());
}

#[test]
fn a_real_rst_after_one_that_was_ignored_ends_the_flow() {
    let mut replica = replica(8);
    scan(&mut replica, 1, &[(1, opening())]);
    scan(&mut replica, 2, &[(1, counters(2, &[], &[RST]))]);
    scan(&mut replica, 3, &[(1, both(3))]);
    scan(&mut replica, 4, &[(1, counters(4, &[RST | ACK], &[]))]);
    let ended = scan(&mut replica, 9, &[]);
    assert_eq!(reasons(&ended), [Some(EndReason::EndOfFlow)]);
    assert_eq!(ended[0].failure, Some(Failure::Reset));
}

#[test]
fn what_is_answered_by_more_rsts_has_ended() {
    let mut replica = replica(8);
    scan(&mut replica, 1, &[(1, opening())]);
    scan(&mut replica, 2, &[(1, counters(2, &[], &[RST]))]);
    scan(&mut replica, 3, &[(1, counters(3, &[PSH | ACK], &[RST]))]);
    let ended = scan(&mut replica, 8, &[]);
    assert_eq!(reasons(&ended), [Some(EndReason::EndOfFlow)]);
    assert_eq!(ended[0].failure, Some(Failure::Reset));
}

/// The pause is longer than a closed flow lingers, so its end was reported.
#[test]
fn a_connection_that_goes_on_much_later_keeps_its_ends() {
    let mut replica = replica(8);
    scan(&mut replica, 1, &[(1, opening())]);
    scan(&mut replica, 2, &[(1, counters(2, &[], &[RST]))]);
    assert_eq!(scan(&mut replica, 20, &[]).len(), 1);
    let mut server_first = counters(21, &[], &[PSH | ACK]);
    began(&mut server_first, 1, 0);
    let records = scan(&mut replica, 21, &[(1, server_first)]);
    assert_eq!(
        (records[0].initiator, records[0].initiator_assumed),
        (0, false)
    );
}

/// The TCP state of a connection.
fn known() -> TcpInfo {
    TcpInfo {
        min_rtt_us: 1,
        delivered: 1,
        ..TcpInfo::default()
    }
}

/// A flow whose socket on this host, at b, has received an RST.
fn reset_with_socket() -> (Replica, TcpInfo) {
    reset_with(|info| info)
}

/// The same flow; `noted` marks the TCP state that its socket has.
fn reset_with(noted: fn(TcpInfo) -> TcpInfo) -> (Replica, TcpInfo) {
    let mut replica = replica(8);
    let info = known();
    let senders = Senders {
        tcp: [TcpInfo::default(), noted(info)],
        ..Senders::default()
    };
    replica.begin_scan(clock(1));
    replica.update_with(&[key(1)], &[opening()], &[senders], &mut |_| {});
    replica.end_scan(&BTreeSet::new(), &mut |_| {});
    scan(&mut replica, 2, &[(1, counters(2, &[RST], &[]))]);
    (replica, info)
}

#[test]
fn a_flow_waits_as_long_as_the_socket_that_got_an_rst_is_there() {
    let (mut replica, _) = reset_with_socket();
    // The linger is over.
    assert!(scan(&mut replica, 20, &[]).is_empty());
    for second in [21, 22] {
        let records = scan(&mut replica, second, &[(1, both(second))]);
        assert_eq!(reasons(&records), [None]);
    }
    let ended = scan(&mut replica, 52, &[]);
    assert_eq!(reasons(&ended), [Some(EndReason::IdleTimeout)]);
    assert_eq!(ended[0].failure, None);
}

#[test]
fn the_next_connection_with_the_same_ports_waits_for_its_socket_too() {
    let mut replica = replica(8);
    scan(&mut replica, 1, &[(1, opening())]);
    let info = known();
    let senders = Senders {
        tcp: [TcpInfo::default(), info],
        ..Senders::default()
    };
    let mut records = Vec::new();
    replica.begin_scan(clock(2));
    let next = counters(2, &[SYN, ACK, PSH | ACK], &[SYN | ACK, ACK]);
    replica.update_with(&[key(1)], &[next], &[senders], &mut |record| {
        records.push(*record);
    });
    replica.end_scan(&BTreeSet::new(), &mut |_| {});
    assert_eq!(reasons(&records), [Some(EndReason::EndOfFlow), None]);
    scan(&mut replica, 3, &[(1, counters(3, &[RST], &[]))]);
    // The linger is over.
    assert!(scan(&mut replica, 20, &[]).is_empty());
}

#[test]
fn a_flow_waits_for_no_socket_whose_end_nobody_tells() {
    let (mut replica, info) = reset_with(TcpInfo::without_end);
    assert_eq!(replica.sockets_without_end(), 1);
    let ended = scan(&mut replica, 8, &[]);
    assert_eq!(reasons(&ended), [Some(EndReason::EndOfFlow)]);
    assert_eq!(ended[0].failure, Some(Failure::Reset));
    assert_eq!(ended[0].tcp()[1], info);
}

#[test]
fn a_socket_whose_end_nobody_tells_counts_once_however_often_it_is_asked() {
    let mut replica = replica(8);
    let info = known();
    let senders = Senders {
        tcp: [info.without_end(), TcpInfo::default()],
        ..Senders::default()
    };
    for number in [1, 2] {
        for second in 1..=5 {
            replica.begin_scan(clock(second));
            let both = both(second);
            replica.update_with(&[key(number)], &[both], &[senders], &mut |_| {});
            replica.end_scan(&BTreeSet::new(), &mut |_| {});
        }
        assert_eq!(replica.sockets_without_end(), u64::from(number));
    }
}

/// A refused connection leaves no TCP state at its end.
#[test]
fn a_flow_ends_when_the_socket_is_gone_of_which_nothing_is_known() {
    let (mut replica, info) = reset_with_socket();
    replica.begin_scan(clock(10));
    replica.note_end(&EndedConnection {
        key: key(1),
        direction: 1,
        asked_ns: SECOND,
        info: TcpInfo::default(),
    });
    let mut records = Vec::new();
    replica.end_scan(&BTreeSet::new(), &mut |record| records.push(*record));
    assert_eq!(reasons(&records), [Some(EndReason::EndOfFlow)]);
    assert_eq!(records[0].tcp()[1], info);
}

#[test]
fn a_flow_ends_when_the_socket_that_got_an_rst_is_gone_or_at_the_idle_timeout() {
    for is_told in [true, false] {
        let (mut replica, info) = reset_with_socket();
        replica.begin_scan(clock(10));
        if is_told {
            replica.note_end(&EndedConnection {
                key: key(1),
                direction: 1,
                asked_ns: SECOND,
                info,
            });
        }
        let mut records = Vec::new();
        replica.end_scan(&BTreeSet::new(), &mut |record| records.push(*record));
        assert_eq!(records.len(), usize::from(is_told));
        records.extend(scan(&mut replica, 32, &[]));
        assert_eq!(reasons(&records), [Some(EndReason::EndOfFlow)]);
        assert_eq!(records[0].failure, Some(Failure::Reset));
    }
}
