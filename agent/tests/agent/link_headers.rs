//! Packets whose first header does not match the type of their interface, or whose metadata is wrong.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
};

use agent_common::Pair;
use lab::{Frame, FrameSocket, Host, Lab, Tun, privilege::is_root_or_skip};
use serde_json::Value;

use crate::support::{
    Agent, Both, Report, attached::tc, count, name, pair, wait_for_packets, wait_until,
};

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_ARP: u16 = 0x0806;
const EACH: u64 = 10;
const TO: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
/// Sources that have an EtherType where an Ethernet header has its own, and one that has none.
const SOURCES: [Ipv4Addr; 3] = [
    Ipv4Addr::new(8, 0, 69, 1),
    Ipv4Addr::new(134, 221, 96, 1),
    Ipv4Addr::new(192, 0, 2, 1),
];
const SOURCE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x86dd, 0x6000, 0, 0, 0, 1);
const TO_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);

/// The flow's name and a packet of it, for each source, with what `frame` puts in front of IP.
fn packets(frame: impl Fn(u16, Frame) -> Frame) -> Vec<(String, Vec<u8>)> {
    let v4 = SOURCES.map(|src| (src.to_string(), TO.to_string(), Frame::bare(src, TO)));
    let v6 = Frame::bare(SOURCE_V6, TO_V6);
    let v6 = (SOURCE_V6.to_string(), TO_V6.to_string(), v6);
    let all = (4000..).zip(v4.into_iter().chain([v6]));
    let packets = all.map(|(port, (src, dst, bare))| {
        let packet = frame(port, bare).udp(port, 53, &[0; 50]).unwrap();
        let flow = name("[]", 17, (&src, port.into()), (&dst, 53));
        (flow, packet)
    });
    packets.collect()
}

fn sums(packets: &[(String, Vec<u8>)]) -> BTreeMap<String, Both> {
    let of =
        |(flow, packet): &(String, Vec<u8>)| (flow.clone(), [count(EACH, packet), Pair::default()]);
    packets.iter().map(of).collect()
}

/// Makes `tc` redirect packets that arrive at one interface to another one.
fn redirect(host: &Host, from: &str, to: &str) {
    tc(host, &format!("qdisc add dev {from} clsact"));
    let action = format!("action mirred ingress redirect dev {to}");
    let all = "protocol all u32 match u32 0 0";
    tc(
        host,
        &format!("filter add dev {from} ingress {all} {action}"),
    );
}

fn wait_until_seen(agent: &Agent, host: &Host, packets: u64) {
    wait_until("all are counted", || {
        agent.wait_for_scans(host, 1);
        pair(&agent.status(host)["account"]["seen"]).packets >= packets
    });
}

fn assert_are_flows(report: &Report, packets: &[(String, Vec<u8>)]) {
    let expected = sums(packets);
    assert_eq!(report.sums(), expected, "{}", report.last());
    let all: Pair = expected.values().flatten().copied().sum();
    assert_eq!(report.seen(), all, "{}", report.last());
    assert_eq!(pair(&report.last()["flows"]), all);
}

/// The audit's verdict on ingress.
fn verdict(agent: &Agent, host: &Host) -> Value {
    agent.wait_for_scans(host, 1);
    let audit = agent.asked(host, &["audit", "--output", "json"]);
    let audit: Value = serde_json::from_slice(&audit.stdout).unwrap();
    let comparisons = audit["comparisons"].as_array().unwrap();
    let mut arrived = comparisons
        .iter()
        .filter(|one| one["direction"] == "ingress");
    arrived.next().unwrap()["verdict"].clone()
}

#[test]
fn a_bare_packet_that_tc_puts_in_the_way_of_an_ethernet_device_is_in_its_own_flow() {
    if !is_root_or_skip(
        "agent::a_bare_packet_that_tc_puts_in_the_way_of_an_ethernet_device_is_in_its_own_flow",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let host = &lab.agent;
    let tun = Tun::new(&host.namespace, "tun0").unwrap();
    redirect(host, &tun.interface, &host.interface);
    let agent = Agent::start(&lab, &["--idle-timeout", "1h"]);
    let packets = packets(|_, bare| bare);
    for (_, packet) in &packets {
        for _ in 0..EACH {
            tun.send(packet).unwrap();
        }
    }
    let sent = EACH * packets.len() as u64;
    wait_until_seen(&agent, host, sent);
    assert_eq!(verdict(&agent, host), "explained");
    let report = agent.stop();
    assert_are_flows(&report, &packets);
    let beside = &report.last()["beside"];
    assert_eq!(pair(&beside["other_header"]), report.seen());
}

#[test]
fn an_ethernet_frame_that_tc_puts_in_the_way_of_a_bare_device_is_in_its_own_flow() {
    if !is_root_or_skip(
        "agent::an_ethernet_frame_that_tc_puts_in_the_way_of_a_bare_device_is_in_its_own_flow",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let host = &lab.agent;
    let tun = Tun::new(&host.namespace, "tun0").unwrap();
    redirect(host, &host.interface, &tun.interface);
    let agent = Agent::start_on(host, &tun.interface, &["--idle-timeout", "1h"]);
    // Some of these addresses begin like an IP header with a plausible length.
    let macs = [
        lab.agent.mac,
        [0x45, 0, 0, 78, 0, 1],
        [0x45, 0, 0, 20, 0, 2],
        [0x60, 0, 0, 0, 0, 58],
    ];
    let packets = packets(|port, bare| {
        let mac = macs[usize::from(port - 4000)];
        let (src, dst) = if port == 4003 {
            (SOURCE_V6.into(), TO_V6.into())
        } else {
            let src = SOURCES[usize::from(port - 4000)];
            (std::net::IpAddr::from(src), std::net::IpAddr::from(TO))
        };
        drop(bare);
        Frame::ethernet(lab.peer.mac, mac, src, dst)
    });
    let socket = lab.peer.frame_socket().unwrap();
    for (_, packet) in &packets {
        socket.send_many(vec![packet; EACH as usize]).unwrap();
    }
    let sent = EACH * packets.len() as u64;
    wait_until_seen(&agent, host, sent);
    assert_eq!(verdict(&agent, host), "explained");
    let report = agent.stop();
    assert_are_flows(&report, &packets);
    let beside = &report.last()["beside"];
    assert_eq!(pair(&beside["other_header"]), report.seen());
}

/// A packet socket may give its frames a wrong type. The frames on the wire decide.
#[test]
fn a_frame_is_what_its_own_header_says_whatever_its_sender_says() {
    if !is_root_or_skip("agent::a_frame_is_what_its_own_header_says_whatever_its_sender_says") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let host = &lab.agent;
    let agent = Agent::start(&lab, &["--idle-timeout", "1h"]);
    let frame = host.frame_v4(&lab.peer);
    let good = frame.udp(1, 2, &[0; 50]).unwrap();
    // No Ethernet header at all, as far as its sender is concerned, but the wire takes it for one.
    let bare = Frame::bare(SOURCES[2], TO).udp(1, 2, &[0; 50]).unwrap();
    let shortest = &good[..14];
    let before = lab.peer.counters().unwrap();
    let protocols = [0, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ARP, 0x0004];
    for protocol in protocols {
        let socket = FrameSocket::with_protocol(&host.namespace, &host.interface, protocol);
        let socket = socket.unwrap();
        for frame in [&good[..], &bare, shortest, &good[..15]] {
            socket.send(frame).unwrap();
        }
    }
    let each = protocols.len() as u64;
    wait_for_packets(&lab.peer, before, 4 * each);
    let report = agent.stop();
    let flow = name(
        "[]",
        17,
        (&host.ipv4.to_string(), 1),
        (&lab.peer.ipv4.to_string(), 2),
    );
    let expected = BTreeMap::from([(flow, [count(each, &good), Pair::default()])]);
    assert_eq!(report.sums(), expected, "{}", report.last());
    let unparsed = &report.last()["unparsed"];
    assert_eq!(pair(&unparsed["not_ip"]), count(each, &bare));
    let cut = count(each, shortest) + count(each, &good[..15]);
    assert_eq!(pair(&unparsed["truncated_ipv4"]), cut, "{unparsed}");
    assert_eq!(
        pair(&report.last()["beside"]["other_header"]),
        Pair::default()
    );
}

#[test]
fn a_bare_packet_is_what_its_own_header_says_whatever_its_sender_says() {
    if !is_root_or_skip("agent::a_bare_packet_is_what_its_own_header_says_whatever_its_sender_says")
    {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let host = &lab.agent;
    let tun = Tun::new(&host.namespace, "tun0").unwrap();
    let agent = Agent::start_on(host, &tun.interface, &["--idle-timeout", "1h"]);
    let packets = packets(|_, bare| bare);
    let frame = host.frame_v4(&lab.peer).udp(1, 2, &[0; 50]).unwrap();
    let protocols = [0, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ARP];
    let mut others = Pair::default();
    let send = |protocol: u16, packet: &[u8]| {
        let socket = FrameSocket::with_protocol(&host.namespace, &tun.interface, protocol);
        socket.unwrap().send(packet).unwrap();
        // The device drops frames that nobody reads.
        wait_until("the packet leaves", || tun.receive().unwrap().is_some());
    };
    let mut expected = BTreeMap::<_, Both>::new();
    for protocol in protocols {
        for (flow, packet) in &packets {
            send(protocol, packet);
            expected.entry(flow.clone()).or_default()[0] += count(1, packet);
        }
        // An Ethernet frame is not an IP packet here, whatever it contains.
        for len in [1, 13, 14, 15, frame.len()] {
            send(protocol, &frame[..len]);
            others += count(1, &frame[..len]);
        }
    }
    let report = agent.stop();
    assert_eq!(report.sums(), expected, "{}", report.last());
    let all: Pair = expected.values().flatten().copied().sum();
    assert_eq!(report.seen(), all + others);
    let unparsed = &report.last()["unparsed"];
    let counted = pair(&unparsed["not_ip"]) + pair(&unparsed["truncated_ipv4"]);
    assert_eq!(counted, others, "{unparsed}");
    assert_eq!(
        pair(&report.last()["beside"]["other_header"]),
        Pair::default()
    );
}
