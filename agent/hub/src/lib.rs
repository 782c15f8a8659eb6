//! The hub: puts encoded batches into the queue of every consumer.
//!
//! Publishing never waits. Each queue is bounded in batches. All queues together are bounded in bytes, which count
//! while a batch is in a queue or in the transport. When there is no room, the oldest queued batches are dropped, for
//! every consumer that has not taken them. So a consumer that reads as fast as batches are published loses nothing,
//! whatever the others do. The next batch for a consumer carries its losses so far. Shares for [`copies`] are taken
//! from the bound.
//!
//! May depend on: `proto`, `sys`.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use proto::{ConsumerStatus, accounts::Accounts, batch::Batch};
use tokio::sync::watch;
use tracing::info;

mod consumer;
mod copies;
pub mod guarded_bytes;
mod held_bytes;
mod pace;
mod queue;
mod subscription;

use consumer::Consumer;
pub use consumer::{Fate, Volume};
pub use copies::{COPIES_BYTES, CopyRoom, Turn};
use held_bytes::HeldBytes;
pub use held_bytes::SharedHeldBytes;
use pace::{Logs, Pace};
use queue::{Queue, Queued};
pub use subscription::{Backlog, BatchId, OutgoingBatch, Subscription};

/// How long an agent or a collector waits, when it stops, for consumers that do not read their queues.
pub const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// How many batches a consumer's queue holds by default.
pub const DEFAULT_QUEUE_BATCHES: usize = 1024;

/// Bound on the encoded bytes queued for all consumers together.
pub const DEFAULT_QUEUED_BYTES: u64 = 256 << 20;

/// Publishes batches to consumers. Clones share the consumers.
#[derive(Clone)]
pub struct Hub {
    registry: Arc<Mutex<Registry>>,
    queue_batches: usize,
    queued_bytes: u64,
    /// The bytes of all batches in a queue or in the transport. Each batch counts once.
    held_bytes: Arc<AtomicU64>,
    /// The bytes of all copies made for single consumers, and the bytes reserved for copies.
    copied_bytes: Arc<AtomicU64>,
    reserved_bytes: Arc<AtomicU64>,
    accounts: Arc<watch::Sender<Arc<Accounts>>>,
}

struct Registry {
    open: bool,
    entries: Vec<Entry>,
    /// Consumers that get no further batches, but may still read their queues.
    draining: Vec<Arc<Consumer>>,
    /// The number of the latest batch.
    published: u64,
    left: u64,
    /// Batches of the consumers that have left.
    fate: Fate,
    logs: Logs,
}

struct Entry {
    consumer: Arc<Consumer>,
    pace: Pace,
}

/// The rest of a consumer's queue when the agent stops waiting for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undelivered {
    pub name: String,
    pub peer: String,
    pub volume: Volume,
}

impl Hub {
    /// A queue holds at least one batch. All consumers together hold at most `queued_bytes`, or one batch if that is
    /// more.
    pub fn new(queue_batches: usize, queued_bytes: u64) -> Self {
        let registry = Registry {
            open: true,
            entries: Vec::new(),
            draining: Vec::new(),
            published: 0,
            left: 0,
            fate: Fate::default(),
            logs: Logs::default(),
        };
        Self {
            registry: Arc::new(Mutex::new(registry)),
            queue_batches: queue_batches.max(1),
            queued_bytes,
            held_bytes: Arc::default(),
            copied_bytes: Arc::default(),
            reserved_bytes: Arc::default(),
            accounts: Arc::default(),
        }
    }

    /// The accounts of the latest scan. A consumer that has taken a scan's last batch finds the accounts of that scan
    /// or of a later one.
    pub fn accounts(&self) -> watch::Receiver<Arc<Accounts>> {
        self.accounts.subscribe()
    }

    /// Sets the accounts of a scan, if anybody reads them. Call it before the scan's last batch is published.
    pub fn set_accounts(&self, accounts: impl FnOnce() -> Accounts) {
        if self.accounts.receiver_count() > 0 {
            self.accounts.send_replace(Arc::new(accounts()));
        }
    }

    /// Adds a consumer, which gets every batch published after this call. After [`Hub::close`] it gets none.
    pub fn subscribe(&self, name: &str, peer: &str) -> Subscription {
        self.add(Consumer::new(name, peer, true))
    }

    /// The same for an output, which is not listed as a consumer.
    pub fn subscribe_output(&self, name: &str, address: &str) -> Subscription {
        self.add(Consumer::new(name, address, false))
    }

    fn add(&self, consumer: Consumer) -> Subscription {
        let consumer = Arc::new(consumer);
        let mut registry = self.registry();
        if registry.open {
            registry.entries.push(Entry {
                consumer: Arc::clone(&consumer),
                pace: Pace::default(),
            });
        } else {
            consumer.queue.end();
        }
        Subscription::new(self.clone(), consumer)
    }

    /// Without consumers, scans need no encoding.
    pub fn has_consumers(&self) -> bool {
        !self.registry().entries.is_empty()
    }

    /// Puts the batch into every queue. If there is no room, drops the oldest queued batches.
    pub fn publish(&self, batch: &Batch) {
        let registry = &mut *self.registry();
        if registry.entries.is_empty() {
            return;
        }
        registry.published += 1;
        let bytes = batch.body.len() as u64;
        let mut has_room = self.has_room(bytes);
        while !has_room && registry.lose_oldest() {
            has_room = self.has_room(bytes);
        }
        let queued = has_room.then(|| Queued {
            number: registry.published,
            batch: batch.clone(),
            held: Arc::new(HeldBytes::new(bytes, &self.held_bytes)),
        });
        for entry in &mut registry.entries {
            let queue = &entry.consumer.queue;
            let took_all = if let Some(queued) = &queued {
                queue.push(queued.clone(), self.queue_batches)
            } else {
                // The transports hold all of the bound, and their bytes cannot be taken back.
                queue.refuse(batch);
                false
            };
            let Entry { consumer, pace } = entry;
            pace.log_change(consumer, batch.scan_id, took_all, &mut registry.logs);
        }
    }

    /// A batch always has room if no other is held, whatever its size.
    fn has_room(&self, bytes: u64) -> bool {
        let held_bytes = self.held_bytes.load(Relaxed);
        let reserved_bytes = self.reserved_bytes.load(Relaxed);
        held_bytes == 0 || held_bytes + reserved_bytes + bytes <= self.queued_bytes
    }

    /// Reserves room for the copies of one consumer, and leaves room for `others` more. `None` if there is not enough,
    /// or if the transports hold it.
    pub fn room_for_copies(&self, others: u64) -> Option<CopyRoom> {
        let left_bytes = others * COPIES_BYTES;
        let share = self.reserve(COPIES_BYTES, left_bytes)?;
        Some(CopyRoom::new(self.clone(), share, left_bytes))
    }

    /// Takes `bytes` of room from the batches. At most half of the bound can be reserved, and `left` bytes of that stay
    /// free.
    fn reserve(&self, bytes: u64, left: u64) -> Option<HeldBytes> {
        let registry = self.registry();
        let reserved_bytes = self.reserved_bytes.load(Relaxed);
        if reserved_bytes + bytes + left > self.queued_bytes / 2 {
            return None;
        }
        let reserved = HeldBytes::new(bytes, &self.reserved_bytes);
        while !self.has_room(0) {
            if !registry.lose_oldest() {
                return None;
            }
        }
        Some(reserved)
    }

    /// Ends every subscription once its queue is read.
    pub fn close(&self) {
        let mut registry = self.registry();
        registry.open = false;
        for entry in std::mem::take(&mut registry.entries) {
            registry.drain(entry);
        }
    }

    /// Ends one subscription once its queue is read.
    fn leave(&self, consumer: &Arc<Consumer>) {
        let mut registry = self.registry();
        let is_it = |entry: &Entry| Arc::ptr_eq(&entry.consumer, consumer);
        if let Some(place) = registry.entries.iter().position(is_it) {
            let entry = registry.entries.remove(place);
            registry.drain(entry);
        }
    }

    /// The consumers that have not read their queues, after [`Hub::close`].
    pub fn undelivered(&self) -> Vec<Undelivered> {
        let registry = self.registry();
        let consumers = registry.draining.iter();
        consumers
            .filter(|consumer| consumer.is_listed)
            .map(|consumer| Undelivered {
                name: consumer.name.clone(),
                peer: consumer.peer.clone(),
                volume: consumer.queue.fate().queued,
            })
            .filter(|left| left.volume.batches > 0)
            .collect()
    }

    pub fn status(&self) -> Vec<ConsumerStatus> {
        let registry = self.registry();
        let consumers = registry.entries.iter().map(|entry| &entry.consumer);
        let listed = consumers.filter(|consumer| consumer.is_listed);
        listed.map(|consumer| consumer.status()).collect()
    }

    /// How many consumers have left since the agent started.
    pub fn left(&self) -> u64 {
        self.registry().left
    }

    /// The batches of all consumers since the agent started, by outcome, including consumers that have left.
    pub fn fate(&self) -> Fate {
        let registry = self.registry();
        let mut fate = registry.fate;
        let consumers = registry.consumers();
        for consumer in consumers.filter(|consumer| consumer.is_listed) {
            fate += consumer.queue.fate();
        }
        fate
    }

    /// The encoded bytes held for consumers, in queues and in the transport.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Relaxed) + self.copied_bytes.load(Relaxed)
    }

    /// Removes a consumer that has left.
    fn forget(&self, consumer: &Arc<Consumer>, unsent: Volume) {
        let fate = consumer.queue.fate();
        let consumers_left = {
            let mut registry = self.registry();
            registry
                .entries
                .retain(|entry| !Arc::ptr_eq(&entry.consumer, consumer));
            registry
                .draining
                .retain(|draining| !Arc::ptr_eq(draining, consumer));
            if !consumer.is_listed {
                return;
            }
            registry.left += 1;
            registry.fate += fate;
            registry.logs.left.event()
        };
        let Some(consumers_left) = consumers_left else {
            return;
        };
        info!(
            name = consumer.name,
            peer = consumer.peer,
            delivered_batches = fate.delivered.batches,
            delivered_records = fate.delivered.records,
            lost_batches = fate.lost.batches,
            lost_records = fate.lost.records,
            unsent_batches = unsent.batches,
            unsent_records = unsent.records,
            consumers_left,
            "a consumer left"
        );
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        // Nothing under the lock can fail halfway, so the registry is sound even after a panic.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    /// All consumers that may have queued batches.
    fn consumers(&self) -> impl Iterator<Item = &Arc<Consumer>> {
        let entries = self.entries.iter().map(|entry| &entry.consumer);
        entries.chain(&self.draining)
    }

    /// Drops the oldest queued batch from all queues. Returns false if all queues are empty.
    fn lose_oldest(&self) -> bool {
        let queues = || self.consumers().map(|consumer| &consumer.queue);
        let Some(oldest) = queues().filter_map(Queue::oldest).min() else {
            return false;
        };
        for queue in queues() {
            queue.lose(oldest);
        }
        true
    }

    fn drain(&mut self, Entry { consumer, .. }: Entry) {
        consumer.queue.end();
        self.draining.push(consumer);
    }
}

#[cfg(test)]
mod tests;
