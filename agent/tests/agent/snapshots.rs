//! Requests between two scans: the tracked flows at once, and a scan before the interval is over.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use agent_common::Pair;
use lab::{Lab, Process, privilege::is_root_or_skip};
use proto::{FlowBatch, FlowOrder, FlowRecord, ListFlowsRequest, ObserveRequest};
use tokio::time::timeout;
use view::client::{self, Event, Observer, Target};

use crate::support::{Agent, count, flow_agent, patience, wait_for_packets, wait_until};

/// No scan comes by itself.
const SELDOM: &[&str] = &["--scan-interval", "1h", "--output", "none"];

/// By the source port.
type Sums = BTreeMap<u32, Pair>;

/// Sends a packet for each of these source ports, the longer the higher the port, and waits until they are counted.
fn send(lab: &Lab, ports: std::ops::Range<u16>, sent: &mut Sums) {
    let before = lab.agent.counters().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    let socket = lab.peer.frame_socket().unwrap();
    for port in ports.clone() {
        let frame = frame
            .udp(port, 53, &vec![0; 18 + usize::from(port)])
            .unwrap();
        socket.send(&frame).unwrap();
        *sent.entry(port.into()).or_default() += count(1, &frame);
    }
    wait_for_packets(&lab.agent, before, ports.len() as u64);
}

fn add_deltas(sums: &mut Sums, records: &[FlowRecord]) {
    for record in records {
        assert_eq!(record.end_reason, None);
        let sum = sums.entry(record.src().port.unwrap()).or_default();
        *sum += Pair {
            packets: record.src().delta_packets,
            bytes: record.src().delta_bytes,
        };
        assert_eq!(
            (record.src().total_packets, record.src().total_bytes),
            (sum.packets, sum.bytes)
        );
    }
}

/// The batches up to the last one of this scan.
async fn up_to(observer: &mut Observer, scan_id: u64) -> Vec<FlowBatch> {
    let mut batches = Vec::new();
    loop {
        let event = timeout(patience(), observer.next()).await.unwrap().unwrap();
        let Event::Batch(batch) = event else {
            panic!("{event:?} instead of a batch");
        };
        let is_last = batch.scan_id == scan_id && batch.last_of_scan;
        batches.push(*batch);
        if is_last {
            return batches;
        }
    }
}

async fn list(target: &Target, request: ListFlowsRequest) -> FlowBatch {
    let mut batches = client::list_flows(target, request).await.unwrap();
    assert_eq!(batches.len(), 1);
    batches.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_between_two_scans_knows_every_packet_since_the_flows_began() {
    if !is_root_or_skip(
        "agent::who_comes_between_two_scans_knows_every_packet_since_the_flows_began",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, SELDOM);
    let target: Target = agent.address().parse().unwrap();
    let nothing = list(&target, ListFlowsRequest::default()).await;
    assert_eq!(
        (nothing.scan_id, nothing.snapshot, nothing.tracked_flows),
        (0, true, Some(0))
    );

    let mut sent = Sums::new();
    send(&lab, 1..21, &mut sent);
    // They are still in the kernel.
    let unknown = list(&target, ListFlowsRequest::default()).await;
    assert!(unknown.records.is_empty());
    assert_eq!(client::scan_now(&target).await.unwrap(), 1);
    let listed = list(&target, ListFlowsRequest::default()).await;
    let mut sums = Sums::new();
    add_deltas(&mut sums, &listed.records);
    assert_eq!(sums, sent);

    let request = ObserveRequest {
        snapshot: true,
        ..ObserveRequest::default()
    };
    let mut observer = Observer::connect_with(target.clone(), request)
        .await
        .unwrap();
    let mut sums = Sums::new();
    for batch in up_to(&mut observer, 1).await {
        assert!(batch.snapshot);
        add_deltas(&mut sums, &batch.records);
    }
    assert_eq!(sums, sent);
    // Some flows continue and some begin.
    send(&lab, 11..31, &mut sent);
    assert_eq!(client::scan_now(&target).await.unwrap(), 2);
    let batches = up_to(&mut observer, 2).await;
    for batch in &batches {
        assert!(!batch.snapshot);
        add_deltas(&mut sums, &batch.records);
    }
    assert_eq!(sums, sent);
    let flows = batches
        .last()
        .unwrap()
        .account
        .as_ref()
        .unwrap()
        .flows
        .unwrap();
    let all: Pair = sent.values().copied().sum();
    assert_eq!((flows.packets, flows.bytes), (all.packets, all.bytes));

    let longest = ListFlowsRequest {
        filter: "include src port 1-15; exclude all".to_owned(),
        order: FlowOrder::Bytes.into(),
        limit: 3,
    };
    let listed = list(&target, longest).await;
    let ports = listed
        .records
        .iter()
        .map(|record| record.src().port.unwrap());
    assert_eq!(ports.collect::<Vec<_>>(), [15, 14, 13]);
    assert_eq!((listed.scan_id, listed.left_out_records), (2, 27));
    for (rule, status) in [("exclude proto udp", 3), ("exclude proto tcp", 0)] {
        let flows = agent.asked(&lab.agent, &["flows", "--filter", rule]);
        assert_eq!(flows.status.code(), Some(status), "{rule}: {flows:?}");
    }
    agent.stop_silent();
}

/// A snapshot of so many flows takes many steps, and a scan comes in between.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_while_scans_run_misses_nothing_and_has_nothing_twice() {
    const PORTS: std::ops::Range<u16> = 1..10_001;
    if !is_root_or_skip("agent::who_comes_while_scans_run_misses_nothing_and_has_nothing_twice") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let settings = ["--scan-interval", "20ms", "--idle-timeout", "1h"];
    let agent = Agent::start(&lab, &[&settings[..], &["--output", "none"]].concat());
    let target: Target = agent.address().parse().unwrap();
    let request = ObserveRequest {
        snapshot: true,
        ..ObserveRequest::default()
    };
    let (mut sent, mut consumers) = (Pair::default(), Vec::new());
    let frame = lab.peer.frame_v4(&lab.agent);
    let socket = lab.peer.frame_socket().unwrap();
    for _ in 0..4 {
        let before = lab.agent.counters().unwrap();
        for port in PORTS {
            let frame = frame.udp(port, 53, &[0; 18]).unwrap();
            socket.send(&frame).unwrap();
            sent += count(1, &frame);
            if port % 2500 == 0 {
                let observed = Observer::connect_with(target.clone(), request.clone()).await;
                consumers.push(tokio::spawn(all_of(observed.unwrap())));
            }
        }
        wait_for_packets(&lab.agent, before, PORTS.len() as u64);
    }
    agent.stop_silent();
    for consumer in consumers {
        let (sum, snapshot_records) = timeout(patience(), consumer).await.unwrap().unwrap();
        assert_eq!(sum, sent, "{snapshot_records} records in the snapshot");
    }
}

/// The sum of a consumer's records until the agent stops, and the number of records in the snapshot.
async fn all_of(mut observer: Observer) -> (Pair, usize) {
    let (mut sum, mut snapshot_records) = (Pair::default(), 0);
    while let Event::Batch(batch) = observer.next().await.unwrap() {
        assert_eq!(batch.lost_batches, 0);
        for record in &batch.records {
            sum += Pair {
                packets: record.src().delta_packets,
                bytes: record.src().delta_bytes,
            };
        }
        if batch.snapshot {
            snapshot_records += batch.records.len();
        }
    }
    (sum, snapshot_records)
}

/// A scan comes in an hour.
#[test]
fn nobody_looks_at_an_empty_screen() {
    if !is_root_or_skip("agent::nobody_looks_at_an_empty_screen") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, SELDOM);
    let mut sent = Sums::new();
    send(&lab, 1..4, &mut sent);
    let asked = |arguments: &[&str]| {
        let output = agent.asked(&lab.agent, arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = asked(&["flows", "--sort", "packets", "--limit", "2"]);
    assert!(text.starts_with("after scan 1  flows 3 tracked"), "{text}");
    // The total has all, and each has a frame.
    let last: Vec<_> = text.lines().rev().take(2).collect();
    assert_eq!(last[1], "… and 1 more flows", "{text}");
    let total: Pair = sent.values().copied().sum();
    let expected = format!(
        "total: 3 flows, {} packets, {} bytes",
        total.packets, total.bytes
    );
    assert!(last[0].starts_with(&expected), "{text}");
    let text = asked(&["flows", "--limit", "1", "--filter", "exclude src port 1"]);
    let last: Vec<_> = text.lines().rev().take(3).collect();
    assert_eq!(
        last[1..],
        ["… and 1 flows that are left out", "… and 1 more flows"],
        "{text}"
    );
    assert!(last[0].starts_with("total: 2 flows, "), "{text}");
    send(&lab, 2..5, &mut sent);
    let rules = ["--filter", "exclude src port 1"];
    let lines = asked(&[&["flows", "--output", "json"], &rules[..]].concat());
    let mut sums = Sums::new();
    for line in lines.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let number = |name: &str| line[name].as_u64().unwrap();
        if line["type"] == "flow" {
            assert_eq!(line["snapshot"], true);
            let pair = Pair {
                packets: number("total_packets"),
                bytes: number("total_bytes"),
            };
            sums.insert(number("src_port") as u32, pair);
        }
    }
    sent.remove(&1);
    assert_eq!(sums, sent);

    send(&lab, 7..8, &mut sent);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("watch");
    let mut watch = flow_agent(&lab.agent);
    watch
        .args(["watch", "--connect", &agent.address()])
        .stdout(std::fs::File::create(&path).unwrap());
    let mut watch = Process::spawn(&mut watch).unwrap();
    wait_until("the flows and those of a scan are shown", || {
        let text = std::fs::read_to_string(&path).unwrap();
        text.contains("after scan 3  flows 4 tracked") && text.contains("scan 4  flows 1 active")
    });
    watch.signal(libc::SIGINT).unwrap();
    assert!(watch.wait(patience()).unwrap().success());
    // The packet since the start belongs to a new flow.
    let text = std::fs::read_to_string(&path).unwrap();
    let last = text.lines().last().unwrap();
    let expected = format!(
        "in 1 scan: 1 flow began, 1 packet, {} bytes",
        sent[&7].bytes
    );
    assert!(last.starts_with(&expected), "{text}");
    let log = agent.stop_silent();
    assert!(log.contains(" flows=5 packets=7 "), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_for_a_scan_share_one() {
    if !is_root_or_skip("agent::those_who_wait_for_a_scan_share_one") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, SELDOM);
    let target: Target = agent.address().parse().unwrap();
    assert_eq!(client::scan_now(&target).await.unwrap(), 1);
    // The first of them waits until a second has passed, and the others come meanwhile, or later where they are held up.
    let begun = Instant::now();
    let waiting = (0..5).map(|_| client::scan_now(&target));
    let scans = futures_util::future::try_join_all(waiting).await.unwrap();
    let most = 3 + begun.elapsed().as_secs();
    assert!(
        scans.iter().all(|scan| (2..=most).contains(scan)),
        "{scans:?}"
    );
    let made: BTreeSet<_> = scans.iter().collect();
    assert!(made.len() < scans.len(), "{scans:?}");
    agent.stop_silent();
}
