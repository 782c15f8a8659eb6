//! Flowtables of nftables: they forward packets right behind ingress of their devices, before a VLAN device on one.

use std::{
    net::{Ipv4Addr, UdpSocket},
    time::Duration,
};

use anyhow::Context as _;
use lab::{
    Counters, Lab, Namespace,
    privilege::{is_root_or_skip, is_virtual_machine_or_skip, skip},
};
use serde_json::Value;

use super::device::{Kind, NAME};
use crate::support::{Agent, flow_agent, wait_for_silence};

const DATAGRAMS: u64 = 40;
/// The path to the client behind the router.
const CABLE: [&str; 2] = ["router1", "client0"];
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);
const RULES: &str = "\
table inet shortcut {
  flowtable fast { hook ingress priority 0; devices = { WIRE, router1 }; }
  chain forward {
    type filter hook forward priority 0;
    ct state established flow add @fast
  }
}";

/// Connects a client by a cable of its own, and has the host forward between it and the VLAN.
fn make_router(lab: &Lab) -> Namespace {
    let client = Namespace::new("client").unwrap();
    let router = &lab.agent.namespace;
    router.add_wire(CABLE).unwrap();
    router
        .ip(&["link", "set", CABLE[1], "netns", client.name()])
        .unwrap();
    for (namespace, end, address) in [
        (router, CABLE[0], "10.79.0.1/24"),
        (&client, CABLE[1], "10.79.0.2/24"),
    ] {
        namespace
            .ip(&["address", "add", address, "dev", end])
            .unwrap();
        namespace
            .ip(&["link", "set", end, "arp", "on", "up"])
            .unwrap();
    }
    router.set_sysctl("net/ipv4/ip_forward", "1").unwrap();
    client
        .ip(&["route", "add", "10.78.0.0/24", "via", "10.79.0.1"])
        .unwrap();
    lab.peer
        .namespace
        .ip(&["route", "add", "10.79.0.0/24", "via", "10.78.0.1"])
        .unwrap();
    client
}

#[test]
fn what_a_flowtable_takes_is_exact_at_its_device_and_check_names_the_vlan_device_that_lacks_it() {
    const TEST: &str = "agent::what_a_flowtable_takes_is_exact_at_its_device_and_check_names_the_vlan_device_that_lacks_it";
    if !is_virtual_machine_or_skip(TEST, "needs nft") || !is_root_or_skip(TEST) {
        return;
    }
    let mut lab = Lab::addressed().unwrap();
    if !Kind::VLAN.make(&mut lab).unwrap() {
        return skip(TEST, "this kernel has no 8021q device");
    }
    let client = make_router(&lab);
    let host = &lab.agent;
    let wire = host.interface.as_str();
    let rules = RULES.replace("WIRE", wire);
    let output = host.command("nft").arg(rules).output().unwrap();
    assert!(output.status.success(), "{output:?}");

    let agent = Agent::start_on(host, NAME, &["--interface", wire]);
    let counters = || Counters::read(&host.namespace, NAME).unwrap();
    let (before, device_before) = (wait_for_silence(host), counters());
    let open = |namespace: &Namespace, address: Ipv4Addr| {
        let bind = || {
            let socket = UdpSocket::bind((address, 5000)).context("bind")?;
            socket.set_read_timeout(Some(Duration::from_mins(1)))?;
            Ok(socket)
        };
        namespace.enter(bind).unwrap()
    };
    let (there, here) = (
        open(&lab.peer.namespace, lab.peer.ipv4),
        open(&client, CLIENT),
    );
    let mut buffer = [0; 100];
    for _ in 0..DATAGRAMS {
        there.send_to(&[7; 40], (CLIENT, 5000)).unwrap();
        here.recv(&mut buffer).unwrap();
        here.send_to(&[7; 40], (lab.peer.ipv4, 5000)).unwrap();
        there.recv(&mut buffer).unwrap();
    }
    let growth = wait_for_silence(host) - before;
    let device_growth = counters() - device_before;
    agent.wait_for_scans(host, 2);
    let audit = agent.asked(host, &["audit", "--output", "json"]);
    let mut check = flow_agent(host);
    check.args([
        "check",
        "--output",
        "json",
        "--interface",
        NAME,
        "--interface",
        wire,
    ]);
    let check = String::from_utf8(check.output().unwrap().stdout).unwrap();
    let report = agent.stop();

    let of_device = |interface: &str| {
        let flows = report.sums_on(interface);
        let datagrams = flows.iter().filter(|(name, _)| name.contains("5000"));
        let both = datagrams.map(|(_, both)| both.map(|pair| pair.packets));
        both.fold([0; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]])
    };
    assert_eq!(
        (growth.rx_packets, growth.tx_packets),
        (DATAGRAMS, DATAGRAMS)
    );
    assert_eq!(of_device(wire), [DATAGRAMS; 2]);
    // The first ones of a connection go the slow way. From 6.19 on, leaving packets bypass the VLAN device, too.
    let at_device = of_device(NAME);
    assert_eq!(
        at_device,
        [device_growth.rx_packets, device_growth.tx_packets]
    );
    assert!(at_device[0] < DATAGRAMS / 2, "{at_device:?}");
    let audit: Value = serde_json::from_slice(&audit.stdout).unwrap();
    for one in audit["comparisons"].as_array().unwrap() {
        // A VLAN device counts what arrives without the Ethernet header (`vlan_do_receive`).
        assert_ne!(one["verdict"], "unexplained", "{one}");
    }
    assert!(
        check.contains(&format!(r#""name":"flowtable {NAME}""#)),
        "{check}"
    );
    assert!(
        !check.contains(&format!(r#""name":"flowtable {wire}""#)),
        "{check}"
    );
}
