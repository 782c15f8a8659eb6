//! Traffic by interface, direction and protocol.

use std::collections::BTreeMap;

use agent_common::Pair;
use lab::{Host, Lab, privilege::is_root_or_skip};

use super::{SERVED, address, get, samples, sum};
use crate::support::{Agent, count, wait_until};

/// Frames of one flow of each protocol, with the protocol's name.
fn frames_by_protocol(from: &Host, to: &Host) -> Vec<(&'static str, Vec<u8>)> {
    let (v4, v6) = (from.frame_v4(to), from.frame_v6(to));
    let mut frames = vec![
        ("tcp", v4.tcp(1, 2, 0x10, b"tcp").unwrap()),
        ("tcp", v6.tcp(1, 2, 0x10, b"tcp over IPv6").unwrap()),
        ("udp", v4.udp(3, 4, b"udp").unwrap()),
        ("icmp", v4.icmp_echo(true, 5, 6, b"icmp").unwrap()),
        ("icmp6", v6.icmp_echo(true, 7, 8, b"icmp6").unwrap()),
        ("sctp", v4.sctp(19, 20, &[0; 16]).unwrap()),
        ("gre", v4.gre(0x0800, &[0; 40]).unwrap()),
    ];
    for (protocol, number) in [("esp", 50), ("ah", 51), ("ospf", 89), ("other", 253)] {
        frames.push((protocol, v4.ip(number, &[0; 64]).unwrap()));
    }
    frames
}

/// Packets and bytes, summed over all other labels.
fn traffic(samples: &BTreeMap<String, String>, family: &str, labels: &[&str]) -> Pair {
    let of = |unit: &str| {
        let name = format!("{family}_{unit}_total{{");
        let found = samples.iter().filter(|(series, _)| {
            series.starts_with(&name) && labels.iter().all(|label| series.contains(label))
        });
        found.map(|(_, value)| value.parse::<u64>().unwrap()).sum()
    };
    Pair {
        packets: of("packets"),
        bytes: of("bytes"),
    }
}

#[test]
fn traffic_is_told_by_interface_direction_and_protocol() {
    if !is_root_or_skip("agent::traffic_is_told_by_interface_direction_and_protocol") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    // Nothing is reported before the end, but everything is counted.
    let agent = Agent::start(&lab, &[&SERVED[..], &["--report-interval", "1h"]].concat());
    let address = address(&agent);
    let mut expected = BTreeMap::<_, Pair>::new();
    let mut seen = Pair::default();
    for (direction, from, to) in [
        ("ingress", &lab.peer, &lab.agent),
        ("egress", &lab.agent, &lab.peer),
    ] {
        let socket = from.frame_socket().unwrap();
        // Each has its own number, so none can stand for another.
        for (packets, (protocol, frame)) in (1..).zip(frames_by_protocol(from, to)) {
            let packets = if direction == "ingress" {
                packets
            } else {
                20 + packets
            };
            socket
                .send_many(std::iter::repeat_n(&frame, packets as usize))
                .unwrap();
            *expected.entry((direction, protocol)).or_default() += count(packets, &frame);
            seen += count(packets, &frame);
        }
        let left_out = from.frame_v4(to).udp(1, 9, b"left out").unwrap();
        socket.send(&left_out).unwrap();
        seen += count(1, &left_out);
    }
    let samples = || samples(&get(&lab.agent, &address, "/metrics").body);
    wait_until("the metrics have them", || {
        sum(&samples(), "flow_agent_seen_packets_total") == seen.packets
    });
    let found = samples();
    for ((direction, protocol), expected) in &expected {
        let labels = [
            &*format!("direction=\"{direction}\""),
            &*format!("protocol=\"{protocol}\""),
        ];
        let all = traffic(&found, "flow_agent_traffic", &labels);
        assert_eq!(all, *expected, "{direction} {protocol}");
        let interface = format!("interface=\"{}\"", lab.agent.interface);
        let labels = [labels[0], labels[1], &*interface];
        let here = traffic(&found, "flow_agent_interface", &labels);
        assert_eq!(here, *expected, "{direction} {protocol}");
    }
    let flows = traffic(&found, "flow_agent_traffic", &[]);
    assert_eq!(flows, expected.values().copied().sum());
    assert_eq!(flows, traffic(&found, "flow_agent_interface", &[]));
    assert_eq!(flows.packets, sum(&found, "flow_agent_flow_packets_total"));
    assert_eq!(flows.bytes, sum(&found, "flow_agent_flow_bytes_total"));
    // The account of each hook closes.
    for (hook, direction) in [("tc_ingress", "ingress"), ("tc_egress", "egress")] {
        let hook = format!("hook=\"{hook}\"");
        let at = |name: &str| traffic(&found, &format!("flow_agent_hook_{name}"), &[&hook]).packets;
        let direction = format!("direction=\"{direction}\"");
        let flows = traffic(&found, "flow_agent_interface", &[&direction]).packets;
        assert_eq!(at("left_out"), 1);
        assert_eq!(
            at("seen"),
            flows + at("left_out") + at("unparsed") + at("lost")
        );
    }
    agent.stop();
}
