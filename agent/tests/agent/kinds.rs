//! Every kind of packet that the parser knows, and every reason why it gives up on one, on real interfaces.
//! The records and the account must have exactly what was sent.

use std::collections::BTreeMap;

use agent_common::Pair;
use lab::{Extension, Frame, FrameSocket, Host, Lab, Tun, privilege::is_root_or_skip};

use crate::support::{
    Agent, Both, count,
    hook::{Hook, report_of},
    name, pair, wait_until,
};

const ACK: u8 = 0x10;
/// IEEE 802 experimental: no transport header that anyone parses.
const OTHER_PROTOCOL: u8 = 253;
/// Source port 4000, destination port 5000, and bytes behind them that suit any header with ports.
const PORTS: [u8; 12] = [0x0f, 0xa0, 0x13, 0x88, 0, 12, 0, 0, 0x60, 0, 0, 0];

/// The same frame many times, and the name of its flow.
struct Traffic {
    flow: String,
    frame: Vec<u8>,
    copies: u64,
}

/// Where packets come from and go to, as a frame and as text.
struct Ends {
    frame: Frame,
    src: String,
    dst: String,
    is_ipv4: bool,
}

fn ends(from: &Host, to: &Host) -> [Ends; 2] {
    [
        Ends {
            frame: from.frame_v4(to),
            src: from.ipv4.to_string(),
            dst: to.ipv4.to_string(),
            is_ipv4: true,
        },
        Ends {
            frame: from.frame_v6(to),
            src: from.ipv6.to_string(),
            dst: to.ipv6.to_string(),
            is_ipv4: false,
        },
    ]
}

/// Protocol, source and destination port (or what the flow's name has there), frame.
type Kind = (u8, u16, u16, Vec<u8>);

/// Each transport protocol behind the given headers.
fn transports(frame: &Frame, is_ipv4: bool) -> Vec<Kind> {
    let (icmp, unreachable, timestamp) = if is_ipv4 { (1, 3, 13) } else { (58, 1, 128) };
    let udp_lite = frame.ip(136, &PORTS).unwrap();
    let query = frame.icmp(timestamp, 0, [0, 99, 0, 1], &[0; 12]).unwrap();
    let mut kinds = vec![
        (6, 1000, 80, frame.tcp(1000, 80, ACK, &[0; 11]).unwrap()),
        (17, 1001, 53, frame.udp(1001, 53, &[0; 22]).unwrap()),
        (132, 1002, 36412, frame.sctp(1002, 36412, &[0; 44]).unwrap()),
        (33, 4000, 5000, frame.ip(33, &PORTS).unwrap()),
        (136, 4000, 5000, udp_lite),
        (
            icmp,
            77,
            77,
            frame.icmp_echo(true, 77, 1, &[0; 33]).unwrap(),
        ),
        (icmp, 99, 99, query),
        (
            icmp,
            0,
            0,
            frame.icmp(unreachable, 1, [0; 4], &[0; 28]).unwrap(),
        ),
    ];
    for protocol in [2, 4, 41, 47, 50, OTHER_PROTOCOL] {
        // IP in IP, GRE and ESP are flows of their protocol by default.
        kinds.push((protocol, 0, 0, frame.ip(protocol, &[0; 55]).unwrap()));
    }
    kinds
}

/// Packets with something special between IP and the transport header.
fn detours(ends: &Ends) -> Vec<Kind> {
    let plain = || ends.frame.clone();
    let mut kinds = vec![
        (
            17,
            2000,
            53,
            plain()
                .fragment(7, 0, true)
                .udp(2000, 53, &[0; 32])
                .unwrap(),
        ),
        // Without its first fragment, a later one has no ports and is a flow of its own.
        (
            17,
            0,
            0,
            plain().fragment(8, 40, false).ip(17, &[0xff; 24]).unwrap(),
        ),
        // Padding behind the IP packet counts in the bytes and nowhere else.
        (
            17,
            2001,
            53,
            plain().pad_to(120).udp(2001, 53, &[]).unwrap(),
        ),
        (
            6,
            2002,
            80,
            plain()
                .tcp_options(&[1; 40])
                .tcp(2002, 80, ACK, &[])
                .unwrap(),
        ),
    ];
    if ends.is_ipv4 {
        for (port, words) in [(2100, 1), (2101, 10)] {
            let frame = plain().ipv4_options(&vec![1; words * 4]);
            kinds.push((6, port, 80, frame.tcp(port, 80, ACK, &[0; 9]).unwrap()));
        }
        return kinds;
    }
    let chains: [&[Extension]; 3] = [
        &[
            Extension::HopByHop { length_bytes: 16 },
            Extension::Routing { length_bytes: 24 },
            Extension::DestinationOptions { length_bytes: 8 },
        ],
        &[Extension::Authentication { length_bytes: 24 }],
        &[Extension::DestinationOptions { length_bytes: 8 }; 8],
    ];
    for (port, chain) in (2200..).zip(chains) {
        let frame = chain
            .iter()
            .fold(plain(), |frame, &header| frame.extension(header));
        kinds.push((6, port, 80, frame.tcp(port, 80, ACK, &[0; 9]).unwrap()));
    }
    kinds
}

/// Every kind of flow, each with as many copies as its position, so that no two have the same count.
fn every_kind(from: &Host, to: &Host) -> Vec<Traffic> {
    let mut traffic: Vec<Traffic> = Vec::new();
    for ends in ends(from, to) {
        let tagged: [(&str, Frame); 3] = [
            ("[]", ends.frame.clone()),
            ("[100]", ends.frame.clone().vlan(100)),
            ("[200,300]", ends.frame.clone().qinq(200, 300)),
        ];
        let kinds = tagged
            .iter()
            .flat_map(|(vlans, frame)| {
                transports(frame, ends.is_ipv4)
                    .into_iter()
                    .map(|kind| (*vlans, kind))
            })
            .chain(detours(&ends).into_iter().map(|kind| ("[]", kind)));
        for (vlans, kind) in kinds {
            traffic.push(named(vlans, &ends, kind, traffic.len() as u64 + 1));
        }
    }
    traffic
}

fn named(vlans: &str, ends: &Ends, kind: Kind, copies: u64) -> Traffic {
    let (protocol, src_port, dst_port, frame) = kind;
    let (src, dst) = ((&*ends.src, src_port.into()), (&*ends.dst, dst_port.into()));
    Traffic {
        flow: name(vlans, protocol.into(), src, dst),
        frame,
        copies,
    }
}

fn sums_of(traffic: &[Traffic]) -> BTreeMap<String, Both> {
    let sums: BTreeMap<String, Both> = traffic
        .iter()
        .map(|kind| {
            (
                kind.flow.clone(),
                [count(kind.copies, &kind.frame), Pair::default()],
            )
        })
        .collect();
    assert_eq!(sums.len(), traffic.len(), "two kinds are of one flow");
    sums
}

/// Sends all copies, those of different kinds by turns. Returns how many there were.
fn send(socket: &FrameSocket, traffic: &[Traffic]) -> u64 {
    let rounds = traffic.iter().map(|kind| kind.copies).max().unwrap();
    let frames = (0..rounds)
        .flat_map(|round| traffic.iter().filter(move |kind| round < kind.copies))
        .map(|kind| &kind.frame);
    socket.send_many(frames).unwrap() as u64
}

fn every_kind_makes_exact_records(hook: Hook) {
    let mut expected = BTreeMap::new();
    let report = report_of(hook, &[], |from, to| {
        let traffic = every_kind(from, to);
        expected = sums_of(&traffic);
        send(&from.frame_socket().unwrap(), &traffic)
    });
    assert_eq!(report.sums(), expected);
}

#[test]
fn every_kind_makes_exact_records_over_tc_ingress() {
    if is_root_or_skip("agent::every_kind_makes_exact_records_over_tc_ingress") {
        every_kind_makes_exact_records(Hook::TcIngress);
    }
}

#[test]
fn every_kind_makes_exact_records_over_tc_egress() {
    if is_root_or_skip("agent::every_kind_makes_exact_records_over_tc_egress") {
        every_kind_makes_exact_records(Hook::TcEgress);
    }
}

#[test]
fn every_kind_makes_exact_records_over_native_xdp() {
    if is_root_or_skip("agent::every_kind_makes_exact_records_over_native_xdp") {
        every_kind_makes_exact_records(Hook::NativeXdp);
    }
}

#[test]
fn every_kind_makes_exact_records_over_generic_xdp() {
    if is_root_or_skip("agent::every_kind_makes_exact_records_over_generic_xdp") {
        every_kind_makes_exact_records(Hook::GenericXdp);
    }
}

/// Frames that belong to no flow, each with the reason.
fn unparsable(from: &Host, to: &Host) -> Vec<(&'static str, Vec<u8>)> {
    let (v4, v6) = (from.frame_v4(to), from.frame_v6(to));
    let layer_2 = |ether_type: u16, payload: &[u8]| v4.ether_type(ether_type, payload).unwrap();
    let nine = (0..9).fold(v6.clone(), |frame, _| {
        frame.extension(Extension::DestinationOptions { length_bytes: 8 })
    });
    vec![
        ("arp", layer_2(0x0806, &[0; 28])),
        ("arp", layer_2(0x8035, &[0; 28])),
        ("not_ip", layer_2(0x88cc, &[0; 50])),
        ("llc", layer_2(38, &[0x42; 38])),
        (
            "vlan_depth",
            v4.clone()
                .vlan(1)
                .vlan(2)
                .vlan(3)
                .udp(1, 2, &[0; 9])
                .unwrap(),
        ),
        ("truncated_ipv4", layer_2(0x0800, &[0x45; 19])),
        ("malformed_ipv4", layer_2(0x0800, &[0x44; 40])),
        ("malformed_ipv4", layer_2(0x0800, &[0x65; 40])),
        ("truncated_ipv6", layer_2(0x86dd, &[0x60; 39])),
        ("malformed_ipv6", layer_2(0x86dd, &[0x45; 40])),
        ("truncated_extension", v6.ip(0, &[6, 0, 1, 2]).unwrap()),
        (
            "truncated_extension",
            v6.clone().pad_to(90).ip(60, &[6, 0, 1, 2]).unwrap(),
        ),
        ("extension_depth", nine.udp(1, 2, &[0; 9]).unwrap()),
        ("truncated_transport", v4.ip(6, &[0; 19]).unwrap()),
        ("truncated_transport", v6.ip(17, &[0; 7]).unwrap()),
        // Padding never becomes ports.
        (
            "truncated_transport",
            v4.clone().pad_to(60).ip(17, &[0; 4]).unwrap(),
        ),
        ("malformed_tcp", v6.ip(6, &[0x40; 30]).unwrap()),
        (
            "malformed_udp",
            v6.ip(17, &[0, 9, 0, 9, 0, 7, 0, 0]).unwrap(),
        ),
    ]
}

fn what_cannot_be_parsed_is_counted_by_reason(hook: Hook) {
    let mut expected = BTreeMap::<&str, Pair>::new();
    let report = report_of(hook, &[], |from, to| {
        let mut frames = unparsable(from, to);
        if hook != Hook::TcIngress {
            // The kernel drops it before TC ingress (skb_vlan_untag).
            let ended = from.frame_v4(to).ether_type(0x8100, &[0; 3]).unwrap();
            frames.push(("truncated_vlan", ended));
        }
        let mut many = Vec::new();
        for (copies, (reason, frame)) in (1..).zip(frames) {
            *expected.entry(reason).or_default() += count(copies, &frame);
            many.extend((0..copies).map(|_| frame.clone()));
        }
        from.frame_socket().unwrap().send_many(&many).unwrap() as u64
    });
    assert_eq!(report.sums(), BTreeMap::new());
    let unparsed = report.last()["unparsed"].as_object().unwrap();
    let counted: BTreeMap<&str, Pair> = unparsed
        .iter()
        .map(|(reason, value)| (&**reason, pair(value)))
        .filter(|(_, value)| *value != Pair::default())
        .collect();
    assert_eq!(counted, expected);
}

#[test]
fn what_cannot_be_parsed_is_counted_by_reason_over_tc_ingress() {
    if is_root_or_skip("agent::what_cannot_be_parsed_is_counted_by_reason_over_tc_ingress") {
        what_cannot_be_parsed_is_counted_by_reason(Hook::TcIngress);
    }
}

#[test]
fn what_cannot_be_parsed_is_counted_by_reason_over_tc_egress() {
    if is_root_or_skip("agent::what_cannot_be_parsed_is_counted_by_reason_over_tc_egress") {
        what_cannot_be_parsed_is_counted_by_reason(Hook::TcEgress);
    }
}

#[test]
fn what_cannot_be_parsed_is_counted_by_reason_over_xdp() {
    if is_root_or_skip("agent::what_cannot_be_parsed_is_counted_by_reason_over_xdp") {
        what_cannot_be_parsed_is_counted_by_reason(Hook::NativeXdp);
    }
}

/// Bare IP, without an Ethernet header and without tags.
fn bare_kinds(from: &Host, to: &Host) -> Vec<Traffic> {
    let mut traffic: Vec<Traffic> = Vec::new();
    let [mut v4, mut v6] = ends(from, to);
    v4.frame = Frame::bare(from.ipv4, to.ipv4);
    v6.frame = Frame::bare(from.ipv6, to.ipv6);
    for ends in [v4, v6] {
        for kind in transports(&ends.frame, ends.is_ipv4)
            .into_iter()
            .chain(detours(&ends))
        {
            traffic.push(named("[]", &ends, kind, traffic.len() as u64 + 1));
        }
    }
    traffic
}

fn bare_ip_makes_exact_records(hook: Hook) {
    let lab = Lab::quiet().unwrap();
    let tun = Tun::new(&lab.agent.namespace, "tun0").unwrap();
    let agent = Agent::start_on(&lab.agent, &tun.interface, hook.settings());
    let (from, to) = hook.ends(&lab);
    let traffic = bare_kinds(from, to);
    let outbound = FrameSocket::new(&lab.agent.namespace, &tun.interface).unwrap();
    for kind in &traffic {
        for _ in 0..kind.copies {
            if hook == Hook::TcEgress {
                outbound.send(&kind.frame).unwrap();
                // The device drops what nobody reads.
                wait_until("the packet leaves", || tun.receive().unwrap().is_some());
            } else {
                tun.send(&kind.frame).unwrap();
            }
        }
    }
    let report = agent.stop();
    let counted = tun.counters(&lab.agent.namespace).unwrap();
    assert_eq!(report.seen(), hook.counted(counted));
    assert_eq!(report.sums(), sums_of(&traffic));
}

#[test]
fn bare_ip_makes_exact_records_over_tc_ingress() {
    if is_root_or_skip("agent::bare_ip_makes_exact_records_over_tc_ingress") {
        bare_ip_makes_exact_records(Hook::TcIngress);
    }
}

#[test]
fn bare_ip_makes_exact_records_over_tc_egress() {
    if is_root_or_skip("agent::bare_ip_makes_exact_records_over_tc_egress") {
        bare_ip_makes_exact_records(Hook::TcEgress);
    }
}

#[test]
fn bare_ip_makes_exact_records_over_generic_xdp() {
    if is_root_or_skip("agent::bare_ip_makes_exact_records_over_generic_xdp") {
        bare_ip_makes_exact_records(Hook::GenericXdp);
    }
}
