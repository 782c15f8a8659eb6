//! VRF devices: packets of their members pass the members' hooks, and packets from the host to itself pass the
//! device's.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use agent_common::Pair;
use anyhow::{Context as _, Result};
use lab::{
    Host, Lab,
    privilege::{is_root_or_skip, skip},
    traffic::{self, IpVersion},
};
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::device::NAME;
use crate::support::{Agent, name, pair, wait_for_silence};

const DATAGRAMS: u32 = 20;
const PORTS: [u16; 2] = [4000, 4001];
const PAYLOAD: [u8; 40] = [7; 40];

/// Sends datagrams from one socket of the VRF to another by the host's own address.
fn send_to_itself(host: &Host) {
    let open = |port| {
        let bind = || -> Result<Socket> {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).context("open a socket")?;
            socket.bind_device(Some(NAME.as_bytes()))?;
            socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
            socket.set_read_timeout(Some(Duration::from_mins(1)))?;
            Ok(socket)
        };
        host.namespace.enter(bind).unwrap()
    };
    let [sender, receiver] = PORTS.map(open);
    let to = SocketAddr::from((host.ipv4, PORTS[1])).into();
    let receiver = std::net::UdpSocket::from(receiver);
    for _ in 0..DATAGRAMS {
        sender.send_to(&PAYLOAD, &to).unwrap();
        receiver.recv(&mut [0; 100]).unwrap();
    }
}

/// Traffic is counted at the member. `audit` says that the device counts it, too, although its hooks see none of it.
#[test]
fn a_vrf_is_exact_at_its_member_and_audit_says_what_the_device_lacks() {
    const TEST: &str = "agent::a_vrf_is_exact_at_its_member_and_audit_says_what_the_device_lacks";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let host = &lab.agent;
    let member = &host.interface;
    let add = ["link", "add", NAME, "type", "vrf", "table", "10"];
    if let Err(error) = host.namespace.ip(&add) {
        assert!(
            format!("{error:#}").contains("Unknown device type"),
            "{error:#}"
        );
        return skip(TEST, "this kernel has no VRF device");
    }
    // Sockets of the whole host accept packets from the VRF.
    host.namespace
        .set_sysctl("net/ipv4/udp_l3mdev_accept", "1")
        .unwrap();
    for change in [
        &["link", "set", NAME, "up"][..],
        &["link", "set", member, "master", NAME],
    ] {
        host.namespace.ip(change).unwrap();
    }
    let neighbour = lab.peer.ipv4.to_string();
    let mac = lab.peer.mac_text();
    let known = [
        "neighbour",
        "replace",
        &neighbour,
        "lladdr",
        &mac,
        "nud",
        "permanent",
    ];
    host.namespace
        .ip(&[&known[..], &["dev", member]].concat())
        .unwrap();

    let agent = Agent::start_on(host, NAME, &["--interface", member, "--idle-timeout", "1h"]);
    let before = host.counters().unwrap();
    // The peer asks, and a socket that is bound to the VRF would answer: the questions alone are enough.
    let frame = lab.peer.frame_v4(host).udp(4000, 9, &[0; 50]).unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    socket.send_many(vec![&frame; DATAGRAMS as usize]).unwrap();
    let ping = traffic::ping(&lab.peer, host, IpVersion::V4, 3);
    ping.unwrap();
    let growth = wait_for_silence(host) - before;
    send_to_itself(host);
    agent.wait_for_scans(host, 2);
    let audit = agent.asked(host, &["audit", "--output", "json"]);
    let status = agent.status(host);
    let report = agent.stop();

    let hooks = status["hooks"].as_array().unwrap();
    let of = |interface: &str, hook: &str| {
        let mut hooks = hooks.iter();
        let is_it = |one: &&Value| one["interface"]["name"] == interface && one["hook"] == hook;
        hooks.find(is_it).unwrap()
    };
    let seen = |interface: &str, hook| pair(&of(interface, hook)["account"]["seen"]).packets;
    assert_eq!(seen(member, "tc_ingress"), growth.rx_packets);
    assert_eq!(seen(member, "tc_egress"), growth.tx_packets);
    assert!(growth.rx_packets >= u64::from(DATAGRAMS) + 3);
    assert_eq!(of(NAME, "tc_ingress")["is_vrf"], true);
    assert_eq!(of(member, "tc_ingress")["is_vrf"], false);
    let account = &of(NAME, "tc_ingress")["account"];
    assert_eq!(seen(NAME, "tc_ingress"), u64::from(DATAGRAMS), "{account}");
    let looped_back = pair(&account["beside"]["looped_back"]);
    assert_eq!(looped_back, Pair::default(), "{account}");
    let own = host.ipv4.to_string();
    let [from, to] = PORTS.map(|port| (own.as_str(), u64::from(port)));
    let sent = Pair {
        packets: DATAGRAMS.into(),
        bytes: u64::from(DATAGRAMS) * (14 + 20 + 8 + PAYLOAD.len() as u64),
    };
    let flows = report.sums_on(NAME);
    let expected = [(name("[]", 17, from, to), [sent, Pair::default()])];
    assert_eq!(flows, expected.into(), "{}", report.last());
    let audit: Value = serde_json::from_slice(&audit.stdout).unwrap();
    for one in audit["comparisons"].as_array().unwrap() {
        assert_ne!(one["verdict"], "unexplained", "{one}");
        if one["interface"] == *member {
            assert_eq!(one["verdict"], "exact", "{one}");
        }
    }
}
