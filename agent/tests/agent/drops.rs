//! Packets that the kernel drops, by its own reasons.

use std::{
    iter::repeat_n,
    net::{SocketAddr, UdpSocket},
};

use anyhow::Context as _;
use lab::{
    FrameSocket, Host, Lab,
    privilege::{is_root_or_skip, skip},
    traffic::IpVersion,
};
use serde_json::Value;

use crate::{
    devices::device::{Kind, NAME},
    lifecycle::netns::{names, number, start},
    support::{Agent, Report, as_the_service, pair, protocol_counter, wait_until},
};

const DROPS: &[&str] = &["--enrich", "drops"];
/// Flows stay until the agent ends, however long that takes.
const KEPT: &[&str] = &["--idle-timeout", "1h"];
/// Nobody listens there.
const NOWHERE: u16 = 9;

/// A header with a wrong checksum. Drops are counted for the whole host, so other tests may cause some at the same
/// time.
const REASON: &str = "ip_csum";
const SENT: u64 = 977;

#[test]
fn what_the_kernel_drops_is_counted_by_its_reason() {
    const TEST: &str = "agent::what_the_kernel_drops_is_counted_by_its_reason";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let agent = Agent::start_by(as_the_service(&lab.agent), &lab.agent.interface, DROPS);
    let dropped = || {
        let drops = agent.status(&lab.agent)["kernel_drops"].clone();
        let missed = drops["missed"].as_u64().unwrap();
        (
            drops["by_reason"][REASON].as_u64().unwrap_or_default(),
            missed,
        )
    };
    agent.wait_for_scans(&lab.agent, 1);
    let before = dropped();
    let mut frame = lab
        .peer
        .frame_v4(&lab.agent)
        .udp(4000, 4001, b"broken")
        .unwrap();
    // The checksum of the IP header.
    frame[14 + 10] ^= 0xff;
    let socket = lab.peer.frame_socket().unwrap();
    let frames = repeat_n(&frame, SENT as usize);
    assert_eq!(socket.send_many(frames).unwrap() as u64, SENT);
    wait_until("all have arrived", || {
        let flows = agent.status(&lab.agent)["account"]["flows"].clone();
        pair(&flows).packets >= SENT
    });
    // The kernel drops each right after that.
    let are_counted = (0..100).any(|_| {
        agent.wait_for_scans(&lab.agent, 1);
        let (after, missed) = dropped();
        // The kernel may have made another drop while it counted one.
        after - before.0 + (missed - before.1).min(SENT / 10) >= SENT
    });
    assert!(are_counted, "{before:?} {:?}", dropped());
    // Each with its flow, in its direction.
    let drops = agent.status(&lab.agent)["kernel_drops"].clone();
    let [of_flows, missed] = ["of_flows", "missed"].map(|name| drops[name].as_u64().unwrap());
    assert!(of_flows + missed >= SENT, "{drops}");
    let of_no_flow = drops["of_no_flow"].as_object().unwrap();
    assert_eq!(of_no_flow["no_room"], 0, "{drops}");
    let report = agent.stop();
    let last = report
        .flows
        .iter()
        .rfind(|line| line["dst_port"] == 4001)
        .unwrap();
    let dropped = last["total_dropped_packets"].as_u64().unwrap();
    assert!((SENT - SENT / 10..=SENT).contains(&dropped), "{last}");
    assert!(
        last.get("total_reverse_dropped_packets").is_none(),
        "{last}"
    );
    assert_eq!(last["total_packets"], SENT);
}

/// Nobody listens: one's request and the other's answer are dropped, each at its own interface.
#[test]
fn what_is_dropped_of_many_flows_is_with_each_of_them() {
    const TEST: &str = "agent::what_is_dropped_of_many_flows_is_with_each_of_them";
    const FLOWS: u16 = 200;
    if !is_root_or_skip(TEST) {
        return;
    }
    for (hook, version) in [("tc", 4), ("xdp", 6)] {
        let lab = Lab::addressed().unwrap();
        let settings = [DROPS, &["--ingress-hook", hook]].concat();
        let agent = Agent::start_by(as_the_service(&lab.agent), &lab.agent.interface, &settings);
        let frame = match version {
            4 => lab.peer.frame_v4(&lab.agent),
            _ => lab.peer.frame_v6(&lab.agent),
        };
        let socket = lab.peer.frame_socket().unwrap();
        let before = missed(&agent, &lab.agent);
        let mut sent = 0;
        for flow in 0..FLOWS {
            // To ports where nobody listens, a different number of packets for each flow.
            let packets = usize::from(flow % 7 + 1);
            let frame = frame.udp(5000 + flow, 9, b"nobody").unwrap();
            socket.send_many(repeat_n(&frame, packets)).unwrap();
            sent += packets as u64;
        }
        let missed = || {
            missed(&agent, &lab.agent)
                .saturating_sub(before)
                .min(sent / 10)
        };
        wait_until("all are with their flows", || {
            agent.wait_for_scans(&lab.agent, 1);
            let drops = agent.status(&lab.agent)["kernel_drops"].clone();
            drops["of_flows"].as_u64().unwrap() + missed() >= sent
        });
        let missed = missed();
        let report = agent.stop();
        let mut with_flows = 0;
        for flow in 0..FLOWS {
            let is_its = |line: &&Value| line["src_port"] == 5000 + flow && line["dst_port"] == 9;
            let last = report.flows.iter().rfind(is_its).unwrap();
            let packets = u64::from(flow % 7 + 1);
            let dropped = last["total_dropped_packets"].as_u64().unwrap_or_default();
            assert!(dropped <= packets, "{last}");
            with_flows += dropped;
        }
        assert!(
            with_flows <= sent && with_flows + missed >= sent,
            "{with_flows} {missed}"
        );
    }
}

/// The received packets of flows to closed ports, and how many of them were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Dropping {
    arrived: u64,
    dropped: u64,
}

impl Dropping {
    fn of(flows: &[Value], is_such: impl Fn(&Value) -> bool) -> Self {
        let mut sum = Self::default();
        for flow in flows {
            if flow["dst_port"] != NOWHERE || !is_such(flow) {
                continue;
            }
            assert!(
                flow.get("total_reverse_dropped_packets").is_none(),
                "{flow}"
            );
            sum.arrived += flow["total_packets"].as_u64().unwrap();
            sum.dropped += flow["total_dropped_packets"].as_u64().unwrap_or_default();
        }
        sum
    }

    /// At the end of the flows.
    fn at_last(report: &Report, is_such: impl Fn(&Value) -> bool) -> Self {
        let is_last = |flow: &Value| !flow["end_reason"].is_null();
        Self::of(&report.flows, |flow| is_last(flow) && is_such(flow))
    }

    /// The kernel may make another drop on the same CPU while it counts one. That is rare.
    fn is_complete(self, missed: u64) -> bool {
        self.dropped <= self.arrived && self.dropped + missed.min(self.arrived / 10) >= self.arrived
    }
}

fn missed(agent: &Agent, host: &Host) -> u64 {
    let drops = agent.status(host)["kernel_drops"].clone();
    drops["missed"].as_u64().unwrap()
}

/// Sends, and waits until at least this many packets of such flows have arrived and all of them are dropped. Returns
/// the drops missed meanwhile.
fn wait_for_drops(
    agent: &Agent,
    host: &Host,
    is_such: impl Fn(&Value) -> bool,
    expected: u64,
    send: impl FnOnce(),
) -> u64 {
    let before = missed(agent, host);
    send();
    let mut last = Dropping::default();
    wait_until("all are with their flows", || {
        agent.wait_for_scans(host, 1);
        let missed = missed(agent, host) - before;
        let now = Dropping::of(&agent.flows(host), &is_such);
        // Nothing more has arrived.
        let is_over = now.arrived == last.arrived;
        last = now;
        now.arrived >= expected && is_over && now.is_complete(missed)
    });
    missed(agent, host) - before
}

/// Sends to a closed port from a socket, as programs do. Full queues drop silently, so not all of the packets arrive,
/// but most do.
fn send_nowhere(from: &Host, to: SocketAddr) {
    let send = || {
        let socket = UdpSocket::bind((from.address(IpVersion::V4), 0)).context("bind")?;
        for _ in 0..SENT {
            socket.send_to(&[0; 18], to).context("send")?;
        }
        Ok(())
    };
    from.namespace.enter(send).unwrap();
}

#[test]
fn what_is_dropped_on_loopback_is_with_its_flow() {
    if !is_root_or_skip("agent::what_is_dropped_on_loopback_is_with_its_flow") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let host = &lab.agent;
    host.namespace.ip(&["link", "set", "lo", "up"]).unwrap();
    let agent = Agent::start_on(host, "lo", &[DROPS, KEPT].concat());
    let send = || send_nowhere(host, (host.ipv4, NOWHERE).into());
    let missed = wait_for_drops(&agent, host, |_| true, SENT / 2, send);
    let dropping = Dropping::at_last(&agent.stop(), |_| true);
    assert!(dropping.is_complete(missed), "{dropping:?} {missed}");
}

/// The frame passes the wire, and is counted there before the device drops it.
#[test]
fn what_is_dropped_at_a_vlan_device_is_with_the_flow_of_the_device() {
    const TEST: &str = "agent::what_is_dropped_at_a_vlan_device_is_with_the_flow_of_the_device";
    if !is_root_or_skip(TEST) {
        return;
    }
    let mut lab = Lab::addressed().unwrap();
    if !Kind::VLAN.make(&mut lab).unwrap() {
        return skip(TEST, "this kernel has no VLAN device");
    }
    let wire = &lab.agent.interface;
    let settings = [&["--interface", wire], DROPS, KEPT].concat();
    let agent = Agent::start_on(&lab.agent, NAME, &settings);
    let send = || send_nowhere(&lab.peer, (lab.agent.ipv4, NOWHERE).into());
    let is_at = |interface: &'static str| move |flow: &Value| flow["interface"] == interface;
    let missed = wait_for_drops(&agent, &lab.agent, is_at(NAME), SENT / 2, send);
    let report = agent.stop();
    let at_device = Dropping::at_last(&report, is_at(NAME));
    let on_wire = Dropping::at_last(&report, |flow| flow["interface"] == **wire);
    assert!(at_device.is_complete(missed), "{at_device:?} {missed}");
    let none = Dropping {
        dropped: 0,
        ..at_device
    };
    assert_eq!(on_wire, none);
}

#[test]
fn what_is_dropped_in_two_namespaces_with_one_index_is_told_apart() {
    if !is_root_or_skip("agent::what_is_dropped_in_two_namespaces_with_one_index_is_told_apart") {
        return;
    }
    let labs = [Lab::addressed().unwrap(), Lab::addressed().unwrap()];
    let [a, b] = &labs;
    assert_eq!(a.agent.ifindex, b.agent.ifindex);
    let settings = [DROPS, KEPT].concat();
    let agent = start(a, &names(&[a, b]), &a.agent.interface, &settings);
    // The same flow in both.
    let frame = a.peer.frame_v4(&a.agent);
    let frame = frame.udp(1000, NOWHERE, b"nobody").unwrap();
    let sent = [SENT, 3 * SENT];
    let send_all = || {
        for (lab, packets) in labs.iter().zip(sent) {
            let socket = lab.peer.frame_socket().unwrap();
            let frames = repeat_n(&frame, packets as usize);
            assert_eq!(socket.send_many(frames).unwrap() as u64, packets);
        }
    };
    let missed = wait_for_drops(&agent, &a.peer, |_| true, sent.iter().sum(), send_all);
    let report = agent.stop();
    for (lab, packets) in labs.iter().zip(sent) {
        let netns = number(&lab.agent);
        let dropping = Dropping::at_last(&report, |flow| flow["netns"] == netns);
        assert!(dropping.is_complete(missed), "{dropping:?} {missed}");
        assert_eq!(dropping.arrived, packets);
    }
}

/// Waits until the kernel has found no receiver for this many datagrams, which it then drops.
fn wait_for_refusals(host: &Host, datagrams: u64) {
    wait_until("nobody listens", || {
        protocol_counter(host, "Udp", "NoPorts") >= datagrams
    });
}

/// One after the other, and more than there are places at a time.
#[test]
fn what_is_dropped_at_interfaces_that_come_late_is_with_its_flow() {
    if !is_root_or_skip("agent::what_is_dropped_at_interfaces_that_come_late_is_with_its_flow") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let host = &lab.agent;
    let mac = host.mac_text();
    let come = |name: &str| {
        host.namespace.add_wire([name, "far"]).unwrap();
        let address = ["link", "set", name, "address", &mac];
        host.namespace.ip(&address).unwrap();
    };
    come("late0");
    let settings = [DROPS, KEPT, &["--max-interfaces", "1"]].concat();
    let agent = Agent::start_on(host, "late*", &settings);
    let frame = lab.peer.frame_v4(host);
    let frame = frame.udp(1000, NOWHERE, b"nobody").unwrap();
    for round in 0..5 {
        let name = format!("late{round}");
        if round > 0 {
            come(&name);
        }
        wait_until("it is watched", || {
            let hooks = agent.status(host)["hooks"].clone();
            let hooks = hooks.as_array().unwrap();
            hooks.len() == 2 && hooks.iter().all(|hook| hook["interface"]["name"] == *name)
        });
        let send = || {
            let socket = FrameSocket::new(&host.namespace, "far").unwrap();
            let sent = socket.send_many(repeat_n(&frame, SENT as usize)).unwrap();
            assert_eq!(sent as u64, SENT);
        };
        wait_for_drops(&agent, host, |flow| flow["interface"] == *name, SENT, send);
        host.namespace.ip(&["link", "delete", &name]).unwrap();
    }
}

/// More flows are dropped elsewhere than there is room for.
#[test]
fn what_is_dropped_where_nobody_watches_takes_no_room() {
    const FLOWS: u16 = 9000;
    if !is_root_or_skip("agent::what_is_dropped_where_nobody_watches_takes_no_room") {
        return;
    }
    let [here, elsewhere] = [(); 2].map(|()| Lab::addressed().unwrap());
    // All within one scan.
    let settings = [DROPS, KEPT, &["--scan-interval", "1h"]].concat();
    let agent = Agent::start(&here, &settings);
    let send = |lab: &Lab, ports: &[u16]| {
        let frame = lab.peer.frame_v4(&lab.agent);
        let frames = ports
            .iter()
            .map(|&port| frame.udp(port, NOWHERE, b"nobody").unwrap());
        let sent = lab.peer.frame_socket().unwrap().send_many(frames).unwrap();
        assert_eq!(sent, ports.len());
    };
    send(&elsewhere, &(1..=FLOWS).collect::<Vec<_>>());
    wait_for_refusals(&elsewhere.agent, FLOWS.into());
    send(&here, &[1; SENT as usize]);
    wait_for_refusals(&here.agent, SENT);
    let report = agent.stop();
    let dropping = Dropping::at_last(&report, |_| true);
    assert_eq!(dropping.arrived, SENT);
    // The kernel may have made some while it counted others.
    assert!(dropping.is_complete(SENT), "{dropping:?}");
}

#[test]
fn without_being_asked_the_agent_counts_no_drops() {
    const TEST: &str = "agent::without_being_asked_the_agent_counts_no_drops";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[]);
    agent.wait_for_scans(&lab.agent, 1);
    assert!(agent.status(&lab.agent)["kernel_drops"].is_null());
}
