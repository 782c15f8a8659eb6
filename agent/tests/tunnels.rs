//! What wraps IP packets, on real interfaces: PPPoE and MPLS always, tunnels where the agent is told
//! to decapsulate. The flow is the one inside, and the record says what it was taken out of.

#![expect(
    clippy::unwrap_used,
    reason = "clippy takes only functions marked as tests for tests"
)]

mod support;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use agent_common::Pair;
use lab::{
    Counters, Frame, Host, Lab,
    privilege::is_root_or_skip,
    traffic::{self, IpVersion},
};
use serde_json::Value;
use support::{
    Agent, Both, Report, count, flow_name,
    hook::{Hook, report_of},
    name, pair, wait_until,
};

const DECAPSULATE: &[&str] = &["--decapsulate"];
const ETHERNET_HEADER_LEN_BYTES: u64 = 14;
const UDP: u64 = 17;
const INNER_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];
const INNER_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 2),
];
const INNER_MACS: [[u8; 6]; 2] = [[0x0a, 0, 0, 0, 0, 1], [0x0a, 0, 0, 0, 0, 2]];

/// A flow's frame, and what a record says about the flow with and without decapsulation.
struct Case {
    frame: Vec<u8>,
    outside: String,
    inside: String,
}

/// What a record says: the flow, what it was taken out of, the tunnel's endpoints.
fn said(flow: &str, encapsulation: &str, id: &str, outer: &str) -> String {
    format!("{flow} | {encapsulation} {id} | {outer}")
}

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

/// An inner packet without and with an Ethernet header, and the name of its flow.
struct Inner {
    bare: Vec<u8>,
    ethernet: Vec<u8>,
    flow: String,
    is_ipv4: bool,
}

fn inner(src_port: u16, is_ipv4: bool) -> Inner {
    let ends: [IpAddr; 2] = if is_ipv4 {
        INNER_V4.map(IpAddr::from)
    } else {
        INNER_V6.map(IpAddr::from)
    };
    let udp = |frame: Frame| frame.udp(src_port, 53, &[0; 40]).unwrap();
    let [src, dst] = ends.map(|end| end.to_string());
    Inner {
        bare: udp(Frame::bare(ends[0], ends[1])),
        ethernet: udp(Frame::ethernet(
            INNER_MACS[0],
            INNER_MACS[1],
            ends[0],
            ends[1],
        )),
        flow: name("[]", UDP, (&src, src_port.into()), (&dst, 53)),
        is_ipv4,
    }
}

/// The outer frame and its ends.
struct Carrier {
    frame: Frame,
    src: String,
    dst: String,
}

fn carriers(from: &Host, to: &Host) -> [Carrier; 2] {
    [
        Carrier {
            frame: from.frame_v4(to),
            src: from.ipv4.to_string(),
            dst: to.ipv4.to_string(),
        },
        Carrier {
            frame: from.frame_v6(to),
            src: from.ipv6.to_string(),
            dst: to.ipv6.to_string(),
        },
    ]
}

impl Carrier {
    fn case(&self, frame: Vec<u8>, ends: (u8, u64, u64), inner: &Inner, within: [&str; 2]) -> Case {
        let (protocol, src_port, dst_port) = ends;
        let outside = name(
            "[]",
            protocol.into(),
            (&self.src, src_port),
            (&self.dst, dst_port),
        );
        let outer = format!("{} > {}", self.src, self.dst);
        Case {
            frame,
            outside: said(&outside, "-", "-", "- > -"),
            inside: said(&inner.flow, within[0], within[1], &outer),
        }
    }

    fn udp(&self, ports: (u16, u16), header: &[u8], packet: &[u8]) -> Vec<u8> {
        let payload = [header, packet].concat();
        self.frame.udp(ports.0, ports.1, &payload).unwrap()
    }

    /// Every kind of tunnel around flows whose source ports begin at `port`.
    fn every_kind(&self, port: u16) -> Vec<Case> {
        let mut port = port;
        let mut next = |is_ipv4| {
            port += 1;
            inner(port, is_ipv4)
        };
        let mut cases = Vec::new();
        for is_ipv4 in [true, false] {
            let ether_type: [u8; 2] = if is_ipv4 { [8, 0] } else { [0x86, 0xdd] };
            let it = next(is_ipv4);
            let frame = self.udp((40_001, 4789), &[8, 0, 0, 0, 0, 0, 42, 0], &it.ethernet);
            cases.push(self.case(frame, (17, 40_001, 4789), &it, ["vxlan", "42"]));
            let it = next(is_ipv4);
            let frame = self.udp((40_002, 8472), &[8, 0, 0, 0, 1, 0, 0, 0], &it.ethernet);
            cases.push(self.case(frame, (17, 40_002, 8472), &it, ["vxlan", "65536"]));
            let it = next(is_ipv4);
            let options = [&[2, 0, 0x65, 0x58, 0, 0, 7, 0][..], &[0; 8]].concat();
            let frame = self.udp((40_003, 6081), &options, &it.ethernet);
            cases.push(self.case(frame, (17, 40_003, 6081), &it, ["geneve", "7"]));
            let it = next(is_ipv4);
            let header = [&[0, 0][..], &ether_type, &[0, 0, 9, 0]].concat();
            let frame = self.udp((40_004, 6081), &header, &it.bare);
            cases.push(self.case(frame, (17, 40_004, 6081), &it, ["geneve", "9"]));
            let it = next(is_ipv4);
            let header = [&[0xb0, 0][..], &ether_type, &[0; 4], &[0, 0, 0, 5], &[0; 4]].concat();
            let frame = self
                .frame
                .ip(47, &[&header, &it.bare[..]].concat())
                .unwrap();
            cases.push(self.case(frame, (47, 0, 0), &it, ["gre", "5"]));
            let it = next(is_ipv4);
            let header = [0x20, 0, 0x65, 0x58, 0xff, 0xff, 0xff, 0xff];
            let frame = self.frame.ip(47, &[&header, &it.ethernet[..]].concat());
            cases.push(self.case(frame.unwrap(), (47, 0, 0), &it, ["gre", "4294967295"]));
            let it = next(is_ipv4);
            let protocol = if it.is_ipv4 { 4 } else { 41 };
            let frame = self.frame.ip(protocol, &it.bare).unwrap();
            cases.push(self.case(frame, (protocol, 0, 0), &it, ["ip_in_ip", "-"]));
        }
        cases
    }
}

/// Sends each case as often as its place says; the sums of the flows that `named` gives each.
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

/// Frames of tunnels that the flow stays outside of, by their flow's protocol and ports.
fn unopened(carrier: &Carrier) -> Vec<(u8, u64, u64, Vec<u8>)> {
    let arp = [&[2; 12][..], &[8, 6], &[0; 28]].concat();
    let it = inner(1000, true);
    let vxlan = [8, 0, 0, 0, 0, 0, 42, 0];
    let first = Carrier {
        frame: carrier.frame.clone().fragment(7, 0, true),
        src: String::new(),
        dst: String::new(),
    };
    vec![
        (17, 41_000, 4789, carrier.udp((41_000, 4789), &vxlan, &arp)),
        (
            17,
            41_001,
            4789,
            carrier.udp((41_001, 4789), &[0; 8], &it.ethernet),
        ),
        (
            17,
            41_002,
            4789,
            carrier.udp((41_002, 4789), &vxlan, &it.ethernet[..41]),
        ),
        (
            17,
            41_003,
            4789,
            first.udp((41_003, 4789), &vxlan, &it.ethernet),
        ),
        (
            17,
            41_004,
            6081,
            carrier.udp((41_004, 6081), &[0x40; 8], &it.ethernet),
        ),
        (47, 0, 0, carrier.frame.ip(47, &[0; 40]).unwrap()),
    ]
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
        // Two tenants with the same identification.
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

/// PPPoE sessions and MPLS stacks, with and without tags.
fn uplinks(from: &Host, to: &Host) -> Vec<(Vec<u8>, String)> {
    let mut frames = Vec::new();
    let mut port = 1000;
    let mut add =
        |vlans: &str, carrier: &Frame, ether_type: u16, header: &[u8], within: [&str; 2]| {
            for is_ipv4 in [true, false] {
                port += 1;
                let it = inner(port, is_ipv4);
                let ppp: &[u8] = match (ether_type, is_ipv4) {
                    (0x8864, true) => &[0, 0x21],
                    (0x8864, false) => &[0, 0x57],
                    _ => &[],
                };
                let payload = [header, ppp, &it.bare].concat();
                let flow = it.flow.replacen("[]", vlans, 1);
                frames.push((
                    carrier.ether_type(ether_type, &payload).unwrap(),
                    said(&flow, within[0], within[1], "- > -"),
                ));
            }
        };
    let frame = from.frame_v4(to);
    let tagged: [(&str, Frame); 3] = [
        ("[]", frame.clone()),
        ("[100]", frame.clone().vlan(100)),
        ("[200,300]", frame.qinq(200, 300)),
    ];
    for (vlans, carrier) in &tagged {
        let pppoe = [0x11, 0, 0x0a, 0x0b, 0, 70];
        add(vlans, carrier, 0x8864, &pppoe, ["pppoe", "2571"]);
        add(vlans, carrier, 0x8847, &[0, 6, 0x41, 64], ["mpls", "-"]);
        let four = [
            [0, 6, 0x40, 64],
            [0, 7, 0, 64],
            [0, 8, 0, 64],
            [0, 9, 1, 64],
        ]
        .concat();
        add(vlans, carrier, 0x8848, &four, ["mpls", "-"]);
    }
    frames
}

fn uplink_encapsulations_are_walked(hook: Hook) {
    let mut expected = BTreeMap::new();
    let report = report_of(hook, &[], |from, to| {
        let frames = uplinks(from, to);
        let mut many = Vec::new();
        for (copies, (frame, flow)) in (1..).zip(&frames) {
            expected.insert(flow.clone(), [count(copies, frame), Pair::default()]);
            many.extend((0..copies).map(|_| frame));
        }
        from.frame_socket().unwrap().send_many(many).unwrap() as u64
    });
    assert_eq!(sums_of(&report), expected);
}

#[test]
fn pppoe_and_mpls_are_walked_over_tc_ingress() {
    if is_root_or_skip("agent::pppoe_and_mpls_are_walked_over_tc_ingress") {
        uplink_encapsulations_are_walked(Hook::TcIngress);
    }
}

#[test]
fn pppoe_and_mpls_are_walked_over_tc_egress() {
    if is_root_or_skip("agent::pppoe_and_mpls_are_walked_over_tc_egress") {
        uplink_encapsulations_are_walked(Hook::TcEgress);
    }
}

#[test]
fn pppoe_and_mpls_are_walked_over_native_xdp() {
    if is_root_or_skip("agent::pppoe_and_mpls_are_walked_over_native_xdp") {
        uplink_encapsulations_are_walked(Hook::NativeXdp);
    }
}

/// Puts a VXLAN device over the wire on both hosts, whose addresses are the tunnel's from then on.
fn with_vxlan(mut lab: Lab) -> Lab {
    let underlay = [lab.agent.ipv4, lab.peer.ipv4].map(|address| address.to_string());
    for (host, local, remote) in [(&mut lab.agent, 0, 1), (&mut lab.peer, 1, 0)] {
        let overlay = INNER_V4[local];
        let interface = host.interface.clone();
        let ip = |words: &str| {
            let words: Vec<&str> = words.split(' ').collect();
            host.namespace.ip(&words).unwrap();
        };
        ip(&format!(
            "link add vxlan0 type vxlan id 42 dstport 4789 dev {interface} local {} remote {}",
            underlay[local], underlay[remote]
        ));
        // Else it reports multicast groups at a time of its own.
        host.namespace
            .set_sysctl("net/ipv6/conf/vxlan0/disable_ipv6", "1")
            .unwrap();
        ip(&format!("address add {overlay}/24 dev vxlan0"));
        ip("link set vxlan0 up");
        host.ipv4 = overlay;
    }
    lab
}

/// Each segment repeats all headers through the inner TCP header.
#[test]
fn super_frames_in_a_tunnel_equal_the_wire() {
    const BYTES: u64 = 10_000_000;
    if !is_root_or_skip("agent::super_frames_in_a_tunnel_equal_the_wire") {
        return;
    }
    for is_upload in [true, false] {
        let lab = with_vxlan(Lab::addressed().unwrap());
        lab.agent
            .set_offloads(&["tx", "sg", "gso", "gro"], true)
            .unwrap();
        for segmentation in ["tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation"] {
            lab.agent.set_offloads(&[segmentation], false).unwrap();
        }
        let agent = Agent::start(&lab, DECAPSULATE);
        let before = lab.peer.counters().unwrap();
        let (client, server) = if is_upload {
            (&lab.agent, &lab.peer)
        } else {
            (&lab.peer, &lab.agent)
        };
        traffic::tcp(client, server, IpVersion::V4, 5001, BYTES).unwrap();
        let mut counted = Counters::default();
        wait_until("the last segments are through", || {
            let earlier = counted;
            counted = lab.peer.counters().unwrap();
            counted == earlier
        });
        let peer = counted - before;
        let report = agent.stop();
        let wire = Pair {
            packets: peer.rx_packets + peer.tx_packets,
            bytes: peer.rx_bytes + peer.tx_bytes + ETHERNET_HEADER_LEN_BYTES * peer.tx_packets,
        };
        assert_eq!(report.seen(), wire);
        assert_eq!(beside(&report, "inexact"), Pair::default());
        let segments = beside(&report, "super_frame_segments");
        assert!(segments.bytes > BYTES / 2, "{segments:?}");
        let sums = sums_of(&report);
        let carried = sums
            .iter()
            .find(|(flow, _)| flow.contains(" 5001 | vxlan 42 | "))
            .map(|(_, [forward, _])| *forward);
        assert!(carried.unwrap().bytes > BYTES, "{sums:?}");
    }
}
