//! Senders and TCP state: they stay with their flow, and belong to no other.

use agent_common::{Sample, Senders, TcpInfo, round_trip::Segment, tcp::EndedConnection};

use super::*;
use crate::replica::senders::PendingSenders;

/// Takes in flows with their senders.
fn scan_sent(
    replica: &mut Replica,
    second: u64,
    updates: &[(FlowKey, FlowCounters, [u64; 2])],
) -> Vec<Record> {
    let mut records = Vec::new();
    let mut sink = |record: &Record| records.push(*record);
    let keys: Vec<_> = updates.iter().map(|one| one.0).collect();
    let counters: Vec<_> = updates.iter().map(|one| one.1).collect();
    // Both kinds at once: a sender without a cgroup has a process, and the root has none.
    let senders = updates.iter().map(|one| Senders {
        cgroup_ids: one.2,
        process_keys: one
            .2
            .map(|id| if id == Senders::ROOT { 0 } else { id << 32 }),
        ..Senders::default()
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
        for (id, key) in record.cgroup_ids().into_iter().zip(record.process_keys()) {
            let expected = if id == Senders::ROOT { 0 } else { id << 32 };
            assert_eq!(key, expected, "{record:?}");
        }
        record.cgroup_ids()
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
    // The slot of the ended flow belongs to another one.
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
        assert_eq!(record.cgroup_ids(), expected, "{record:?}");
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
    assert_eq!(records.last().unwrap().cgroup_ids(), [7, 9]);
}

#[test]
fn memory_for_senders_is_taken_and_given_back_with_the_flows() {
    let mut known = KnownSenders::default();
    known.begin(1000, PendingSenders::default());
    assert_eq!(known.room(), 0, "nobody is known");
    let senders = Senders {
        cgroup_ids: [1, 2],
        ..Senders::default()
    };
    known.set_pending_of(&key(1), senders, 0);
    let pending = known.take_pending();
    known.begin(1000, pending);
    assert_eq!(known.room(), 1001);
    known.begin(1000, PendingSenders::default());
    assert_eq!(known.cgroup_ids(1000), [0; 2]);
    known.shrink(10);
    assert_eq!(known.room(), 10);
}

#[test]
fn what_sockets_of_several_have_sent_is_shared_and_belongs_to_none_of_them() {
    let mut replica = replica(8);
    replica.add_up_cgroups();
    let mut at = |second: u64, sender: u64| {
        let sent = (key(1), counters(second, &[ACK], &[]), [sender, 0]);
        let records = scan_sent(&mut replica, second, &[sent]);
        let counted: BTreeSet<u64> = replica
            .take_by_cgroup()
            .filter(|(_, exchanged)| exchanged.sent.packets != 0)
            .map(|(id, _)| id)
            .collect();
        (
            records[0].cgroup_ids()[0],
            records[0].senders_shared(),
            counted,
        )
    };
    assert_eq!(at(1, 7), (7, [false; 2], [7].into()));
    assert_eq!(at(2, Senders::ROOT), (7, [false; 2], [7].into()));
    // In one scan, and then in two.
    let both = 7 | Senders::SHARED;
    assert_eq!(at(3, both), (7, [true, false], [0].into()));
    assert_eq!(at(4, 8), (8, [true, false], [8].into()));
    assert_eq!(at(5, 8), (8, [true, false], [8].into()));
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
    // In either order.
    scan_sent(&mut replica, 3, &halves(3, closed, [[9, 0], [0, 10]]));
    next = halves(4, opened, [[11, 0], [0, 12]]);
    next.reverse();
    let records = scan_sent(&mut replica, 4, &next);
    assert_eq!(named(&records), [[9, 10], [11, 12]]);
}

/// The TCP state of a connection that has sent this many segments.
fn sent(data_segs_out: u32) -> TcpInfo {
    TcpInfo {
        min_rtt_us: 1,
        data_segs_out,
        ..TcpInfo::default()
    }
}

/// Takes in flows with the TCP state noted with their packets, and at the end of connections.
fn scan_tcp(
    replica: &mut Replica,
    second: u64,
    updates: &[(FlowKey, FlowCounters, [TcpInfo; 2])],
    ends: &[(FlowKey, u64, TcpInfo, u64)],
) -> Vec<[u32; 2]> {
    let mut told = Vec::new();
    let mut sink = |record: &Record| told.push(record.tcp().map(|tcp| tcp.data_segs_out));
    replica.begin_scan(clock(second));
    for &(key, direction, info, asked_second) in ends {
        replica.note_end(&EndedConnection {
            key,
            direction,
            asked_ns: asked_second * SECOND,
            info,
        });
    }
    let keys: Vec<_> = updates.iter().map(|one| one.0).collect();
    let counters: Vec<_> = updates.iter().map(|one| one.1).collect();
    let senders = updates.iter().map(|one| Senders {
        tcp: one.2,
        ..Senders::default()
    });
    let senders: Vec<_> = senders.collect();
    replica.update_with(&keys, &counters, &senders, &mut sink);
    replica.end_scan(&BTreeSet::new(), &mut sink);
    told
}

#[test]
fn what_tcp_knew_last_is_said_from_the_initiator_on() {
    let mut replica = replica(8);
    let nothing = TcpInfo::default();
    let mut at = |second: u64, tcp: [TcpInfo; 2], ends: &[(FlowKey, u64, TcpInfo, u64)]| {
        let mut both = counters(second, &[ACK], &[ACK]);
        // b began.
        began(&mut both, 1, 0);
        scan_tcp(&mut replica, second, &[(key(1), both, tcp)], ends)
    };
    assert_eq!(at(1, [nothing, sent(7)], &[]), [[7, 0]]);
    assert_eq!(at(2, [sent(3), nothing], &[]), [[7, 3]]);
    // The end is later than the packet, whichever of them comes first, even if the packet is on the next page.
    let ends = [(key(1), 1, sent(9), 3), (key(1), 0, sent(4), 3)];
    assert_eq!(at(3, [sent(3), nothing], &ends), [[9, 4]]);
    assert_eq!(at(4, [nothing, sent(8)], &[]), [[9, 4]]);
    // Another connection, whose beginning was not seen.
    assert_eq!(at(5, [sent(1), nothing], &[]), [[9, 1]]);
}

#[test]
fn an_end_goes_to_a_flow_that_came_before_or_comes_with_the_next_scan_and_then_to_none() {
    let mut replica = replica(8);
    let of = |number, second| {
        (
            key(number),
            counters(second, &[ACK], &[]),
            [TcpInfo::default(); 2],
        )
    };
    assert_eq!(scan_tcp(&mut replica, 1, &[of(1, 1)], &[]), [[0, 0]]);
    // The flow has no more packets.
    let none = scan_tcp(&mut replica, 2, &[], &[(key(1), 0, sent(5), 1)]);
    assert_eq!(none, [[0; 2]; 0]);
    assert_eq!(scan_tcp(&mut replica, 3, &[of(1, 3)], &[]), [[5, 0]]);
    // These flows begin on the next page, and one scan later.
    let ends = [(key(2), 0, sent(6), 5), (key(3), 1, sent(7), 6)];
    scan_tcp(&mut replica, 4, &[], &ends);
    assert_eq!(scan_tcp(&mut replica, 5, &[of(2, 5)], &[]), [[6, 0]]);
    assert_eq!(scan_tcp(&mut replica, 6, &[of(3, 6)], &[]), [[0, 0]]);
    // The end of a connection that was noted before the flow began.
    let ends = [(key(4), 0, sent(8), 6)];
    assert_eq!(scan_tcp(&mut replica, 7, &[of(4, 7)], &ends), [[0, 0]]);
}

#[test]
fn the_next_flow_with_the_same_ports_has_a_connection_of_its_own() {
    let mut replica = replica(8);
    let nothing = TcpInfo::default();
    let whole = counters(1, &[SYN, ACK, FIN], &[SYN | ACK, FIN]);
    let first = [(key(1), whole, [sent(7), sent(8)])];
    scan_tcp(&mut replica, 1, &first, &[]);
    let next = counters(2, &[SYN], &[]);
    // The end belongs to the previous connection.
    let ends = [(key(1), 0, sent(9), 1), (key(1), 1, sent(10), 1)];
    let updates = [(key(1), next, [sent(1), nothing])];
    let told = scan_tcp(&mut replica, 2, &updates, &ends);
    assert_eq!(told, [[9, 10], [1, 0]]);
    let more = [(key(1), counters(3, &[ACK], &[]), [nothing; 2])];
    assert_eq!(scan_tcp(&mut replica, 3, &more, &[]), [[1, 0]]);
}

#[test]
fn the_next_flow_with_the_same_ports_has_its_own_end_also_within_a_scan() {
    let mut replica = replica(8);
    let closed = |second| counters(second, &[SYN, ACK, FIN], &[SYN | ACK, FIN]);
    let first = [(key(1), closed(1), [sent(7), sent(8)])];
    scan_tcp(&mut replica, 1, &first, &[]);
    let next = [(key(1), closed(2), [sent(1), sent(2)])];
    // One end belongs to the first connection, and one to the second.
    let ends = [(key(1), 0, sent(9), 1), (key(1), 1, sent(10), 2)];
    let told = scan_tcp(&mut replica, 2, &next, &ends);
    assert_eq!(told, [[9, 8], [1, 10]]);
}

/// The end of the new flow does not go to the flow that is evicted for it.
#[test]
fn who_makes_room_for_a_flow_does_not_get_its_end() {
    let mut replica = replica(1);
    let nothing = [TcpInfo::default(); 2];
    let forth = counters(1, &[ACK], &[]);
    let back = counters(1, &[], &[ACK]);
    let other_side = key(1).with_side(1);
    let halves = [(key(1), forth, nothing), (other_side, back, nothing)];
    scan_tcp(&mut replica, 1, &halves, &[]);
    let more = counters(2, &[ACK], &[]);
    let updates = [(key(1), more, nothing), (key(2), more, nothing)];
    let told = scan_tcp(&mut replica, 2, &updates, &[(key(2), 0, sent(5), 2)]);
    assert_eq!(told.last(), Some(&[5, 0]));
    let others = &told[..told.len() - 1];
    assert!(others.iter().all(|told| *told == [0, 0]), "{others:?}");
    assert_eq!(replica.evicted(), 1);
}

/// A round trip sample of this length.
fn took(us: u64, flags: u8) -> Sample {
    let segment = Segment {
        sequence: 0,
        acknowledgment: 0,
        payload_len_bytes: 1,
        flags,
    };
    Sample::begun(&segment, 0).ended(us * 1000)
}

fn scan_round_trips(
    replica: &mut Replica,
    second: u64,
    initiator: u8,
    round_trips: [Sample; 2],
) -> [RoundTrip; 2] {
    let mut told = Vec::new();
    let mut sink = |record: &Record| told.push(record.round_trips());
    let mut both = counters(second, &[ACK], &[ACK]);
    began(&mut both, initiator, 0);
    let senders = Senders {
        round_trips,
        ..Senders::default()
    };
    replica.begin_scan(clock(second));
    replica.update_with(&[key(1)], &[both], &[senders], &mut sink);
    replica.end_scan(&BTreeSet::new(), &mut sink);
    let [one] = told.try_into().unwrap();
    one
}

#[test]
fn the_receiver_of_a_segment_is_who_takes_as_long() {
    let of = |handshake_us, ack_us| RoundTrip {
        handshake_us,
        ack_us,
    };
    for initiator in [0, 1] {
        let mut replica = replica(8);
        let mut at = |second: u64, forward: Sample, reverse: Sample| {
            let mut by_direction = [forward, reverse];
            by_direction.rotate_left(initiator.into());
            scan_round_trips(&mut replica, second, initiator, by_direction)
        };
        let syn = SYN;
        let waits = Sample::begun(
            &Segment {
                sequence: 5,
                acknowledgment: 0,
                payload_len_bytes: 0,
                flags: syn,
            },
            7,
        );
        // To the destination, and to the source.
        assert_eq!(
            at(1, took(200, syn), took(50, syn)),
            [of(50, 50), of(200, 200)]
        );
        assert_eq!(
            at(2, took(300, 0), Sample::NONE),
            [of(50, 50), of(200, 300)]
        );
        assert_eq!(at(3, Sample::SPOILED, waits), [of(50, 50), of(200, 300)]);
        assert_eq!(at(4, Sample::NONE, took(9, 0)), [of(50, 9), of(200, 300)]);
    }
}

#[test]
fn the_next_connection_with_the_same_ports_has_times_of_its_own() {
    let mut replica = replica(8);
    let both = [took(200, SYN); 2];
    let told = scan_round_trips(&mut replica, 1, 0, both);
    assert_eq!(told.map(|end| end.handshake_us), [200; 2]);
    // After the idle timeout.
    let mut sink = |_: &Record| ();
    replica.begin_scan(clock(1000));
    replica.end_scan(&BTreeSet::new(), &mut sink);
    assert!(replica.is_empty());
    let told = scan_round_trips(&mut replica, 1001, 0, [Sample::NONE; 2]);
    assert_eq!(told, [RoundTrip::default(); 2]);
}

#[test]
fn a_connection_that_follows_at_once_has_times_of_its_own() {
    let mut replica = replica(8);
    let mut told = Vec::new();
    let mut scan = |second: u64, counters: FlowCounters, round_trips: [Sample; 2]| {
        let mut sink = |record: &Record| {
            told.push((
                record.end_reason,
                record.round_trips().map(|end| end.handshake_us),
            ));
        };
        let senders = Senders {
            round_trips,
            ..Senders::default()
        };
        replica.begin_scan(clock(second));
        replica.update_with(&[key(1)], &[counters], &[senders], &mut sink);
        replica.end_scan(&BTreeSet::new(), &mut sink);
    };
    let whole = counters(1, &[SYN, ACK, FIN], &[SYN | ACK, FIN]);
    scan(1, whole, [took(200, SYN), took(50, SYN)]);
    scan(2, counters(2, &[SYN], &[]), [Sample::SPOILED, Sample::NONE]);
    // The SYN is repeated, and it is unknown which one is answered.
    let answered = counters(3, &[SYN, ACK], &[SYN | ACK]);
    scan(3, answered, [took(9, SYN), took(300, SYN)]);
    assert_eq!(
        told,
        [
            (None, [50, 200]),
            (Some(EndReason::EndOfFlow), [50, 200]),
            (None, [0, 0]),
            (None, [300, 0]),
        ]
    );
}
