//! A collector that stores batches in memory and answers calls by a script.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
};

use agent_common::Pair;
use futures_util::{Stream, StreamExt as _, stream};
use proto::{
    ExportAck, FlowBatch, FlowRecord,
    flow_collector_server::{FlowCollector, FlowCollectorServer},
};
use tokio::{net::TcpSocket, task::JoinHandle, time::Duration};
use tonic::{
    Code, Request, Response, Status, Streaming,
    transport::{Server, server::TcpIncoming},
};

use super::AGENT;
use crate::settings::HostPort;

/// What a collector does with one call.
#[derive(Clone, Copy)]
pub(super) struct Script {
    /// The call breaks after this many stored batches.
    pub(super) stores: u64,
    /// It acknowledges this many of them.
    pub(super) acknowledges: u64,
    /// Added to each sequence number that it acknowledges.
    pub(super) too_much: u64,
    /// The report interval that it asks for.
    pub(super) wants: Duration,
}

pub(super) const WELL: Script = Script {
    stores: u64::MAX,
    acknowledges: u64::MAX,
    too_much: 0,
    wants: Duration::ZERO,
};

/// The store that all collectors share. It keeps each batch once, as a database would.
#[derive(Clone, Default)]
pub(super) struct Store {
    pub(super) batches: Arc<Mutex<BTreeMap<(u64, u64), FlowBatch>>>,
    /// For each call, the sequence numbers in order of arrival.
    pub(super) calls: Arc<Mutex<Vec<Vec<u64>>>>,
    pub(super) scripts: Arc<Mutex<Vec<Script>>>,
    /// Refuse all calls and ask for a pause of a minute.
    pub(super) asks: bool,
    /// Refuse the batch of this scan as invalid.
    pub(super) invalid_scan: Option<u64>,
}

impl Store {
    /// Collectors answer calls by these scripts, the last one first, and then normally.
    pub(super) fn with(scripts: &[Script]) -> Self {
        Self {
            scripts: Arc::new(Mutex::new(scripts.to_vec())),
            ..Self::default()
        }
    }

    pub(super) fn sum(&self) -> Pair {
        let batches = self.batches.lock().unwrap();
        let records = batches.values().flat_map(|batch| &batch.records);
        records.map(FlowRecord::delta).sum()
    }

    /// The lost records that each batch reports.
    pub(super) fn lost(&self) -> Vec<u64> {
        let batches = self.batches.lock().unwrap();
        batches.values().map(|batch| batch.lost_records).collect()
    }

    pub(super) fn calls(&self) -> Vec<Vec<u64>> {
        self.calls.lock().unwrap().clone()
    }

    fn begin(&self) -> (usize, Script) {
        let mut calls = self.calls.lock().unwrap();
        calls.push(Vec::new());
        let script = self.scripts.lock().unwrap().pop();
        (calls.len() - 1, script.unwrap_or(WELL))
    }

    fn store(&self, call: usize, batch: &FlowBatch) {
        let agent = batch.agent.as_ref().expect("each batch says whose it is");
        assert_eq!(agent.agent_id, AGENT);
        assert_ne!(batch.stream_id, 0);
        self.calls.lock().unwrap()[call].push(batch.stream_seq);
        let mut batches = self.batches.lock().unwrap();
        let before = batches.insert((batch.stream_id, batch.stream_seq), batch.clone());
        assert!(before.is_none_or(|before| before == *batch));
    }
}

#[tonic::async_trait]
impl FlowCollector for Store {
    type ExportStream = Pin<Box<dyn Stream<Item = Result<ExportAck, Status>> + Send>>;

    async fn export(
        &self,
        request: Request<Streaming<FlowBatch>>,
    ) -> Result<Response<Self::ExportStream>, Status> {
        let (store, (call, script)) = (self.clone(), self.begin());
        if self.asks {
            let details = a_minute().into();
            return Err(Status::with_details(Code::Unavailable, "later", details));
        }
        let batches = request.into_inner();
        let answers = stream::unfold((batches, 0), move |(mut batches, stored)| {
            let store = store.clone();
            async move {
                if stored == script.stores {
                    let broken = Status::unavailable("this one restarts");
                    return Some((Some(Err(broken)), (batches, u64::MAX)));
                }
                let batch = batches.next().await?.ok()?;
                if store.invalid_scan == Some(batch.scan_id) {
                    let refused = Status::invalid_argument("scan_id: nobody has it");
                    return Some((Some(Err(refused)), (batches, u64::MAX)));
                }
                store.store(call, &batch);
                let ack = (stored < script.acknowledges).then_some(Ok(ExportAck {
                    last_seq: batch.stream_seq + script.too_much,
                    report_interval_ns: script.wants.as_nanos() as u64,
                    // Ten per minute of the interval.
                    sample_rate: script.wants.as_secs() as u32 / 6,
                }));
                Some((ack, (batches, stored + 1)))
            }
        });
        let answers = answers.filter_map(|answer| async { answer });
        Ok(Response::new(answers.boxed()))
    }
}

/// A hand-encoded `google.rpc.Status` with a `RetryInfo`.
fn a_minute() -> Vec<u8> {
    let url = b"type.googleapis.com/google.rpc.RetryInfo";
    let mut any = [&[0x0a, url.len() as u8][..], url].concat();
    any.extend([0x12, 4, 0x0a, 2, 0x08, 60]);
    [&[0x1a, any.len() as u8][..], &any].concat()
}

pub(super) fn host(address: SocketAddr) -> HostPort {
    HostPort {
        host: address.ip().to_string(),
        port: address.port(),
    }
}

/// A collector that runs until the task is aborted.
pub(super) fn listen(store: &Store) -> (HostPort, JoinHandle<()>) {
    listen_on(store, free_port().0)
}

/// A reserved port on which nobody listens.
pub(super) fn free_port() -> (TcpSocket, HostPort) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = host(socket.local_addr().unwrap());
    (socket, address)
}

pub(super) fn listen_on(store: &Store, socket: TcpSocket) -> (HostPort, JoinHandle<()>) {
    let listener = socket.listen(1024).unwrap();
    let address = host(listener.local_addr().unwrap());
    let service = FlowCollectorServer::new(store.clone());
    let incoming = TcpIncoming::from(listener);
    let serving = Server::builder().serve_with_incoming(service, incoming);
    let task = tokio::spawn(async { serving.await.unwrap() });
    (address, task)
}
