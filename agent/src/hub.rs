//! The hub: encoded batches come in, each consumer's queue gets them, with what the consumer lost.
//!
//! Publishing never waits. A queue is bounded in batches, and all of them together in bytes; where one
//! is full, or more than its share once all hold too much, that consumer alone loses the batch, and
//! the next batch that it gets says how many it lost so far.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::{Buf, Bytes};
use prost::{DecodeError, Message as _};
use tokio::sync::mpsc::{self, error::TrySendError};
use tracing::{info, warn};

use crate::{
    batch::Batch,
    wire::{ConsumerStatus, FlowBatch},
};

/// Batches that a consumer's queue holds, where no setting says otherwise.
pub const DEFAULT_QUEUE_BATCHES: usize = 1024;

/// What batches in queues may take, in bytes of their encoding, before a consumer whose queue is more
/// than its share loses batches. Those that do not come so far have as much again.
pub const DEFAULT_QUEUED_BYTES: u64 = 128 << 20;

/// Clones share the consumers.
#[derive(Clone)]
pub struct Hub {
    registry: Arc<Mutex<Registry>>,
    queue_batches: usize,
    queued_bytes: u64,
    /// Of the batches that stand in a queue, each once.
    held_bytes: Arc<AtomicU64>,
}

struct Registry {
    open: bool,
    entries: Vec<Entry>,
    /// Consumers that the closed hub still has batches for.
    draining: Vec<Arc<Consumer>>,
}

struct Entry {
    queue: mpsc::Sender<Queued>,
    consumer: Arc<Consumer>,
    /// The last batch did not fit.
    losing: bool,
}

/// A batch in a queue, with what its consumer had lost when it was put there.
struct Queued {
    batch: Batch,
    lost: Volume,
    /// Shared by the queues that the batch stands in.
    _held: Arc<Held>,
}

/// A batch's part of what all queues hold.
struct Held {
    bytes: u64,
    total: Arc<AtomicU64>,
}

impl Held {
    fn new(bytes: u64, total: &Arc<AtomicU64>) -> Self {
        total.fetch_add(bytes, Relaxed);
        Self {
            bytes,
            total: Arc::clone(total),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Relaxed);
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Volume {
    pub batches: u64,
    pub records: u64,
}

/// A volume that is counted while others read it.
#[derive(Default)]
struct Tally {
    batches: AtomicU64,
    records: AtomicU64,
}

struct Consumer {
    name: String,
    peer: String,
    since_unix_ns: u64,
    queued: Tally,
    queued_bytes: AtomicU64,
    delivered: Tally,
    lost: Tally,
}

/// What is still in the queue of a consumer when the agent stops waiting for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undelivered {
    pub name: String,
    pub peer: String,
    pub volume: Volume,
}

impl Hub {
    /// A queue holds at least one batch; all together hold at most twice `queued_bytes` and a batch
    /// for each.
    pub fn new(queue_batches: usize, queued_bytes: u64) -> Self {
        let registry = Registry {
            open: true,
            entries: Vec::new(),
            draining: Vec::new(),
        };
        Self {
            registry: Arc::new(Mutex::new(registry)),
            queue_batches: queue_batches.max(1),
            queued_bytes,
            held_bytes: Arc::default(),
        }
    }

    /// A consumer of every batch that is published from now on; of none after [`Hub::close`].
    pub fn subscribe(&self, name: &str, peer: &str) -> Subscription {
        let (sender, queue) = mpsc::channel(self.queue_batches);
        let consumer = Arc::new(Consumer::new(name, peer));
        let mut registry = self.registry();
        if registry.open {
            let consumer = Arc::clone(&consumer);
            registry.entries.push(Entry {
                queue: sender,
                consumer,
                losing: false,
            });
        }
        Subscription {
            queue,
            consumer,
            stream_seq: 0,
            told: Volume::default(),
        }
    }

    /// Nobody listens: a scan needs not be encoded.
    pub fn has_consumers(&self) -> bool {
        self.registry()
            .entries
            .iter()
            .any(|entry| !entry.queue.is_closed())
    }

    /// Puts the batch into every queue that has room.
    pub fn publish(&self, batch: &Batch) {
        let entries = &mut self.registry().entries;
        let is_too_much = self.held_bytes.load(Relaxed) >= self.queued_bytes;
        let most_bytes = if is_too_much {
            self.queued_bytes / entries.len().max(1) as u64
        } else {
            u64::MAX
        };
        let held = Arc::new(Held::new(batch.body.len() as u64, &self.held_bytes));
        entries.retain_mut(|entry| entry.offer(batch, &held, most_bytes));
    }

    /// Ends every subscription behind what its queue holds.
    pub fn close(&self) {
        let mut registry = self.registry();
        registry.open = false;
        let entries = std::mem::take(&mut registry.entries);
        registry
            .draining
            .extend(entries.into_iter().map(|entry| entry.consumer));
    }

    /// After [`Hub::close`]: the consumers that have not taken everything.
    pub fn undelivered(&self) -> Vec<Undelivered> {
        let consumers = &self.registry().draining;
        consumers
            .iter()
            .map(|consumer| Undelivered {
                name: consumer.name.clone(),
                peer: consumer.peer.clone(),
                volume: consumer.queued.get(),
            })
            .filter(|left| left.volume.batches > 0)
            .collect()
    }

    pub fn status(&self) -> Vec<ConsumerStatus> {
        let registry = self.registry();
        registry
            .entries
            .iter()
            .filter(|entry| !entry.queue.is_closed())
            .map(Entry::status)
            .collect()
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        // Nothing that is done under the lock can leave it half done.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// `most_bytes` is what the queue may hold already; `false` where the consumer has left.
    fn offer(&mut self, batch: &Batch, held: &Arc<Held>, most_bytes: u64) -> bool {
        let consumer = &self.consumer;
        let (records, bytes) = (u64::from(batch.records), batch.body.len() as u64);
        let outcome = self.queue.try_reserve().and_then(|place| {
            if consumer.queued_bytes.load(Relaxed) > most_bytes {
                return Err(TrySendError::Full(()));
            }
            Ok(place)
        });
        match outcome {
            Ok(place) => {
                // Counted first: the consumer may take the batch at once.
                consumer.queued.add(records);
                consumer.queued_bytes.fetch_add(bytes, Relaxed);
                place.send(Queued {
                    batch: batch.clone(),
                    lost: consumer.lost.get(),
                    _held: Arc::clone(held),
                });
                if self.losing {
                    let lost = consumer.lost.get();
                    info!(
                        name = consumer.name,
                        peer = consumer.peer,
                        lost_batches = lost.batches,
                        lost_records = lost.records,
                        "a consumer keeps up again"
                    );
                }
                self.losing = false;
                true
            }
            Err(TrySendError::Full(())) => {
                consumer.lost.add(records);
                if !self.losing {
                    warn!(
                        name = consumer.name,
                        peer = consumer.peer,
                        scan_id = batch.scan_id,
                        "a consumer reads too slowly: its queue is full and it loses batches"
                    );
                }
                self.losing = true;
                true
            }
            Err(TrySendError::Closed(())) => false,
        }
    }

    fn status(&self) -> ConsumerStatus {
        let consumer = &self.consumer;
        let (delivered, lost) = (consumer.delivered.get(), consumer.lost.get());
        ConsumerStatus {
            name: consumer.name.clone(),
            peer: consumer.peer.clone(),
            since_unix_ns: consumer.since_unix_ns,
            queued_batches: consumer.queued.get().batches,
            delivered_batches: delivered.batches,
            delivered_records: delivered.records,
            lost_batches: lost.batches,
            lost_records: lost.records,
        }
    }
}

impl Consumer {
    fn new(name: &str, peer: &str) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            name: name.to_owned(),
            peer: peer.to_owned(),
            since_unix_ns: since.unwrap_or_default().as_nanos() as u64,
            queued: Tally::default(),
            queued_bytes: AtomicU64::new(0),
            delivered: Tally::default(),
            lost: Tally::default(),
        }
    }
}

impl Tally {
    fn get(&self) -> Volume {
        Volume {
            batches: self.batches.load(Relaxed),
            records: self.records.load(Relaxed),
        }
    }

    /// One batch more.
    fn add(&self, records: u64) {
        self.batches.fetch_add(1, Relaxed);
        self.records.fetch_add(records, Relaxed);
    }

    /// One batch less.
    fn sub(&self, records: u64) {
        self.batches.fetch_sub(1, Relaxed);
        self.records.fetch_sub(records, Relaxed);
    }
}

/// One consumer's end of the hub. Dropping it leaves the hub.
pub struct Subscription {
    queue: mpsc::Receiver<Queued>,
    consumer: Arc<Consumer>,
    stream_seq: u64,
    told: Volume,
}

impl Subscription {
    /// The next batch; `None` once the hub is closed and the queue is empty. Losses behind the last
    /// batch are told in a batch of their own, whose `scan_id` is zero.
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<OutgoingBatch> {
        let consumer = &self.consumer;
        let (body, lost) = match self.queue.recv().await {
            Some(Queued { batch, lost, .. }) => {
                let records = u64::from(batch.records);
                consumer.queued.sub(records);
                let bytes = batch.body.len() as u64;
                consumer.queued_bytes.fetch_sub(bytes, Relaxed);
                consumer.delivered.add(records);
                (batch.body, lost)
            }
            None if consumer.lost.get() != self.told => (Bytes::new(), consumer.lost.get()),
            None => return None,
        };
        self.told = lost;
        self.stream_seq += 1;
        Some(OutgoingBatch::new(self.stream_seq, lost, body))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.queue.close();
        let consumer = &self.consumer;
        let (mut unsent_batches, mut unsent_records) = (0, 0);
        while let Ok(Queued { batch, .. }) = self.queue.try_recv() {
            consumer.queued.sub(u64::from(batch.records));
            unsent_batches += 1;
            unsent_records += u64::from(batch.records);
        }
        let (delivered, lost) = (consumer.delivered.get(), consumer.lost.get());
        info!(
            name = consumer.name,
            peer = consumer.peer,
            delivered_batches = delivered.batches,
            delivered_records = delivered.records,
            lost_batches = lost.batches,
            lost_records = lost.records,
            unsent_batches,
            unsent_records,
            "a consumer left"
        );
    }
}

/// A batch as one consumer gets it: its own fields in front of the bytes that all share.
#[derive(Debug, Clone)]
pub struct OutgoingBatch {
    prefix: Bytes,
    body: Bytes,
}

impl OutgoingBatch {
    fn new(stream_seq: u64, lost: Volume, body: Bytes) -> Self {
        let prefix = FlowBatch {
            stream_seq,
            lost_batches: lost.batches,
            lost_records: lost.records,
            ..FlowBatch::default()
        };
        Self {
            prefix: prefix.encode_to_vec().into(),
            body,
        }
    }

    pub fn encoded_len(&self) -> usize {
        self.prefix.len() + self.body.len()
    }

    /// The encoded `FlowBatch`.
    pub fn into_buf(self) -> impl Buf {
        self.prefix.chain(self.body)
    }

    /// For a consumer within the agent. Addresses and identifiers stay within the shared bytes.
    pub fn decode(self) -> Result<FlowBatch, DecodeError> {
        FlowBatch::decode(self.into_buf())
    }
}

#[cfg(test)]
mod tests;
