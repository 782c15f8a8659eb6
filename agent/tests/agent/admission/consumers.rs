//! Many consumers that come and go, and many that do not read.

use std::{fs, os::unix::process::CommandExt as _, process::Command};

use lab::{Lab, privilege::is_root_or_skip};
use prost::Message as _;
use proto::{AgentStatus, GetStatusRequest, ObserveRequest};
use tonic::Code;
use view::client::{Event, Observer, Target};

use super::{
    client::{Client, GET_STATUS, NOBODY, OBSERVE, OpenStream, ROOT, connect_as, open_to_all},
    memory::{MIB, Memory, reset_peak},
    patience,
};
use crate::support::{Agent, everybodys::everybodys_binary, wait_for_packets, wait_until};

/// If 3.5 KiB of each consumer stayed until the next scan, that would be 70 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn consumers_that_left_between_two_scans_leave_nothing_behind() {
    const CONSUMERS: u64 = 20_000;
    const CONNECTIONS: u64 = 8;
    if !is_root_or_skip("agent::consumers_that_left_between_two_scans_leave_nothing_behind") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut agent = Agent::start(&lab, &["--scan-interval", "1h", "--output", "none"]);
    let visits = |address: String, consumers| async move {
        let stream = connect_as(&address, ROOT).unwrap();
        let mut client = Client::new(stream, 65_535).await.unwrap();
        for _ in 0..consumers {
            let request = ObserveRequest::default();
            let begun = client.begin(OBSERVE, &request).await.unwrap();
            assert_eq!(begun.0.status(), 200);
            assert!(begun.refusal().is_none(), "{:?}", begun.refusal());
        }
    };
    // The first consumers take memory that is not freed.
    visits(agent.address(), 100).await;
    let before = Memory::of(agent.pid());
    let all = (0..CONNECTIONS).map(|_| {
        let visits = visits(agent.address(), CONSUMERS / CONNECTIONS);
        tokio::spawn(visits)
    });
    for visits in all.collect::<Vec<_>>() {
        visits.await.unwrap();
    }
    wait_until("the last consumer has left", || {
        agent.status(&lab.agent)["server"]["consumers_left"] == CONSUMERS + 100
    });
    let after = Memory::of(agent.pid());
    assert!(
        after.peak < before.resident + 24 * MIB,
        "{before:?} {after:?}"
    );
    assert_eq!(agent.status(&lab.agent)["consumers"], serde_json::json!([]));
    let log = agent.stop_silent();
    let lines = log.matches("a consumer left").count();
    assert!((1..100).contains(&lines), "{lines} lines");
}

/// If each kept two batches of its own in the transport, 4,000 of them would take 1.1 GiB.
#[tokio::test(flavor = "multi_thread")]
async fn what_consumers_that_never_read_hold_is_shared_in_the_transport_too() {
    const CONSUMERS: usize = 2_000;
    const CONNECTIONS: usize = 10;
    if !is_root_or_skip("agent::what_consumers_that_never_read_hold_is_shared_in_the_transport_too")
    {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut agent = Agent::start(
        &lab,
        &[
            "--scan-interval",
            "1h",
            "--max-consumers",
            "2000",
            "--max-streams",
            "200",
            "--output",
            "none",
        ],
    );
    let before = Memory::of(agent.pid());
    reset_peak(agent.pid());
    let mut unread: Vec<(Client, Vec<OpenStream>)> = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = connect_as(&agent.address(), ROOT).unwrap();
        // A batch that begins within the window goes to the transport as a whole.
        let mut client = Client::new(stream, 100).await.unwrap();
        let mut streams = Vec::new();
        for _ in 0..CONSUMERS / CONNECTIONS {
            let request = ObserveRequest::default();
            let begun = client.begin(OBSERVE, &request).await.unwrap();
            assert!(begun.refusal().is_none(), "{:?}", begun.refusal());
            streams.push(begun);
        }
        unread.push((client, streams));
    }
    // These flows fill more than half of a page, so a scan comes early. A batch has thousands of records, so
    // the first one stays in the transport and the next one waits for it.
    let frame = lab.peer.frame_v4(&lab.agent);
    let frames = (1..=30_000).map(|port| frame.udp(port, 53, &[0; 18]).unwrap());
    lab.peer.frame_socket().unwrap().send_many(frames).unwrap();
    let mut status = serde_json::Value::Null;
    wait_until("each consumer was handed what it does not read", || {
        status = agent.status(&lab.agent);
        let consumers = status["consumers"].as_array().unwrap();
        let handed =
            |consumer: &serde_json::Value| consumer["delivered_batches"].as_u64() >= Some(2);
        assert_eq!(consumers.len(), CONSUMERS);
        consumers.iter().all(handed)
    });
    let held = status["server"]["held_bytes"].as_u64().unwrap();
    assert!((1..8 * MIB).contains(&held), "{held}");
    let after = Memory::of(agent.pid());
    assert!(
        after.peak < before.resident + 128 * MIB,
        "{before:?} {after:?}"
    );
    drop(unread);
    wait_until("nothing is held", || {
        agent.status(&lab.agent)["server"]["held_bytes"] == 0
    });
    agent.stop_silent();
}

/// Each consumer has its own copies, so the bound has room for only some of them.
#[tokio::test(flavor = "multi_thread")]
async fn consumers_with_filters_that_never_read_keep_the_bound_and_take_nothing_from_who_reads() {
    const FLOWS: u16 = 30_000;
    const ASKING: usize = 300;
    /// Half of 256 MiB, at 640 KiB each.
    const MOST: usize = 204;
    if !is_root_or_skip(
        "agent::consumers_with_filters_that_never_read_keep_the_bound_and_take_nothing_from_who_reads",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let many = ["--max-consumers", "2000", "--max-streams", "200"];
    // The table has room for all flows, so one scan reports them.
    let table = ["--max-flows", "100000", "--min-flows", "100000"];
    let settings = ["--scan-interval", "1h", "--output", "none"];
    let mut agent = Agent::start(&lab, &[many, table, settings].concat());
    let address = agent.address();
    let client = |window_bytes| Client::new(connect_as(&address, ROOT).unwrap(), window_bytes);
    let filtered = ObserveRequest {
        filter: "exclude port 1; include all".into(),
        ..ObserveRequest::default()
    };
    let target: Target = address.parse().unwrap();
    let observe = |request| Observer::connect_with(target.clone(), request);
    let filtered_reader = observe(filtered.clone()).await.unwrap();

    let before = Memory::of(agent.pid());
    reset_peak(agent.pid());
    let mut unread: Vec<(Client, Vec<OpenStream>)> = Vec::new();
    let mut refused = Vec::new();
    for _ in 0..ASKING / 100 {
        let mut client = client(100).await.unwrap();
        let mut streams = Vec::new();
        for _ in 0..100 {
            let begun = client.begin(OBSERVE, &filtered).await.unwrap();
            match begun.refusal() {
                None => streams.push(begun),
                Some(refusal) => refused.push(refusal),
            }
        }
        unread.push((client, streams));
    }
    assert_eq!(refused.len(), ASKING + 1 - MOST);
    for refusal in &refused {
        assert_eq!(refusal.code, Code::ResourceExhausted, "{refusal:?}");
        assert!(refusal.message.contains("without a filter"), "{refusal:?}");
    }
    // A consumer without a filter has no copies.
    let plain_reader = observe(ObserveRequest::default()).await.unwrap();
    let readers = [(filtered_reader, 1), (plain_reader, 0)]
        .map(|(reader, left_out)| tokio::spawn(packets(reader, u64::from(FLOWS) - left_out)));
    let frame = lab.peer.frame_v4(&lab.agent);
    let frames = (1..=FLOWS).map(|port| frame.udp(port, 53, &[0; 18]).unwrap());
    let before_counters = lab.agent.counters().unwrap();
    lab.peer.frame_socket().unwrap().send_many(frames).unwrap();
    wait_for_packets(&lab.agent, before_counters, u64::from(FLOWS));
    view::client::scan_now(&target).await.unwrap();
    let mut read = Vec::new();
    for reader in readers {
        read.push(reader.await.unwrap());
    }
    wait_until(
        "each consumer was handed a batch that it does not read",
        || {
            let status = agent.status(&lab.agent);
            let consumers = status["consumers"].as_array().unwrap();
            assert_eq!(consumers.len(), MOST + 1);
            let delivered = |consumer: &serde_json::Value| consumer["delivered_batches"].as_u64();
            consumers
                .iter()
                .all(|consumer| delivered(consumer) >= Some(1))
        },
    );
    let status = agent.status(&lab.agent);
    assert_eq!(status["server"]["refused_consumers"], refused.len());
    let held = status["server"]["held_bytes"].as_u64().unwrap();
    // One copy per consumer, and the queued batches.
    assert!((45 * MIB..65 * MIB).contains(&held), "{held}");
    let after = Memory::of(agent.pid());
    assert!(
        after.peak < before.resident + 160 * MIB,
        "{before:?} {after:?}"
    );
    drop((unread, read));
    wait_until("nothing is held, and there is room again", || {
        agent.status(&lab.agent)["server"]["held_bytes"] == 0
    });
    observe(filtered).await.unwrap();
    agent.stop_silent();
}

/// Reads batches until they have reported this many packets. None may be lost. Returns the consumer, still connected.
async fn packets(mut reader: Observer, expected: u64) -> Observer {
    let mut packets = 0;
    while packets < expected {
        let event = tokio::time::timeout(patience(), reader.next()).await;
        let Event::Batch(batch) = event.expect("more comes").unwrap() else {
            panic!("it goes on");
        };
        assert_eq!(batch.lost_batches, 0);
        let records = batch.records.iter();
        packets += records
            .map(|record| record.src().delta_packets)
            .sum::<u64>();
    }
    assert_eq!(packets, expected);
    reader
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_requests_and_answers_beyond_a_bound_are_refused_by_its_name() {
    const UNREAD_ANSWERS: usize = 16;
    if !is_root_or_skip(
        "agent::consumers_requests_and_answers_beyond_a_bound_are_refused_by_its_name",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(
        &lab,
        &[
            "--max-consumers",
            "2",
            "--max-streams",
            "2",
            "--output",
            "none",
        ],
    );
    let address = agent.address();
    open_to_all(&address);
    let client = |uid, window_bytes| Client::new(connect_as(&address, uid).unwrap(), window_bytes);
    let refused = |begun: &OpenStream, setting: &str| {
        let refusal = begun.refusal().expect("a refusal");
        assert_eq!(refusal.code, Code::ResourceExhausted, "{refusal:?}");
        assert!(refusal.message.contains(setting), "{refusal:?}");
    };

    let observe = ObserveRequest::default();
    let (mut nobody, mut another, mut root) = (
        client(NOBODY, 65_535).await.unwrap(),
        client(NOBODY, 65_535).await.unwrap(),
        client(ROOT, 65_535).await.unwrap(),
    );
    let first = nobody.begin(OBSERVE, &observe).await.unwrap();
    let second = nobody.begin(OBSERVE, &observe).await.unwrap();
    assert!(first.refusal().is_none() && second.refusal().is_none());
    refused(
        &another.begin(OBSERVE, &observe).await.unwrap(),
        "--max-consumers",
    );
    let kept = root.begin(OBSERVE, &observe).await.unwrap();
    assert!(kept.refusal().is_none(), "root has a place of its own");
    // The message that a consumer gets.
    let mut watch = watch_as_nobody(&address);
    let watch = watch.output().unwrap();
    let told = String::from_utf8(watch.stderr).unwrap();
    assert!(told.contains("--max-consumers"), "{told}");
    drop(second);
    wait_until("its place is free", || {
        agent.status(&lab.agent)["server"]["consumers_left"] == 1
    });
    let third = nobody.begin(OBSERVE, &observe).await.unwrap();
    assert!(third.refusal().is_none());

    refused(
        &nobody
            .begin(GET_STATUS, &GetStatusRequest {})
            .await
            .unwrap(),
        "--max-streams",
    );
    drop((first, third, kept));

    let mut unread = Vec::new();
    while unread.len() < UNREAD_ANSWERS {
        let mut client = client(NOBODY, 0).await.unwrap();
        let begun = client
            .begin(GET_STATUS, &GetStatusRequest {})
            .await
            .unwrap();
        assert!(begun.refusal().is_none(), "{:?}", begun.refusal());
        unread.push((client, begun));
    }
    refused(
        &another
            .begin(GET_STATUS, &GetStatusRequest {})
            .await
            .unwrap(),
        "not been read",
    );
    let answer = root.call(GET_STATUS, &GetStatusRequest {}).await.unwrap();
    assert_eq!(answer.code, Code::Ok, "root has a place of its own");
    let server = AgentStatus::decode(answer.answer).unwrap().server.unwrap();
    assert_eq!(
        (
            server.refused_consumers,
            server.refused_streams,
            server.refused_answers
        ),
        (2, 1, 1)
    );
    drop(unread);
    let answer = another
        .call(GET_STATUS, &GetStatusRequest {})
        .await
        .unwrap();
    assert_eq!(answer.code, Code::Ok, "the places are free again");
    agent.stop_silent();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_changes_how_many_consumers_and_connections_there_may_be() {
    if !is_root_or_skip("agent::a_reload_changes_how_many_consumers_and_connections_there_may_be") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    let write = |consumers: u32, connections: u32| {
        let settings = format!(
            "max_flows = 1000\nmax_consumers = {consumers}\nmax_connections = {connections}\n"
        );
        fs::write(&file, settings).unwrap();
    };
    write(1, 3);
    let agent = Agent::start_by_file(&lab.agent, &lab.agent.interface, &file);
    let reload = |consumers, connections| {
        write(consumers, connections);
        agent.signal(libc::SIGHUP);
        wait_until("the limits are in force", || {
            let server = agent.status(&lab.agent)["server"].clone();
            server["max_consumers"] == consumers && server["max_connections"] == connections
        });
    };
    let address = agent.address();
    open_to_all(&address);
    let observe = ObserveRequest::default();
    let mut client = Client::new(connect_as(&address, NOBODY).unwrap(), 65_535)
        .await
        .unwrap();
    let first = client.begin(OBSERVE, &observe).await.unwrap();
    assert!(first.refusal().is_none());
    let refused = client.begin(OBSERVE, &observe).await.unwrap().refusal();
    assert!(refused.unwrap().message.contains("--max-consumers"));

    reload(2, 3);
    let second = client.begin(OBSERVE, &observe).await.unwrap();
    assert!(second.refusal().is_none(), "{:?}", second.refusal());
    reload(1, 1);
    let refused = client.begin(OBSERVE, &observe).await.unwrap().refusal();
    assert!(refused.unwrap().message.contains("--max-consumers"));
    // The only connection belongs to the consumers, who stay.
    let stream = connect_as(&address, NOBODY).unwrap();
    let refused = match Client::new(stream, 65_535).await {
        Ok(mut other) => other.begin(OBSERVE, &observe).await.is_err(),
        Err(_) => true,
    };
    assert!(refused);
    assert_eq!(
        agent.status(&lab.agent)["consumers"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    drop((first, second));
    agent.stop_silent();
}

/// `flow-agent watch` as a user without rights.
fn watch_as_nobody(address: &str) -> Command {
    let mut watch = Command::new(everybodys_binary());
    watch
        .args(["watch", "--connect", address])
        .uid(NOBODY)
        .gid(NOBODY);
    watch
}
