//! Calls that no agent of ours makes.

use std::{
    sync::LazyLock,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures_util::stream;
use proto::{
    AgentIdentity, Endpoint, ExportAck, FlowBatch, FlowRecord, ObserveRequest,
    flow_agent_client::FlowAgentClient, flow_collector_client::FlowCollectorClient,
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc,
};
use tonic::{
    Code, IntoStreamingRequest, Request, Status, Streaming,
    transport::{Channel, Endpoint as Server},
};

use super::*;

static NOW_NS: LazyLock<u64> = LazyLock::new(|| {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_nanos().try_into().unwrap()
});

const STREAM: u64 = 0x1234_5678_9abc_def0;

pub(super) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A collector that also listens on a Unix socket, and a client of it.
pub(super) fn start(lab: &Lab, folder: &TempDir, settings: &[&str]) -> (Collector, String) {
    let socket = format!("unix:{}", folder.path().join("socket").display());
    let output = jsonl(&folder.path().join("flows"));
    fs::create_dir(folder.path().join("flows")).unwrap();
    let all = [&["--output", &output, "--listen", &socket], settings].concat();
    (Collector::start(&lab.agent, 0, &all), socket)
}

pub(super) fn lines(folder: &TempDir) -> Vec<Value> {
    outputs::jsonl::lines(&folder.path().join("flows"))
}

pub(super) async fn connect(socket: &str) -> FlowCollectorClient<Channel> {
    let endpoint = Server::from_shared(socket.to_owned()).unwrap();
    FlowCollectorClient::new(endpoint.connect().await.unwrap())
}

pub(super) fn batch(seq: u64, records: usize) -> FlowBatch {
    // The same content each time, since a collector recognizes repetitions by their content.
    let now = *NOW_NS;
    let record = FlowRecord {
        src: Some(Endpoint {
            addr: vec![10, 0, 0, 1].into(),
            delta_packets: 3,
            delta_bytes: 300,
            ..Endpoint::default()
        }),
        dst: Some(Endpoint {
            addr: vec![10, 0, 0, 2].into(),
            ..Endpoint::default()
        }),
        ip_version: 4,
        first_seen_unix_ns: now,
        last_seen_unix_ns: now,
        protocol: 17,
        ..FlowRecord::default()
    };
    FlowBatch {
        agent: Some(AgentIdentity {
            hostname: "there".into(),
            ..AgentIdentity::default()
        }),
        stream_id: STREAM,
        stream_seq: seq,
        scan_id: seq,
        window_start_unix_ns: now - 1_000_000_000,
        window_end_unix_ns: now,
        records: vec![record; records],
        ..FlowBatch::default()
    }
}

/// The acknowledgements of a call with these batches, and how it ends.
pub(super) async fn call(
    client: &mut FlowCollectorClient<Channel>,
    batches: Vec<FlowBatch>,
) -> (Vec<u64>, Result<(), Status>) {
    exchange(client, Request::new(stream::iter(batches))).await
}

/// The same for a request.
pub(super) async fn exchange(
    client: &mut FlowCollectorClient<Channel>,
    request: impl IntoStreamingRequest<Message = FlowBatch>,
) -> (Vec<u64>, Result<(), Status>) {
    let answers = client.export(request).await;
    let mut answers: Streaming<ExportAck> = match answers {
        Ok(answers) => answers.into_inner(),
        Err(status) => return (Vec::new(), Err(status)),
    };
    let mut acks = Vec::new();
    loop {
        match answers.message().await {
            Ok(Some(ack)) => acks.push(ack.last_seq),
            Ok(None) => return (acks, Ok(())),
            Err(status) => return (acks, Err(status)),
        }
    }
}

#[test]
fn a_batch_that_comes_again_is_acknowledged_and_not_stored_again() {
    if !is_root_or_skip("agent::a_batch_that_comes_again_is_acknowledged_and_not_stored_again") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (collector, socket) = start(&lab, &folder, &[]);
    runtime().block_on(async {
        let mut client = connect(&socket).await;
        for _ in 0..2 {
            let batches = (1..=5).map(|seq| batch(seq, 2)).collect();
            let (acks, ended) = call(&mut client, batches).await;
            assert_eq!(acks.last(), Some(&5), "{ended:?}");
            ended.unwrap();
        }
        let (acks, ended) = call(&mut client, vec![batch(4, 2), batch(5, 2), batch(9, 2)]).await;
        assert_eq!(acks.last(), Some(&9), "{ended:?}");
    });
    let status = collector.status(&lab.agent);
    let stream = &status["streams"][0];
    let number = |name: &str| stream[name].as_u64().unwrap();
    assert_eq!((number("batches"), number("repeated_batches")), (6, 7));
    assert_eq!(number("stored_seq"), 9);
    collector.stop();
    let lines = lines(&folder);
    assert_eq!(lines.len(), 12);
    let sum = outputs::jsonl::sum(&lines);
    assert_eq!((sum.packets, sum.bytes), (36, 3600));
    assert_eq!(lines[11]["stream_id"], format!("{STREAM:016x}"));
    assert_eq!(
        (&lines[11]["record"], &lines[11]["hostname"]),
        (&1.into(), &"there".into())
    );
}

#[test]
fn what_cannot_be_an_agents_batch_is_refused_with_the_reason_and_nothing_is_stored() {
    const TEST: &str =
        "agent::what_cannot_be_an_agents_batch_is_refused_with_the_reason_and_nothing_is_stored";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (collector, socket) = start(&lab, &folder, &[]);
    let first = || batch(7, 1);
    let anonymous = AgentIdentity {
        hostname: "x".repeat(300),
        ..AgentIdentity::default()
    };
    let cases: Vec<(Vec<FlowBatch>, &str)> = vec![
        (
            vec![FlowBatch {
                stream_id: 0,
                ..first()
            }],
            "stream_id",
        ),
        (
            vec![FlowBatch {
                stream_seq: 0,
                ..first()
            }],
            "stream_seq",
        ),
        (
            vec![FlowBatch {
                snapshot: true,
                ..first()
            }],
            "snapshot",
        ),
        (
            vec![FlowBatch {
                agent: Some(anonymous),
                ..first()
            }],
            "256 bytes",
        ),
        (vec![batch(7, 70_000)], "16384 records"),
    ];
    let behind: Vec<(FlowBatch, &str)> = vec![
        (first(), "numbers must rise"),
        (batch(6, 1), "numbers must rise"),
        (
            FlowBatch {
                stream_id: 5,
                ..batch(8, 1)
            },
            "one stream",
        ),
    ];
    runtime().block_on(async {
        let mut client = connect(&socket).await;
        for (batches, told) in cases {
            let (acks, ended) = call(&mut client, batches).await;
            let status = ended.unwrap_err();
            assert_eq!((acks.len(), status.code()), (0, Code::InvalidArgument));
            assert!(status.message().contains(told), "{status}");
        }
        for (second, told) in behind {
            let (acks, ended) = call(&mut client, vec![first(), second]).await;
            // The batches before it are stored and acknowledged.
            assert_eq!(acks, [7]);
            let status = ended.unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument);
            assert!(status.message().contains(told), "{status}");
        }
        // It serves others as before.
        let (acks, _) = call(&mut client, vec![batch(8, 1)]).await;
        assert_eq!(acks, [8]);
    });
    collector.stop();
    let lines = lines(&folder);
    let numbers: Vec<_> = lines
        .iter()
        .map(|line| line["stream_seq"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, [7, 8]);
}

#[test]
fn a_call_ends_where_a_batch_cannot_be_stored_and_nothing_behind_it_is_acknowledged() {
    const TEST: &str =
        "agent::a_call_ends_where_a_batch_cannot_be_stored_and_nothing_behind_it_is_acknowledged";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let (folder, small) = (tempfile::tempdir().unwrap(), SmallDisk::mount("size=1m"));
    let socket = format!("unix:{}", folder.path().join("socket").display());
    let settings = ["--output", &jsonl(small.path()), "--listen", &socket];
    let collector = Collector::start(&lab.agent, 0, &settings);
    runtime().block_on(async {
        let mut client = connect(&socket).await;
        let (acks, ended) = call(&mut client, vec![batch(1, 1)]).await;
        assert_eq!((acks, ended.is_ok()), (vec![1], true));
        // Several times the size of the disk. The last batch would fit.
        let batches = vec![batch(2, 16_000), batch(3, 1)];
        let (acks, ended) = call(&mut client, batches).await;
        assert!(acks.is_empty(), "{acks:?}");
        assert_eq!(ended.unwrap_err().code(), Code::Unavailable);
        let (acks, ended) = call(&mut client, vec![batch(3, 1)]).await;
        assert_eq!((acks, ended.is_ok()), (vec![3], true));
    });
    collector.stop();
    let lines = outputs::jsonl::lines(small.path());
    let seqs: Vec<_> = lines
        .iter()
        .map(|line| line["stream_seq"].as_u64())
        .collect();
    assert_eq!(seqs, [Some(1), Some(3)]);
}

#[test]
fn whoever_reads_nothing_does_not_hold_up_the_end() {
    if !is_root_or_skip("agent::whoever_reads_nothing_does_not_hold_up_the_end") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (collector, socket) = start(&lab, &folder, &[]);
    let runtime = runtime();
    let sent = 100 * 1000;
    let kept = runtime.block_on(async {
        let endpoint = Server::from_shared(socket.clone()).unwrap();
        let mut observer = FlowAgentClient::new(endpoint.connect().await.unwrap());
        let flows = observer.observe(ObserveRequest::default()).await.unwrap();
        let mut client = connect(&socket).await;
        let batches = (1..=100).map(|seq| batch(seq, 1000)).collect();
        let (acks, ended) = call(&mut client, batches).await;
        ended.unwrap();
        assert_eq!(acks.last(), Some(&100));
        // An open call whose acknowledgements are not read.
        let (open, to_send) = mpsc::channel::<FlowBatch>(1);
        let endless = stream::unfold(to_send, |mut to_send| async {
            to_send.recv().await.map(|batch| (batch, to_send))
        });
        let exported = client.clone().export(endless).await.unwrap();
        (flows, exported, open)
    });
    // The connections go on: the client's side answers pings.
    let answering = thread::spawn(move || {
        runtime.block_on(async {
            let _kept = kept;
            std::future::pending::<()>().await;
        });
    });
    collector.stop();
    assert!(!answering.is_finished());
    assert_eq!(lines(&folder).len(), sent);
}

#[test]
fn agents_beyond_the_limit_are_told_and_a_call_that_breaks_off_gives_its_place_back() {
    const TEST: &str =
        "agent::agents_beyond_the_limit_are_told_and_a_call_that_breaks_off_gives_its_place_back";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (collector, socket) = start(&lab, &folder, &["--max-agents", "1"]);
    runtime().block_on(async {
        let mut client = connect(&socket).await;
        let (batches, mut to_send) = mpsc::channel(4);
        let sent = stream::poll_fn(move |context| to_send.poll_recv(context));
        let mut open = client.clone().export(sent).await.unwrap().into_inner();
        batches.send(batch(1, 1)).await.unwrap();
        assert_eq!(open.message().await.unwrap().unwrap().last_seq, 1);
        let (_, refused) = call(&mut client, vec![batch(1, 1)]).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("--max-agents"), "{refused}");
        assert_eq!(
            collector.status(&lab.agent)["streams"][0]["connected"],
            true
        );
        drop((batches, open));
        let deadline = Instant::now() + patience();
        loop {
            assert!(Instant::now() < deadline, "the place is still taken");
            let other = FlowBatch {
                stream_id: 6,
                ..batch(1, 1)
            };
            let (acks, ended) = call(&mut client, vec![other]).await;
            if ended.is_ok() {
                assert_eq!(acks, [1]);
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let status = collector.status(&lab.agent);
    let streams = status["streams"].as_array().unwrap();
    assert!(
        streams.iter().all(|stream| stream["connected"] == false),
        "{streams:?}"
    );
    collector.stop();
}
