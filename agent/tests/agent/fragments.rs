//! Fragments on real interfaces. Each must be counted in the flow of its datagram's first fragment, or in a
//! flow without ports if that one is unknown. The account must say how many went either way.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use agent_common::Pair;
use lab::{Extension, Frame, Host, Lab, privilege::is_root_or_skip};

use crate::support::{
    Agent, Both, Report, count,
    hook::{Hook, report_of},
    name, pair, wait_for_packets,
};

const SYN: u8 = 0x02;
const UDP: u8 = 17;
const TCP: u8 = 6;
const GRE: u8 = 47;

/// A datagram in three fragments: the first, a middle one, the last.
struct Datagram {
    flow: String,
    fragments: [Vec<u8>; 3],
}

impl Datagram {
    /// `first` ends the frame of the first fragment; `next` is the protocol that the others name.
    fn new(
        flow: String,
        base: &Frame,
        id: u16,
        next: u8,
        first: impl Fn(&Frame) -> Vec<u8>,
    ) -> Self {
        let later = |offset, more, len| {
            let frame = base.clone().fragment(id, offset, more);
            frame.ip(next, &vec![0xff; len]).unwrap()
        };
        Self {
            flow,
            fragments: [
                first(&base.clone().fragment(id, 0, true)),
                later(64, true, 64),
                later(128, false, 13),
            ],
        }
    }

    fn udp(base: &Frame, (src, dst): (&str, &str), id: u16, src_port: u16) -> Self {
        let flow = name("[]", UDP.into(), (src, src_port.into()), (dst, 53));
        Self::new(flow, base, id, UDP, |frame| {
            frame.udp(src_port, 53, &[0; 56]).unwrap()
        })
    }

    /// The sum of the fragments, which all go in one direction.
    fn sum(&self) -> Pair {
        self.fragments.iter().map(|frame| count(1, frame)).sum()
    }
}

/// A frame with its source and destination, for both IP versions.
fn bases(from: &Host, to: &Host) -> [(Frame, [String; 2]); 2] {
    [
        (
            from.frame_v4(to),
            [from.ipv4.to_string(), to.ipv4.to_string()],
        ),
        (
            from.frame_v6(to),
            [from.ipv6.to_string(), to.ipv6.to_string()],
        ),
    ]
}

/// Datagrams of every kind, all with identification 7 where the protocol tells them apart (IPv4).
fn every_kind(from: &Host, to: &Host) -> Vec<Datagram> {
    let mut datagrams = Vec::new();
    for (base, [src, dst]) in bases(from, to) {
        let is_ipv4 = !src.contains(':');
        let named = |vlans: &str, protocol: u8, src_port: u64, dst_port: u64| {
            name(vlans, protocol.into(), (&src, src_port), (&dst, dst_port))
        };
        let mut id = 7;
        let mut next_id = || {
            id += u16::from(!is_ipv4);
            id
        };
        datagrams.push(Datagram::udp(&base, (&src, &dst), next_id(), 1000));
        datagrams.push(Datagram::new(
            named("[]", TCP, 1001, 80),
            &base,
            next_id(),
            TCP,
            |frame| frame.tcp(1001, 80, SYN, &[0; 44]).unwrap(),
        ));
        let icmp = if is_ipv4 { 1 } else { 58 };
        datagrams.push(Datagram::new(
            named("[]", icmp, 77, 77),
            &base,
            next_id(),
            icmp,
            |frame| frame.icmp_echo(true, 77, 1, &[0; 56]).unwrap(),
        ));
        datagrams.push(Datagram::new(
            named("[]", GRE, 0, 0),
            &base,
            next_id(),
            GRE,
            |frame| frame.ip(GRE, &[0; 64]).unwrap(),
        ));
        let tagged = base.clone().vlan(100);
        datagrams.push(Datagram::new(
            named("[100]", UDP, 1002, 53),
            &tagged,
            next_id(),
            UDP,
            |frame| frame.udp(1002, 53, &[0; 56]).unwrap(),
        ));
        if is_ipv4 {
            continue;
        }
        // All fragments name the same next header, but only the first one has it.
        let options = Extension::DestinationOptions { length_bytes: 16 };
        datagrams.push(Datagram::new(
            named("[]", UDP, 1003, 53),
            &base
                .clone()
                .extension(Extension::HopByHop { length_bytes: 8 }),
            next_id(),
            60,
            |frame| {
                let frame = frame.clone().extension(options);
                frame.udp(1003, 53, &[0; 40]).unwrap()
            },
        ));
    }
    datagrams
}

fn sums_of(datagrams: &[Datagram]) -> BTreeMap<String, Both> {
    datagrams
        .iter()
        .map(|it| (it.flow.clone(), [it.sum(), Pair::default()]))
        .collect()
}

fn beside(report: &Report, fact: &str) -> Pair {
    pair(&report.last()["beside"][fact])
}

fn second_fragment_joins_its_flow(hook: Hook) {
    let mut datagrams = Vec::new();
    let report = report_of(hook, &[], |from, to| {
        datagrams = every_kind(from, to);
        let socket = from.frame_socket().unwrap();
        // All first fragments come before the others, so that many datagrams are on their way at once.
        let frames = (0..3).flat_map(|part| datagrams.iter().map(move |it| &it.fragments[part]));
        socket.send_many(frames).unwrap() as u64
    });
    assert_eq!(report.sums(), sums_of(&datagrams));
    let later: Pair = datagrams
        .iter()
        .flat_map(|it| &it.fragments[1..])
        .map(|frame| count(1, frame))
        .sum();
    assert_eq!(beside(&report, "fragments_joined"), later);
    assert_eq!(beside(&report, "fragments_unmatched"), Pair::default());
    assert!(
        report
            .flows
            .iter()
            .all(|line| line["later_fragment"] == false)
    );
}

#[test]
fn second_fragment_joins_its_flow_over_tc_ingress() {
    if is_root_or_skip("agent::second_fragment_joins_its_flow_over_tc_ingress") {
        second_fragment_joins_its_flow(Hook::TcIngress);
    }
}

#[test]
fn second_fragment_joins_its_flow_over_tc_egress() {
    if is_root_or_skip("agent::second_fragment_joins_its_flow_over_tc_egress") {
        second_fragment_joins_its_flow(Hook::TcEgress);
    }
}

#[test]
fn second_fragment_joins_its_flow_over_native_xdp() {
    if is_root_or_skip("agent::second_fragment_joins_its_flow_over_native_xdp") {
        second_fragment_joins_its_flow(Hook::NativeXdp);
    }
}

#[test]
fn second_fragment_joins_its_flow_over_generic_xdp() {
    if is_root_or_skip("agent::second_fragment_joins_its_flow_over_generic_xdp") {
        second_fragment_joins_its_flow(Hook::GenericXdp);
    }
}

#[test]
fn a_fragment_ahead_of_the_first_one_is_a_flow_without_ports() {
    if !is_root_or_skip("agent::a_fragment_ahead_of_the_first_one_is_a_flow_without_ports") {
        return;
    }
    let mut expected = BTreeMap::new();
    let mut ahead = Pair::default();
    let report = report_of(Hook::TcIngress, &[], |from, to| {
        let socket = from.frame_socket().unwrap();
        let mut sent = 0;
        for (base, [src, dst]) in bases(from, to) {
            let datagram = Datagram::udp(&base, (&src, &dst), 7, 1000);
            let [first, within, last] = &datagram.fragments;
            sent += socket.send_many([last, first, within]).unwrap() as u64;
            ahead += count(1, last);
            let without_ports = name("[]", UDP.into(), (&src, 0), (&dst, 0));
            expected.insert(without_ports, [count(1, last), Pair::default()]);
            let joined = count(1, first) + count(1, within);
            expected.insert(datagram.flow, [joined, Pair::default()]);
        }
        sent
    });
    assert_eq!(report.sums(), expected);
    assert_eq!(beside(&report, "fragments_unmatched"), ahead);
    assert_eq!(beside(&report, "fragments_joined").packets, 2);
    for line in &report.flows {
        assert_eq!(line["later_fragment"], line["src_port"].is_null());
    }
}

/// Both hosts use the same identification, in the same protocol.
#[test]
fn each_direction_has_identifications_of_its_own() {
    if !is_root_or_skip("agent::each_direction_has_identifications_of_its_own") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[]);
    let mut expected = BTreeMap::new();
    let ways = [(&lab.peer, &lab.agent), (&lab.agent, &lab.peer)];
    let sockets = ways.map(|(from, _)| from.frame_socket().unwrap());
    for version in 0..2 {
        let datagrams = [1000, 2000].map(|port| {
            let (from, to) = ways[usize::from(port == 2000)];
            let (base, [src, dst]) = bases(from, to)[version].clone();
            Datagram::udp(&base, (&src, &dst), 7, port)
        });
        for part in 0..3 {
            for (socket, datagram) in sockets.iter().zip(&datagrams) {
                socket.send(&datagram.fragments[part]).unwrap();
            }
        }
        expected.extend(sums_of(&datagrams));
    }
    let report = agent.stop();
    assert_eq!(report.sums(), expected);
    assert_eq!(beside(&report, "fragments_joined").packets, 8);
}

/// A host that talks to itself through a wire: ports alone tell the directions apart.
#[test]
fn fragments_between_one_address_keep_their_direction() {
    if !is_root_or_skip("agent::fragments_between_one_address_keep_their_direction") {
        return;
    }
    let mut expected = BTreeMap::new();
    let report = report_of(Hook::TcIngress, &[], |from, to| {
        let socket = from.frame_socket().unwrap();
        let mut sent = 0;
        for (base, [src, _]) in bases(from, to) {
            let base = if src.contains(':') {
                base.between(from.ipv6, from.ipv6)
            } else {
                base.between(from.ipv4, from.ipv4)
            };
            // From the higher port, which is the second endpoint of the flow's key.
            let datagram = Datagram::udp(&base, (&src, &src), 7, 1000);
            sent += socket.send_many(&datagram.fragments).unwrap() as u64;
            expected.extend(sums_of(&[datagram]));
        }
        sent
    });
    assert_eq!(report.sums(), expected);
}

/// A time for which the programs surely remember a first fragment (`REASSEMBLY_NS` is longer).
const REMEMBERED: Duration = Duration::from_secs(25);

#[test]
fn a_fragment_joins_its_flow_after_a_scan() {
    if !is_root_or_skip("agent::a_fragment_joins_its_flow_after_a_scan") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[]);
    let (base, [src, dst]) = bases(&lab.peer, &lab.agent)[0].clone();
    let socket = lab.peer.frame_socket().unwrap();
    let mut port = 1000;
    let datagram = loop {
        let datagram = Datagram::udp(&base, (&src, &dst), port, port);
        let start = Instant::now();
        for fragment in &datagram.fragments {
            socket.send(fragment).unwrap();
            agent.wait_for_scans(&lab.agent, 2);
        }
        if start.elapsed() < REMEMBERED {
            break datagram;
        }
        // The machine was so busy that the first fragment may have been forgotten. Try again.
        port += 1;
    };
    let sums = agent.stop().sums();
    for (name, both) in sums_of(&[datagram]) {
        assert_eq!(sums.get(&name), Some(&both), "{name}");
    }
}

#[test]
fn a_full_memory_of_fragments_says_which_ones_it_could_not_match() {
    const DATAGRAMS: u16 = 5_000;
    if !is_root_or_skip("agent::a_full_memory_of_fragments_says_which_ones_it_could_not_match") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--max-fragments", "1000"]);
    let before = lab.agent.counters().unwrap();
    let (base, [src, dst]) = bases(&lab.peer, &lab.agent)[0].clone();
    let datagrams: Vec<Datagram> = (1..=DATAGRAMS)
        .map(|id| Datagram::udp(&base, (&src, &dst), id, id))
        .collect();
    let socket = lab.peer.frame_socket().unwrap();
    for part in [0, 2] {
        let frames = datagrams.iter().map(|it| &it.fragments[part]);
        socket.send_many(frames).unwrap();
    }
    wait_for_packets(&lab.agent, before, u64::from(DATAGRAMS) * 2);
    let report = agent.stop();

    let joined = beside(&report, "fragments_joined");
    let unmatched = beside(&report, "fragments_unmatched");
    let last = &datagrams[0].fragments[2];
    assert_eq!(joined + unmatched, count(DATAGRAMS.into(), last));
    // The kernel keeps the map's size only roughly, and its LRU lists decide what it evicts.
    assert!((1..=1000).contains(&joined.packets), "{joined:?}");
    let sums = report.sums();
    let without_ports = name("[]", UDP.into(), (&src, 0), (&dst, 0));
    assert_eq!(sums[&without_ports], [unmatched, Pair::default()]);
    let whole = datagrams
        .iter()
        .filter(|it| sums[&it.flow][0] == count(1, &it.fragments[0]) + count(1, last))
        .count();
    assert_eq!(whole as u64, joined.packets);
}

/// Atomic fragments are whole datagrams (RFC 6946), whatever was remembered under their identification.
#[test]
fn atomic_fragments_are_neither_remembered_nor_joined() {
    if !is_root_or_skip("agent::atomic_fragments_are_neither_remembered_nor_joined") {
        return;
    }
    let mut expected = BTreeMap::new();
    let report = report_of(Hook::TcIngress, &[], |from, to| {
        let [_, (base, [src, dst])] = bases(from, to);
        let atomic = base.clone().fragment(7, 0, false);
        let frame = atomic.udp(1000, 53, &[0; 56]).unwrap();
        let datagram = Datagram::udp(&base, (&src, &dst), 7, 2000);
        let other = Datagram::udp(&base, (&src, &dst), 9, 2000);
        let [first, within, last] = &datagram.fragments;
        let flow = name("[]", UDP.into(), (&src, 1000), (&dst, 53));
        expected.insert(flow, [count(2, &frame), Pair::default()]);
        expected.extend(sums_of(&[Datagram::udp(&base, (&src, &dst), 7, 2000)]));
        let without_ports = name("[]", UDP.into(), (&src, 0), (&dst, 0));
        let unmatched = &other.fragments[1];
        expected.insert(without_ports, [count(1, unmatched), Pair::default()]);
        let other_atomic = base.clone().fragment(9, 0, false);
        let other_frame = other_atomic.udp(1000, 53, &[0; 56]).unwrap();
        let frames = [first, &frame, within, last, &other_frame, unmatched];
        from.frame_socket().unwrap().send_many(frames).unwrap() as u64
    });
    assert_eq!(report.sums(), expected);
}
