//! Which way flows go through the interface: plain flows, a router with one interface, a mirror port and
//! loopback. The records must have what was sent, each direction at its side.

use std::{collections::BTreeMap, net::Ipv4Addr};

use agent_common::Pair;
use lab::{
    Host, Lab,
    privilege::is_root_or_skip,
    traffic::{self, IpVersion},
};
use serde_json::Value;

use crate::support::{
    Agent, Both, Report, count, flow_name, name, pair, wait_for_packets, wait_until,
};

const SYN: u8 = 0x02;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// Sums by the name of the flow and the hooks at which the initiator's packets and the answers were seen.
fn sums_by_side(report: &Report) -> BTreeMap<[String; 3], Both> {
    let mut sums = BTreeMap::<_, Both>::new();
    for line in &report.flows {
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        let key = [
            flow_name(line),
            text("direction"),
            text("reverse_direction"),
        ];
        let delta = |packets: &str, bytes: &str| Pair {
            packets: line[packets].as_u64().unwrap(),
            bytes: line[bytes].as_u64().unwrap(),
        };
        let [forward, reverse] = sums.entry(key).or_default();
        *forward += delta("packets", "bytes");
        *reverse += delta("reverse_packets", "reverse_bytes");
    }
    sums
}

fn key(flow: &str, sides: [&str; 2]) -> [String; 3] {
    [flow, sides[0], sides[1]].map(str::to_owned)
}

fn flow(protocol: u64, from: (&Host, u64), to: (&Host, u64)) -> String {
    let (src, dst) = (from.0.ipv4.to_string(), to.0.ipv4.to_string());
    name("[]", protocol, (&src, from.1), (&dst, to.1))
}

#[test]
fn a_plain_flow_says_at_which_side_its_initiator_is() {
    if !is_root_or_skip("agent::a_plain_flow_says_at_which_side_its_initiator_is") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[]);
    let mut expected = BTreeMap::new();
    let cases = [
        (&lab.peer, &lab.agent, 4000, ["ingress", "egress"]),
        (&lab.agent, &lab.peer, 4001, ["egress", "ingress"]),
    ];
    for (client, server, port, sides) in cases {
        let there = client.frame_v4(server).udp(port, 53, &[0; 18]).unwrap();
        let back = server.frame_v4(client).udp(53, port, &[0; 40]).unwrap();
        client
            .frame_socket()
            .unwrap()
            .send_many([&there; 3])
            .unwrap();
        server
            .frame_socket()
            .unwrap()
            .send_many([&back; 2])
            .unwrap();
        let flow = flow(17, (client, port.into()), (server, 53));
        expected.insert(key(&flow, sides), [count(3, &there), count(2, &back)]);
    }
    assert_eq!(sums_by_side(&agent.stop()), expected);
}

#[test]
fn each_end_has_its_dscp_and_a_mark_if_that_changed() {
    if !is_root_or_skip("agent::each_end_has_its_dscp_and_a_mark_if_that_changed") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--scan-interval", "200ms"]);
    let (client, server) = (&lab.peer, &lab.agent);
    let send = |from: &Host, to: &Host, ports: [u16; 2], dscp: u8| {
        let frame = from.frame_v4(to).dscp(dscp);
        let frame = frame.udp(ports[0], ports[1], &[0; 18]).unwrap();
        from.frame_socket().unwrap().send_many([&frame]).unwrap();
    };
    // The connection sets its TOS after it has begun, within one scan.
    send(client, server, [4000, 53], 0);
    send(client, server, [4000, 53], 46);
    send(server, client, [53, 4000], 10);
    // Another one sets it in a later scan, and goes back.
    send(client, server, [4001, 53], 8);
    send(client, server, [4002, 53], 63);
    agent.wait_for_scans(server, 2);
    send(client, server, [4001, 53], 9);
    send(client, server, [4001, 53], 8);
    send(server, client, [53, 4001], 0);
    let report = agent.stop();
    let told = |port: u16| {
        let mut flows = report.flows.iter().rev();
        let last = flows.find(|flow| flow["src_port"] == port).unwrap();
        let names = [
            "dscp",
            "dscp_changed",
            "reverse_dscp",
            "reverse_dscp_changed",
        ];
        names.map(|name| last[name].clone())
    };
    let no = Value::Null;
    assert_eq!(told(4000), [0.into(), true.into(), 10.into(), no.clone()]);
    assert_eq!(told(4001), [8.into(), true.into(), 0.into(), no.clone()]);
    assert_eq!(told(4002), [63.into(), no.clone(), no.clone(), no]);
}

#[test]
fn a_router_with_one_interface_has_a_record_of_each_side() {
    const PACKETS: u64 = 100;
    if !is_root_or_skip("agent::a_router_with_one_interface_has_a_record_of_each_side") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let router = &lab.agent;
    // A host behind the interface from which the packets come.
    let behind = "10.77.0.99";
    let settings = [
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv4/conf/all/send_redirects", "0"),
        (
            &*format!("net/ipv4/conf/{}/send_redirects", router.interface),
            "0",
        ),
    ];
    for (name, value) in settings {
        router.namespace.set_sysctl(name, value).unwrap();
    }
    let mac = lab.peer.mac_text();
    let neighbour = [
        "neighbour",
        "replace",
        behind,
        "lladdr",
        &mac,
        "nud",
        "permanent",
    ];
    let neighbour = [&neighbour[..], &["dev", &router.interface]].concat();
    router.namespace.ip(&neighbour).unwrap();

    let agent = Agent::start(&lab, &[]);
    let before = lab.peer.counters().unwrap();
    let frame = lab
        .peer
        .frame_v4(router)
        .between(lab.peer.ipv4, behind.parse::<Ipv4Addr>().unwrap())
        .udp(1000, 53, &[0; 60])
        .unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    for _ in 0..PACKETS {
        socket.send(&frame).unwrap();
    }
    // The router sends them back to the peer.
    wait_for_packets(&lab.peer, before, PACKETS);
    let report = agent.stop();

    let src = lab.peer.ipv4.to_string();
    let flow = name("[]", 17, (&src, 1000), (behind, 53));
    let sent = [count(PACKETS, &frame), Pair::default()];
    let expected = BTreeMap::from([
        (key(&flow, ["ingress", "egress"]), sent),
        (key(&flow, ["egress", "ingress"]), sent),
    ]);
    assert_eq!(sums_by_side(&report), expected);
    assert_eq!(report.seen(), count(2 * PACKETS, &frame));
    let ids: Vec<&Value> = report
        .flows
        .iter()
        .map(|line| &line["community_id"])
        .collect();
    assert!(ids.windows(2).all(|ids| ids[0] == ids[1]), "{ids:?}");
}

#[test]
fn what_a_mirror_port_brings_is_one_flow() {
    if !is_root_or_skip("agent::what_a_mirror_port_brings_is_one_flow") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[]);
    // Neither end is a host of the laboratory: both directions arrive.
    let (client, server) = ("192.0.2.200", "192.0.2.1");
    let ends = [client, server].map(|end| end.parse::<Ipv4Addr>().unwrap());
    let there = |flags, len| {
        let frame = lab.peer.frame_v4(&lab.agent).between(ends[0], ends[1]);
        frame.tcp(4000, 443, flags, &vec![0; len]).unwrap()
    };
    let back = |flags, len| {
        let frame = lab.peer.frame_v4(&lab.agent).between(ends[1], ends[0]);
        frame.tcp(443, 4000, flags, &vec![0; len]).unwrap()
    };
    let socket = lab.peer.frame_socket().unwrap();
    let mut expected = [Pair::default(); 2];
    let mut send = |is_reverse: bool, frame: &[u8]| {
        socket.send(frame).unwrap();
        expected[usize::from(is_reverse)] += count(1, frame);
    };
    send(false, &there(SYN, 0));
    send(true, &back(SYN | ACK, 0));
    for scan in 0..5 {
        for _ in 0..7 {
            send(false, &there(ACK, 100));
            send(true, &back(ACK | PSH, 1000));
        }
        if scan % 2 == 0 {
            agent.wait_for_scans(&lab.agent, 2);
        }
    }
    let report = agent.stop();
    let flow = name("[]", 6, (client, 4000), (server, 443));
    let expected = BTreeMap::from([(key(&flow, ["ingress", "ingress"]), expected)]);
    // The SYN may be in the scan before its answer's. Until then the flow looked like a plain one.
    let mut sums = BTreeMap::<[String; 3], Both>::new();
    for ([flow, direction, _], both) in sums_by_side(&report) {
        let [forward, reverse] = sums.entry(key(&flow, [&direction, "ingress"])).or_default();
        *forward += both[0];
        *reverse += both[1];
    }
    assert_eq!(sums, expected);
    assert_eq!(report.end_reason(&flow), "forced_end");
}

#[test]
fn a_connection_over_loopback_is_one_flow() {
    const BYTES: u64 = 1_000_000;
    if !is_root_or_skip("agent::a_connection_over_loopback_is_one_flow") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let host = &lab.agent;
    let agent = Agent::start_on(host, "lo", &[]);
    let talk = traffic::tcp(host, host, IpVersion::V4, 8080, BYTES).unwrap();
    // The last ACK is sent when the server's end closes.
    wait_until("the connection is closed", || {
        let sockets = host
            .command("ss")
            .args(["-Htan", "sport", "=", "8080"])
            .output();
        sockets.unwrap().stdout.is_empty()
    });
    let report = agent.stop();

    let address = host.ipv4.to_string();
    let client = u64::from(talk.client.port());
    let flow = name("[]", 6, (&address, client), (&address, 8080));
    let sums = report.sums();
    assert_eq!(sums.keys().collect::<Vec<_>>(), [&flow]);
    let [there, back] = sums[&flow];
    assert_eq!(there + back, report.seen());
    assert!(
        there.bytes > BYTES && back.packets > 0,
        "{there:?} {back:?}"
    );
    assert_eq!(pair(&report.last()["flows"]), report.seen());
    for line in &report.flows {
        assert_eq!(line["direction"], "ingress");
    }
    let ended = report
        .flows
        .iter()
        .find(|line| !line["end_reason"].is_null());
    assert_eq!(ended.unwrap()["reverse_direction"], "ingress");
    assert_eq!(report.end_reason(&flow), "end_of_flow");
}
