//! Default routes that lead over devices on a wire: each packet is counted once.

use agent_common::Pair;
use lab::{
    Counters, Lab,
    privilege::{is_root_or_skip, skip},
};

use super::{
    converse,
    device::{Kind, NAME},
    total,
};
use crate::support::{Agent, wait_for_silence};

/// The frames that an interface carried, in both directions.
fn carried(counters: Counters) -> Pair {
    Pair {
        packets: counters.rx_packets + counters.tx_packets,
        bytes: counters.rx_bytes + counters.tx_bytes,
    }
}

/// Lets default routes lead over these interfaces and sends traffic over the device. Asserts that an agent without
/// `--interface` counts each packet once, at `counted`.
fn counts_each_packet_once(lab: &Lab, kind: Kind, routes: &[&str], counted: &str) {
    for (interface, metric) in routes.iter().zip(["10", "20"]) {
        let add = [
            "route", "add", "default", "dev", interface, "metric", metric,
        ];
        lab.agent.namespace.ip(&add).unwrap();
    }
    let agent = Agent::start_on(&lab.agent, "", &[]);
    let before = lab.agent.counters().unwrap();
    converse(lab, kind);
    let on_wire = carried(wait_for_silence(&lab.agent) - before);
    let log = agent.stderr();
    assert!(!log.contains("counted twice"), "{log}");
    let report = agent.stop();

    let once = if counted == NAME {
        let overhead_bytes = kind.overhead_bytes.unwrap() * on_wire.packets;
        Pair {
            bytes: on_wire.bytes - overhead_bytes,
            ..on_wire
        }
    } else {
        on_wire
    };
    assert_eq!(total(&report.sums_on(counted)), once, "{routes:?}");
    assert_eq!(report.seen(), once, "{routes:?}: {}", report.last());
    for route in routes {
        lab.agent
            .namespace
            .ip(&["route", "del", "default", "dev", route])
            .unwrap();
    }
}

fn counts_at_the_uplink(test: &str, kind: Kind) {
    let test = format!("agent::{test}");
    if !is_root_or_skip(&test) {
        return;
    }
    let mut lab = Lab::addressed().unwrap();
    if !kind.make(&mut lab).unwrap() {
        skip(&test, &format!("this kernel has no {} device", kind.name));
        return;
    }
    let wire = lab.agent.interface.clone();
    counts_each_packet_once(&lab, kind, &[NAME], NAME);
    counts_each_packet_once(&lab, kind, &[NAME, &wire], &wire);
}

#[test]
fn a_packet_over_a_bridge_is_counted_once() {
    counts_at_the_uplink("a_packet_over_a_bridge_is_counted_once", Kind::BRIDGE);
}

#[test]
fn a_packet_over_a_macvlan_is_counted_once() {
    counts_at_the_uplink("a_packet_over_a_macvlan_is_counted_once", Kind::MACVLAN);
}

#[test]
fn a_packet_over_a_vlan_device_is_counted_once() {
    counts_at_the_uplink("a_packet_over_a_vlan_device_is_counted_once", Kind::VLAN);
}

#[test]
fn a_packet_over_a_bond_is_counted_once() {
    counts_at_the_uplink("a_packet_over_a_bond_is_counted_once", Kind::BOND);
}
