//! `flow-agent collect --pairs` reports the loss between two hosts to the packet.

use std::{fs, path::Path, thread::sleep, time::Duration};

use lab::{Host, Lab, privilege::is_root_or_skip};
use serde_json::Value;

use super::{Collector, jsonl};
use crate::{
    metrics, outputs,
    support::{Agent, wait_until},
};

pub const SETTLE: Duration = Duration::from_millis(500);
/// Packets with this DSCP are lost on the wire, behind the agent's program.
const LOST_DSCP: u8 = 8;
/// The wire on which the agents send their batches.
const TO: &str = "10.9.9.1";

/// Two hosts on a lossy wire, and another wire beside it.
fn lossy() -> Lab {
    let lab = Lab::quiet().unwrap();
    let (near, far) = (&lab.agent.namespace, &lab.peer.namespace);
    let add = [
        "link", "add", "beside0", "type", "veth", "peer", "name", "beside1",
    ];
    near.ip(&[&add[..], &["netns", far.name()]].concat())
        .unwrap();
    for (namespace, end, address) in [
        (near, "beside0", "10.9.9.1/24"),
        (far, "beside1", "10.9.9.2/24"),
    ] {
        namespace
            .ip(&["address", "add", address, "dev", end])
            .unwrap();
        namespace.ip(&["link", "set", end, "up"]).unwrap();
    }
    lose_by_dscp(&lab.agent, LOST_DSCP);
    lab
}

/// Loses packets with this DSCP behind the agent's program, as they leave the host.
pub fn lose_by_dscp(host: &Host, dscp: u8) {
    // A device at which nobody looks.
    host.namespace
        .ip(&[
            "link", "add", "away0", "type", "veth", "peer", "name", "away1",
        ])
        .unwrap();
    for end in ["away0", "away1"] {
        host.namespace
            .ip(&["link", "set", end, "arp", "off", "up"])
            .unwrap();
    }
    let wire = &host.interface;
    let tos = format!("{:#x}", dscp << 2);
    tc(host, &["qdisc", "add", "dev", wire, "clsact"]);
    let filter = [
        "filter", "add", "dev", wire, "egress", "protocol", "ip", "u32", "match", "ip", "tos",
    ];
    let action = [
        "0xff", "action", "mirred", "egress", "redirect", "dev", "away0",
    ];
    tc(host, &[&filter[..], &[&tos], &action].concat());
}

fn tc(host: &Host, arguments: &[&str]) {
    let output = host.command("tc").args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tc {arguments:?}: {stderr}");
}

/// Sent, received and lost of the packets from this port, and why reports were not exact.
fn told(folder: &Path, port: u16) -> ([u64; 3], Vec<Value>) {
    let (mut sums, mut why) = ([0; 3], Vec::new());
    for line in outputs::jsonl::lines(folder) {
        if line["src_port"] != port {
            continue;
        }
        assert_ne!(line["from"]["instance_id"], line["to"]["instance_id"]);
        let numbers = ["sent_packets", "received_packets", "lost_packets"];
        for (sum, name) in sums.iter_mut().zip(numbers) {
            *sum += line[name].as_u64().unwrap_or_default();
        }
        if !line["inexact"].is_null() {
            why.push(line["inexact"].clone());
        }
    }
    (sums, why)
}

#[test]
fn what_a_wire_loses_between_two_agents_is_told_to_the_packet() {
    const PORT: u16 = 4000;
    if !is_root_or_skip("agent::what_a_wire_loses_between_two_agents_is_told_to_the_packet") {
        return;
    }
    let lab = lossy();
    let [flows, pairs] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let settle = format!("{}ms", SETTLE.as_millis());
    let listen = format!("{TO}:0");
    let settings = [
        "--output",
        &jsonl(flows.path()),
        "--pairs",
        &jsonl(pairs.path()),
        "--pairs-settle",
        &settle,
        "--metrics",
        "127.0.0.1:0",
        "--insecure-listen",
        "--listen",
        &listen,
    ];
    let collector = Collector::start(&lab.agent, 0, &settings);
    let to = collector.setting();
    let agents = [&lab.agent, &lab.peer].map(|host| {
        let settings = ["--output", "json", "--output", &to];
        Agent::start_on(host, &host.interface, &settings)
    });
    wait_until("both are known", || {
        let status = collector.status(&lab.agent);
        let streams = status["streams"].as_array().unwrap();
        streams
            .iter()
            .filter(|stream| stream["stored_seq"].as_u64() > Some(0))
            .count()
            == 2
    });
    sleep(2 * SETTLE);

    let there = |dscp| {
        let frame = lab.agent.frame_v4(&lab.peer).dscp(dscp);
        frame.udp(PORT, 53, &[0; 100]).unwrap()
    };
    let (kept, lost) = (there(0), there(LOST_DSCP));
    let back = lab
        .peer
        .frame_v4(&lab.agent)
        .udp(53, PORT, &[0; 50])
        .unwrap();
    let (here, far) = (
        lab.agent.frame_socket().unwrap(),
        lab.peer.frame_socket().unwrap(),
    );
    for _ in 0..10 {
        here.send_many(vec![&kept[..]; 100]).unwrap();
        here.send_many([&lost[..]; 7]).unwrap();
        far.send_many([&back[..]; 50]).unwrap();
        sleep(Duration::from_millis(50));
    }
    let expected = [[1070, 1000, 70], [500, 500, 0]];
    wait_until("all is told", || {
        [PORT, 53].map(|port| told(pairs.path(), port).0) == expected
    });
    for port in [PORT, 53] {
        assert_eq!(told(pairs.path(), port).1, Vec::<Value>::new());
    }
    let status = collector.status(&lab.agent);
    let path = &status["pairs"]["paths"][0];
    let sums =
        ["sent_packets", "lost_packets", "surplus_packets", "inexact"].map(|name| &path[name]);
    assert_eq!(sums, [1570, 70, 0, 0], "{status}");

    let address = metrics::address_in(&collector.log());
    let page = metrics::get(&lab.agent, &address, "/metrics");
    let samples = metrics::samples(&page.body);
    let sample = |name: &str| {
        let mut of_name = samples
            .iter()
            .filter(|(series, _)| series.starts_with(name));
        let (_, value) = of_name.next().unwrap();
        assert!(of_name.next().is_none(), "{name}: {}", page.body);
        value.as_str()
    };
    for (name, value) in [
        ("flow_agent_path_sent_packets_total{", "1570"),
        ("flow_agent_path_lost_packets_total{", "70"),
        ("flow_agent_collect_connected_agents", "2.0"),
        ("flow_agent_collect_stored_packets_total{", "3070"),
    ] {
        assert_eq!(sample(name), value, "{name}");
    }
    assert_eq!(metrics::get(&lab.agent, &address, "/readyz").status, 200);

    // A flow seen by only one of them is not a path, even at the end.
    let [agent, gone] = agents;
    gone.kill();
    here.send_many(vec![&kept[..]; 100]).unwrap();
    assert_eq!(agent.stop().seen().packets, 1670);
    let log = collector.stop();
    assert!(!log.contains("WARN"), "{log}");
    assert_eq!(told(pairs.path(), PORT), (expected[0], Vec::new()));
}

/// What a collector says that does not start with this option.
pub fn refusal(lab: &Lab, flows: &str, option: [&str; 2]) -> String {
    let mut command = crate::support::flow_agent(&lab.agent);
    command.args(["collect", "--listen", "127.0.0.1:0", "--output", flows]);
    let output = command.args(option).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{option:?}: {stderr}");
    stderr
}

#[test]
fn pairs_are_refused_where_no_line_can_be_written() {
    if !is_root_or_skip("agent::pairs_are_refused_where_no_line_can_be_written") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let flows = jsonl(folder.path());
    for (pairs, told) in [
        (
            format!("parquet={}", folder.path().display()),
            "--pairs takes jsonl=PATH",
        ),
        ("none".to_owned(), "--pairs"),
        ("jsonl=/nowhere/pairs.jsonl".to_owned(), "/nowhere"),
    ] {
        let stderr = refusal(&lab, &flows, ["--pairs", &pairs]);
        assert!(stderr.contains(told), "{pairs}: {stderr}");
        assert!(!fs::exists(folder.path().join("pairs.jsonl")).unwrap());
    }
}
