use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    pin::Pin,
    sync::Mutex,
};

use agent_common::Pair;
use futures_util::{Stream, StreamExt as _, stream};
use hub::{DEFAULT_QUEUED_BYTES, Hub};
use proto::{
    AgentIdentity, Endpoint, FlowRecord, OutputStatus,
    batch::Batch,
    flow_collector_server::{FlowCollector, FlowCollectorServer},
};
use tokio::{
    net::TcpSocket,
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tonic::{
    Code, Request, Response, Status, Streaming,
    transport::{Server, server::TcpIncoming},
};

use super::*;
use crate::{relief::AskedByAll, settings::HostPort};

/// What a collector does with one call.
#[derive(Clone, Copy)]
struct Script {
    /// It stores so many batches, and then the call breaks.
    stores: u64,
    /// It has acknowledged so many of them.
    acknowledges: u64,
    /// What it adds to the numbers that it acknowledges.
    too_much: u64,
    /// How often it wants reports.
    wants: Duration,
}

const WELL: Script = Script {
    stores: u64::MAX,
    acknowledges: u64::MAX,
    too_much: 0,
    wants: Duration::ZERO,
};

/// What collectors have stored together, as a database would that knows each batch once.
#[derive(Clone, Default)]
struct Store {
    batches: Arc<Mutex<BTreeMap<(u64, u64), FlowBatch>>>,
    /// The numbers of each call, as they came.
    calls: Arc<Mutex<Vec<Vec<u64>>>>,
    scripts: Arc<Mutex<Vec<Script>>>,
    /// It refuses all calls, and asks to be left alone for a minute.
    asks: bool,
    /// A scan of which it says that no agent has it.
    invalid_scan: Option<u64>,
}

impl Store {
    /// Collectors answer calls as these say, the last one first, and then well.
    fn with(scripts: &[Script]) -> Self {
        Self {
            scripts: Arc::new(Mutex::new(scripts.to_vec())),
            ..Self::default()
        }
    }

    fn sum(&self) -> Pair {
        let batches = self.batches.lock().unwrap();
        let records = batches.values().flat_map(|batch| &batch.records);
        records.map(FlowRecord::delta).sum()
    }

    /// Records that the batches call lost.
    fn lost(&self) -> Vec<u64> {
        let batches = self.batches.lock().unwrap();
        batches.values().map(|batch| batch.lost_records).collect()
    }

    fn calls(&self) -> Vec<Vec<u64>> {
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
                    // Ten for each minute.
                    sample_rate: script.wants.as_secs() as u32 / 6,
                }));
                Some((ack, (batches, stored + 1)))
            }
        });
        let answers = answers.filter_map(|answer| async { answer });
        Ok(Response::new(answers.boxed()))
    }
}

/// `google.rpc.Status` with a `RetryInfo`, by hand.
fn a_minute() -> Vec<u8> {
    let url = b"type.googleapis.com/google.rpc.RetryInfo";
    let mut any = [&[0x0a, url.len() as u8][..], url].concat();
    any.extend([0x12, 4, 0x0a, 2, 0x08, 60]);
    [&[0x1a, any.len() as u8][..], &any].concat()
}

const AGENT: &str = "agent-1";

/// A batch of so many records, each of three packets with 300 bytes.
fn batch(scan_id: u64, records: u32) -> Batch {
    let record = FlowRecord {
        src: Some(Endpoint {
            delta_packets: 3,
            delta_bytes: 300,
            ..Endpoint::default()
        }),
        ..FlowRecord::default()
    };
    let message = FlowBatch {
        agent: Some(AgentIdentity {
            agent_id: AGENT.to_owned(),
            ..AgentIdentity::default()
        }),
        scan_id,
        records: vec![record; records as usize],
        ..FlowBatch::default()
    };
    Batch {
        body: message.encode_to_vec().into(),
        records,
        delta: sum_of_records(records.into()),
        scan_id,
        index: 0,
        last_of_scan: true,
    }
}

/// The same with so many bytes more.
fn long(scan_id: u64, records: u32, bytes: usize) -> Batch {
    let mut batch = batch(scan_id, records);
    let more = FlowBatch {
        agent: Some(AgentIdentity {
            boot_id: "b".repeat(bytes),
            ..AgentIdentity::default()
        }),
        ..FlowBatch::default()
    };
    batch.body = [&batch.body[..], &more.encode_to_vec()].concat().into();
    batch
}

fn sum_of_records(records: u64) -> Pair {
    Pair {
        packets: 3 * records,
        bytes: 300 * records,
    }
}

fn host(address: SocketAddr) -> HostPort {
    HostPort {
        host: address.ip().to_string(),
        port: address.port(),
    }
}

/// A collector that ends with the task.
fn listen(store: &Store) -> (HostPort, JoinHandle<()>) {
    listen_on(store, free_port().0)
}

/// A port where nobody listens, and which nobody else gets.
fn free_port() -> (TcpSocket, HostPort) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = host(socket.local_addr().unwrap());
    (socket, address)
}

fn listen_on(store: &Store, socket: TcpSocket) -> (HostPort, JoinHandle<()>) {
    let listener = socket.listen(1024).unwrap();
    let address = host(listener.local_addr().unwrap());
    let service = FlowCollectorServer::new(store.clone());
    let incoming = TcpIncoming::from(listener);
    let serving = Server::builder().serve_with_incoming(service, incoming);
    let task = tokio::spawn(async { serving.await.unwrap() });
    (address, task)
}

struct Output {
    hub: Hub,
    tally: Arc<Tally>,
    all_asked: AskedByAll,
    deadline: watch::Sender<Option<Instant>>,
    task: JoinHandle<()>,
}

impl Output {
    fn start(hub: Hub, collectors: Vec<HostPort>, patience: Duration) -> Self {
        Self::start_with(hub, collectors, |sender| sender.patience = patience)
    }

    fn start_with(hub: Hub, collectors: Vec<HostPort>, prepare: impl FnOnce(&mut Sender)) -> Self {
        let subscription = hub.subscribe_output("collector", "test");
        let tally = Arc::new(Tally::new(subscription.backlog()));
        let (deadline, until) = watch::channel(None);
        let endpoint = |to| crate::transport::Endpoint::new(to, None);
        let collectors = Collectors {
            endpoints: collectors.into_iter().map(endpoint).collect(),
            spooling: None,
            most_asked: Relief {
                report_interval: Duration::from_mins(5),
                sample_rate: 50,
            },
            token: None,
        };
        let asked = AskedByAll::default();
        let all_asked = asked.clone();
        let asked = asked.of_output(collectors.most_asked);
        let mut delivery = Delivery::new(
            "collector",
            collectors,
            (None, asked),
            subscription,
            Arc::clone(&tally),
            Ending::new(until),
        );
        prepare(&mut delivery.sender);
        Self {
            hub,
            tally,
            all_asked,
            deadline,
            task: tokio::spawn(delivery.run()),
        }
    }

    /// The records that were sent, lost and are queued.
    fn fates(&self) -> [u64; 3] {
        let status = self.tally.status();
        [status.sent, status.lost, status.queued].map(|fate| fate.unwrap().records)
    }

    fn spooled(hub: Hub, collectors: Vec<HostPort>, spooling: Option<Spooling>) -> Self {
        Self::start_with(hub, collectors, |sender| sender.spooling = spooling)
    }

    async fn wait_until(&self, what: &str, is_so: impl Fn(OutputStatus) -> bool) {
        let waiting = timeout(Duration::from_mins(1), async {
            while !is_so(self.tally.status()) {
                sleep(Duration::from_millis(5)).await;
            }
        });
        let waited = waiting.await;
        waited.unwrap_or_else(|_| panic!("{what}: {:?}", self.tally.status()));
    }

    async fn wait_until_failing(&self) {
        self.wait_until("it fails", |status| status.failing).await;
    }

    async fn wait_until_sent(&self, records: u64) {
        self.wait_until("the batches are acknowledged", |_| {
            self.fates()[0] >= records
        })
        .await;
    }

    /// Ends when all is acknowledged.
    async fn end(self) -> Arc<Tally> {
        self.hub.close();
        let ended = timeout(Duration::from_mins(1), self.task).await;
        ended.expect("all is acknowledged").unwrap();
        self.tally
    }
}

fn roomy_hub() -> Hub {
    Hub::new(100_000, DEFAULT_QUEUED_BYTES)
}

#[tokio::test]
async fn every_batch_is_stored_once_however_often_calls_break() {
    // Far more small ones than a server takes as frames of their own.
    const BATCHES: u64 = 3000;
    let breaks = [(0, 0), (1, 0), (7, 7), (50, 3), (20, 0), (3, 2)];
    let scripts = breaks.map(|(stores, acknowledges)| Script {
        stores,
        acknowledges,
        ..WELL
    });
    let store = Store::with(&scripts);
    let (collector, _task) = listen(&store);
    let output = Output::start(roomy_hub(), vec![collector], PATIENCE);
    let mut records = 0;
    for scan_id in 1..=BATCHES {
        let some = (scan_id % 5) as u32;
        output.hub.publish(&batch(scan_id, some));
        records += u64::from(some);
    }
    let tally = output.end().await;
    let status = tally.status();
    assert_eq!(status.sent.unwrap().records, records);
    assert_eq!(status.lost.unwrap(), RecordSum::default());
    assert_eq!(status.queued.unwrap(), RecordSum::default());
    assert_eq!(store.sum(), sum_of_records(records));
    let batches = store.batches.lock().unwrap().clone();
    let numbers = batches.keys().map(|(_, number)| *number);
    let numbers: Vec<_> = numbers.collect();
    assert_eq!(numbers, (1..=BATCHES).collect::<Vec<_>>());
    let calls = store.calls();
    assert_eq!(calls.len(), breaks.len() + 1);
    // Each call goes on behind what was acknowledged, in order. An acknowledgement may be lost with its call.
    let mut acknowledged = 0;
    let mut first = 1;
    for (call, (_, acknowledges)) in calls.iter().zip(breaks.into_iter().rev().chain([(0, 0)])) {
        let Some(&begins) = call.first() else {
            continue;
        };
        assert!((first..=acknowledged + 1).contains(&begins), "{calls:?}");
        assert!(
            call.iter().copied().eq((begins..).take(call.len())),
            "{calls:?}"
        );
        first = begins;
        acknowledged = acknowledged.max(begins - 1 + acknowledges.min(call.len() as u64));
    }
}

#[tokio::test]
async fn what_the_last_collector_asked_for_holds_until_one_asks_for_something_else() {
    let wants = |minutes, stores| Script {
        stores,
        wants: Duration::from_mins(minutes),
        ..WELL
    };
    // The last one asks for nothing.
    let store = Store::with(&[wants(10, 1), wants(2, 2)]);
    let (collector, _task) = listen(&store);
    let output = Output::start(roomy_hub(), vec![collector], PATIENCE);
    let asked = |output: &Output| {
        let told = output.tally.status().asked_report_interval_ns;
        let most = output.all_asked.most();
        assert_eq!(most.report_interval.as_nanos(), told.into());
        let rate = output.tally.status().asked_sample_rate;
        // See the script.
        assert_eq!(
            (most.sample_rate, u64::from(rate)),
            (rate, told / 6_000_000_000)
        );
        told / 60_000_000_000
    };
    assert_eq!(asked(&output), 0);
    // Of the ten minutes the settings allow five.
    for (scan_id, minutes) in [(1, 2), (2, 2), (3, 5), (4, 0)] {
        output.hub.publish(&batch(scan_id, 1));
        output.wait_until_sent(scan_id).await;
        assert_eq!(asked(&output), minutes, "{scan_id}");
    }
    let all_asked = output.all_asked.clone();
    output.end().await;
    assert_eq!(all_asked.most(), Relief::default());
}

#[tokio::test]
async fn another_collector_stands_in_for_one_that_breaks_off() {
    let breaks = |acknowledges| Script {
        stores: 1,
        acknowledges,
        ..WELL
    };
    let [first, second] = [Store::with(&[breaks(0), breaks(1)]), Store::default()];
    let nobody = host("127.0.0.1:1".parse().unwrap());
    let (to_first, _task) = listen(&first);
    let (to_second, _task) = listen(&second);
    let collectors = vec![nobody, to_first, to_second];
    let output = Output::start(roomy_hub(), collectors, PATIENCE);
    output.hub.publish(&batch(1, 1));
    output.wait_until_sent(1).await;
    assert_eq!(output.tally.status().failures, 1);
    output.hub.publish(&batch(2, 1));
    output.wait_until_sent(2).await;
    let status = output.tally.status();
    assert!(!status.failing && status.failures == 2, "{status:?}");
    output.end().await;
    assert_eq!(first.calls(), [[1], [2]]);
    assert_eq!(second.calls(), [[2]]);
}

#[tokio::test]
async fn a_call_that_ends_when_nothing_is_left_is_no_failure() {
    let ends = Script { stores: 1, ..WELL };
    let store = Store::with(&[ends, ends]);
    let (collector, _task) = listen(&store);
    let output = Output::start(roomy_hub(), vec![collector], PATIENCE);
    for scan_id in 1..=3 {
        output.hub.publish(&batch(scan_id, 1));
        output.wait_until_sent(scan_id).await;
        // The end of the call comes right behind.
        sleep(Duration::from_millis(50)).await;
    }
    let tally = output.end().await;
    assert_eq!(tally.status().failures, 0);
    assert_eq!(store.calls(), [[1], [2], [3]]);
}

/// Two collectors that take a batch and end the call keep nobody busy.
#[tokio::test]
async fn calls_that_break_at_once_are_followed_by_pauses() {
    const BATCHES: u64 = 6;
    let breaks = Script { stores: 1, ..WELL };
    let store = Store::with(&[breaks; 100]);
    let (first, _task) = listen(&store);
    let (second, _task) = listen(&store);
    let begun = Instant::now();
    let output = Output::start(roomy_hub(), vec![first, second], PATIENCE);
    for scan_id in 1..=BATCHES {
        output.hub.publish(&batch(scan_id, 1));
    }
    output.end().await;
    assert_eq!(store.sum(), sum_of_records(BATCHES));
    // A call whose acknowledgement was lost has brought nothing, and is followed by one at the other collector.
    let pauses = (store.calls().len() as u32 - 1) / 2;
    assert!(pauses >= 2);
    assert!(begun.elapsed() >= pauses * Duration::from_millis(100));
}

#[tokio::test]
async fn what_was_never_sent_cannot_be_acknowledged() {
    let lies = Script {
        too_much: 1,
        ..WELL
    };
    let store = Store::with(&[lies]);
    let (collector, _task) = listen(&store);
    let output = Output::start(roomy_hub(), vec![collector], PATIENCE);
    output.hub.publish(&batch(1, 1));
    output.wait_until_sent(1).await;
    let status = output.tally.status();
    let told = "the collector acknowledges batch 2, and 1 was the last one";
    assert!(status.last_error.contains(told), "{status:?}");
    assert_eq!(store.calls(), [[1], [1]]);
}

/// A collector may claim what only an earlier call has brought, to itself or to another one.
#[tokio::test]
async fn what_this_call_has_not_brought_is_not_acknowledged_yet() {
    const BATCHES: u64 = 100;
    let silent = Script {
        stores: BATCHES,
        acknowledges: 0,
        ..WELL
    };
    let claims = Script {
        stores: 1,
        too_much: BATCHES - 1,
        ..WELL
    };
    let [one, other] = [&[silent], &[claims]].map(|scripts| Store::with(scripts));
    let [(first, _first), (second, _second)] = [&one, &other].map(listen);
    let output = Output::start(roomy_hub(), vec![first, second], PATIENCE);
    for scan_id in 1..=BATCHES {
        output.hub.publish(&long(scan_id, 1, 256 << 10));
    }
    output.wait_until_sent(BATCHES).await;
    // The claims are believed for what fits into a transport, and no more.
    let calls = one.calls();
    assert_eq!((calls.len(), other.calls()), (2, vec![vec![1]]));
    assert_eq!(calls[1].last(), Some(&BATCHES));
    assert!(calls[1].len() as u64 > BATCHES / 2, "{calls:?}");
}

#[tokio::test]
async fn a_collector_that_never_acknowledges_is_left_and_its_batches_sent_again() {
    let silent = Script {
        acknowledges: 0,
        ..WELL
    };
    let store = Store::with(&[silent]);
    let (collector, _task) = listen(&store);
    // Longer than this test may be held up.
    let patience = Duration::from_secs(2);
    let output = Output::start(roomy_hub(), vec![collector], patience);
    output.hub.publish(&batch(1, 1));
    output.wait_until_sent(1).await;
    let status = output.tally.status();
    assert!(
        status.last_error.contains("no acknowledgement within 2s"),
        "{status:?}"
    );
    assert_eq!(store.calls(), [[1], [1]]);
    // A connection on which nothing waits for an acknowledgement is in order, however long it is quiet.
    sleep(patience + patience / 2).await;
    output.hub.publish(&batch(2, 1));
    output.wait_until_sent(2).await;
    assert_eq!(store.calls(), [vec![1], vec![1, 2]]);
    assert_eq!(output.tally.status().failures, 1);
}

#[tokio::test]
async fn what_no_collector_took_before_the_end_is_lost_to_the_record() {
    let silent = Script {
        stores: 2,
        acknowledges: 1,
        ..WELL
    };
    let store = Store::with(&[silent; 100]);
    let (collector, task) = listen(&store);
    let output = Output::start(roomy_hub(), vec![collector], PATIENCE);
    output.hub.publish(&batch(1, 5));
    output.wait_until_sent(5).await;
    task.abort();
    let _ = task.await;
    for scan_id in 2..=10 {
        output.hub.publish(&batch(scan_id, 7));
    }
    output.hub.close();
    output.deadline.send_replace(Some(Instant::now()));
    let fates = {
        output.task.await.unwrap();
        let status = output.tally.status();
        [status.sent, status.lost, status.queued].map(|fate| fate.unwrap().records)
    };
    assert_eq!(fates, [5, 9 * 7, 0]);
}

/// Also what is still in the queue, as while all collectors are left alone.
#[tokio::test]
async fn what_nobody_took_from_the_queue_before_the_end_is_lost_to_the_record() {
    let (_free, address) = free_port();
    let output = Output::start_with(roomy_hub(), vec![address], |sender| {
        while sender.backoff.next(None) < Duration::from_secs(15) {}
    });
    output.hub.publish(&batch(1, 5));
    output.wait_until_failing().await;
    for scan_id in 2..=10 {
        output.hub.publish(&batch(scan_id, 7));
    }
    assert_eq!(output.fates(), [0, 0, 5 + 9 * 7]);
    // Before the call that the end brings has begun.
    output
        .deadline
        .send_replace(Some(Instant::now() - Duration::from_secs(1)));
    output.hub.close();
    let tally = Arc::clone(&output.tally);
    output.task.await.unwrap();
    let status = tally.status();
    let fates = [status.sent, status.lost, status.queued].map(|fate| fate.unwrap().records);
    assert_eq!(fates, [0, 5 + 9 * 7, 0]);
}

/// A collector that came back during a pause gets what is left, also if the pause is longer than the time at the end.
#[tokio::test]
async fn the_end_cuts_a_pause_short() {
    let (free, address) = free_port();
    let output = Output::start_with(roomy_hub(), vec![address], |sender| {
        while sender.backoff.next(None) < Duration::from_secs(15) {}
    });
    output.hub.publish(&batch(1, 5));
    output.wait_until_failing().await;
    let store = Store::default();
    let (_, _task) = listen_on(&store, free);
    output.hub.close();
    let soon = Instant::now() + Duration::from_secs(10);
    output.deadline.send_replace(Some(soon));
    let tally = Arc::clone(&output.tally);
    output.task.await.unwrap();
    assert_eq!(tally.status().sent.unwrap().records, 5);
    assert_eq!(store.calls(), [[1]]);
}

/// A collector that asks to be left alone is, at the end too.
#[tokio::test]
async fn the_end_does_not_cut_a_pause_that_a_collector_asked_for() {
    let store = Store {
        asks: true,
        ..Store::default()
    };
    let (collector, _task) = listen(&store);
    let output = Output::start(roomy_hub(), vec![collector], PATIENCE);
    output.hub.publish(&batch(1, 5));
    output.wait_until_failing().await;
    output.hub.close();
    let soon = Instant::now() + Duration::from_millis(300);
    output.deadline.send_replace(Some(soon));
    let tally = Arc::clone(&output.tally);
    output.task.await.unwrap();
    assert_eq!(tally.status().lost.unwrap().records, 5);
    assert_eq!(store.calls(), [[0; 0]]);
}

/// What the queue lost while nobody took anything is told with the next batch, and at the end.
#[tokio::test]
async fn a_batch_says_what_was_lost_before_it() {
    let store = Store::default();
    let (collector, _task) = listen(&store);
    let hub = Hub::new(2, DEFAULT_QUEUED_BYTES);
    let output = Output::start(hub, vec![collector], PATIENCE);
    // Nothing runs between these: two of them have room.
    for scan_id in 1..=5 {
        output.hub.publish(&batch(scan_id, 1));
    }
    assert_eq!(output.fates()[1], 3);
    let tally = output.end().await;
    assert_eq!(tally.status().sent.unwrap().records, 2);
    assert_eq!(store.calls(), [[1, 2]]);
    assert_eq!(store.lost(), [3, 3]);
}

/// Transports hold all there is, so the last batch is refused, and nothing tells that but a batch of its own.
#[tokio::test]
async fn what_was_lost_after_the_last_batch_is_told_with_its_agent() {
    let silent = Script {
        acknowledges: 0,
        ..WELL
    };
    let store = Store::with(&[silent]);
    let (collector, _task) = listen(&store);
    let hub = Hub::new(10, batch(1, 1).body.len() as u64);
    // Longer than this test may be held up.
    let output = Output::start(hub, vec![collector], Duration::from_secs(5));
    output.hub.publish(&batch(1, 1));
    timeout(Duration::from_mins(1), async {
        while store.calls() != [[1]] {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the batch arrives");
    output.hub.publish(&batch(2, 1));
    assert_eq!(output.fates(), [0, 1, 1]);
    let tally = output.end().await;
    assert_eq!(tally.status().sent.unwrap().records, 1);
    // The first call had both, too.
    assert_eq!(store.calls(), [[1, 2], [1, 2]]);
    assert_eq!(store.lost(), [0, 1]);
    assert_eq!(store.sum(), sum_of_records(1));
}

#[tokio::test]
async fn no_more_is_taken_from_the_queue_than_has_room() {
    let hub = roomy_hub();
    let mut subscription = hub.subscribe_output("collector", "test");
    let mut backlog = Backlog::new(1);
    let mut next = |batch: &Batch| {
        hub.publish(batch);
        let next = unconstrained(subscription.next()).now_or_never();
        next.flatten().expect("it was just published")
    };
    assert!(backlog.has_room());
    while backlog.has_room() {
        let batch = backlog.number(next(&batch(1, 1)));
        backlog.keep(batch).await;
    }
    let after = |backlog: &Backlog, seq| backlog.after(seq).map(|batch| batch.seq);
    assert_eq!(after(&backlog, 0), Some(1));
    assert_eq!(after(&backlog, 1023), Some(1024));
    assert_eq!(after(&backlog, 1024), None);
    let acknowledged = backlog.acknowledge(24);
    assert_eq!(acknowledged.map(|(sum, _)| sum.records), Some(24));
    assert_eq!(backlog.acknowledge(24), None);
    assert!(backlog.has_room());
    assert_eq!(after(&backlog, 0), Some(25));
    assert_eq!(after(&backlog, 25), Some(26));
    let (rest, _) = backlog.acknowledge(1024).unwrap();
    assert_eq!(rest.records, 1000);
    assert!(backlog.is_empty());
    let long = Batch {
        body: vec![0; 32 << 20].into(),
        ..batch(1, 1)
    };
    let long = backlog.number(next(&long));
    backlog.keep(long).await;
    assert!(!backlog.has_room());
    assert!(backlog.acknowledge(1025).is_some());
    assert!(backlog.has_room());
}

/// Far more than has room in memory.
#[tokio::test]
async fn what_no_collector_took_survives_the_agent_in_order() {
    const BATCHES: u64 = 3000;
    const LONG: usize = 2 << 20;
    let folder = tempfile::tempdir().unwrap();
    let spooling = || {
        let folder = folder.path().join("spool");
        Some(Spooling {
            folder,
            most_bytes: 1 << 30,
        })
    };
    let nobody = host("127.0.0.1:1".parse().unwrap());
    let mut sent = 0;
    for run in 0..3 {
        let output = Output::spooled(roomy_hub(), vec![nobody.clone()], spooling());
        for scan_id in 1..BATCHES {
            output.hub.publish(&batch(scan_id, 2));
        }
        output.hub.publish(&long(BATCHES, 2, LONG));
        sent += 2 * BATCHES;
        output
            .wait_until("all is on disk", |status| {
                // The others do not take as much together.
                let least = (run + 1) * LONG as u64;
                status.spool.is_some_and(|spool| spool.bytes > least)
            })
            .await;
        assert_eq!(output.fates(), [0, 0, sent], "run {run}");
        if run == 0 {
            // As if the agent was killed.
            output.task.abort();
            let _ = output.task.await;
        } else {
            output.hub.close();
            output.deadline.send_replace(Some(Instant::now()));
            let tally = Arc::clone(&output.tally);
            output.task.await.unwrap();
            let status = tally.status();
            assert_eq!(status.lost.unwrap().records, 0);
            // They are the next one's.
            assert_eq!(status.queued.unwrap().records, 0);
        }
    }
    let store = Store::with(&[Script {
        stores: 1000,
        acknowledges: 500,
        ..WELL
    }]);
    let (collector, _task) = listen(&store);
    let output = Output::spooled(roomy_hub(), vec![collector], spooling());
    output.hub.publish(&batch(1, 1));
    output.wait_until_sent(sent + 1).await;
    output.end().await;
    assert_eq!(store.sum(), sum_of_records(sent + 1));
    let batches = store.batches.lock().unwrap();
    let streams: BTreeSet<_> = batches.keys().map(|(stream, _)| stream).collect();
    assert_eq!((streams.len(), batches.len() as u64), (1, 3 * BATCHES + 1));
    assert!(batches.values().all(|batch| batch.lost_records == 0));
}

#[tokio::test]
async fn a_spool_that_is_full_loses_the_oldest_and_says_so() {
    const BATCHES: u64 = 400;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("spool");
    let spooling = Some(Spooling {
        folder,
        most_bytes: 16 << 20,
    });
    let store = Store::default();
    let (free, address) = free_port();
    let output = Output::spooled(roomy_hub(), vec![address], spooling);
    for scan_id in 1..=BATCHES {
        output.hub.publish(&long(scan_id, 1, 256 << 10));
        tokio::task::yield_now().await;
    }
    let fate = |sum: Option<RecordSum>| sum.unwrap().records;
    output
        .wait_until("some are lost", |status| fate(status.lost) > BATCHES / 4)
        .await;
    let (_, _task) = listen_on(&store, free);
    output
        .wait_until("all have their fate", |status| {
            fate(status.sent) + fate(status.lost) == BATCHES
        })
        .await;
    let lost = output.fates()[1];
    output.hub.publish(&batch(BATCHES + 1, 1));
    output.wait_until_sent(BATCHES - lost + 1).await;
    output.end().await;
    assert_eq!(store.sum(), sum_of_records(BATCHES - lost + 1));
    let newest = store.batches.lock().unwrap().values().last().cloned();
    let newest = newest.unwrap();
    let told = (newest.lost_batches, newest.lost_records);
    assert_eq!(told, (lost, lost));
    let of_lost = sum_of_records(lost);
    let told = (newest.lost_packets, newest.lost_bytes);
    assert_eq!(told, (of_lost.packets, of_lost.bytes));
}

#[tokio::test]
async fn a_batch_that_no_collector_takes_is_refused_told_and_in_the_way_of_no_other() {
    for has_spool in [false, true] {
        let store = Store {
            invalid_scan: Some(2),
            ..Store::default()
        };
        let (hosts, _tasks): (Vec<_>, Vec<_>) =
            [(); 2].map(|()| listen(&store)).into_iter().unzip();
        let folder = tempfile::tempdir().unwrap();
        let spooling = has_spool.then(|| Spooling {
            folder: folder.path().to_owned(),
            most_bytes: 32 << 20,
        });
        let hub = roomy_hub();
        let output = Output::spooled(hub.clone(), hosts, spooling);
        for scan_id in 1..=4 {
            hub.publish(&batch(scan_id, scan_id as u32));
        }
        output.wait_until_sent(1 + 3 + 4).await;
        hub.publish(&batch(5, 5));
        output.wait_until_sent(1 + 3 + 4 + 5).await;
        let status = output.tally.status();
        assert_eq!(status.refused.unwrap().records, 2);
        assert_eq!(output.fates()[1..], [0, 0]);
        // Whoever adds up what is stored knows of it.
        assert_eq!(store.lost().last(), Some(&2));
        output.end().await;
    }
}

/// One collector alone may have a wrong clock.
#[tokio::test]
async fn a_batch_that_one_collector_refuses_waits_for_another_that_is_away() {
    let refusing = Store {
        invalid_scan: Some(2),
        ..Store::default()
    };
    let (first, _task) = listen(&refusing);
    let (socket, second) = free_port();
    let hub = roomy_hub();
    let output = Output::spooled(hub.clone(), vec![first, second], None);
    for scan_id in 1..=3 {
        hub.publish(&batch(scan_id, scan_id as u32));
    }
    // As often as both of them would have to refuse it, and once more.
    let calls = async {
        while refusing.calls().len() <= TRIES * 2 + 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let patience = Duration::from_mins(2);
    tokio::time::timeout(patience, calls).await.expect("calls");
    let taking = Store::default();
    let (_, _task) = listen_on(&taking, socket);
    output.wait_until_sent(1 + 2 + 3).await;
    assert_eq!(output.tally.status().refused.unwrap().records, 0);
    assert!(taking.calls().iter().any(|call| call.contains(&2)));
    output.end().await;
}
