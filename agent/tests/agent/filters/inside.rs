//! Rules and tunnels: if tunnels are opened, rules apply to the inner packet, otherwise to the outer one.

use std::{collections::BTreeMap, net::Ipv4Addr};

use agent_common::Pair;
use lab::{Frame, privilege::is_root_or_skip};

use crate::support::{
    Both, count,
    hook::{Hook, report_of},
    name, pair,
};

const RULES: &str = "exclude src net 10.9.1.0/24; exclude dst port 53; exclude proto ipip";
const IP_IN_IP: u8 = 4;
const VXLAN_PORT: u16 = 4789;
const VXLAN_HEADER: [u8; 8] = [8, 0, 0, 0, 0, 0, 42, 0];
const MACS: [[u8; 6]; 2] = [[0x0a, 0, 0, 0, 0, 1], [0x0a, 0, 0, 0, 0, 2]];
const DST: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 9);

/// Inside a tunnel: the sender, the receiver's port, and whether the rules leave it out.
const INSIDE: [([u8; 4], u16, bool); 5] = [
    ([10, 9, 1, 1], 80, true),
    ([10, 9, 2, 1], 53, true),
    ([10, 9, 2, 2], 80, false),
    ([10, 9, 2, 3], VXLAN_PORT, false),
    ([10, 77, 0, 1], 54, false),
];

fn rules_are_held_against_the_packet(hook: Hook, is_opened: bool) {
    let mut settings = vec!["--filter", RULES];
    if is_opened {
        settings.push("--decapsulate");
    }
    let mut expected = BTreeMap::<String, Both>::new();
    let mut left_out = Pair::default();
    let report = report_of(hook, &settings, |from, to| {
        let outer = from.frame_v4(to);
        let outer_flow = name(
            "[]",
            17,
            (&from.ipv4.to_string(), 40_000),
            (&to.ipv4.to_string(), VXLAN_PORT.into()),
        );
        let mut frames = Vec::new();
        // Each is sent as often as its position.
        for (copies, (src, dst_port, is_excluded)) in (1..).zip(INSIDE) {
            let src = Ipv4Addr::from(src);
            let inside = |src_port| {
                let ends = (src.to_string(), DST.to_string());
                let flow = name("[]", 17, (&ends.0, src_port), (&ends.1, dst_port.into()));
                (!is_excluded).then_some(flow)
            };
            let ethernet = Frame::ethernet(MACS[0], MACS[1], src, DST);
            let ethernet = ethernet.udp(1000, dst_port, &[0; 40]).unwrap();
            let vxlan = [&VXLAN_HEADER[..], &ethernet].concat();
            let vxlan = outer.udp(40_000, VXLAN_PORT, &vxlan).unwrap();
            let bare = Frame::bare(src, DST).udp(1001, dst_port, &[0; 40]);
            let ip_in_ip = outer.ip(IP_IN_IP, &bare.unwrap()).unwrap();
            let flows = if is_opened {
                [inside(1000), inside(1001)]
            } else {
                [Some(outer_flow.clone()), None]
            };
            for (frame, flow) in [vxlan, ip_in_ip].into_iter().zip(flows) {
                match flow {
                    Some(flow) => expected.entry(flow).or_default()[0] += count(copies, &frame),
                    None => left_out += count(copies, &frame),
                }
                frames.extend((0..copies).map(|_| frame.clone()));
            }
        }
        from.frame_socket().unwrap().send_many(&frames).unwrap() as u64
    });
    assert_eq!(report.sums(), expected);
    assert_eq!(pair(&report.last()["filtered"]), left_out);
}

#[test]
fn rules_are_held_against_what_an_open_tunnel_carries_over_tc_ingress() {
    if is_root_or_skip("agent::rules_are_held_against_what_an_open_tunnel_carries_over_tc_ingress")
    {
        rules_are_held_against_the_packet(Hook::TcIngress, true);
    }
}

#[test]
fn rules_are_held_against_what_an_open_tunnel_carries_over_tc_egress() {
    if is_root_or_skip("agent::rules_are_held_against_what_an_open_tunnel_carries_over_tc_egress") {
        rules_are_held_against_the_packet(Hook::TcEgress, true);
    }
}

#[test]
fn rules_are_held_against_what_an_open_tunnel_carries_over_native_xdp() {
    if is_root_or_skip("agent::rules_are_held_against_what_an_open_tunnel_carries_over_native_xdp")
    {
        rules_are_held_against_the_packet(Hook::NativeXdp, true);
    }
}

#[test]
fn rules_are_held_against_a_tunnel_that_stays_closed() {
    if is_root_or_skip("agent::rules_are_held_against_a_tunnel_that_stays_closed") {
        rules_are_held_against_the_packet(Hook::TcIngress, false);
    }
}
