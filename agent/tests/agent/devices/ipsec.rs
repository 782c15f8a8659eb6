//! IPsec in tunnel mode: decrypted packets pass the interface a second time.

use std::{
    net::{Ipv4Addr, UdpSocket},
    time::Duration,
};

use agent_common::Pair;
use anyhow::Context as _;
use lab::{
    Host, Lab,
    privilege::{is_root_or_skip, skip},
};
use serde_json::Value;

use crate::support::{Agent, flow_agent, name, pair, wait_for_packets, wait_until};

const INSIDE: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::new(10, 99, 0, 2)];
const DATAGRAMS: u64 = 20;
const ESP: u64 = 50;

/// Runs `ip`. Spaces separate the arguments; `NONE` is an empty one.
fn ip(host: &Host, arguments: &str) -> anyhow::Result<()> {
    let words = arguments.split(' ');
    let words: Vec<&str> = words
        .map(|word| if word == "NONE" { "" } else { word })
        .collect();
    host.namespace.ip(&words).map(drop)
}

/// Makes a tunnel that encrypts nothing between the two hosts. Returns `false` if the kernel has no ESP.
fn make_tunnel(lab: &Lab) -> bool {
    let ends = [&lab.agent, &lab.peer];
    for (host, number) in [(ends[0], 0), (ends[1], 1)] {
        let [own, other] = [INSIDE[number], INSIDE[1 - number]];
        let interface = &host.interface;
        ip(host, &format!("address add {own}/32 dev {interface}")).unwrap();
        ip(
            host,
            &format!("route add {other} dev {interface} src {own}"),
        )
        .unwrap();
        for (from, to) in [(0, 1), (1, 0)] {
            let outer = format!("src {} dst {}", ends[from].ipv4, ends[to].ipv4);
            let keys = "auth digest_null NONE enc ecb(cipher_null) NONE";
            let state =
                format!("xfrm state add {outer} proto esp spi 0x10{from} mode tunnel {keys}");
            if let Err(error) = ip(host, &state) {
                let error = format!("{error:#}");
                assert!(
                    error.contains("not found") || error.contains("not supported"),
                    "{error}"
                );
                return false;
            }
            let inner = format!("src {} dst {}", INSIDE[from], INSIDE[to]);
            let direction = if from == number { "out" } else { "in" };
            let template = format!("tmpl {outer} proto esp mode tunnel");
            ip(
                host,
                &format!("xfrm policy add dir {direction} {inner} {template}"),
            )
            .unwrap();
        }
    }
    true
}

#[test]
fn what_ipsec_takes_out_of_a_tunnel_is_counted_twice_and_check_and_audit_say_so() {
    const TEST: &str =
        "agent::what_ipsec_takes_out_of_a_tunnel_is_counted_twice_and_check_and_audit_say_so";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let host = &lab.agent;
    let interface = &host.interface;
    if !make_tunnel(&lab) {
        return skip(TEST, "this kernel has no ESP");
    }
    let mut check = flow_agent(host);
    check.args(["check", "--output", "json", "--interface", interface]);
    let check = String::from_utf8(check.output().unwrap().stdout).unwrap();
    assert!(check.contains(r#""name":"ipsec""#), "{check}");

    let agent = Agent::start(&lab, &["--idle-timeout", "1h"]);
    let before = host.counters().unwrap();
    let bind = |host: &Host, address: Ipv4Addr| {
        let bind = || UdpSocket::bind((address, 5000)).context("bind");
        let socket = host.namespace.enter(bind).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_mins(1)))
            .unwrap();
        socket
    };
    let (here, there) = (bind(host, INSIDE[0]), bind(&lab.peer, INSIDE[1]));
    let mut buffer = [0; 100];
    for _ in 0..DATAGRAMS {
        there.send_to(&[7; 40], (INSIDE[0], 5000)).unwrap();
        here.recv(&mut buffer).unwrap();
        here.send_to(&[7; 40], (INSIDE[1], 5000)).unwrap();
        there.recv(&mut buffer).unwrap();
    }
    wait_for_packets(host, before, DATAGRAMS);
    let mut hooks = Value::Null;
    wait_until("the status knows of the tunnel", || {
        agent.wait_for_scans(host, 1);
        hooks = agent.status(host)["hooks"].clone();
        let mut hooks = hooks.as_array().unwrap().iter();
        hooks.any(|hook| hook["opens_ipsec_tunnels"] == true)
    });
    let audit = agent.asked(host, &["audit", "--output", "json"]);
    let growth = host.counters().unwrap() - before;
    let report = agent.stop();

    let (own, other) = (host.ipv4.to_string(), lab.peer.ipv4.to_string());
    let esp = name("[]", ESP, (&other, 0), (&own, 0));
    let [inside_own, inside_other] = INSIDE.map(|address| address.to_string());
    let inside = name("[]", 17, (&inside_other, 5000), (&inside_own, 5000));
    let sums = report.sums();
    let [arrived, left] = sums[&esp];
    assert_eq!((arrived.packets, left.packets), (DATAGRAMS, DATAGRAMS));
    assert_eq!(
        (growth.rx_packets, growth.tx_packets),
        (DATAGRAMS, DATAGRAMS)
    );
    let decrypted = Pair {
        packets: DATAGRAMS,
        bytes: DATAGRAMS * (14 + 20 + 8 + 40),
    };
    // Leaving packets are encrypted before the hook.
    assert_eq!(sums[&inside], [decrypted, Pair::default()]);
    assert_eq!(sums.len(), 2, "{sums:#?}");
    assert_eq!(pair(&report.last()["flows"]), report.seen());
    let audit: Value = serde_json::from_slice(&audit.stdout).unwrap();
    for one in audit["comparisons"].as_array().unwrap() {
        let is_ingress = one["direction"] == "ingress";
        let expected = if is_ingress { "explained" } else { "exact" };
        assert_eq!(one["verdict"], expected, "{one}");
    }
}
