//! Filter rules and sampling in the kernel: the account must have the packets and bytes that they leave out, and the
//! flows all others.

mod alternation;
mod changes;
mod coming;
mod inside;
mod interfaces;
mod language;
mod reload;
mod sampling;

pub use changes::in_force;

use std::{collections::BTreeMap, fs, net::Ipv4Addr};

use agent_common::Pair;
use lab::{Host, Lab, privilege::is_root_or_skip};
use rules::Probe;

use crate::support::{Agent, Both, GENERIC_XDP, NATIVE_XDP, count, name, pair, wait_for_packets};

const ACK: u8 = 0x10;
const ECHO_IDENTIFIER: u16 = 77;
const GRE: u8 = 47;

/// `IFACE` stands for the interface that is watched.
const RULES: &str = "
    include net 10.1.2.0/24                     # first, though it lies within the next one
    exclude net 10.0.0.0/8
    exclude net 203.0.113.0/24
    include net 203.0.113.5                     # never decides
    exclude src net 172.16.0.0/12 dst port 443 proto tcp
    exclude dst net 198.51.100.7,198.51.100.9
    include net 2001:db8:1:2::/64
    exclude net 2001:db8:1::/48
    exclude src net 2001:db8:2::/48
    exclude port 5000-5010,53
    exclude src port 6000
    exclude dst port 65535
    exclude proto icmp,icmp6,132
    exclude on IFACE ingress dst port 7000
    exclude on other0 dst port 7001
    exclude egress dst port 7002
";

/// Packets with their fate under the rules, the same at both hooks.
const COUNTED: &[&str] = &[
    "10.1.2.3:1 > 192.0.2.1:2 udp",
    "192.0.2.1:3 > 10.1.2.255:4 udp",
    "172.16.1.1:1 > 192.0.2.1:443 udp",
    // The direction opposite to the rule's.
    "192.0.2.1:443 > 172.31.255.255:2 tcp",
    "172.32.0.1:1 > 192.0.2.1:443 tcp",
    "198.51.100.7:9 > 192.0.2.1:1 udp",
    "[2001:db8:1:2::3]:1 > [2001:db8::1]:2 udp",
    "[2001:db8::1]:1 > [2001:db8:2::1]:2 tcp",
    "192.0.2.1:5011 > 192.0.2.2:4999 udp",
    "192.0.2.2:9 > 192.0.2.1:6000 tcp",
    "192.0.2.2:65535 > 192.0.2.1:1 udp",
    // Packets without ports.
    "192.0.2.1 > 192.0.2.2 gre",
    "2001:db8::1 > 2001:db8::2 gre",
    "192.0.2.1:1 > 192.0.2.2:7001 udp",
];
const FILTERED: &[&str] = &[
    "10.1.3.3:1 > 192.0.2.1:2 udp",
    "192.0.2.1:1 > 10.9.9.9:2 tcp",
    "10.255.255.255 > 192.0.2.1 gre",
    "203.0.113.5:1 > 192.0.2.1:9 udp",
    "172.16.1.1:1 > 192.0.2.1:443 tcp",
    "192.0.2.1:1 > 198.51.100.7:9 udp",
    "192.0.2.1:1 > 198.51.100.9:9 udp",
    "[2001:db8:1:3::3]:1 > [2001:db8::1]:2 udp",
    "[2001:db8::1]:1 > [2001:db8:1:ffff::1]:2 tcp",
    "[2001:db8:2::1]:1 > [2001:db8::1]:2 tcp",
    "192.0.2.1:5000 > 192.0.2.2:9 udp",
    "192.0.2.1:9 > 192.0.2.2:5010 tcp",
    "[2001:db8::1]:9 > [2001:db8::2]:53 udp",
    "192.0.2.1:6000 > 192.0.2.2:9 udp",
    "192.0.2.1:1 > 192.0.2.2:65535 udp",
    "192.0.2.1 > 192.0.2.2 icmp",
    "2001:db8::1 > 2001:db8::2 icmp6",
    "192.0.2.1:1 > 192.0.2.2:2 sctp",
];

/// The frame of a packet, and its flow's name.
fn frame(text: &str, from: &Host, to: &Host) -> (String, Vec<u8>) {
    let probe: Probe = text.parse().unwrap();
    let [src, dst] = probe.ends;
    let frame = if src.0.is_ipv4() {
        from.frame_v4(to)
    } else {
        from.frame_v6(to)
    }
    .between(src.0, dst.0);
    let (bytes, ports) = match probe.protocol {
        6 => (frame.tcp(src.1, dst.1, ACK, &[0; 5]), (src.1, dst.1)),
        17 => (frame.udp(src.1, dst.1, &[0; 7]), (src.1, dst.1)),
        132 => (frame.sctp(src.1, dst.1, &[0; 4]), (src.1, dst.1)),
        GRE => (frame.ip(GRE, &[0; 30]), (0, 0)),
        _ => (
            frame.icmp_echo(true, ECHO_IDENTIFIER, 1, &[0; 3]),
            (ECHO_IDENTIFIER, ECHO_IDENTIFIER),
        ),
    };
    let name = name(
        "[]",
        probe.protocol.into(),
        (&src.0.to_string(), ports.0.into()),
        (&dst.0.to_string(), ports.1.into()),
    );
    (name, bytes.unwrap())
}

fn rules_leave_out_what_they_say(hook_settings: &[&str], is_egress: bool) {
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("filters");
    fs::write(&file, RULES.replace("IFACE", &lab.agent.interface)).unwrap();
    let mut settings = vec!["--filter-file", file.to_str().unwrap()];
    settings.extend(hook_settings);
    let agent = Agent::start(&lab, &settings);
    let (from, to) = if is_egress {
        (&lab.agent, &lab.peer)
    } else {
        (&lab.peer, &lab.agent)
    };
    let (mut counted, mut filtered) = (COUNTED.to_vec(), FILTERED.to_vec());
    let (ingress_only, egress_only) = (
        "192.0.2.1:1 > 192.0.2.2:7000 udp",
        "192.0.2.1:1 > 192.0.2.2:7002 udp",
    );
    if is_egress {
        counted.push(ingress_only);
        filtered.push(egress_only);
    } else {
        counted.push(egress_only);
        filtered.push(ingress_only);
    }

    let before = lab.agent.counters().unwrap();
    let mut expected = BTreeMap::<String, Both>::new();
    let mut left_out = Pair::default();
    let mut frames = Vec::new();
    // Each is sent as often as its position, so that no two have the same count.
    for (copies, text) in (1..).zip(counted.iter().chain(&filtered)) {
        let (flow, bytes) = frame(text, from, to);
        if copies <= counted.len() as u64 {
            expected.insert(flow, [count(copies, &bytes), Pair::default()]);
        } else {
            left_out += count(copies, &bytes);
        }
        frames.extend((0..copies).map(|_| bytes.clone()));
    }
    from.frame_socket().unwrap().send_many(&frames).unwrap();
    if !is_egress {
        wait_for_packets(&lab.agent, before, frames.len() as u64);
    }
    let report = agent.stop();
    assert_eq!(report.sums(), expected);
    assert_eq!(pair(&report.last()["filtered"]), left_out);
    assert_eq!(report.seen().packets, frames.len() as u64);
}

#[test]
fn rules_leave_out_what_they_say_over_tc_ingress() {
    if is_root_or_skip("agent::rules_leave_out_what_they_say_over_tc_ingress") {
        rules_leave_out_what_they_say(&[], false);
    }
}

#[test]
fn rules_leave_out_what_they_say_over_tc_egress() {
    if is_root_or_skip("agent::rules_leave_out_what_they_say_over_tc_egress") {
        rules_leave_out_what_they_say(&[], true);
    }
}

#[test]
fn rules_leave_out_what_they_say_over_native_xdp() {
    if is_root_or_skip("agent::rules_leave_out_what_they_say_over_native_xdp") {
        rules_leave_out_what_they_say(NATIVE_XDP, false);
    }
}

#[test]
fn rules_leave_out_what_they_say_over_generic_xdp() {
    if is_root_or_skip("agent::rules_leave_out_what_they_say_over_generic_xdp") {
        rules_leave_out_what_they_say(GENERIC_XDP, false);
    }
}

#[test]
fn a_thousand_networks_leave_out_exactly_their_packets() {
    const NETWORKS: u32 = 1000;
    if !is_root_or_skip("agent::a_thousand_networks_leave_out_exactly_their_packets") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("filters");
    let network = |number: u32| Ipv4Addr::from_bits(0x0a00_0000 + (number << 9));
    // Each rule excludes its own network and leaves the next one.
    let lines: Vec<String> = (0..NETWORKS)
        .map(|number| format!("exclude src net {}/24", network(number)))
        .collect();
    fs::write(&file, lines.join("\n")).unwrap();
    let agent = Agent::start(&lab, &["--filter-file", file.to_str().unwrap()]);
    let before = lab.agent.counters().unwrap();
    let to = lab.agent.ipv4;
    let udp = |from: Ipv4Addr| {
        let frame = lab.peer.frame_v4(&lab.agent).between(from, to);
        frame.udp(1, 53, &[0; 18]).unwrap()
    };
    let mut frames = Vec::new();
    for number in 0..NETWORKS {
        let inside = network(number).to_bits();
        frames.extend(
            [inside, inside + 255, inside + 256, inside + 511].map(|from| udp(from.into())),
        );
    }
    lab.peer.frame_socket().unwrap().send_many(&frames).unwrap();
    wait_for_packets(&lab.agent, before, frames.len() as u64);
    let report = agent.stop();
    let half = count(u64::from(NETWORKS) * 2, &frames[0]);
    assert_eq!(pair(&report.last()["filtered"]), half);
    assert_eq!(report.sums().len() as u64, half.packets);
}

#[test]
fn a_sampled_flow_has_all_its_packets_and_the_others_are_in_the_account() {
    const FLOWS: u16 = 5_000;
    const RATE: u32 = 10;
    if !is_root_or_skip(
        "agent::a_sampled_flow_has_all_its_packets_and_the_others_are_in_the_account",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(
        &lab,
        &[
            "--sample",
            "10",
            "--filter",
            "exclude dst port 9",
            "--report-interval",
            "1h",
        ],
    );
    let (client, server) = (&lab.peer, &lab.agent);
    let (up, down) = (client.frame_v6(server), server.frame_v6(client));
    let before = lab.agent.counters().unwrap();
    let ports = 1000..1000 + FLOWS;
    let requests: Vec<_> = ports
        .clone()
        .flat_map(|port| [53, 53, 9].map(|to| up.udp(port, to, &[0; 20]).unwrap()))
        .collect();
    let answers: Vec<_> = ports
        .map(|port| down.udp(53, port, &[0; 30]).unwrap())
        .collect();
    client.frame_socket().unwrap().send_many(&requests).unwrap();
    server.frame_socket().unwrap().send_many(&answers).unwrap();
    wait_for_packets(&lab.agent, before, requests.len() as u64);
    let status = agent.status(&lab.agent);
    assert_eq!(status["settings"]["sample_rate"], RATE);
    assert_eq!(status["account"]["sample_rate"], RATE);
    let report = agent.stop();

    let whole = [count(2, &requests[0]), count(1, &answers[0])];
    let sums = report.sums();
    assert!(sums.values().all(|sum| *sum == whole));
    let sampled = sums.len() as u64;
    let expected = u64::from(FLOWS) / u64::from(RATE);
    assert!(sampled.abs_diff(expected) < 100, "{sampled} flows");
    let last = report.last();
    let left_out = u64::from(FLOWS) - sampled;
    assert_eq!(
        pair(&last["sampled_out"]),
        count(2 * left_out, &requests[0]) + count(left_out, &answers[0])
    );
    assert_eq!(pair(&last["filtered"]), count(FLOWS.into(), &requests[0]));
    assert_eq!(last["sample_rate"], RATE);
    assert!(report.flows.iter().all(|line| line["sample_rate"] == RATE));
    // The end reports each flow once, since no other rate follows.
    assert_eq!(report.flows.len() as u64, sampled);
}

#[test]
fn rules_see_a_later_fragment_with_the_ports_of_its_first() {
    if !is_root_or_skip("agent::rules_see_a_later_fragment_with_the_ports_of_its_first") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--filter", "exclude port 0-53"]);
    let (from, to) = (&lab.peer, &lab.agent);
    let before = lab.agent.counters().unwrap();
    let mut expected = BTreeMap::<String, Both>::new();
    let mut left_out = Pair::default();
    let mut frames = Vec::new();
    for (frame, src, dst) in [
        (
            from.frame_v4(to),
            from.ipv4.to_string(),
            to.ipv4.to_string(),
        ),
        (
            from.frame_v6(to),
            from.ipv6.to_string(),
            to.ipv6.to_string(),
        ),
    ] {
        let first = |id, port| {
            let frame = frame.clone().fragment(id, 0, true);
            frame.udp(2000, port, &[0; 32]).unwrap()
        };
        let later = |id| {
            let frame = frame.clone().fragment(id, 40, false);
            frame.ip(17, &[0; 24]).unwrap()
        };
        let mut flow = |ports: (u16, u16), sum| {
            let (src, dst) = ((&*src, ports.0.into()), (&*dst, ports.1.into()));
            expected.insert(name("[]", 17, src, dst), [sum, Pair::default()]);
        };
        let datagrams = [first(1, 53), later(1), first(2, 54), later(2), later(3)];
        let sizes = datagrams.each_ref().map(|frame| count(1, frame));
        left_out += sizes[0] + sizes[1];
        flow((2000, 54), sizes[2] + sizes[3]);
        // The ports of this fragment are unknown.
        flow((0, 0), sizes[4]);
        frames.extend(datagrams);
    }
    from.frame_socket().unwrap().send_many(&frames).unwrap();
    wait_for_packets(&lab.agent, before, frames.len() as u64);
    let report = agent.stop();
    assert_eq!(report.sums(), expected);
    assert_eq!(pair(&report.last()["filtered"]), left_out);
}
