//! Virtual devices over a wire. The agent counts on both at once: its flows on the device must be what was
//! sent, and those on the wire what the wire carried.

mod bond;
pub mod device;
mod flowtable;
mod ipsec;
mod uplinks;
mod vrf;

use std::{collections::BTreeMap, net::SocketAddr};

use agent_common::Pair;
use lab::{
    Counters, Lab,
    privilege::{is_root_or_skip, skip},
    traffic::{self, IpVersion},
};

use crate::support::{Agent, Both, Report, name, pair, wait_for_silence};
use device::{Kind, NAME};

const DATAGRAMS: u32 = 50;
const PAYLOAD_LEN_BYTES: usize = 333;
const STREAM_BYTES: u64 = 300_000;

/// The sum over both directions of all flows.
fn total(sums: &BTreeMap<String, Both>) -> Pair {
    sums.values().flatten().copied().sum()
}

/// Sends datagrams, streams and echoes between the device's ends, each in both directions. Returns the flows
/// of the datagrams, whose sums are known beforehand.
fn converse(lab: &Lab, kind: Kind) -> BTreeMap<String, Both> {
    let link = if kind.is_ethernet { 14 } else { 0 };
    let mut flows = BTreeMap::new();
    for &version in kind.versions {
        let ip = if version == IpVersion::V4 { 20 } else { 40 };
        let each = Pair {
            packets: DATAGRAMS.into(),
            bytes: u64::from(DATAGRAMS) * (link + ip + 8 + PAYLOAD_LEN_BYTES as u64),
        };
        for (client, server) in [(&lab.peer, &lab.agent), (&lab.agent, &lab.peer)] {
            let ends =
                traffic::udp(client, server, version, 5000, DATAGRAMS, PAYLOAD_LEN_BYTES).unwrap();
            let text = |end: SocketAddr| (end.ip().to_string(), u64::from(end.port()));
            let ((src, src_port), (dst, dst_port)) = (text(ends.client), text(ends.server));
            let flow = name("[]", 17, (&src, src_port), (&dst, dst_port));
            flows.insert(flow, [each, each]);
            traffic::tcp(client, server, version, 5001, STREAM_BYTES).unwrap();
            traffic::ping(client, server, version, 3).unwrap();
        }
    }
    flows
}

fn counts_the_device_and_the_wire(test: &str, kind: Kind) {
    counts(test, kind, &[]);
}

/// With opened tunnels, the flows on the wire must be those of the device.
fn counts_the_device_and_the_opened_wire(test: &str, kind: Kind) {
    let opened = Kind {
        outer_protocol: None,
        ..kind
    };
    let Some(report) = counts(test, opened, &["--decapsulate"]) else {
        return;
    };
    let (on_device, on_wire): (Vec<_>, Vec<_>) = report
        .flows
        .iter()
        .partition(|flow| flow["interface"] == NAME);
    for flow in on_device {
        assert!(flow["encapsulation"].is_null(), "{flow}");
    }
    for flow in &on_wire {
        assert_eq!(flow["encapsulation"], kind.name, "{flow}");
    }
    assert!(
        on_wire
            .iter()
            .any(|flow| flow["outer_src_addr"].is_string())
    );
    let wire = report.seen() - total(&report.sums_on(NAME));
    assert_eq!(pair(&report.last()["beside"]["decapsulated"]), wire);
}

fn counts(test: &str, kind: Kind, settings: &[&str]) -> Option<Report> {
    let test = format!("agent::{test}");
    if !is_root_or_skip(&test) {
        return None;
    }
    let mut lab = Lab::addressed().unwrap();
    if !kind.make(&mut lab).unwrap() {
        skip(&test, &format!("this kernel has no {} device", kind.name));
        return None;
    }
    let wire = &lab.agent.interface;
    let settings = [&["--interface", wire], settings].concat();
    let agent = Agent::start_on(&lab.agent, NAME, &settings);
    let before = lab.agent.counters().unwrap();
    let datagrams = converse(&lab, kind);
    let last = wait_for_silence(&lab.agent);
    let report = agent.stop();

    let (on_device, on_wire) = (report.sums_on(NAME), report.sums_on(wire));
    for (flow, sent) in &datagrams {
        let found = on_device.get(flow);
        let account = report.last();
        assert_eq!(found, Some(sent), "{flow} of {on_device:#?}\n{account}");
    }
    let device = total(&on_device);
    assert!(device.bytes > STREAM_BYTES * 2 * kind.versions.len() as u64);
    let seen = device + total(&on_wire);
    assert_eq!(report.seen(), seen, "{}", report.last());
    assert_equals_the_counters(&report, kind, total(&on_wire), last - before);
    assert_carries_the_device(kind, &on_wire, on_device);
    Some(report)
}

fn assert_equals_the_counters(report: &Report, kind: Kind, wire: Pair, carried: Counters) {
    // If the driver keeps a tag beside the frame, the wire's counters do not include it.
    let packets = carried.rx_packets + carried.tx_packets;
    let counted = Pair {
        packets,
        bytes: carried.rx_bytes + carried.tx_bytes + packets * kind.offloaded_bytes,
    };
    assert_eq!(wire, counted);
    let tags = report.last()["beside"].get("offloaded_tags").map(pair);
    assert!(tags.unwrap_or_default().bytes >= packets * kind.offloaded_bytes);
}

/// Asserts that every packet of the device is one on the wire, with the device's headers in front.
fn assert_carries_the_device(
    kind: Kind,
    on_wire: &BTreeMap<String, Both>,
    on_device: BTreeMap<String, Both>,
) {
    let Some(overhead_bytes) = kind.overhead_bytes else {
        return;
    };
    let more = |sum: Pair| Pair {
        packets: sum.packets,
        bytes: sum.bytes + sum.packets * overhead_bytes,
    };
    assert_eq!(
        total(on_wire),
        more(total(&on_device)),
        "{on_wire:#?}\n{on_device:#?}"
    );
    if let Some(protocol) = kind.outer_protocol {
        let start = format!("[] {protocol} ");
        let is_outer = |flow: &String| flow.starts_with(&start);
        assert!(on_wire.keys().all(is_outer), "{on_wire:#?}");
    } else {
        let tagged: BTreeMap<String, Both> = on_device
            .into_iter()
            .map(|(flow, sums)| (flow.replacen("[]", kind.vlan_ids, 1), sums.map(more)))
            .collect();
        assert_eq!(*on_wire, tagged);
    }
}

#[test]
fn a_vlan_device_and_its_wire_are_exact() {
    counts_the_device_and_the_wire("a_vlan_device_and_its_wire_are_exact", Kind::VLAN);
}

#[test]
fn a_vlan_device_whose_tags_stay_beside_the_frames_is_exact() {
    counts_the_device_and_the_wire(
        "a_vlan_device_whose_tags_stay_beside_the_frames_is_exact",
        Kind::OFFLOADED_VLAN,
    );
}

#[test]
fn stacked_vlan_devices_and_their_wire_are_exact() {
    counts_the_device_and_the_wire("stacked_vlan_devices_and_their_wire_are_exact", Kind::QINQ);
}

#[test]
fn a_bridge_and_its_wire_are_exact() {
    counts_the_device_and_the_wire("a_bridge_and_its_wire_are_exact", Kind::BRIDGE);
}

#[test]
fn a_macvlan_and_its_wire_are_exact() {
    counts_the_device_and_the_wire("a_macvlan_and_its_wire_are_exact", Kind::MACVLAN);
}

#[test]
fn a_bond_and_its_wire_are_exact() {
    counts_the_device_and_the_wire("a_bond_and_its_wire_are_exact", Kind::BOND);
}

#[test]
fn a_gre_device_and_its_wire_are_exact() {
    counts_the_device_and_the_wire("a_gre_device_and_its_wire_are_exact", Kind::GRE);
}

#[test]
fn an_ethernet_gre_device_and_its_wire_are_exact() {
    counts_the_device_and_the_wire(
        "an_ethernet_gre_device_and_its_wire_are_exact",
        Kind::GRETAP,
    );
}

#[test]
fn a_gre_device_over_ipv6_and_its_wire_are_exact() {
    counts_the_device_and_the_wire(
        "a_gre_device_over_ipv6_and_its_wire_are_exact",
        Kind::IP6GRE,
    );
}

#[test]
fn an_ipip_device_and_its_wire_are_exact() {
    counts_the_device_and_the_wire("an_ipip_device_and_its_wire_are_exact", Kind::IPIP);
}

#[test]
fn a_sit_device_and_its_wire_are_exact() {
    counts_the_device_and_the_wire("a_sit_device_and_its_wire_are_exact", Kind::SIT);
}

#[test]
fn an_ipv6_tunnel_and_its_wire_are_exact() {
    counts_the_device_and_the_wire("an_ipv6_tunnel_and_its_wire_are_exact", Kind::IP6TNL);
}

#[test]
fn a_geneve_device_and_its_wire_are_exact() {
    counts_the_device_and_the_wire("a_geneve_device_and_its_wire_are_exact", Kind::GENEVE);
}

#[test]
fn a_vxlan_device_and_its_wire_are_exact() {
    counts_the_device_and_the_wire("a_vxlan_device_and_its_wire_are_exact", Kind::VXLAN);
}

#[test]
fn a_wireguard_device_and_its_wire_are_exact() {
    counts_the_device_and_the_wire("a_wireguard_device_and_its_wire_are_exact", Kind::WIREGUARD);
}

#[test]
fn a_gre_device_and_its_opened_wire_are_exact() {
    counts_the_device_and_the_opened_wire("a_gre_device_and_its_opened_wire_are_exact", Kind::GRE);
}

#[test]
fn a_geneve_device_and_its_opened_wire_are_exact() {
    counts_the_device_and_the_opened_wire(
        "a_geneve_device_and_its_opened_wire_are_exact",
        Kind::GENEVE,
    );
}
