//! Waiting consumers are woken. Batches that they take while others publish are neither lost nor reported twice.

use std::{
    collections::VecDeque,
    sync::atomic::AtomicUsize,
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use tokio::{task, time::timeout};

use super::*;

/// For steps that take no time unless they hang.
const PATIENCE: Duration = Duration::from_mins(2);

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn who_waited_last_is_woken_once_by_a_batch_and_by_the_end() {
    type Cause = fn(&Hub, &Subscription);
    let causes: [(Cause, bool); 3] = [
        (|hub, _| hub.publish(&batch(1, 1)), true),
        (|hub, _| hub.close(), false),
        (|_, subscription| subscription.backlog().leave(), false),
    ];
    for (cause, has_batch) in causes {
        let hub = Hub::new(10, DEFAULT_QUEUED_BYTES);
        let mut subscription = hub.subscribe("", "test");
        let tasks = [(); 2].map(|()| Arc::new(Woken::default()));
        for task in &tasks {
            let waker = Waker::from(Arc::clone(task));
            let polled = subscription.poll_next(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        cause(&hub, &subscription);
        assert_eq!(tasks.map(|task| task.0.load(Relaxed)), [0, 1]);
        let taken = subscription.poll_next(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(taken, Poll::Ready(taken) if taken.is_some() == has_batch));
    }
}

#[test]
fn a_task_that_has_ended_is_not_kept_by_whoever_watches_its_queue() {
    let hub = Hub::new(10, DEFAULT_QUEUED_BYTES);
    let mut subscription = hub.subscribe("", "test");
    let backlog = subscription.backlog();
    let task = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&task));
    assert!(
        subscription
            .poll_next(&mut Context::from_waker(&waker))
            .is_pending()
    );
    drop((subscription, waker));
    assert_eq!(Arc::strong_count(&task), 1);
    assert_eq!(backlog.fate(), Fate::default());
}

#[tokio::test]
async fn a_consumer_that_always_finds_a_batch_lets_others_run() {
    const BATCHES: u64 = 1000;
    let hub = Hub::new(BATCHES as usize, DEFAULT_QUEUED_BYTES);
    let mut consumer = hub.subscribe("", "test");
    for scan_id in 1..=BATCHES {
        hub.publish(&batch(scan_id, 1));
    }
    let other = task::spawn(async {});
    let mut taken = 0;
    while !other.is_finished() && taken < BATCHES {
        assert!(consumer.next().await.is_some());
        taken += 1;
    }
    assert!(taken < BATCHES);
}

/// Takes all batches until the end, and returns how many came. Each batch must report the losses before it; the scan
/// numbers start at one.
async fn take_all(mut subscription: Subscription, keeps: usize, is_slow: bool) -> u64 {
    let (mut taken, mut seq) = (0, 0);
    let mut in_transport = VecDeque::new();
    while let Some(batch) = subscription.next().await {
        if batch.id().is_some() {
            in_transport.push_back(batch.clone());
        }
        in_transport.drain(..in_transport.len().saturating_sub(keeps));
        let message = batch.decode().unwrap();
        seq += 1;
        assert_eq!(message.stream_seq, seq);
        assert_eq!(message.lost_records, 3 * message.lost_batches);
        if message.scan_id > 0 {
            taken += 1;
            assert_eq!(message.scan_id, taken + message.lost_batches);
        }
        if is_slow && taken % 4 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    taken
}

/// At every moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_delivered_lost_or_queued() {
    const BATCHES: u64 = 30_000;
    /// Batches published one by one, so that consumers wait for the next.
    const ALONE: u64 = 500;
    let one = batch(1000, 3).body.len() as u64;
    let limit = 28 * one;
    let hub = Hub::new(24, limit);
    let consumers = [(0, false), (1, false), (3, true), (0, true)].map(|(keeps, is_slow)| {
        let subscription = hub.subscribe("", "test");
        let backlog = subscription.backlog();
        (backlog, task::spawn(take_all(subscription, keeps, is_slow)))
    });
    let (backlogs, tasks): (Vec<_>, Vec<_>) = consumers.into_iter().unzip();
    let publishing = hub.clone();
    let published = task::spawn_blocking(move || {
        for scan_id in 1..=BATCHES {
            publishing.publish(&batch(scan_id, 3));
            let held = publishing.held_bytes();
            assert!(held <= limit, "{held} bytes");
            for fate in backlogs.iter().map(Backlog::fate) {
                let mut sum = fate.queued;
                sum += fate.delivered;
                sum += fate.lost;
                assert_eq!(
                    (sum.batches, sum.records),
                    (scan_id, 3 * scan_id),
                    "{fate:?}"
                );
            }
            let end = Instant::now() + PATIENCE;
            while scan_id <= ALONE && backlogs.iter().any(|one| one.fate().queued.batches > 0) {
                assert!(Instant::now() < end, "nobody takes batch {scan_id}");
                thread::yield_now();
            }
        }
        publishing.close();
        backlogs
    });
    let backlogs = published.await.unwrap();
    for (backlog, task) in backlogs.iter().zip(tasks) {
        let taken = timeout(PATIENCE, task).await.unwrap().unwrap();
        let fate = backlog.fate();
        assert_eq!(fate.delivered.batches, taken);
        assert_eq!(taken + fate.lost.batches, BATCHES);
        assert!(taken >= ALONE);
    }
    assert!(hub.fate().lost.batches > 0);
    assert_eq!(hub.held_bytes(), 0);
}
