//! Cases where XDP would count wrong: the agent must count at TC, or its account must say so.

use std::{collections::BTreeMap, net::Ipv4Addr};

use agent_common::Pair;
use lab::{
    Extension, Frame, FrameSocket, Host, Lab, Tun, kernel,
    privilege::{is_root_or_skip, skip},
    traffic::{self, IpVersion},
};
use serde_json::Value;

use crate::support::{
    Agent, Both, GENERIC_XDP, NATIVE_XDP, Report, as_the_service,
    attached::{Attached, LongFrames, TCX_INGRESS, tag_beside, tag_beside_on},
    count, name, pair, wait_for_packets, wait_for_silence, wait_until,
};

const ACK: u8 = 0x10;

fn beside(report: &Report, fact: &str) -> Pair {
    report.last()["beside"]
        .get(fact)
        .map(pair)
        .unwrap_or_default()
}

/// Generic XDP cannot tell a super-frame from a frame, so each may be more than was counted.
#[test]
fn all_that_generic_xdp_counts_is_inexact() {
    if !is_root_or_skip("agent::all_that_generic_xdp_counts_is_inexact") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    // With these the veth passes super-frames on whole.
    lab.peer.set_offloads(&["tx", "sg", "tso"], true).unwrap();
    let agent = Agent::start(&lab, GENERIC_XDP);
    let log = agent.stderr();
    for part in ["one frame", "without their Ethernet header"] {
        assert!(log.contains(part), "{part}: {log}");
    }
    let before = lab.agent.counters().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    let frame = frame.tcp(1, 80, ACK, &[0; 10_000]).unwrap();
    let socket = lab.peer.super_frame_socket().unwrap();
    for _ in 0..100 {
        socket.send(&frame, 1000).unwrap();
    }
    let counted = wait_for_silence(&lab.agent) - before;
    let report = agent.stop();
    // Not one in ten of the frames.
    assert_eq!(report.seen().packets, 100);
    assert_eq!(report.seen().packets, counted.rx_packets);
    assert_eq!(beside(&report, "inexact"), report.seen());
}

/// Their IP header cannot express their length, but they must be in their flow.
#[test]
fn big_tcp_at_generic_xdp_is_in_its_flow() {
    /// The longest frame whose IPv6 header says how long it is.
    const LONGEST_SAID: u64 = 14 + 40 + 65_535;
    if !is_root_or_skip("agent::big_tcp_at_generic_xdp_is_in_its_flow") {
        return;
    }
    if !kernel::is_at_least(6, 3) {
        skip(
            "agent::big_tcp_at_generic_xdp_is_in_its_flow",
            "a veth has BIG TCP from 6.3",
        );
        return;
    }
    let lab = Lab::addressed().unwrap();
    for host in [&lab.agent, &lab.peer] {
        host.set_offloads(&["tx", "sg", "tso"], true).unwrap();
        let set = ["link", "set", "dev", &host.interface];
        let limits = ["gso_max_size", "180000", "gro_max_size", "180000"];
        host.namespace.ip(&[&set[..], &limits].concat()).unwrap();
    }
    let agent = Agent::start(&lab, GENERIC_XDP);
    // A sender that gets little of the CPU sends shorter frames, which would test nothing.
    let has_sent_longer = (5001..5051).any(|port| {
        let before = lab.agent.counters().unwrap();
        traffic::tcp(&lab.peer, &lab.agent, IpVersion::V6, port, 20_000_000).unwrap();
        let received = wait_for_silence(&lab.agent) - before;
        received.rx_bytes > LONGEST_SAID * received.rx_packets
    });
    assert!(has_sent_longer, "no transfer had frames without a length");
    let report = agent.stop();
    let flows: Pair = report.sums().into_values().flatten().sum();
    assert_eq!(flows, report.seen());
}

/// The driver passes them to generic XDP, where each is one frame.
#[test]
fn super_frames_of_a_virtual_machine_are_counted_at_tc() {
    if !is_root_or_skip("agent::super_frames_of_a_virtual_machine_are_counted_at_tc") {
        return;
    }
    for mode in ["auto", "native"] {
        let lab = Lab::quiet().unwrap();
        let tap = Tun::tap(&lab.agent.namespace, "tap0").unwrap();
        let settings = ["--ingress-hook", "xdp", "--xdp-mode", mode];
        let agent = Agent::start_on(&lab.agent, "tap0", &settings);
        let hook = &agent.status(&lab.agent)["hooks"][0];
        assert_eq!(hook["hook"], "tc_ingress", "{mode}");
        assert_eq!(hook["instead_of_xdp"], "super_frames", "{mode}");
        let frame = lab.peer.frame_v4(&lab.agent);
        let super_frame = frame.tcp(1, 80, ACK, &[0; 10_000]).unwrap();
        for _ in 0..100 {
            tap.send_super_frame(&super_frame, 1000).unwrap();
        }
        let report = agent.stop();
        let segment = frame.tcp(1, 80, ACK, &[0; 1000]).unwrap();
        assert_eq!(report.seen(), count(1000, &segment));
        assert_eq!(beside(&report, "inexact"), Pair::default());
    }
}

const TAG_LEN: u64 = 4;

/// Lets fifty frames of each of two VLANs arrive with their tags beside them. Returns a frame without the
/// tag.
fn send_two_vlans(lab: &Lab) -> Vec<u8> {
    lab.peer.set_offloads(&["txvlan"], true).unwrap();
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 50]).unwrap();
    let before = lab.agent.counters().unwrap();
    for vlan_id in [10, 20] {
        let (socket, _tagger) = tagged_socket(&lab.peer, &lab.peer.interface, vlan_id);
        socket.send_many((0..50).map(|_| &frame)).unwrap();
    }
    wait_for_packets(&lab.agent, before, 100);
    frame
}

/// Sends frames that leave an interface of the host with a tag beside them, until both values are dropped. A VLAN device
/// puts it there where the kernel has no TCX for a program that does.
fn tagged_socket(host: &Host, interface: &str, vlan_id: u16) -> (FrameSocket, Option<Attached>) {
    let namespace = &host.namespace;
    if kernel::has_tcx() {
        let tagger = tag_beside_on(host, namespace.ifindex(interface).unwrap(), vlan_id);
        return (
            FrameSocket::new(namespace, interface).unwrap(),
            Some(tagger),
        );
    }
    let (device, id) = (format!("vlan{vlan_id}"), vlan_id.to_string());
    let add = ["link", "add", "link", interface, "name", &device];
    let kind = ["up", "type", "vlan", "id", &id];
    namespace.ip(&[&add[..], &kind].concat()).unwrap();
    (FrameSocket::new(namespace, &device).unwrap(), None)
}

/// The expected counts, if the tags are known.
fn two_vlans(lab: &Lab, frame: &[u8]) -> BTreeMap<String, Both> {
    let fifty = Pair {
        packets: 50,
        bytes: 50 * (frame.len() as u64 + TAG_LEN),
    };
    let of_vlan = |vlans| (flow_of(lab, vlans), [fifty, Pair::default()]);
    ["[10]", "[20]"].map(of_vlan).into()
}

fn flow_of(lab: &Lab, vlans: &str) -> String {
    let [from, to] = [&lab.peer, &lab.agent].map(|host: &Host| host.ipv4.to_string());
    name(vlans, 17, (&from, 1), (&to, 2))
}

#[test]
fn vlans_whose_tags_are_hidden_from_xdp_are_counted_at_tc() {
    if !is_root_or_skip("agent::vlans_whose_tags_are_hidden_from_xdp_are_counted_at_tc") {
        return;
    }
    // No driver tells them to generic XDP.
    let modes = if drivers_tell_tags() {
        &["generic"][..]
    } else {
        &["auto", "native", "generic"]
    };
    for &mode in modes {
        let lab = Lab::quiet().unwrap();
        let agent = Agent::start(&lab, &["--ingress-hook", "xdp", "--xdp-mode", mode]);
        let hook = &agent.status(&lab.agent)["hooks"][0];
        assert_eq!(hook["hook"], "tc_ingress", "{mode}");
        assert_eq!(hook["instead_of_xdp"], "hidden_tags", "{mode}");
        assert!(agent.stderr().contains("counting at TC and not at XDP"));
        let frame = send_two_vlans(&lab);
        let report = agent.stop();
        assert_eq!(report.sums(), two_vlans(&lab, &frame), "{mode}");
        assert_eq!(beside(&report, "tags_unknown"), Pair::default());
    }
}

/// `bpf_xdp_metadata_rx_vlan_tag`, which veth has from the start.
fn drivers_tell_tags() -> bool {
    kernel::is_at_least(6, 8)
}

fn drivers_tell_tags_or_skip(test: &str) -> bool {
    let tell = drivers_tell_tags();
    if !tell {
        skip(test, "drivers tell XDP the tags from 6.8");
    }
    tell && is_root_or_skip(test)
}

/// With the capabilities that the service has.
#[test]
fn vlans_whose_tags_the_driver_tells_are_counted_at_xdp() {
    if !drivers_tell_tags_or_skip("agent::vlans_whose_tags_the_driver_tells_are_counted_at_xdp") {
        return;
    }
    for mode in ["auto", "native"] {
        let lab = Lab::quiet().unwrap();
        let settings = ["--ingress-hook", "xdp", "--xdp-mode", mode];
        let agent = Agent::start_by(as_the_service(&lab.agent), &lab.agent.interface, &settings);
        let hook = &agent.status(&lab.agent)["hooks"][0];
        assert_eq!(hook["hook"], "xdp", "{mode}: {}", agent.stderr());
        assert_eq!(hook["mode"], "native", "{mode}");
        let frame = send_two_vlans(&lab);
        let report = agent.stop();
        assert_eq!(report.sums(), two_vlans(&lab, &frame), "{mode}");
        let tags = Pair {
            packets: 100,
            bytes: 100 * TAG_LEN,
        };
        assert_eq!(beside(&report, "offloaded_tags"), tags);
        assert_eq!(beside(&report, "tags_unknown"), Pair::default());
        assert_eq!(report.last()["seen"], report.last()["flows"]);
    }
}

/// The driver takes out one tag of two, headers are read slowly behind it, and it changes its mind.
#[test]
fn what_the_driver_tells_goes_before_what_the_frame_has() {
    if !drivers_tell_tags_or_skip("agent::what_the_driver_tells_goes_before_what_the_frame_has") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    lab.peer.set_offloads(&["txvlan"], true).unwrap();
    let agent = Agent::start(&lab, &["--ingress-hook", "xdp"]);
    assert_eq!(agent.status(&lab.agent)["hooks"][0]["hook"], "xdp");
    let behind = LongFrames::at(&lab.agent, TCX_INGRESS, 0);
    let socket = lab.peer.frame_socket().unwrap();
    let v4 = lab.peer.frame_v4(&lab.agent);
    let v6 = lab.peer.frame_v6(&lab.agent);
    let plain = v4.clone().udp(1, 2, &[0; 50]).unwrap();
    let inner = v4.clone().vlan(7).udp(1, 2, &[0; 50]).unwrap();
    let slow = v6
        .extension(Extension::HopByHop { length_bytes: 8 })
        .udp(1, 2, &[0; 50])
        .unwrap();
    let before = lab.agent.counters().unwrap();
    {
        let _tagger = tag_beside(&lab.peer, 10);
        for frame in [&plain, &inner, &slow] {
            socket.send_many((0..20).map(|_| frame)).unwrap();
        }
    }
    // Untagged, and then with the tag in the frame.
    socket.send_many((0..5).map(|_| &plain)).unwrap();
    wait_for_packets(&lab.agent, before, 65);
    lab.peer.set_offloads(&["txvlan"], false).unwrap();
    let tagged = v4.vlan(10).udp(1, 2, &[0; 50]).unwrap();
    socket.send_many((0..20).map(|_| &tagged)).unwrap();
    wait_for_packets(&lab.agent, before, 85);
    let report = agent.stop();
    // The kernel has handed them on long since.
    assert_eq!(behind.so_far(), 85);

    let [from, to] = [&lab.peer, &lab.agent].map(|host: &Host| host.ipv6.to_string());
    let with_tag = |packets: u64, frame: &[u8]| Pair {
        packets,
        bytes: packets * (frame.len() as u64 + TAG_LEN),
    };
    let expected: BTreeMap<String, Both> = [
        (flow_of(&lab, "[10]"), with_tag(40, &plain)),
        (flow_of(&lab, "[10,7]"), with_tag(20, &inner)),
        (name("[10]", 17, (&from, 1), (&to, 2)), with_tag(20, &slow)),
        (flow_of(&lab, "[]"), count(5, &plain)),
    ]
    .map(|(flow, sent)| (flow, [sent, Pair::default()]))
    .into();
    assert_eq!(report.sums(), expected);
}

/// Both are read by steps of their own, behind a tag that is not in the frame.
#[test]
fn tunnels_and_fragments_with_a_tag_of_the_driver_are_told_apart() {
    const IP_IN_IP: u8 = 4;
    const UDP: u8 = 17;
    if !drivers_tell_tags_or_skip(
        "agent::tunnels_and_fragments_with_a_tag_of_the_driver_are_told_apart",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    lab.peer.set_offloads(&["txvlan"], true).unwrap();
    let agent = Agent::start(&lab, &["--ingress-hook", "xdp", "--decapsulate"]);
    assert_eq!(agent.status(&lab.agent)["hooks"][0]["hook"], "xdp");
    let v4 = lab.peer.frame_v4(&lab.agent);
    let [from, to] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
    let inner = Frame::bare(from, to).udp(3, 4, &[0; 50]).unwrap();
    let tunnel = v4.clone().ip(IP_IN_IP, &inner).unwrap();
    let first = v4.clone().fragment(7, 0, true).udp(1, 2, &[0; 72]).unwrap();
    let later = v4.fragment(7, 80, false).ip(UDP, &[0; 40]).unwrap();
    let before = lab.agent.counters().unwrap();
    let _tagger = tag_beside(&lab.peer, 10);
    let socket = lab.peer.frame_socket().unwrap();
    socket.send_many((0..20).map(|_| &tunnel)).unwrap();
    for fragment in [&first, &later] {
        socket.send(fragment).unwrap();
    }
    wait_for_packets(&lab.agent, before, 22);
    let report = agent.stop();
    let with_tag = |packets: u64, frame: &[u8]| Pair {
        packets,
        bytes: packets * (frame.len() as u64 + TAG_LEN),
    };
    let carried = name("[]", 17, (&from.to_string(), 3), (&to.to_string(), 4));
    let whole = with_tag(1, &first) + with_tag(1, &later);
    let expected: BTreeMap<String, Both> = [
        (carried, with_tag(20, &tunnel)),
        (flow_of(&lab, "[10]"), whole),
    ]
    .map(|(flow, sent)| (flow, [sent, Pair::default()]))
    .into();
    assert_eq!(report.sums(), expected);
    let tunnels = report.flows.iter().filter(|flow| flow["src_port"] == 3);
    for flow in tunnels {
        assert_eq!(flow["outer_vlan_ids"], serde_json::json!([10]), "{flow}");
    }
}

/// Each set of programs has its own table of interfaces, and all count in one table.
#[test]
fn drivers_are_asked_in_two_network_namespaces() {
    if !drivers_tell_tags_or_skip("agent::drivers_are_asked_in_two_network_namespaces") {
        return;
    }
    let labs = [Lab::quiet().unwrap(), Lab::quiet().unwrap()];
    let other = labs[1].agent.namespace.path();
    let other = other.to_str().unwrap();
    let settings = ["--ingress-hook", "xdp", "--netns", "self", "--netns", other];
    let agent = Agent::start(&labs[0], &settings);
    let hooks = agent.status(&labs[0].agent)["hooks"].clone();
    let at_xdp = hooks.as_array().unwrap().iter();
    assert_eq!(
        at_xdp.filter(|hook| hook["hook"] == "xdp").count(),
        2,
        "{hooks}"
    );
    let mut expected = BTreeMap::new();
    for lab in &labs {
        let frame = send_two_vlans(lab);
        // Both labs have the same addresses.
        for (flow, [sent, answers]) in two_vlans(lab, &frame) {
            let sum: &mut Both = expected.entry(flow).or_default();
            sum[0] += sent;
            sum[1] += answers;
        }
    }
    let report = agent.stop();
    assert_eq!(report.sums(), expected);
    assert_eq!(beside(&report, "tags_unknown"), Pair::default());
}

/// Each is loaded for one interface, and would stay for ever.
#[test]
fn a_program_that_asks_a_driver_is_gone_with_its_interface() {
    if !drivers_tell_tags_or_skip("agent::a_program_that_asks_a_driver_is_gone_with_its_interface")
    {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let namespace = &lab.agent.namespace;
    let mut agent = Agent::start_on(&lab.agent, "own*", &["--ingress-hook", "xdp"]);
    let before = agent.programs();
    for round in 0..3 {
        namespace.add_wire(["own0", "own1"]).unwrap();
        wait_until("both have programs of their own", || {
            agent.programs() == before + 2
        });
        let wires = ["own0", "own1"].map(|name| namespace.ifindex(name).unwrap());
        wait_until("both are counted at XDP", || {
            let hooks = agent.status(&lab.agent)["hooks"].clone();
            let here = |hook: &&Value| {
                let ifindex = &hook["interface"]["ifindex"];
                hook["hook"] == "xdp" && wires.iter().any(|wire| ifindex == wire)
            };
            hooks.as_array().unwrap().iter().filter(here).count() == 2
        });
        assert_eq!(agent.programs(), before + 2, "{round}");
        namespace.ip(&["link", "del", "own0"]).unwrap();
        wait_until("both are let go of", || agent.programs() == before);
    }
    agent.stop();
}

#[test]
fn who_insists_on_xdp_without_tags_is_told_of_every_packet() {
    if !is_root_or_skip("agent::who_insists_on_xdp_without_tags_is_told_of_every_packet") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, NATIVE_XDP);
    assert!(agent.stderr().contains("tags_unknown"));
    let frame = send_two_vlans(&lab);
    let report = agent.stop();
    let all = count(100, &frame);
    let merged = (flow_of(&lab, "[]"), [all, Pair::default()]);
    assert_eq!(report.sums(), BTreeMap::from([merged]));
    assert_eq!(beside(&report, "tags_unknown"), all);
}

#[test]
fn an_offload_that_is_switched_on_under_xdp_marks_the_account() {
    if !is_root_or_skip("agent::an_offload_that_is_switched_on_under_xdp_marks_the_account") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let namespace = &lab.agent.namespace;
    // Both ends are in one namespace, so that the agent can ask about the other end.
    namespace.add_wire(["own0", "own1"]).unwrap();
    let switch = |state: &str| {
        let mut ethtool = lab.agent.command("ethtool");
        ethtool.args([
            "-K",
            "own1",
            "txvlan",
            state,
            "tx-vlan-stag-hw-insert",
            state,
        ]);
        assert!(ethtool.status().unwrap().success());
    };
    switch("off");
    let settings = ["--ingress-hook", "xdp", "--xdp-mode", "native"];
    let agent = Agent::start_on(&lab.agent, "own0", &settings);
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 50]).unwrap();
    let (socket, _tagger) = tagged_socket(&lab.agent, "own1", 10);
    let status = || agent.status(&lab.agent)["hooks"][0].clone();
    assert_eq!(status()["mode"], "native");
    socket.send_many((0..10).map(|_| &frame)).unwrap();
    let tagged = |packets: u64| Pair {
        packets,
        bytes: packets * (frame.len() as u64 + TAG_LEN),
    };
    wait_until("they are counted with their tags", || {
        pair(&status()["account"]["seen"]) == tagged(10)
    });
    assert_eq!(
        pair(&status()["account"]["beside"]["tags_unknown"]),
        tagged(0)
    );

    switch("on");
    wait_until("the agent warns", || {
        agent.stderr().contains("tags_unknown")
    });
    socket.send_many((0..20).map(|_| &frame)).unwrap();
    wait_until("they are counted", || {
        pair(&status()["account"]["seen"]).packets == 30
    });
    // Only this hook reports it. The one at TC sees the tags.
    assert_eq!(agent.stderr().matches("tags_unknown").count(), 1);
    let report = agent.stop();
    assert_eq!(beside(&report, "tags_unknown"), count(20, &frame));
}
