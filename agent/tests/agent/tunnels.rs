//! Wrapped IP packets on real interfaces: PPPoE and MPLS always, tunnels if the agent is told to decapsulate.
//! The flow must be the inner one, and the record must have the headers around it.

mod apart;
mod carrier;
mod device;
mod uplinks;

use std::{collections::BTreeMap, net::Ipv4Addr};

use agent_common::Pair;
use lab::{Frame, Host, Lab, privilege::is_root_or_skip};
use serde_json::Value;

use crate::support::{
    Agent, Both, Report, count, flow_name,
    hook::{Hook, report_of},
    name, pair,
};
use carrier::{Case, INNER_MACS, INNER_V4, carriers, inner, said, unopened};

const DECAPSULATE: &[&str] = &["--decapsulate"];

fn said_by(line: &Value) -> String {
    let text = |name: &str| {
        let value = &line[name];
        if value.is_null() {
            return "-".to_owned();
        }
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    let outer = format!("{} > {}", text("outer_src_addr"), text("outer_dst_addr"));
    said(
        &flow_name(line),
        &text("encapsulation"),
        &text("tunnel_id"),
        &outer,
    )
}

fn sums_of(report: &Report) -> BTreeMap<String, Both> {
    let mut sums = BTreeMap::<String, Both>::new();
    for line in &report.flows {
        let number = |name: &str| line[name].as_u64().unwrap();
        let [forward, reverse] = sums.entry(said_by(line)).or_default();
        *forward += Pair {
            packets: number("packets"),
            bytes: number("bytes"),
        };
        *reverse += Pair {
            packets: number("reverse_packets"),
            bytes: number("reverse_bytes"),
        };
    }
    sums
}

fn beside(report: &Report, fact: &str) -> Pair {
    pair(&report.last()["beside"][fact])
}

/// Sends each case as often as its position. Returns the sums of the flows, with the names that `named` gives.
fn send(
    from: &Host,
    cases: &[Case],
    named: impl Fn(&Case) -> String,
) -> (u64, BTreeMap<String, Both>) {
    let mut sums = BTreeMap::<String, Both>::new();
    let mut frames = Vec::new();
    for (copies, case) in (1..).zip(cases) {
        frames.extend((0..copies).map(|_| &case.frame));
        sums.entry(named(case)).or_default()[0] += count(copies, &case.frame);
    }
    let sent = from.frame_socket().unwrap().send_many(frames).unwrap();
    (sent as u64, sums)
}

fn every_tunnel(from: &Host, to: &Host) -> Vec<Case> {
    carriers(from, to)
        .iter()
        .zip([1000, 2000])
        .flat_map(|(carrier, port)| carrier.every_kind(port))
        .collect()
}

fn a_flow_is_what_the_tunnel_carries(hook: Hook) {
    let mut expected = BTreeMap::new();
    let report = report_of(hook, DECAPSULATE, |from, to| {
        let (sent, sums) = send(from, &every_tunnel(from, to), |case| case.inside.clone());
        expected = sums;
        sent
    });
    assert_eq!(sums_of(&report), expected);
    assert_eq!(beside(&report, "decapsulated"), report.seen());
    assert_eq!(beside(&report, "tunnels_unopened"), Pair::default());
}

#[test]
fn a_flow_is_what_the_tunnel_carries_over_tc_ingress() {
    if is_root_or_skip("agent::a_flow_is_what_the_tunnel_carries_over_tc_ingress") {
        a_flow_is_what_the_tunnel_carries(Hook::TcIngress);
    }
}

#[test]
fn a_flow_is_what_the_tunnel_carries_over_tc_egress() {
    if is_root_or_skip("agent::a_flow_is_what_the_tunnel_carries_over_tc_egress") {
        a_flow_is_what_the_tunnel_carries(Hook::TcEgress);
    }
}

#[test]
fn a_flow_is_what_the_tunnel_carries_over_native_xdp() {
    if is_root_or_skip("agent::a_flow_is_what_the_tunnel_carries_over_native_xdp") {
        a_flow_is_what_the_tunnel_carries(Hook::NativeXdp);
    }
}

#[test]
fn a_flow_is_what_the_tunnel_carries_over_generic_xdp() {
    if is_root_or_skip("agent::a_flow_is_what_the_tunnel_carries_over_generic_xdp") {
        a_flow_is_what_the_tunnel_carries(Hook::GenericXdp);
    }
}

#[test]
fn a_tunnel_is_a_flow_unless_it_is_to_be_opened() {
    if !is_root_or_skip("agent::a_tunnel_is_a_flow_unless_it_is_to_be_opened") {
        return;
    }
    let mut expected = BTreeMap::new();
    let report = report_of(Hook::TcIngress, &[], |from, to| {
        let (sent, sums) = send(from, &every_tunnel(from, to), |case| case.outside.clone());
        expected = sums;
        sent
    });
    assert_eq!(sums_of(&report), expected);
    for fact in ["decapsulated", "tunnels_unopened", "tunnel_depth"] {
        assert_eq!(beside(&report, fact), Pair::default(), "{fact}");
    }
}

#[test]
fn tenants_with_the_same_addresses_stay_apart() {
    if !is_root_or_skip("agent::tenants_with_the_same_addresses_stay_apart") {
        return;
    }
    let mut expected = BTreeMap::new();
    let report = report_of(Hook::TcIngress, DECAPSULATE, |from, to| {
        let [carrier, _] = carriers(from, to);
        let it = inner(1000, true);
        let cases: Vec<Case> = [1_u8, 2, 3]
            .map(|id| {
                let frame = carrier.udp((40_000, 4789), &[8, 0, 0, 0, 0, 0, id, 0], &it.ethernet);
                let within = ["vxlan", &id.to_string()];
                carrier.case(frame, (17, 40_000, 4789), &it, within)
            })
            .into();
        let (sent, sums) = send(from, &cases, |case| case.inside.clone());
        expected = sums;
        sent
    });
    assert_eq!(expected.len(), 3);
    assert_eq!(sums_of(&report), expected);
}

#[test]
fn both_directions_of_a_tunnel_are_one_flow() {
    if !is_root_or_skip("agent::both_directions_of_a_tunnel_are_one_flow") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, DECAPSULATE);
    let header = [8, 0, 0, 0, 0, 0, 42, 0];
    let between = |src: usize, dst: usize| {
        let (mac, ip) = (INNER_MACS, INNER_V4);
        Frame::ethernet(mac[src], mac[dst], ip[src], ip[dst])
    };
    let there = between(0, 1).udp(1000, 53, &[0; 40]).unwrap();
    let back = between(1, 0).udp(53, 1000, &[0; 99]).unwrap();
    let [out, _] = carriers(&lab.peer, &lab.agent);
    let [home, _] = carriers(&lab.agent, &lab.peer);
    let (there, back) = (
        out.udp((40_000, 4789), &header, &there),
        home.udp((50_000, 4789), &header, &back),
    );
    lab.peer.frame_socket().unwrap().send(&there).unwrap();
    lab.agent.frame_socket().unwrap().send(&back).unwrap();
    let report = agent.stop();
    let outer = format!("{} > {}", lab.peer.ipv4, lab.agent.ipv4);
    let flow = said(&inner(1000, true).flow, "vxlan", "42", &outer);
    assert_eq!(
        sums_of(&report),
        BTreeMap::from([(flow, [count(1, &there), count(1, &back)])])
    );
}

/// The endpoint of a tunnel may move to another host, as a virtual machine does.
#[test]
fn a_connection_with_used_ports_has_the_endpoints_of_its_own_tunnel() {
    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;
    if !is_root_or_skip("agent::a_connection_with_used_ports_has_the_endpoints_of_its_own_tunnel") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[DECAPSULATE, &["--idle-timeout", "10m"]].concat());
    let socket = lab.peer.frame_socket().unwrap();
    let hosts = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
    for host in hosts {
        let inside = Frame::ethernet(INNER_MACS[0], INNER_MACS[1], INNER_V4[0], INNER_V4[1]);
        for flags in [SYN, ACK] {
            let inside = inside.clone().tcp(1000, 80, flags, &[0; 9]).unwrap();
            let packet = [&[8, 0, 0, 0, 0, 0, 42, 0], &inside[..]].concat();
            let outside = lab.peer.frame_v4(&lab.agent).between(host, lab.agent.ipv4);
            let frame = outside.udp(40_000, 4789, &packet).unwrap();
            socket.send(&frame).unwrap();
        }
        agent.wait_for_scans(&lab.agent, 2);
    }
    let report = agent.stop();
    let ends = report
        .flows
        .iter()
        .filter(|line| !line["end_reason"].is_null());
    let ends: Vec<_> = ends
        .map(|line| (said_by(line), line["total_packets"].as_u64()))
        .collect();
    let [from, to] = INNER_V4.map(|address| address.to_string());
    let flow = name("[]", 6, (&from, 1000), (&to, 80));
    let expected = hosts.map(|host| {
        let outer = format!("{host} > {}", lab.agent.ipv4);
        (said(&flow, "vxlan", "42", &outer), Some(2))
    });
    assert_eq!(ends, expected);
}

#[test]
fn a_tunnel_that_cannot_be_opened_stays_the_flow() {
    if !is_root_or_skip("agent::a_tunnel_that_cannot_be_opened_stays_the_flow") {
        return;
    }
    let mut expected = BTreeMap::<String, Both>::new();
    let report = report_of(Hook::TcIngress, DECAPSULATE, |from, to| {
        let mut frames = Vec::new();
        for carrier in carriers(from, to) {
            for (protocol, src_port, dst_port, frame) in unopened(&carrier) {
                let ends = ((&*carrier.src, src_port), (&*carrier.dst, dst_port));
                let flow = name("[]", protocol.into(), ends.0, ends.1);
                let sum = expected.entry(said(&flow, "-", "-", "- > -")).or_default();
                sum[0] += count(1, &frame);
                frames.push(frame);
            }
        }
        from.frame_socket().unwrap().send_many(&frames).unwrap() as u64
    });
    assert_eq!(sums_of(&report), expected);
    assert_eq!(beside(&report, "tunnels_unopened"), report.seen());
    assert_eq!(beside(&report, "decapsulated"), Pair::default());
}

#[test]
fn two_tunnels_are_opened_and_the_third_is_the_flow() {
    if !is_root_or_skip("agent::two_tunnels_are_opened_and_the_third_is_the_flow") {
        return;
    }
    let mut expected = BTreeMap::new();
    let mut deeper = Pair::default();
    let report = report_of(Hook::TcIngress, DECAPSULATE, |from, to| {
        let [carrier, _] = carriers(from, to);
        let it = inner(1000, true);
        let layer = |n: u8, inside: &[u8]| {
            let ends = [1, 2].map(|end| Ipv4Addr::new(172, 16, n, end));
            Frame::bare(ends[0], ends[1]).ip(4, inside).unwrap()
        };
        let two = carrier.frame.ip(4, &layer(1, &it.bare)).unwrap();
        let three = carrier.frame.ip(4, &layer(1, &layer(2, &it.bare)));
        let three = three.unwrap();
        let outer = "172.16.1.1 > 172.16.1.2";
        let third = name("[]", 4, ("172.16.2.1", 0), ("172.16.2.2", 0));
        for (flow, frame) in [(&it.flow, &two), (&third, &three)] {
            let flow = said(flow, "ip_in_ip", "-", outer);
            expected.insert(flow, [count(1, frame), Pair::default()]);
        }
        deeper = count(1, &three);
        from.frame_socket()
            .unwrap()
            .send_many([&two, &three])
            .unwrap() as u64
    });
    assert_eq!(sums_of(&report), expected);
    assert_eq!(beside(&report, "tunnel_depth"), deeper);
    assert_eq!(beside(&report, "decapsulated"), report.seen());
}

#[test]
fn inner_fragments_join_their_flow() {
    if !is_root_or_skip("agent::inner_fragments_join_their_flow") {
        return;
    }
    let mut expected = BTreeMap::new();
    let report = report_of(Hook::TcIngress, DECAPSULATE, |from, to| {
        let [carrier, _] = carriers(from, to);
        let bare = Frame::bare(INNER_V4[0], INNER_V4[1]);
        let first = bare.clone().fragment(7, 0, true).udp(1000, 53, &[0; 56]);
        let last = bare.fragment(7, 64, false).ip(17, &[0xff; 13]);
        // Two tenants whose datagrams have the same identification.
        let mut frames = Vec::new();
        for (id, port) in [(1, 1000), (2, 2000)] {
            let header = [0x20, 0, 8, 0, 0, 0, 0, id];
            let mut parts = [
                first.as_ref().unwrap().clone(),
                last.as_ref().unwrap().clone(),
            ];
            parts[0][20..22].copy_from_slice(&u16::to_be_bytes(port));
            let within = parts.map(|part| {
                let payload = [&header[..], &part].concat();
                carrier.frame.ip(47, &payload).unwrap()
            });
            let outer = format!("{} > {}", carrier.src, carrier.dst);
            let flow = said(&inner(port, true).flow, "gre", &id.to_string(), &outer);
            let sum = within.iter().map(|frame| count(1, frame)).sum();
            expected.insert(flow, [sum, Pair::default()]);
            frames.push(within);
        }
        let [[first_1, last_1], [first_2, last_2]] = &frames[..] else {
            unreachable!("two tenants");
        };
        let order = [first_1, first_2, last_1, last_2];
        from.frame_socket().unwrap().send_many(order).unwrap() as u64
    });
    assert_eq!(sums_of(&report), expected);
    assert_eq!(beside(&report, "fragments_joined").packets, 2);
}

/// None of them can be opened, neither the first nor the later ones.
#[test]
fn every_fragment_of_a_tunnels_packet_is_counted_as_unopened() {
    if !is_root_or_skip("agent::every_fragment_of_a_tunnels_packet_is_counted_as_unopened") {
        return;
    }
    let report = report_of(Hook::TcIngress, DECAPSULATE, |from, to| {
        let mut frames = Vec::new();
        for carrier in carriers(from, to) {
            let fragment = |id, offset, more| carrier.frame.clone().fragment(id, offset, more);
            let vxlan = [&[8, 0, 0, 0, 0, 0, 42, 0][..], &[0; 48]].concat();
            frames.push(fragment(1, 0, true).udp(40_000, 4789, &vxlan).unwrap());
            for (id, protocol) in [(1, 17), (2, 47), (3, 4), (4, 41)] {
                if protocol != 17 {
                    frames.push(fragment(id, 0, true).ip(protocol, &[0; 64]).unwrap());
                }
                frames.push(fragment(id, 64, true).ip(protocol, &[0xff; 64]).unwrap());
                frames.push(fragment(id, 128, false).ip(protocol, &[0xff; 13]).unwrap());
            }
        }
        from.frame_socket().unwrap().send_many(&frames).unwrap() as u64
    });
    assert_eq!(report.seen().packets, 2 * 4 * 3);
    assert_eq!(beside(&report, "tunnels_unopened"), report.seen());
    assert_eq!(beside(&report, "fragments_joined").packets, 2 * 4 * 2);
}

/// Fragments of other protocols, and of UDP to other ports, belong to no tunnel.
#[test]
fn fragments_of_other_packets_are_no_tunnels() {
    if !is_root_or_skip("agent::fragments_of_other_packets_are_no_tunnels") {
        return;
    }
    let report = report_of(Hook::TcIngress, DECAPSULATE, |from, to| {
        let mut frames = Vec::new();
        for carrier in carriers(from, to) {
            let fragment = |offset, more| carrier.frame.clone().fragment(1, offset, more);
            frames.push(fragment(0, true).udp(40_000, 53, &[0; 56]).unwrap());
            frames.push(fragment(64, false).ip(17, &[0xff; 13]).unwrap());
        }
        from.frame_socket().unwrap().send_many(&frames).unwrap() as u64
    });
    assert_eq!(beside(&report, "tunnels_unopened"), Pair::default());
}
