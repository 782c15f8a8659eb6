//! Requests to a running agent that are served between two scans: all flows that it tracks, or a scan before the
//! interval is over. The task that owns the scanner answers.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use hub::{Hub, Subscription, guarded_bytes::with_guard};
use proto::batch::Batch;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use crate::active_rules::Stopping;

/// The most bytes that unsent snapshots may take, over all clients.
pub const MAX_SNAPSHOT_BYTES: u64 = 256 << 20;

/// All flows that the agent tracked after a scan, as encoded batches.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub batches: Vec<Batch>,
}

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RequestError {
    #[error(transparent)]
    Stopping(#[from] Stopping),
    #[error(
        "the flows take more than the {} MiB that those who ask may take together: try again when others have read \
         theirs", MAX_SNAPSHOT_BYTES >> 20
    )]
    TooLarge,
}

/// Counts the bytes of snapshots until they are dropped. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct SnapshotBytes(Arc<AtomicU64>);

impl SnapshotBytes {
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Reserves this many bytes until the returned place is dropped.
    pub fn reserve(&self, bytes: u64) -> Result<SnapshotPlace, RequestError> {
        let before = self.0.fetch_add(bytes, Relaxed);
        let place = SnapshotPlace {
            bytes,
            all: self.clone(),
        };
        if before + bytes > MAX_SNAPSHOT_BYTES {
            return Err(RequestError::TooLarge);
        }
        Ok(place)
    }

    /// The same bytes, counted until their last slice is dropped.
    pub fn hold(&self, bytes: Bytes) -> Result<Bytes, RequestError> {
        let place = self.reserve(bytes.len() as u64)?;
        Ok(with_guard(bytes, place))
    }
}

pub struct SnapshotPlace {
    bytes: u64,
    all: SnapshotBytes,
}

impl Drop for SnapshotPlace {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Relaxed);
    }
}

/// A request, and the sender for its answer.
pub enum ScannerRequest {
    Flows(FlowsRequest),
    /// Answered with the number of a scan that begins after the request.
    Scan(oneshot::Sender<u64>),
}

pub struct FlowsRequest {
    /// The name and the peer of a consumer that also gets all later batches.
    pub consumer: Option<(String, String)>,
    pub done: oneshot::Sender<Result<(Snapshot, Option<Subscription>), RequestError>>,
}

impl FlowsRequest {
    /// Subscribes the consumer. Call between two scans, so that its first batches are those of the next scan.
    pub fn subscribe(self, hub: &Hub) -> SubscribedRequest {
        let subscription = self
            .consumer
            .map(|(name, peer)| hub.subscribe(&name, &peer));
        SubscribedRequest {
            subscription,
            done: self.done,
        }
    }
}

/// Waits for the flows as they are between the same two scans as the subscription.
pub struct SubscribedRequest {
    subscription: Option<Subscription>,
    done: oneshot::Sender<Result<(Snapshot, Option<Subscription>), RequestError>>,
}

impl SubscribedRequest {
    pub fn answer(self, taken: &Result<Snapshot, RequestError>) {
        let Self { subscription, done } = self;
        let answer = taken.clone().map(|snapshot| (snapshot, subscription));
        // The client may be gone.
        let _ = done.send(answer);
    }
}

/// Sends requests to the task that owns the scanner. Clones send to the same task.
#[derive(Clone)]
pub struct ScannerClient {
    sender: mpsc::Sender<ScannerRequest>,
    pub bytes: SnapshotBytes,
}

impl ScannerClient {
    /// Creates the sender, and the receiver for the task that owns the scanner.
    pub fn channel() -> (Self, mpsc::Receiver<ScannerRequest>) {
        let (sender, requests) = mpsc::channel(1);
        let bytes = SnapshotBytes::default();
        (Self { sender, bytes }, requests)
    }

    /// All tracked flows.
    pub async fn flows(&self) -> Result<Snapshot, RequestError> {
        Ok(self.ask_for_flows(None).await?.0)
    }

    /// All tracked flows, and every batch from then on.
    pub async fn observe(
        &self,
        name: &str,
        peer: &str,
    ) -> Result<(Snapshot, Subscription), RequestError> {
        let consumer = Some((name.to_owned(), peer.to_owned()));
        let (snapshot, subscription) = self.ask_for_flows(consumer).await?;
        Ok((snapshot, subscription.ok_or(Stopping)?))
    }

    async fn ask_for_flows(
        &self,
        consumer: Option<(String, String)>,
    ) -> Result<(Snapshot, Option<Subscription>), RequestError> {
        let (done, answer) = oneshot::channel();
        let request = ScannerRequest::Flows(FlowsRequest { consumer, done });
        self.sender.send(request).await.map_err(|_| Stopping)?;
        answer.await.map_err(|_| Stopping)?
    }

    /// Returns once a scan that began after this call is over, with its number.
    pub async fn scan(&self) -> Result<u64, RequestError> {
        let (done, answer) = oneshot::channel();
        let request = ScannerRequest::Scan(done);
        self.sender.send(request).await.map_err(|_| Stopping)?;
        Ok(answer.await.map_err(|_| Stopping)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_until_the_last_slice_is_dropped_and_no_more_are_taken_than_fit() {
        let bytes = SnapshotBytes::default();
        let held = bytes.hold(Bytes::from_static(b"abc")).unwrap();
        let slice = held.slice(1..2);
        drop(held);
        assert_eq!(bytes.get(), 3);
        assert!(bytes.reserve(MAX_SNAPSHOT_BYTES).is_err());
        assert_eq!(bytes.get(), 3);
        let rest = bytes.reserve(MAX_SNAPSHOT_BYTES - 3);
        assert!(rest.is_ok() && bytes.reserve(1).is_err());
        drop((slice, rest));
        assert_eq!(bytes.get(), 0);
    }

    #[tokio::test]
    async fn who_asks_an_agent_that_ends_is_told() {
        let (client, requests) = ScannerClient::channel();
        drop(requests);
        assert_eq!(client.scan().await, Err(Stopping.into()));
        assert!(client.observe("", "").await.is_err());
    }
}
