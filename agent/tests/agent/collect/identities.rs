//! A host's credential is good for that host's flows alone, and shows nobody else's.

use std::{thread, time::Duration};

use lab::certificates::replace;
use proto::{
    CollectorStatus, ExportAck, FlowBatch, GetCollectorStatusRequest, ObserveRequest,
    flow_agent_client::FlowAgentClient, flow_collector_client::FlowCollectorClient,
    flow_collector_control_client::FlowCollectorControlClient,
};
use tokio::sync::mpsc;
use tonic::{
    Code, Request, Response, Status, Streaming,
    metadata::MetadataValue,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::{
    calls::{batch, exchange, runtime},
    tokens::new_token,
    *,
};

pub(super) const NOBODY: libc::uid_t = 65534;

/// A caller with a token, or without one.
struct Shown {
    channel: Channel,
    token: Option<String>,
}

impl Shown {
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            let value = MetadataValue::try_from(format!("Bearer {token}")).unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        request
    }
}

fn shows(channel: &Channel, token: Option<&str>) -> Shown {
    Shown {
        channel: channel.clone(),
        token: token.map(str::to_owned),
    }
}

async fn send(shown: Shown, batches: Vec<FlowBatch>) -> (Vec<u64>, Result<(), Status>) {
    let request = shown.request(futures_util::stream::iter(batches));
    exchange(&mut FlowCollectorClient::new(shown.channel), request).await
}

/// A call that stays open after this batch is acknowledged.
async fn open_call(
    shown: Shown,
    first: FlowBatch,
) -> (mpsc::Sender<FlowBatch>, Streaming<ExportAck>) {
    let (batches, mut to_send) = mpsc::channel(4);
    let sent = futures_util::stream::poll_fn(move |context| to_send.poll_recv(context));
    let request = shown.request(sent);
    let mut client = FlowCollectorClient::new(shown.channel);
    let mut answers = client.export(request).await.unwrap().into_inner();
    let seq = first.stream_seq;
    batches.send(first).await.unwrap();
    assert_eq!(answers.message().await.unwrap().unwrap().last_seq, seq);
    (batches, answers)
}

async fn status(shown: Shown) -> Result<CollectorStatus, Status> {
    let request = shown.request(GetCollectorStatusRequest::default());
    let mut client = FlowCollectorControlClient::new(shown.channel);
    let answer = client.get_collector_status(request).await;
    answer.map(Response::into_inner)
}

async fn observe(shown: Shown) -> Result<Streaming<FlowBatch>, Status> {
    let request = shown.request(ObserveRequest::default());
    let answer = FlowAgentClient::new(shown.channel).observe(request).await;
    answer.map(Response::into_inner)
}

/// A batch of this host and machine, on the stream of all batches by hand.
fn of(hostname: &str, agent_id: &str, seq: u64, records: usize) -> FlowBatch {
    let mut batch = batch(seq, records);
    let agent = batch.agent.as_mut().unwrap();
    hostname.clone_into(&mut agent.hostname);
    agent_id.clone_into(&mut agent.agent_id);
    batch
}

fn code(ended: &Result<(), Status>) -> Code {
    ended.as_ref().map_or_else(Status::code, |()| Code::Ok)
}

/// Runs this on the collector's host, with a connection to it.
fn with_channel<T: Send>(
    host: &Host,
    collector: &Collector,
    work: impl AsyncFnOnce(Channel) -> T + Send,
) -> T {
    with_channel_as(host, collector, 0, work)
}

/// The same as another user, on a separate thread.
pub(super) fn with_channel_as<T: Send>(
    host: &Host,
    collector: &Collector,
    uid: libc::uid_t,
    work: impl AsyncFnOnce(Channel) -> T + Send,
) -> T {
    let address = format!("http://{}", collector.address);
    let ask = || {
        // SAFETY: no pointers. Unlike libc's function the system call changes this thread only.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        runtime().block_on(async {
            let endpoint = Endpoint::from_shared(address).unwrap();
            work(endpoint.connect().await.unwrap()).await
        })
    };
    // A thread begins in the network namespace of the one that starts it.
    let entered = host
        .namespace
        .enter(|| Ok(thread::scope(|scope| scope.spawn(ask).join().unwrap())));
    entered.unwrap()
}

#[test]
fn a_token_sends_for_its_own_host_alone_and_hides_and_shows_nothing_of_others() {
    const TEST: &str =
        "agent::a_token_sends_for_its_own_host_alone_and_hides_and_shows_nothing_of_others";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let [folder, lines, files] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let tokens = folder.path().join("tokens");
    let one = new_token(&tokens, "one", "send");
    let two = new_token(&tokens, "two.example.com", "send");
    let reader = new_token(&tokens, "ops", "observe,status");
    let (as_lines, as_files) = (jsonl(lines.path()), parquet(files.path()));
    let stores = ["--output", &as_lines, "--output", &as_files];
    let wants = ["--token-file", tokens.to_str().unwrap()];
    let collector = Collector::start(
        &lab.agent,
        0,
        &[stores, [wants[0], wants[1], "--max-agents", "9"]].concat(),
    );
    with_channel(&lab.agent, &collector, async |channel| {
        let shown = |token: &str| shows(&channel, Some(token));
        // Another host's machine and stream, with that stream's next number.
        let first = of("two", "m2", 1, 1000);
        let (acks, ended) = send(shown(&two), vec![first.clone()]).await;
        assert_eq!((acks, code(&ended)), (vec![1], Code::Ok), "{ended:?}");
        let (acks, ended) = send(shown(&one), vec![of("one", "m1", 2, 1)]).await;
        assert_eq!((acks, code(&ended)), (vec![2], Code::Ok), "{ended:?}");
        let (acks, ended) = send(shown(&two), vec![of("two", "m2", 2, 1000)]).await;
        assert_eq!((acks, code(&ended)), (vec![2], Code::Ok), "{ended:?}");
        for forged in [
            of("two", "m1", 3, 1),
            of("one", "m2", 3, 1),
            of("", "m2", 3, 1),
        ] {
            let (acks, ended) = send(shown(&one), vec![forged.clone()]).await;
            assert_eq!((acks, code(&ended)), (vec![], Code::PermissionDenied));
            // Nor behind one of its own.
            let own = of("one", "m1", 2, 1);
            let (acks, ended) = send(shown(&one), vec![own, forged]).await;
            assert_eq!((acks, code(&ended)), (vec![2], Code::PermissionDenied));
        }
        let mut named = of("one", "m1", 3, 1);
        named.agent.as_mut().unwrap().identity = "two.example.com".to_owned();
        let (_, ended) = send(shown(&one), vec![named]).await;
        assert_eq!(code(&ended), Code::InvalidArgument);
        // The losses that it reports are its own.
        let lost = FlowBatch {
            lost_records: 4,
            lost_packets: 5,
            ..of("one", "m1", 3, 1)
        };
        let (_, ended) = send(shown(&one), vec![lost]).await;
        ended.unwrap();

        for token in [&one, &two] {
            let refused = status(shown(token)).await.unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied);
            let refused = observe(shown(token)).await.err().unwrap();
            assert_eq!(refused.code(), Code::PermissionDenied);
            // It may ask for the collector's health once, but not take an observer's place to watch it.
            let health = || shown(token).request(HealthCheckRequest::default());
            let mut client = HealthClient::new(channel.clone());
            assert!(client.check(health()).await.is_ok());
            let refused = client.watch(health()).await.err().unwrap();
            assert_eq!(refused.code(), Code::PermissionDenied);
        }
        let (_, ended) = send(shown(&reader), vec![of("ops", "", 1, 1)]).await;
        assert_eq!(code(&ended), Code::PermissionDenied);
        assert!(observe(shown(&reader)).await.is_ok());
        let status = status(shown(&reader)).await.unwrap();
        let mut streams = status.streams.iter();
        let mut next = || {
            let stream = streams.next().unwrap();
            let lost = stream.lost.unwrap_or_default().packets;
            (&*stream.identity, stream.stored_seq, stream.batches, lost)
        };
        assert_eq!(next(), ("one", 3, 2, 5));
        assert_eq!(next(), ("two.example.com", 2, 2, 0));
        assert!(streams.next().is_none());
        assert!(status.server.unwrap().refused_callers >= 11);
    });
    let log = collector.stop();
    for words in [
        "the credential of one does not belong to host two",
        "does not have the role",
    ] {
        assert!(log.contains(words), "{log}");
    }
    // A query that counts each record once has both.
    assert_eq!(packets_once(lines.path(), files.path()), [2002 * 3; 2]);
}

/// The packets of all records, each once by its documented name: as lines, and as a query of Parquet files adds them up.
fn packets_once(lines: &Path, files: &Path) -> [u64; 2] {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flow-agent"));
    command.arg("query").arg(files).args(["--output", "json"]);
    let answer = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let total: Value = serde_json::from_str(answer.lines().last().unwrap()).unwrap();
    let mut records = BTreeMap::new();
    for line in outputs::jsonl::lines(lines) {
        if line["type"] == "flow" {
            let names = [
                "identity",
                "instance_id",
                "stream_id",
                "stream_seq",
                "record",
            ];
            let name = names.map(|name| line[name].to_string());
            records
                .entry(name)
                .or_insert(line["packets"].as_u64().unwrap());
        }
    }
    [
        records.into_values().sum(),
        total["packets"].as_u64().unwrap(),
    ]
}

#[test]
fn a_relay_brings_what_another_collector_took_whatever_its_senders_called_themselves() {
    const TEST: &str =
        "agent::a_relay_brings_what_another_collector_took_whatever_its_senders_called_themselves";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let [folder, flows] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let tokens = folder.path().join("tokens");
    let relay = new_token(&tokens, "bringer", "relay");
    let wants = ["--token-file", tokens.to_str().unwrap()];
    let stores = ["--output", &jsonl(flows.path())];
    let collector = Collector::start(&lab.agent, 0, &[stores, wants].concat());
    let sent_by = |identity: &str, mut batch: FlowBatch| {
        identity.clone_into(&mut batch.agent.as_mut().unwrap().identity);
        batch
    };
    // The first collector took it on the last day on which it would, and the topic kept it for a month.
    let old = |mut batch: FlowBatch| {
        let later_ns = 430 * 24 * 3600 * 1_000_000_000;
        batch.window_start_unix_ns -= later_ns;
        batch.window_end_unix_ns -= later_ns;
        for record in &mut batch.records {
            record.first_seen_unix_ns -= later_ns;
            record.last_seen_unix_ns -= later_ns;
        }
        batch
    };
    with_channel(&lab.agent, &collector, async |channel| {
        let shown = || shows(&channel, Some(&relay));
        // One host under its old and its current name and machine, and another host that had the same machine.
        let open = open_call(shown(), sent_by("one", of("one", "m1", 1, 1))).await;
        let mut next = sent_by("one", of("renamed", "m2", 1, 1));
        next.stream_id += 1;
        for batch in [
            next,
            sent_by("two", of("two", "m1", 1, 1)),
            sent_by("two", old(of("two", "m1", 2, 1))),
        ] {
            let seq = batch.stream_seq;
            let (acks, ended) = send(shown(), vec![batch]).await;
            assert_eq!((acks, code(&ended)), (vec![seq], Code::Ok), "{ended:?}");
        }
        drop(open);
    });
    collector.stop();
    assert_eq!(outputs::jsonl::lines(flows.path()).len(), 4);
}

#[test]
fn a_token_that_is_withdrawn_ends_what_it_began() {
    if !is_root_or_skip("agent::a_token_that_is_withdrawn_ends_what_it_began") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let [folder, lines] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let tokens = folder.path().join("tokens");
    let one = new_token(&tokens, "one", "send");
    let reader = new_token(&tokens, "ops", "observe");
    let kept = new_token(&tokens, "kept", "send");
    let output = jsonl(lines.path());
    let settings = [
        "--output",
        &output,
        "--token-file",
        tokens.to_str().unwrap(),
    ];
    let collector = Collector::start(&lab.agent, 0, &settings);
    with_channel(&lab.agent, &collector, async |channel| {
        let shown = |token: &str| shows(&channel, Some(token));
        let mut observed = observe(shown(&reader)).await.unwrap();
        let mut open = Vec::new();
        for (token, name) in [(&one, "one"), (&kept, "kept")] {
            open.push(open_call(shown(token), of(name, name, 1, 1)).await);
        }
        let known = fs::read_to_string(&tokens).unwrap();
        let rest = known.lines().filter(|line| line.starts_with("kept "));
        replace(
            &tokens,
            &format!("{}\n", rest.collect::<Vec<_>>().join("\n")),
        )
        .unwrap();
        let ends = async {
            let [(_batches, first), (_, _)] = &mut open[..] else {
                panic!("two calls");
            };
            let ended = first.message().await.unwrap_err();
            assert_eq!(ended.code(), Code::Unauthenticated);
            loop {
                if let Err(ended) = observed.message().await {
                    assert_eq!(ended.code(), Code::Unauthenticated);
                    break;
                }
            }
        };
        let ends = tokio::time::timeout(Duration::from_mins(2), ends).await;
        ends.expect("what was begun goes on");
        let (_, ended) = send(shown(&one), vec![of("one", "one", 2, 1)]).await;
        assert_eq!(code(&ended), Code::Unauthenticated);
        // The other one goes on.
        let (batches, answers) = &mut open[1];
        batches.send(of("kept", "kept", 2, 1)).await.unwrap();
        assert_eq!(answers.message().await.unwrap().unwrap().last_seq, 2);
    });
    collector.stop();
}

#[test]
fn without_credentials_another_user_of_the_host_reads_nothing_and_has_numbers_of_its_own() {
    const TEST: &str = "agent::without_credentials_another_user_of_the_host_reads_nothing_and_has_numbers_of_its_own";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let lines = tempfile::tempdir().unwrap();
    let collector = Collector::start(&lab.agent, 0, &["--output", &jsonl(lines.path())]);
    let ask = |uid: libc::uid_t, records: usize| {
        with_channel_as(&lab.agent, &collector, uid, async move |channel| {
            let shown = || shows(&channel, None);
            let (_, ended) = send(shown(), vec![of("here", "m", 1, records)]).await;
            ended.unwrap();
            let observed = observe(shown()).await.err();
            let status = status(shown()).await;
            (status, observed.map(|refused| refused.code()))
        })
    };
    let (status, observed) = ask(NOBODY, 1);
    assert_eq!(status.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(observed, Some(Code::PermissionDenied));
    let (status, observed) = ask(0, 5);
    assert_eq!(observed, None);
    let streams = status.unwrap().streams;
    let mut stored: Vec<_> = streams
        .iter()
        .map(|stream| (&*stream.identity, stream.stored.unwrap_or_default().records))
        .collect();
    stored.sort_unstable();
    assert_eq!(stored, [("uid:0", 5), ("uid:65534", 1)]);
    collector.stop();
}
