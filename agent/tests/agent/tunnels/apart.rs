//! How tunnels without a number are told apart, and the fields of records for the headers around a tunnel.

use std::{collections::BTreeMap, net::Ipv4Addr};

use agent_common::Pair;
use lab::{Frame, Host, Lab, privilege::is_root_or_skip};
use serde_json::json;

use super::{
    DECAPSULATE,
    carrier::{INNER_V4, inner, said},
    said_by,
};
use crate::support::{
    Agent, Report, count,
    hook::{Hook, report_of},
};

/// The flows and the headers around their tunnels in records, with the packets of each direction.
fn flows(report: &Report) -> BTreeMap<String, [u64; 2]> {
    let mut flows = BTreeMap::<String, [u64; 2]>::new();
    for line in &report.flows {
        let around = around(&line["outer_vlan_ids"], &line["outer_pppoe_session"]);
        let [forward, reverse] = flows.entry(said_by(line) + &around).or_default();
        *forward += line["packets"].as_u64().unwrap();
        *reverse += line["reverse_packets"].as_u64().unwrap();
    }
    flows
}

fn around(vlan_ids: &serde_json::Value, session: &serde_json::Value) -> String {
    format!(" | {vlan_ids} {session}")
}

/// GRE without a key and IP in IP around the same packet.
fn unnumbered(outside: &Frame, packet: &[u8]) -> [(&'static str, &'static str, Vec<u8>); 2] {
    let gre = [&[0, 0, 8, 0], packet].concat();
    [
        ("gre", "0", outside.ip(47, &gre).unwrap()),
        ("ip_in_ip", "-", outside.ip(4, packet).unwrap()),
    ]
}

fn are_told_apart_by_their_endpoints(hook: Hook) {
    let mut expected = BTreeMap::new();
    let report = report_of(hook, DECAPSULATE, |from, to| {
        let it = inner(1000, true);
        let mut frames = Vec::new();
        for number in 1..=4_u8 {
            let ends =
                [(0, number), (number, 0)].map(|(net, host)| Ipv4Addr::new(192, 0, net, host));
            let outside = from.frame_v4(to).between(ends[0], ends[1]);
            for (name, id, frame) in unnumbered(&outside, &it.bare) {
                let outer = format!("{} > {}", ends[0], ends[1]);
                let flow = said(&it.flow, name, id, &outer) + &around(&json!([]), &json!(null));
                expected.insert(flow, [number.into(), 0]);
                frames.extend((0..number).map(|_| frame.clone()));
            }
        }
        from.frame_socket().unwrap().send_many(&frames).unwrap() as u64
    });
    assert_eq!(flows(&report), expected);
}

#[test]
fn tunnels_without_a_number_are_told_apart_by_their_endpoints_over_tc() {
    if is_root_or_skip("agent::tunnels_without_a_number_are_told_apart_by_their_endpoints_over_tc")
    {
        are_told_apart_by_their_endpoints(Hook::TcIngress);
    }
}

#[test]
fn tunnels_without_a_number_are_told_apart_by_their_endpoints_over_xdp() {
    if is_root_or_skip("agent::tunnels_without_a_number_are_told_apart_by_their_endpoints_over_xdp")
    {
        are_told_apart_by_their_endpoints(Hook::NativeXdp);
    }
}

/// Must hold whichever end of the tunnel has the lower address.
#[test]
fn both_directions_of_a_tunnel_without_a_number_are_one_flow() {
    if !is_root_or_skip("agent::both_directions_of_a_tunnel_without_a_number_are_one_flow") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, DECAPSULATE);
    let between = |src: usize, dst: usize| Frame::bare(INNER_V4[src], INNER_V4[dst]);
    let there = between(0, 1).udp(1000, 53, &[0; 40]).unwrap();
    let back = between(1, 0).udp(53, 1000, &[0; 99]).unwrap();
    let mut expected = BTreeMap::new();
    for ends in [
        [[192, 0, 2, 1], [192, 0, 2, 9]],
        [[192, 0, 2, 9], [192, 0, 2, 5]],
    ] {
        let [src, dst] = ends.map(Ipv4Addr::from);
        let outside = lab.peer.frame_v4(&lab.agent).between(src, dst);
        let home = lab.agent.frame_v4(&lab.peer).between(dst, src);
        for ((name, id, out), (_, _, home)) in unnumbered(&outside, &there)
            .into_iter()
            .zip(unnumbered(&home, &back))
        {
            lab.peer.frame_socket().unwrap().send(&out).unwrap();
            lab.agent.frame_socket().unwrap().send(&home).unwrap();
            let flow = said(&inner(1000, true).flow, name, id, &format!("{src} > {dst}"));
            expected.insert(flow + &around(&json!([]), &json!(null)), [1, 1]);
        }
    }
    assert_eq!(flows(&agent.stop()), expected);
}

/// The frame that carries `packet` in a PPPoE session.
fn in_a_session(outside: &Frame, session: u16, packet: &[u8]) -> Vec<u8> {
    let len = (packet.len() as u16 + 2).to_be_bytes();
    let header = [&[0x11, 0][..], &session.to_be_bytes(), &len, &[0, 0x21]].concat();
    outside
        .ether_type(0x8864, &[&header, packet].concat())
        .unwrap()
}

/// Frames with what records must say about their flows.
fn around_tunnels(from: &Host, to: &Host) -> Vec<(Vec<u8>, String)> {
    let it = inner(1000, true);
    let [src, dst] = [from.ipv4, to.ipv4];
    let outer = format!("{src} > {dst}");
    let frame = from.frame_v4(to);
    let mut frames = Vec::new();
    let mut add = |frame: Vec<u8>, flow: &str, within: [&str; 2], vlan_ids, session| {
        let said = said(flow, within[0], within[1], &outer);
        frames.push((frame, said + &around(&vlan_ids, &session)));
    };
    let vxlan = |id: u8, inside: &[u8]| [&[8, 0, 0, 0, 0, 0, id, 0], inside].concat();
    // Tags inside and outside of the tunnel.
    let tagged = [&it.ethernet[..12], &[0x81, 0, 0, 55], &it.ethernet[12..]].concat();
    let inside = it.flow.replacen("[]", "[55]", 1);
    let out = frame
        .clone()
        .qinq(7, 8)
        .udp(40_000, 4789, &vxlan(1, &tagged));
    add(
        out.unwrap(),
        &inside,
        ["vxlan", "1"],
        json!([7, 8]),
        json!(null),
    );
    let bare = Frame::bare(src, dst)
        .udp(40_000, 4789, &vxlan(2, &it.ethernet))
        .unwrap();
    let out = in_a_session(&frame.clone().vlan(9), 2571, &bare);
    add(out, &it.flow, ["vxlan", "2"], json!([9]), json!(2571));
    let out = in_a_session(&frame, 0, &bare);
    add(
        out,
        &inner(1000, true).flow,
        ["vxlan", "2"],
        json!([]),
        json!(0),
    );
    // A tunnel in a tunnel: the tags are the outermost packet's, the endpoints the inner tunnel's.
    let middle = Frame::bare(src, dst)
        .ip(4, &inner(1001, true).bare)
        .unwrap();
    let out = frame
        .clone()
        .vlan(7)
        .between(Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
    let out = out.ip(4, &middle).unwrap();
    add(
        out,
        &inner(1001, true).flow,
        ["ip_in_ip", "-"],
        json!([7]),
        json!(null),
    );
    // Tunnels without a number are told apart by their tags, too.
    for id in [7, 8] {
        let out = frame.clone().vlan(id).ip(4, &it.bare).unwrap();
        add(out, &it.flow, ["ip_in_ip", "-"], json!([id]), json!(null));
    }
    frames
}

#[test]
fn tags_and_session_around_a_tunnel_stay_in_the_record() {
    if !is_root_or_skip("agent::tags_and_session_around_a_tunnel_stay_in_the_record") {
        return;
    }
    let mut expected = BTreeMap::<String, [u64; 2]>::new();
    let mut sent = Pair::default();
    let report = report_of(Hook::TcIngress, DECAPSULATE, |from, to| {
        // The same tunnel through another session is the same flow, which keeps the session it began with.
        let frames = around_tunnels(from, to);
        let first = frames[1].1.clone();
        for (frame, flow) in &frames {
            let flow = if flow.contains("vxlan 2") {
                &first
            } else {
                flow
            };
            expected.entry(flow.clone()).or_default()[0] += 1;
            sent += count(1, frame);
        }
        let frames = frames.iter().map(|(frame, _)| frame);
        from.frame_socket().unwrap().send_many(frames).unwrap() as u64
    });
    assert_eq!(flows(&report), expected);
    assert_eq!(report.seen(), sent);
}
