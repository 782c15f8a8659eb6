//! PPPoE and MPLS on uplinks, which the agent always looks behind.

use std::collections::BTreeMap;

use agent_common::Pair;
use lab::{Frame, Host, privilege::is_root_or_skip};

use super::{
    carrier::{inner, said},
    sums_of,
};
use crate::support::{
    count,
    hook::{Hook, report_of},
};

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
                let mut payload = [header, ppp, &it.bare].concat();
                if !ppp.is_empty() {
                    let len = (ppp.len() + it.bare.len()) as u16;
                    payload[4..6].copy_from_slice(&len.to_be_bytes());
                }
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
        let pppoe = [0x11, 0, 0x0a, 0x0b, 0, 0];
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
