//! Rules that name interfaces, on an agent with several.

use std::collections::BTreeMap;

use agent_common::Pair;
use lab::{Counters, FrameSocket, Lab, privilege::is_root_or_skip};

use crate::support::{Agent, Both, GENERIC_XDP, count, name, pair, wait_until};

/// The laboratory's own wire and three more.
const WIRES: [&str; 4] = ["agent0", "left0", "middle0", "right0"];
const PORTS: [u16; 5] = [1, 2, 3, 4, 5];

const RULES: &str = "
    include on left0 dst port 1
    exclude dst port 1 on left*
    exclude dst port 1 on *t0 egress
    exclude on middle0,right0 ingress dst port 2
    exclude on middle0 dst port 3
    include on right0
    exclude dst port 4
";

/// The packets that pass the rules on each wire: the ports of arriving and of leaving ones.
const LEFT: [(&[u16], &[u16]); 4] = [
    (&[1, 2, 3, 5], &[2, 3, 5]),
    (&[1, 2, 3, 5], &[1, 2, 3, 5]),
    (&[1, 5], &[1, 2, 5]),
    (&[1, 3, 4, 5], &[2, 3, 4, 5]),
];

fn with_wires() -> Lab {
    let lab = Lab::quiet().unwrap();
    for wire in &WIRES[1..] {
        let far = format!("{wire}-far");
        let add = ["link", "add", wire, "type", "veth", "peer", "name", &far];
        let (near, peer) = (&lab.agent.namespace, &lab.peer.namespace);
        near.ip(&[&add[..], &["netns", peer.name()]].concat())
            .unwrap();
        for (namespace, end) in [(near, *wire), (peer, &far)] {
            let set = ["link", "set", end, "addrgenmode", "none", "arp", "off"];
            namespace.ip(&[&set[..], &["up"]].concat()).unwrap();
        }
    }
    lab
}

fn an_interfaces_rules_are_its_own(settings: &[&str], is_egress: bool) {
    let lab = with_wires();
    let rules: Vec<&str> = RULES.lines().map(str::trim).collect();
    let rules = rules.join(";");
    let mut all = vec!["--filter", rules.trim_matches(';')];
    all.extend(settings);
    let agent = Agent::start_on(&lab.agent, &WIRES.join(","), &all);

    let (mut left_out, mut in_all) = (Pair::default(), Pair::default());
    let mut expected = Vec::new();
    for (wire, (ingress, egress)) in WIRES.iter().zip(LEFT) {
        let near = Counters::read(&lab.agent.namespace, wire).unwrap();
        let far = if *wire == lab.agent.interface {
            lab.peer.interface.clone()
        } else {
            format!("{wire}-far")
        };
        let (from, to, namespace, end, left) = if is_egress {
            let namespace = &lab.agent.namespace;
            (&lab.agent, &lab.peer, namespace, *wire, egress)
        } else {
            let namespace = &lab.peer.namespace;
            (&lab.peer, &lab.agent, namespace, far.as_str(), ingress)
        };
        let mut frames = Vec::new();
        let mut flows = BTreeMap::<String, Both>::new();
        for (copies, port) in (1..).zip(PORTS) {
            let frame = from.frame_v4(to).udp(9, port, &[0; 40]).unwrap();
            let packets = count(copies, &frame);
            in_all += packets;
            if left.contains(&port) {
                let ends = [from.ipv4.to_string(), to.ipv4.to_string()];
                let flow = name("[]", 17, (&ends[0], 9), (&ends[1], port.into()));
                flows.insert(flow, [packets, Pair::default()]);
            } else {
                left_out += packets;
            }
            frames.extend((0..copies).map(|_| frame.clone()));
        }
        expected.push(flows);
        let socket = FrameSocket::new(namespace, end).unwrap();
        socket.send_many(&frames).unwrap();
        wait_until("the frames are through", || {
            let growth = Counters::read(&lab.agent.namespace, wire).unwrap() - near;
            growth.rx_packets + growth.tx_packets == frames.len() as u64
        });
    }
    let report = agent.stop();
    for (wire, flows) in WIRES.iter().zip(expected) {
        assert_eq!(report.sums_on(wire), flows, "{wire}");
    }
    assert_eq!(pair(&report.last()["filtered"]), left_out);
    assert_eq!(report.seen(), in_all);
}

#[test]
fn an_interfaces_rules_are_its_own_over_tc_ingress() {
    if is_root_or_skip("agent::an_interfaces_rules_are_its_own_over_tc_ingress") {
        an_interfaces_rules_are_its_own(&[], false);
    }
}

#[test]
fn an_interfaces_rules_are_its_own_over_tc_egress() {
    if is_root_or_skip("agent::an_interfaces_rules_are_its_own_over_tc_egress") {
        an_interfaces_rules_are_its_own(&[], true);
    }
}

#[test]
fn an_interfaces_rules_are_its_own_over_generic_xdp() {
    if is_root_or_skip("agent::an_interfaces_rules_are_its_own_over_generic_xdp") {
        an_interfaces_rules_are_its_own(GENERIC_XDP, false);
    }
}
