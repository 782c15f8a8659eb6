//! A simulated collector stores the batches it receives, and breaks calls where the test's script says so.

mod collector;
mod shutdown;
mod spooled;

use agent_common::Pair;
use hub::{DEFAULT_QUEUED_BYTES, Hub};
use proto::{AgentIdentity, Endpoint, FlowRecord, OutputStatus, batch::Batch};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::*;
use crate::{settings::HostPort, throttle::AllThrottles};

use collector::{Script, Store, WELL, free_port, host, listen, listen_on};

const AGENT: &str = "agent-1";

/// A batch of this many records, each of three packets with 300 bytes.
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

/// The same, longer by this many bytes.
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

struct Output {
    hub: Hub,
    counters: Arc<Counters>,
    throttles: AllThrottles,
    deadline: watch::Sender<Option<Instant>>,
    task: JoinHandle<()>,
}

impl Output {
    fn start(hub: Hub, collectors: Vec<HostPort>, patience: Duration) -> Self {
        Self::start_with(hub, collectors, |sender| sender.patience = patience)
    }

    fn start_with(hub: Hub, collectors: Vec<HostPort>, prepare: impl FnOnce(&mut Sender)) -> Self {
        let subscription = hub.subscribe_output("collector", "test");
        let counters = Arc::new(Counters::new(subscription.backlog()));
        let (deadline, until) = watch::channel(None);
        let endpoint = |to| crate::transport::Endpoint::new(to, None);
        let collectors = Collectors {
            endpoints: collectors.into_iter().map(endpoint).collect(),
            spooling: None,
            max_throttle: Throttle {
                report_interval: Duration::from_mins(5),
                sample_rate: 50,
            },
            token: None,
        };
        let all = AllThrottles::default();
        let throttles = all.clone();
        let throttle = all.add_output(collectors.max_throttle);
        let mut delivery = Delivery::new(
            "collector",
            collectors,
            (None, throttle),
            subscription,
            Arc::clone(&counters),
            Shutdown::new(until),
        );
        prepare(&mut delivery.sender);
        Self {
            hub,
            counters,
            throttles,
            deadline,
            task: tokio::spawn(delivery.run()),
        }
    }

    /// How many records were sent, were lost, and are queued.
    fn fates(&self) -> [u64; 3] {
        let status = self.counters.status();
        [status.sent, status.lost, status.queued].map(|fate| fate.unwrap().records)
    }

    fn spooled(hub: Hub, collectors: Vec<HostPort>, spooling: Option<Spooling>) -> Self {
        Self::start_with(hub, collectors, |sender| sender.spooling = spooling)
    }

    async fn wait_until(&self, what: &str, is_so: impl Fn(OutputStatus) -> bool) {
        let waiting = timeout(Duration::from_mins(1), async {
            while !is_so(self.counters.status()) {
                sleep(Duration::from_millis(5)).await;
            }
        });
        let waited = waiting.await;
        waited.unwrap_or_else(|_| panic!("{what}: {:?}", self.counters.status()));
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

    /// Shuts the output down and waits until everything is acknowledged.
    async fn end(self) -> Arc<Counters> {
        self.hub.close();
        let ended = timeout(Duration::from_mins(1), self.task).await;
        ended.expect("all is acknowledged").unwrap();
        self.counters
    }
}

fn roomy_hub() -> Hub {
    Hub::new(100_000, DEFAULT_QUEUED_BYTES)
}

#[tokio::test]
async fn every_batch_is_stored_once_however_often_calls_break() {
    // Far more small batches than a server accepts as separate frames.
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
    let counters = output.end().await;
    let status = counters.status();
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
    // Each call starts after the last acknowledged batch, in order. An acknowledgement may be lost with its call.
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
    // The last script asks for nothing.
    let store = Store::with(&[wants(10, 1), wants(2, 2)]);
    let (collector, _task) = listen(&store);
    let output = Output::start(roomy_hub(), vec![collector], PATIENCE);
    let asked = |output: &Output| {
        let told = output.counters.status().asked_report_interval_ns;
        let most = output.throttles.strongest();
        assert_eq!(most.report_interval.as_nanos(), told.into());
        let rate = output.counters.status().asked_sample_rate;
        // The script's sample rate is ten per minute of its interval.
        assert_eq!(
            (most.sample_rate, u64::from(rate)),
            (rate, told / 6_000_000_000)
        );
        told / 60_000_000_000
    };
    assert_eq!(asked(&output), 0);
    // The collector asks for ten minutes, but the settings allow five.
    for (scan_id, minutes) in [(1, 2), (2, 2), (3, 5), (4, 0)] {
        output.hub.publish(&batch(scan_id, 1));
        output.wait_until_sent(scan_id).await;
        assert_eq!(asked(&output), minutes, "{scan_id}");
    }
    let throttles = output.throttles.clone();
    output.end().await;
    assert_eq!(throttles.strongest(), Throttle::default());
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
    assert_eq!(output.counters.status().failures, 1);
    output.hub.publish(&batch(2, 1));
    output.wait_until_sent(2).await;
    let status = output.counters.status();
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
        // The end of the call follows immediately.
        sleep(Duration::from_millis(50)).await;
    }
    let counters = output.end().await;
    assert_eq!(counters.status().failures, 0);
    assert_eq!(store.calls(), [[1], [2], [3]]);
}

/// Two collectors that end every call after one batch do not keep the output busy.
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
    // A call whose acknowledgement was lost made no progress, so the next call goes to the other collector.
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
    let status = output.counters.status();
    let told = "the collector acknowledges batch 2, but the last one sent was 1";
    assert!(status.last_error.contains(told), "{status:?}");
    assert_eq!(store.calls(), [[1], [1]]);
}

/// A collector may acknowledge batches that only an earlier call sent, to it or to another collector.
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
    // Such an acknowledgement counts only for batches that this call has put into the transport.
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
    // Longer than a busy machine may delay this test.
    let patience = Duration::from_secs(2);
    let output = Output::start(roomy_hub(), vec![collector], patience);
    output.hub.publish(&batch(1, 1));
    output.wait_until_sent(1).await;
    let status = output.counters.status();
    assert!(
        status.last_error.contains("no acknowledgement within 2s"),
        "{status:?}"
    );
    assert_eq!(store.calls(), [[1], [1]]);
    // A connection without unacknowledged batches may stay quiet for any length of time.
    sleep(patience + patience / 2).await;
    output.hub.publish(&batch(2, 1));
    output.wait_until_sent(2).await;
    assert_eq!(store.calls(), [vec![1], vec![1, 2]]);
    assert_eq!(output.counters.status().failures, 1);
}

/// The next batch reports what the queue lost while nobody took batches; so does the end.
#[tokio::test]
async fn a_batch_says_what_was_lost_before_it() {
    let store = Store::default();
    let (collector, _task) = listen(&store);
    let hub = Hub::new(2, DEFAULT_QUEUED_BYTES);
    let output = Output::start(hub, vec![collector], PATIENCE);
    // The output does not run in between, so only two of these fit.
    for scan_id in 1..=5 {
        output.hub.publish(&batch(scan_id, 1));
    }
    assert_eq!(output.fates()[1], 3);
    let counters = output.end().await;
    assert_eq!(counters.status().sent.unwrap().records, 2);
    assert_eq!(store.calls(), [[1, 2]]);
    assert_eq!(store.lost(), [3, 3]);
}

/// The transports fill the hub's memory, so it refuses the last batch. Only an extra batch can report that loss.
#[tokio::test]
async fn what_was_lost_after_the_last_batch_is_told_with_its_agent() {
    let silent = Script {
        acknowledges: 0,
        ..WELL
    };
    let store = Store::with(&[silent]);
    let (collector, _task) = listen(&store);
    let hub = Hub::new(10, batch(1, 1).body.len() as u64);
    // Longer than a busy machine may delay this test.
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
    let counters = output.end().await;
    assert_eq!(counters.status().sent.unwrap().records, 1);
    // The first call sent both, too.
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
