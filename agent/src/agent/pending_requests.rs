//! Keeps the requests for flows or a scan and decides when each gets its turn, so that neither kind keeps the scanner
//! busy.

use std::time::Duration;

use hub::Hub;
use server::scanner_requests::{
    FlowsRequest, RequestError, ScannerRequest, Snapshot, SubscribedRequest,
};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

/// How long the scanner encodes flows before it checks whether a scan is due.
pub(super) const STEP: Duration = Duration::from_millis(2);
/// Snapshots get at most one part in this many of the scanner's time.
const SNAPSHOT_SHARE: u32 = 5;

/// Minimum time between the end of a scan and a scan on request.
pub const BETWEEN_SCANS: Duration = Duration::from_secs(1);
/// The same minimum as a multiple of the previous scan's duration.
const SCAN_SHARE: u32 = 10;

pub(super) struct PendingRequests {
    /// Requests that wait for a snapshot that has not begun. Scans may come first, so these clients are not subscribed
    /// yet.
    waiting: Vec<FlowsRequest>,
    /// Requests that wait for the snapshot in progress. A scan completes it before changing a flow.
    for_flows: Vec<SubscribedRequest>,
    for_scans: Vec<oneshot::Sender<u64>>,
    /// The time that the snapshot in progress has taken so far.
    spent: Duration,
    flows_at: Instant,
    scan_at: Instant,
}

impl PendingRequests {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            waiting: Vec::new(),
            for_flows: Vec::new(),
            for_scans: Vec::new(),
            spent: Duration::ZERO,
            flows_at: now,
            scan_at: now,
        }
    }

    /// Call between two scans.
    pub(super) fn add(&mut self, request: ScannerRequest, hub: &Hub) {
        match request {
            ScannerRequest::Flows(waits) if self.for_flows.is_empty() => self.waiting.push(waits),
            ScannerRequest::Flows(waits) => self.for_flows.push(waits.subscribe(hub)),
            ScannerRequest::Scan(done) => self.for_scans.push(done),
        }
    }

    /// Call before each step. The first step of a snapshot subscribes its clients, who get every batch from there on.
    pub(super) fn begin_step(&mut self, hub: &Hub) {
        if self.for_flows.is_empty() {
            let waiting = self.waiting.drain(..);
            self.for_flows
                .extend(waiting.map(|waits| waits.subscribe(hub)));
        }
    }

    /// Waits until the scanner has time for the next step of a requested snapshot.
    pub(super) async fn flows_due(&self) {
        due(
            !self.for_flows.is_empty() || !self.waiting.is_empty(),
            self.flows_at,
        )
        .await;
    }

    /// Waits until a requested scan is due.
    pub(super) async fn scan_due(&self) {
        due(!self.for_scans.is_empty(), self.scan_at).await;
    }

    /// Records how long a step took, and the snapshot if the step completed it.
    pub(super) fn step(&mut self, took: Duration, taken: Option<Result<Snapshot, RequestError>>) {
        self.spent += took;
        if let Some(taken) = taken {
            self.flows_at = Instant::now() + (SNAPSHOT_SHARE - 1) * self.spent;
            self.spent = Duration::ZERO;
            for waits in self.for_flows.drain(..) {
                waits.answer(&taken);
            }
        }
    }

    /// Records the end of a scan.
    pub(super) fn scanned(&mut self, scan_id: u64, took: Duration) {
        self.scan_at = Instant::now() + BETWEEN_SCANS.max(SCAN_SHARE * took);
        for done in self.for_scans.drain(..) {
            // The client may be gone.
            let _ = done.send(scan_id);
        }
    }
}

async fn due(is_wanted: bool, at: Instant) {
    if !is_wanted {
        std::future::pending::<()>().await;
    }
    if Instant::now() < at {
        sleep_until(at).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use hub::DEFAULT_QUEUED_BYTES;

    use super::*;

    #[tokio::test]
    async fn all_who_wait_get_the_same_flows_and_the_next_ones_wait_four_times_as_long_as_it_took()
    {
        let hub = Hub::new(1, DEFAULT_QUEUED_BYTES);
        let mut pending = PendingRequests::new();
        assert!(pending.flows_due().now_or_never().is_none());
        let mut answers = Vec::new();
        for consumer in [None, Some(("name".to_owned(), "peer".to_owned()))] {
            let (done, answer) = oneshot::channel();
            pending.add(ScannerRequest::Flows(FlowsRequest { consumer, done }), &hub);
            answers.push(answer);
        }
        // A scan may come before the snapshot begins, and the snapshot would repeat what its batches have.
        assert_eq!(hub.status().len(), 0);
        pending.begin_step(&hub);
        assert_eq!(hub.status().len(), 1);
        assert!(pending.flows_due().now_or_never().is_some());
        pending.step(Duration::from_secs(3), None);
        assert!(answers[0].try_recv().is_err());
        let before = Instant::now();
        let batches = Vec::new();
        pending.step(Duration::from_secs(2), Some(Ok(Snapshot { batches })));
        let subscribed = answers.iter_mut().map(|answer| {
            let (_, subscription) = answer.try_recv().unwrap().unwrap();
            subscription.is_some()
        });
        assert_eq!(subscribed.collect::<Vec<_>>(), [false, true]);
        assert!(pending.flows_at >= before + Duration::from_secs(20));
    }

    #[tokio::test]
    async fn a_scan_that_is_asked_for_waits_for_a_second_and_ten_times_the_last_ones_duration() {
        let hub = Hub::new(1, DEFAULT_QUEUED_BYTES);
        let mut pending = PendingRequests::new();
        assert!(pending.scan_due().now_or_never().is_none());
        let (done, mut answer) = oneshot::channel();
        pending.add(ScannerRequest::Scan(done), &hub);
        assert!(pending.scan_due().now_or_never().is_some());
        for (took_ms, least) in [(1, 1), (500, 5)] {
            let before = Instant::now();
            pending.scanned(7, Duration::from_millis(took_ms));
            assert!(pending.scan_at >= before + Duration::from_secs(least));
            assert!(pending.scan_at < Instant::now() + Duration::from_secs(least + 1));
        }
        assert_eq!(answer.try_recv(), Ok(7));
    }
}
