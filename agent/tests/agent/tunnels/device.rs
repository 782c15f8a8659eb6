//! A tunnel that the kernel's own device makes, with super-frames.

use agent_common::Pair;
use lab::{
    Lab,
    privilege::is_root_or_skip,
    traffic::{self, IpVersion},
};

use super::{DECAPSULATE, beside, carrier::INNER_V4, sums_of};
use crate::support::{Agent, Report, assert_ip_octets, wait_for_silence, wire::on_the_wire};

/// Puts a VXLAN device over the wire on both hosts, and makes the tunnel's addresses the hosts'.
fn with_vxlan(mut lab: Lab, port: u16) -> Lab {
    let underlay = [lab.agent.ipv4, lab.peer.ipv4].map(|address| address.to_string());
    for (host, local, remote) in [(&mut lab.agent, 0, 1), (&mut lab.peer, 1, 0)] {
        let overlay = INNER_V4[local];
        let interface = host.interface.clone();
        let ip = |words: &str| {
            let words: Vec<&str> = words.split(' ').collect();
            host.namespace.ip(&words).unwrap();
        };
        ip(&format!(
            "link add vxlan0 type vxlan id 42 dstport {port} dev {interface} local {} remote {}",
            underlay[local], underlay[remote]
        ));
        // Otherwise it reports multicast groups by itself.
        host.namespace
            .set_sysctl("net/ipv6/conf/vxlan0/disable_ipv6", "1")
            .unwrap();
        ip(&format!("address add {overlay}/24 dev vxlan0"));
        // Otherwise it asks again for a neighbour that it knows, some seconds after the traffic.
        for time in ["base_reachable_time", "delay_first_probe_time"] {
            let name = format!("net/ipv4/neigh/vxlan0/{time}");
            host.namespace.set_sysctl(&name, "3600").unwrap();
        }
        ip("link set vxlan0 up");
        host.ipv4 = overlay;
    }
    lab
}

/// Sends bulk TCP through the tunnel, from the agent's host and to it.
fn bulk_in_a_tunnel(port: u16, settings: &[&str], check: impl Fn(&Report)) {
    const BYTES: u64 = 10_000_000;
    for is_upload in [true, false] {
        let lab = with_vxlan(Lab::addressed().unwrap(), port);
        lab.agent
            .set_offloads(&["tx", "sg", "gso", "gro"], true)
            .unwrap();
        for segmentation in ["tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation"] {
            lab.agent.set_offloads(&[segmentation], false).unwrap();
        }
        let agent = Agent::start(&lab, settings);
        let before = lab.peer.counters().unwrap();
        let (client, server) = if is_upload {
            (&lab.agent, &lab.peer)
        } else {
            (&lab.peer, &lab.agent)
        };
        traffic::tcp(client, server, IpVersion::V4, 5001, BYTES).unwrap();
        let wire = on_the_wire(wait_for_silence(&lab.peer) - before);
        let report = agent.stop();
        assert_eq!(report.seen(), wire, "upload: {is_upload}");
        assert_eq!(beside(&report, "inexact"), Pair::default());
        let segments = beside(&report, "super_frame_segments");
        assert!(segments.bytes > BYTES / 2, "{segments:?}");
        check(&report);
    }
}

/// Each segment repeats all headers through the inner TCP header.
#[test]
fn super_frames_in_a_tunnel_equal_the_wire() {
    if !is_root_or_skip("agent::super_frames_in_a_tunnel_equal_the_wire") {
        return;
    }
    bulk_in_a_tunnel(4789, DECAPSULATE, |report| {
        let sums = sums_of(report);
        let carried = sums
            .iter()
            .find(|(flow, _)| flow.contains(" 5001 | vxlan 42 | "))
            .map(|(_, [forward, _])| *forward);
        assert!(carried.unwrap().bytes > 10_000_000, "{sums:?}");
        // Of each segment's packet inside, behind Ethernet, IPv4, UDP, VXLAN and Ethernet again.
        let inside = report.flows.iter();
        for flow in inside.filter(|flow| flow["encapsulation"] == "vxlan") {
            assert_ip_octets(flow, 14 + 20 + 8 + 8 + 14);
        }
    });
}

/// The kernel says how it cuts the skb, not the port.
#[test]
fn super_frames_in_a_tunnel_that_is_not_opened_equal_the_wire() {
    if !is_root_or_skip("agent::super_frames_in_a_tunnel_that_is_not_opened_equal_the_wire") {
        return;
    }
    for (port, settings) in [(4789, &[][..]), (4788, &[]), (4788, DECAPSULATE)] {
        bulk_in_a_tunnel(port, settings, |report| {
            let sums = report.sums();
            assert!(sums.keys().all(|flow| flow.contains(" 17 ")), "{sums:?}");
            for flow in &report.flows {
                assert_ip_octets(flow, 14);
            }
        });
    }
}
