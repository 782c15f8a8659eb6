//! Traffic by unit and container, in the metrics.

use std::collections::BTreeMap;

use agent_common::Pair;
use lab::{ControlGroup, Lab, privilege::is_root_or_skip};

use super::{CLIENT, CONTAINER, PORT, Program, SERVER, UNIT};
use crate::{
    metrics::{address, get, samples},
    support::{Agent, pair, wait_for_silence, wait_until},
};

/// Packets and bytes of a unit.
fn told(samples: &BTreeMap<String, String>, way: &str, unit: &str, container_id: &str) -> Pair {
    let of = |what: &str| {
        let series = format!(
            "flow_agent_unit_{way}_{what}_total{{unit=\"{unit}\",container_id=\"{container_id}\"}}"
        );
        let value = samples.get(&series);
        value.map_or(0, |value| value.parse().unwrap())
    };
    Pair {
        packets: of("packets"),
        bytes: of("bytes"),
    }
}

#[test]
fn what_units_and_containers_exchange_is_in_the_metrics() {
    if !is_root_or_skip("agent::what_units_and_containers_exchange_is_in_the_metrics") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let group = ControlGroup::slice().unwrap();
    let here = lab.agent.ipv4.to_string();
    let container = format!("docker-{CONTAINER}.scope");
    let to = [here.as_str(), PORT];
    let mut server = Program::start(&group, "web.service", &lab.agent, SERVER, &to);
    assert_eq!(server.line(), "ready");
    // Reports wait for the interval, counts do not.
    let settings = [UNIT, &["--metrics", "0", "--report-interval", "1h"]].concat();
    let agent = Agent::start(&lab, &settings);
    let address = address(&agent);
    // Nobody here sends this.
    let stray = lab.peer.frame_v4(&lab.agent).udp(1, 9, b"stray").unwrap();
    lab.peer.frame_socket().unwrap().send(&stray).unwrap();
    let mut client = Program::start(&group, &container, &lab.peer, CLIENT, &to);
    let port = client.line();
    for _ in 0..3 {
        client.goes_on();
        agent.wait_for_scans(&lab.agent, 1);
    }
    client.ends();
    wait_for_silence(&lab.agent);
    let found = || samples(&get(&lab.agent, &address, "/metrics").body);
    let seen = || agent.status(&lab.agent)["account"].clone();
    wait_until("all that was seen is drained", || {
        let account = seen();
        let unparsed = account["unparsed"].as_object().unwrap();
        let rest: u64 = unparsed.values().map(|one| pair(one).packets).sum();
        let since = lab.agent.counters().unwrap();
        let sum = pair(&account["flows"]).packets + rest;
        sum == pair(&account["seen"]).packets && sum <= since.rx_packets + since.tx_packets
    });
    agent.wait_for_scans(&lab.agent, 2);
    let found = found();
    let all = pair(&seen()["flows"]);
    let report = agent.stop();

    let connection = report.sums();
    let (_, connection) = connection
        .iter()
        .find(|(name, _)| name.contains(&format!(":{port} ")) || name.contains(&port))
        .unwrap();
    let [from_client, from_server] = [connection[0], connection[1]];
    assert_eq!(told(&found, "transmit", &container, CONTAINER), from_client);
    assert_eq!(told(&found, "receive", &container, CONTAINER), from_server);
    assert_eq!(told(&found, "transmit", "web.service", ""), from_server);
    assert_eq!(told(&found, "receive", "web.service", ""), from_client);
    assert_eq!(told(&found, "transmit", "other", ""), Pair::default());
    let unknown = told(&found, "transmit", "unknown", "");
    assert!(unknown.packets >= 1);
    assert_eq!(from_client + from_server + unknown, all);
}
