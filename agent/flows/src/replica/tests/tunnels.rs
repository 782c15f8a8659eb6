//! The outer endpoints of flows that came through tunnels.

use agent_common::{Encapsulation, Outer};

use super::{sides::orders, *};

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
        ip_version: 6,
        ..Outer::default()
    };
    let mut scan = |second: u64, updates: &[FlowCounters], known: Option<Outer>| {
        let mut records = Vec::new();
        let mut sink = |record: &Record| records.push(record.outer());
        replica.begin_scan(clock(second));
        for counters in updates {
            replica.note_outer(&flow, counters, || known);
            replica.update(&[flow], &[*counters], &mut sink);
        }
        replica.end_scan(&BTreeSet::new(), &mut sink);
        records
    };
    let closing = counters(1, &[SYN, FIN | ACK], &[FIN | ACK]);
    assert_eq!(scan(1, &[closing], Some(outer)), [Some(outer)]);
    // The flow ends and begins again.
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
        ip_version: 6,
        ..Outer::default()
    };
    let mut scan = |second: u64, numbers: &[u32], are_known: bool| {
        let mut records = Vec::new();
        let both_ways = counters(second, &[ACK], &[ACK]);
        replica.begin_scan(clock(second));
        for &number in numbers {
            let known = || are_known.then(|| outer(number));
            replica.note_outer(&flow(number), &both_ways, known);
        }
        let keys: Vec<FlowKey> = numbers.iter().map(|&number| flow(number)).collect();
        let mut sink = |record: &Record| records.push((record.key, record.outer()));
        replica.update(&keys, &vec![both_ways; keys.len()], &mut sink);
        records
    };
    let told = |numbers: &[u32]| -> Vec<_> {
        let of = |&number: &u32| (flow(number), Some(outer(number)));
        numbers.iter().map(of).collect()
    };
    assert_eq!(scan(1, &[1], true), told(&[1]));
    // The second flow takes the place of the first, which then comes again.
    assert_eq!(scan(2, &[2, 1], true), told(&[1, 2, 2, 1]));
    // If the endpoints of the second flow, which has ended, were kept, the next flow with its key would get them.
    assert_eq!(scan(3, &[2], false)[1], (flow(2), None));
}

/// A scan in which the kernel has the endpoints with this number. Returns for each record the number of its endpoints,
/// and whether it is the flow's last.
fn scan_through(
    replica: &mut Replica,
    second: u64,
    updates: &[(FlowKey, FlowCounters)],
    number: u8,
) -> Vec<(u8, bool)> {
    let outer = Outer {
        addr_a: [number; 16],
        ip_version: 6,
        ..Outer::default()
    };
    let mut told = Vec::new();
    let mut sink = |record: &Record| {
        let number = record.outer().unwrap().addr_a[0];
        told.push((number, record.end_reason.is_some()));
    };
    replica.begin_scan(clock(second));
    for (key, counters) in updates {
        replica.note_outer(key, counters, || Some(outer));
    }
    let (keys, counters): (Vec<_>, Vec<_>) = updates.iter().copied().unzip();
    replica.update(&keys, &counters, &mut sink);
    replica.end_scan(&BTreeSet::new(), &mut sink);
    told
}

#[test]
fn the_next_flow_with_used_ports_has_the_endpoints_of_its_own_tunnel() {
    let flow = FlowKey {
        encapsulation: Encapsulation::Vxlan as u8,
        tunnel_id: 42,
        ..key(1)
    };
    let mut replica = replica(8);
    let mut scan = |second, number, a_to_b: &[u8], b_to_a: &[u8]| {
        let updates = [(flow, counters(second, a_to_b, b_to_a))];
        scan_through(&mut replica, second, &updates, number)
    };
    assert_eq!(scan(1, 1, &[SYN], &[]), [(1, false)]);
    // A repeated SYN begins no flow, even if it came through another tunnel.
    assert_eq!(scan(2, 2, &[SYN], &[SYN | ACK]), [(1, false)]);
    assert_eq!(scan(3, 3, &[ACK], &[ACK]), [(1, false)]);
    assert_eq!(scan(4, 1, &[SYN], &[SYN | ACK]), [(1, true), (1, false)]);
    assert_eq!(scan(5, 5, &[ACK], &[ACK]), [(1, false)]);
    assert_eq!(scan(6, 6, &[SYN], &[]), [(1, true), (6, false)]);
}

#[test]
fn the_next_mirrored_flow_has_the_endpoints_of_its_own_tunnel() {
    let tunnelled = |side| {
        FlowKey {
            encapsulation: Encapsulation::Vxlan as u8,
            ..key(1)
        }
        .with_side(side)
    };
    let halves = |second, there: &[u8], back: &[u8]| {
        [
            (tunnelled(0), counters(second, there, &[])),
            (tunnelled(1), counters(second, &[], back)),
        ]
    };
    for first in orders(&halves(1, &[SYN, ACK], &[SYN | ACK])) {
        // Either end may open the next connection.
        for [there, back] in [[SYN, SYN | ACK], [SYN | ACK, SYN]] {
            for second in orders(&halves(2, &[there], &[back])) {
                let mut replica = replica(8);
                assert_eq!(scan_through(&mut replica, 1, &first, 1), [(1, false)]);
                assert_eq!(
                    scan_through(&mut replica, 2, &second, 2),
                    [(1, true), (2, false)]
                );
            }
        }
    }
}

#[test]
fn a_mirrored_flow_out_of_a_tunnel_keeps_and_forgets_the_tunnels_endpoints() {
    let mut replica = replica(8);
    let tunnelled = |side| {
        FlowKey {
            encapsulation: Encapsulation::Gre as u8,
            ..key(1)
        }
        .with_side(side)
    };
    let outer = Outer {
        addr_a: [1; 16],
        ip_version: 6,
        ..Outer::default()
    };
    // Both directions arrive, or both leave.
    for hook in [0, 1] {
        let halves = [
            (tunnelled(hook), counters(1, &[SYN], &[])),
            (tunnelled(1 - hook), counters(1, &[], &[RST | ACK])),
        ];
        // The endpoints may come from either half, since the kernel may have evicted one of them.
        for side in [0, 1] {
            let mut replica = super::replica(8);
            replica.note_outer(&tunnelled(side), &halves[0].1, || Some(outer));
            assert_eq!(scan_keys(&mut replica, 1, &halves)[0].outer(), Some(outer));
        }
        for halves in orders(&halves) {
            for (key, counters) in &halves {
                replica.note_outer(key, counters, || Some(outer));
            }
            assert_eq!(scan_keys(&mut replica, 1, &halves)[0].outer(), Some(outer));
            assert_eq!(scan_keys(&mut replica, 9, &[])[0].outer(), Some(outer));
            for side in [0, 1] {
                assert!(asks_for_outer(&mut replica, &tunnelled(side)));
            }
        }
    }
}

fn asks_for_outer(replica: &mut Replica, key: &FlowKey) -> bool {
    let mut is_asked = false;
    replica.note_outer(key, &FlowCounters::default(), || {
        is_asked = true;
        None
    });
    is_asked
}

#[test]
fn the_side_that_ends_forgets_the_tunnels_endpoints_and_the_other_one_keeps_them() {
    let [quiet, busy] = [0, 1].map(|side| {
        FlowKey {
            encapsulation: Encapsulation::Gre as u8,
            ..key(1)
        }
        .with_side(side)
    });
    let mut replica = replica(8);
    let seen_at = |second| counters(second, &[ACK], &[]);
    let both = [(quiet, seen_at(1)), (busy, seen_at(1))];
    replica.note_outer(&quiet, &both[0].1, || Some(Outer::default()));
    for record in scan_keys(&mut replica, 1, &both) {
        assert_eq!(record.outer().is_some(), record.key == quiet);
    }
    replica.note_outer(&busy, &both[1].1, || Some(Outer::default()));
    let records = scan_keys(&mut replica, 31, &[(busy, seen_at(31))]);
    assert_eq!(reasons(&records), [None, Some(EndReason::IdleTimeout)]);
    assert!(!asks_for_outer(&mut replica, &busy));
    assert!(asks_for_outer(&mut replica, &quiet));
    replica.finish(&mut |_| {});
    assert!(asks_for_outer(&mut replica, &busy));
}

#[test]
fn of_all_that_is_around_a_packet_tunnels_alone_have_endpoints() {
    let with_endpoints: Vec<u8> = (0..=u8::MAX)
        .filter(|&encapsulation| {
            came_through_a_tunnel(&FlowKey {
                encapsulation,
                ..key(1)
            })
        })
        .collect();
    assert_eq!(
        with_endpoints,
        [
            Encapsulation::Vxlan,
            Encapsulation::Geneve,
            Encapsulation::Gre,
            Encapsulation::IpInIp,
            Encapsulation::GreWithoutKey,
        ]
        .map(|tunnel| tunnel as u8)
    );
}
