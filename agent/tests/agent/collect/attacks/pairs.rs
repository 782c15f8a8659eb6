//! Attacks on a collector that compares agents.

use std::{
    ops::Range,
    time::{Duration, SystemTime},
};

use proto::{Account, AgentIdentity, Direction, Endpoint, FlowRecord, Interface};

use super::*;

/// The flows that a collector follows; one sender may have half of them.
const FLOWS: u32 = 100_000;
const RECORDS: u32 = 10_000;
/// Flows of the hosts.
const OF_THE_HOSTS: Range<u32> = FLOWS..FLOWS + 100;
/// Agents that do not exist.
const FORGED: usize = 300;
const INTERFACES: u32 = 4096;

/// An agent that counts every packet at one interface.
struct Seer {
    name: &'static str,
    stream_id: u64,
    direction: Direction,
    packets: u64,
    seq: u64,
}

fn ago(seconds: u64) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap().saturating_sub(Duration::from_secs(seconds));
    now.as_nanos().try_into().unwrap()
}

fn interface(ifindex: u32) -> Interface {
    Interface {
        ifindex,
        ..Interface::default()
    }
}

impl Seer {
    fn new(name: &'static str, stream_id: u64, direction: Direction, packets: u64) -> Self {
        Self {
            name,
            stream_id,
            direction,
            packets,
            seq: 0,
        }
    }

    fn record(&self, number: u32, seen: u64) -> FlowRecord {
        FlowRecord {
            src: Some(Endpoint {
                addr: [10, 0, 0, 1].to_vec().into(),
                port: Some(number & 0xffff),
                direction: self.direction.into(),
                delta_packets: self.packets,
                delta_bytes: 100 * self.packets,
                delta_ip_bytes: 86 * self.packets,
                total_packets: self.packets,
                total_bytes: 100 * self.packets,
                ..Endpoint::default()
            }),
            dst: Some(Endpoint {
                addr: [10, 0, 0, 2].to_vec().into(),
                port: Some(number >> 16),
                direction: self.direction.opposite().into(),
                ..Endpoint::default()
            }),
            ip_version: 4,
            protocol: 17,
            community_id: [&number.to_be_bytes()[..], &[0; 16]].concat().into(),
            ifindex: 1,
            first_seen_unix_ns: seen,
            last_seen_unix_ns: seen,
            ..FlowRecord::default()
        }
    }

    /// A scan that saw these flows in the middle of its window.
    fn scan(&mut self, window: [u64; 2], flows: Range<u32>) -> FlowBatch {
        self.seq += 1;
        let seen = u64::midpoint(window[0], window[1]);
        let records = flows.map(|number| self.record(number, seen));
        FlowBatch {
            agent: Some(AgentIdentity {
                agent_id: format!("agent of {}", self.name),
                instance_id: format!("{} {}", self.name, self.stream_id),
                ..AgentIdentity::default()
            }),
            stream_id: self.stream_id,
            window_start_unix_ns: window[0],
            window_end_unix_ns: window[1],
            last_of_scan: true,
            account: Some(Account::default()),
            interfaces: vec![interface(1)],
            records: records.collect(),
            ..batch(self.seq, 0)
        }
    }

    /// The scan of an agent that has just started with the most interfaces allowed.
    fn start(&mut self, number: usize, window: [u64; 2]) -> FlowBatch {
        let mut scan = self.scan(window, 0..1);
        scan.agent.as_mut().unwrap().instance_id = format!("{number:0>256}");
        scan.interfaces = (1..=INTERFACES).map(interface).collect();
        scan
    }
}

/// While two hosts have flows, one credential sends flows, agents and interfaces without end, from the future, at an interval of
/// hours, and says that it has seen the hosts' flows, too.
async fn attack(confined: &Confined, [a, b]: &mut [Seer; 2]) {
    let [first, second, third] = [[40, 30], [30, 20], [20, 10]].map(|window| window.map(ago));
    let ahead = second.map(|time| time + 12 * 3600 * 1_000_000_000);
    let channel = confined.channel(address(1)).await;
    let send = |seer: &Seer, scan| {
        let (channel, name) = (&channel, seer.name);
        async move { confined.send(channel, name, vec![scan]).await }
    };
    for host in [&mut *a, &mut *b] {
        let scan = host.scan(first, 0..0);
        send(host, scan).await;
    }
    let mut forger = Seer::new(ATTACKER, 3, Direction::Egress, 5);
    for number in 0..FORGED {
        let scan = forger.start(number, second);
        send(&forger, scan).await;
    }
    let mut flooder = Seer::new(ATTACKER, 4, Direction::Egress, 5);
    for place in 0..FLOWS / RECORDS {
        let window = if place % 2 == 0 { second } else { ahead };
        let mut scan = flooder.scan(window, place * RECORDS..(place + 1) * RECORDS);
        scan.report_interval_ns = 3600 * 1_000_000_000;
        send(&flooder, scan).await;
    }
    for host in [&mut *a, &mut *b] {
        let scan = host.scan(second, OF_THE_HOSTS);
        send(host, scan).await;
    }
    let mut liar = Seer::new(ATTACKER, 5, Direction::Egress, 5);
    let mut lie = liar.scan(second, OF_THE_HOSTS);
    for record in &mut lie.records {
        record.first_seen_unix_ns = ago(3600);
    }
    send(&liar, lie).await;
    for host in [a, b, &mut liar] {
        let scan = host.scan(third, 0..0);
        send(host, scan).await;
    }
}

fn lines_of_the_hosts(folder: &Path) -> Vec<Value> {
    let mut lines = outputs::jsonl::lines(folder);
    lines.retain(|line| {
        let ends = [("from", OTHER), ("to", PEER)];
        ends.iter()
            .all(|(end, name)| line[end]["identity"] == *name)
    });
    lines
}

#[test]
fn one_sender_of_flows_agents_and_interfaces_without_end_changes_no_line_of_others() {
    const TEST: &str =
        "agent::one_sender_of_flows_agents_and_interfaces_without_end_changes_no_line_of_others";
    let folder = tempfile::tempdir().unwrap();
    let [stores, pairs] = ["stores", "pairs"].map(|name| folder.path().join(name));
    for folder in [&stores, &pairs] {
        fs::create_dir(folder).unwrap();
    }
    let (output, reports) = (parquet(&stores), jsonl(&pairs));
    let settings = [
        "--output",
        &output,
        "--pairs",
        &reports,
        "--pairs-settle",
        "1s",
    ];
    let Some(mut confined) = Confined::start(TEST, &settings) else {
        return;
    };
    // Of 300 packets, 100 are lost.
    let mut hosts = [
        Seer::new(OTHER, 1, Direction::Egress, 3),
        Seer::new(PEER, 2, Direction::Ingress, 2),
    ];
    confined.run(attack(&confined, &mut hosts));
    let mut status = Value::Null;
    wait_until("the flows of the hosts are reported", || {
        status = confined.status();
        let paths = status["pairs"]["paths"].as_array().unwrap();
        let mut paths = paths.iter().filter(|path| path["from_hostname"] == OTHER);
        paths.any(|path| path["to_hostname"] == PEER)
    });
    let peak = confined.peak();
    assert!(peak < memory_of_the_unit() * 2 / 5, "{peak}");
    let of_pairs = |name: &str| status["pairs"][name].as_u64().unwrap();
    assert_eq!(of_pairs("flows"), u64::from(FLOWS) / 2 + 100);
    assert!(of_pairs("not_followed") >= u64::from(FLOWS) / 2);
    let log = confined.collector.stop();
    assert!(!log.contains("ERROR"), "{log}");

    let lines = lines_of_the_hosts(&pairs);
    assert_eq!(lines.len(), OF_THE_HOSTS.len());
    for line in lines {
        assert_eq!(line["inexact"], Value::Null, "{line}");
        assert_eq!(line["lost_packets"], 1, "{line}");
    }
}
