//! Delivery of batches to collectors that break off, restart and stand in for each other.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use lab::certificates::Ca;
use proto::{
    ExportAck, FlowBatch, FlowRecord,
    flow_collector_server::{FlowCollector, FlowCollectorServer},
};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Server, server::Connected},
};

use super::{
    ipfix,
    secured::receiver::{ended_with, identity},
    serve::serve_each,
    *,
};
use crate::support::BINARY;

/// Calls that break.
const BREAKS: u64 = 12;

/// Batches by stream and number, each once, as a database would have them.
type Batches = BTreeMap<(u64, u64), FlowBatch>;

/// The store that all collectors share.
#[derive(Clone, Default)]
pub struct Store {
    batches: Arc<Mutex<Batches>>,
    /// Refuses every call.
    pub is_away: Arc<AtomicBool>,
    /// All received batches, including repetitions.
    arrived: Arc<AtomicU64>,
    calls: Arc<AtomicU64>,
    /// Breaks the first calls after some batches. It acknowledges one or none of these.
    breaks: bool,
}

#[tonic::async_trait]
impl FlowCollector for Store {
    type ExportStream = Pin<Box<dyn Stream<Item = Result<ExportAck, Status>> + Send>>;

    async fn export(
        &self,
        request: Request<Streaming<FlowBatch>>,
    ) -> Result<Response<Self::ExportStream>, Status> {
        let call = self.calls.fetch_add(1, Relaxed);
        if self.is_away.load(Relaxed) {
            return Err(Status::unavailable("it is away"));
        }
        let stores = if self.breaks && call < BREAKS {
            call % 4
        } else {
            u64::MAX
        };
        let store = self.clone();
        let state = (request.into_inner(), 0);
        let answers = stream::unfold(state, move |(mut batches, stored)| {
            let store = store.clone();
            async move {
                if stored == stores {
                    let broken = Err(Status::unavailable("it restarts"));
                    return Some((Some(broken), (batches, 0)));
                }
                let batch = batches.next().await?.ok()?;
                let last_seq = batch.stream_seq;
                assert!(batch.agent.is_some());
                let key = (batch.stream_id, last_seq);
                let before = store.batches.lock().unwrap().insert(key, batch.clone());
                assert!(before.is_none_or(|before| before == batch));
                store.arrived.fetch_add(1, Relaxed);
                let is_told = stores == u64::MAX || stored == 0;
                let ack = is_told.then_some(Ok(ExportAck {
                    last_seq,
                    ..ExportAck::default()
                }));
                Some((ack, (batches, stored + 1)))
            }
        });
        let answers = answers.filter_map(|answer| async { answer });
        Ok(Response::new(answers.boxed()))
    }
}

impl Store {
    /// Listens on the agent's host.
    pub fn listen(&self, lab: &Lab) -> u16 {
        let store = self.clone();
        let serve = move |stream| serve(store.clone(), stream);
        serve_each(lab, serve).port()
    }

    fn listen_by_tls(&self, lab: &Lab, identity: ServerConfig) -> u16 {
        let (store, acceptor) = (self.clone(), TlsAcceptor::from(Arc::new(identity)));
        let serve = move |stream: TcpStream| {
            let (store, acceptor) = (store.clone(), acceptor.clone());
            async move {
                if let Ok(secured) = acceptor.accept(stream).await {
                    serve(store, Secured(secured)).await;
                }
            }
        };
        serve_each(lab, serve).port()
    }

    /// The sum of all records, and the account in the last batch. Asserts that no sequence number is missing.
    pub fn sums(&self) -> (Pair, Pair) {
        let batches = self.batches.lock().unwrap();
        let records = batches.values().flat_map(|batch| &batch.records);
        let numbers = batches.keys().map(|(_, number)| *number);
        assert!(numbers.eq(1..=batches.len() as u64));
        let last = batches
            .values()
            .rev()
            .find_map(|batch| batch.account.as_ref());
        let seen = last.and_then(|account| account.seen).unwrap_or_default();
        (records.map(FlowRecord::delta).sum(), seen.into())
    }

    /// The number of streams, and of the agent's starts.
    pub fn origins(&self) -> (usize, usize) {
        let batches = self.batches.lock().unwrap();
        let streams: BTreeSet<_> = batches.keys().map(|(stream, _)| stream).collect();
        let agents = batches.values().filter_map(|batch| batch.agent.as_ref());
        let starts: BTreeSet<_> = agents.map(|agent| &agent.instance_id).collect();
        (streams.len(), starts.len())
    }

    /// What all records report together.
    pub fn records(&self) -> Pair {
        let batches = self.batches.lock().unwrap();
        let records = batches.values().flat_map(|batch| &batch.records);
        records.map(FlowRecord::delta).sum()
    }

    /// The losses that the last batch reports.
    pub fn lost(&self) -> Pair {
        let batches = self.batches.lock().unwrap();
        let (_, last) = batches.last_key_value().expect("a batch");
        Pair {
            packets: last.lost_packets,
            bytes: last.lost_bytes,
        }
    }
}

async fn serve<S>(store: Store, stream: S)
where
    S: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let once = stream::iter([io::Result::Ok(stream)]).chain(stream::pending());
    let service = FlowCollectorServer::new(store);
    let serving = Server::builder().serve_with_incoming(service, Box::pin(once));
    // Until the tests end.
    let _ = serving.await;
}

/// A connection that reports nothing about itself.
struct Secured(TlsStream<TcpStream>);

impl Connected for Secured {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[test]
fn collectors_that_break_off_have_every_packet_once() {
    if !is_root_or_skip("agent::collectors_that_break_off_have_every_packet_once") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let store = Store {
        breaks: true,
        ..Store::default()
    };
    let ports = [store.listen(&lab), store.listen(&lab)];
    // Nobody listens at the first one.
    let [first, second] = ports.map(|port| format!("127.0.0.1:{port}"));
    let output_setting = format!(
        r#"{{"kind": "collector", "address": "http://127.0.0.1:1", "failover": "{first}, {second}"}}"#
    );
    let settings = ["--output", "json", "--scan-interval", "100ms", "--output"];
    let agent = Agent::start(&lab, &[&settings[..], &[&output_setting]].concat());
    let mut sent = Pair::default();
    while store.calls.load(Relaxed) <= BREAKS {
        sent += send(&lab, 50, 2);
    }
    wait_until_counted(&agent, &lab, sent.packets);
    wait_until("all is acknowledged", || {
        fates(&output(&agent, &lab, "collector"), sent)["sent"] == sent
    });
    let report = agent.stop();
    let (records, seen) = store.sums();
    assert_eq!((records, seen), (sent, sent));
    assert_eq!(report.seen(), sent);
    // Some came twice.
    let stored = store.batches.lock().unwrap().len() as u64;
    assert!(store.arrived.load(Relaxed) > stored);
    let log = &report.log;
    assert!(
        log.contains("cannot deliver flows to 127.0.0.1:1: connect"),
        "{log}"
    );
    assert!(log.contains("delivering flows to 127.0.0.1:"), "{log}");
}

/// Answers of something that is not a collector.
#[derive(Clone, Copy, Debug)]
enum Garbage {
    /// At the beginning of the connection.
    Bytes(&'static [u8]),
    /// As the answer to a call, and then nothing more.
    Answer(&'static [u8]),
    /// As the status of the call.
    Status(&'static str),
}

impl Garbage {
    async fn serve(self, mut stream: TcpStream) {
        if let Self::Bytes(bytes) = self {
            // The agent may have gone, here and below.
            let _ = stream.write_all(bytes).await;
            while stream.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {}
            return;
        }
        let Ok(mut connection) = h2::server::handshake(stream).await else {
            return;
        };
        // With all calls, until the agent goes.
        let mut calls = Vec::new();
        while let Some(Ok((request, mut answer))) = connection.accept().await {
            let head = http::Response::builder()
                .header("content-type", "application/grpc")
                .body(())
                .unwrap();
            let Ok(mut body) = answer.send_response(head, false) else {
                return;
            };
            let _ = match self {
                Self::Answer(bytes) => body.send_data(Bytes::from_static(bytes), false),
                Self::Status(status) => body.send_trailers(ended_with(status)),
                Self::Bytes(_) => unreachable!("it is no HTTP"),
            };
            calls.push((request, body));
        }
    }
}

#[test]
fn a_collector_that_answers_with_garbage_is_told_once_and_has_every_packet_when_it_does_not() {
    let test = "agent::a_collector_that_answers_with_garbage_is_told_once_and_has_every_packet_when_it_does_not";
    if !is_root_or_skip(test) {
        return;
    }
    for (garbage, why) in [
        (
            Garbage::Bytes(b"220 mail.example ESMTP\r\n"),
            "connection error",
        ),
        // A message of five bytes that is invalid.
        (
            Garbage::Answer(&[0, 0, 0, 0, 5, 0xff, 0xff, 0xff, 0xff, 0xff]),
            "read an acknowledgement",
        ),
        // A message of four gigabytes.
        (
            Garbage::Answer(&[0, 0xff, 0xff, 0xff, 0xff, 1]),
            "an answer is longer than",
        ),
        // A compressed message, which nobody asked for.
        (
            Garbage::Answer(&[1, 0, 0, 0, 1, 7]),
            "compresses its answers",
        ),
        // Not a valid status.
        (Garbage::Status("many"), "UNKNOWN"),
    ] {
        let lab = Lab::quiet().unwrap();
        let store = Store::default();
        let (stores, connections) = (store.clone(), AtomicU64::new(0));
        let port = serve_each(&lab, move |stream| {
            let is_garbage = connections.fetch_add(1, Relaxed) < 2;
            let store = stores.clone();
            async move {
                if is_garbage {
                    garbage.serve(stream).await;
                } else {
                    serve(store, stream).await;
                }
            }
        })
        .port();
        let setting = format!("collector=http://127.0.0.1:{port}");
        let agent = Agent::start(&lab, &["--output", "json", "--output", &setting]);
        let sent = send(&lab, 50, 2);
        wait_until_counted(&agent, &lab, sent.packets);
        wait_until("all is acknowledged", || {
            fates(&output(&agent, &lab, "collector"), sent)["sent"] == sent
        });
        let report = agent.stop();
        assert_eq!(report.seen(), sent);
        assert_eq!(store.sums(), (sent, sent), "{garbage:?}");
        // Logged once with the error, and once when it is over.
        let log = &report.log;
        let told = format!("cannot deliver flows to 127.0.0.1:{port}: ");
        let lines: Vec<_> = log.lines().filter(|line| line.contains(&told)).collect();
        let [line] = lines[..] else {
            panic!("{garbage:?}: {log}")
        };
        assert!(line.contains(why), "{garbage:?}: {line}");
        let told = format!("delivering flows to 127.0.0.1:{port} again");
        assert_eq!(log.matches(&told).count(), 1, "{garbage:?}: {log}");
    }
}

#[test]
fn a_collector_whose_name_gets_another_address_is_found() {
    if !is_root_or_skip("agent::a_collector_whose_name_gets_another_address_is_found") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let store = Store::default();
    let port = store.listen(&lab);
    let hosts = tempfile::NamedTempFile::new().unwrap();
    let name = "collector.test";
    // Nobody listens there.
    fs::write(hosts.path(), format!("127.0.0.3 {name}\n")).unwrap();
    let script = r#"mount --bind "$1" /etc/hosts && shift && exec "$@""#;
    let mut command = lab.agent.command("unshare");
    command
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(hosts.path())
        .arg(BINARY);
    let setting = format!("collector=http://{name}:{port}");
    let settings = ["--output", "json", "--output", &setting];
    let agent = Agent::start_by(command, &lab.agent.interface, &settings);
    let sent = send(&lab, 50, 2);
    wait_until_counted(&agent, &lab, sent.packets);
    wait_until("nobody is there", || {
        let output = output(&agent, &lab, "collector");
        assert_eq!(fates(&output, sent)["queued"], sent);
        output["last_error"].as_str().unwrap().contains("refused")
    });
    fs::write(hosts.path(), format!("127.0.0.1 {name}\n")).unwrap();
    wait_until("all is acknowledged", || {
        fates(&output(&agent, &lab, "collector"), sent)["sent"] == sent
    });
    assert_eq!(agent.stop().seen(), sent);
    assert_eq!(store.sums(), (sent, sent));
}

#[test]
fn a_collector_over_tls_has_every_packet_from_an_agent_with_a_certificate() {
    let test = "agent::a_collector_over_tls_has_every_packet_from_an_agent_with_a_certificate";
    if !is_root_or_skip(test) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let ca = Ca::new().unwrap();
    let theirs = ca.issue("collector", "localhost").unwrap();
    let ours = ca.issue("agent", "agent.example").unwrap();
    let store = Store::default();
    let port = store.listen_by_tls(&lab, identity(&theirs, Some(&ca)));
    let table = serde_json::json!({
        "kind": "collector",
        "address": format!("https://localhost:{port}"),
        "tls_ca": ca.file(),
        "tls_client_certificate": ours.certificate,
        "tls_client_key": ours.key,
    });
    let agent = Agent::start(&lab, &["--output", "json", "--output", &table.to_string()]);
    let (sent, report) = ipfix::traffic(&lab, agent);
    assert_eq!(store.sums(), (sent, sent));
    assert_eq!(report.seen(), sent);
    assert!(
        !report.log.contains("cannot deliver flows to"),
        "{}",
        report.log
    );
}
