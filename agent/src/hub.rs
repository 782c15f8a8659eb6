//! The hub: puts encoded batches into the queue of every consumer.
//!
//! Publishing never waits. Each queue is bounded in batches. All consumers together are bounded in bytes,
//! which count while a batch waits in a queue or in the transport. Once consumers hold too much, one that
//! holds more than its share loses the batch. The next batch that it gets says how many it has lost so far.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::sync::{
    mpsc::{self, error::TrySendError},
    watch,
};
use tracing::{info, warn};

use crate::{accounts::Accounts, batch::Batch, log_limit::LogLimit, proto::ConsumerStatus};

mod consumer;
mod held;
mod subscription;

use consumer::Consumer;
pub use consumer::{Fate, Volume};
pub use held::SharedHeld;
use held::{Charge, Held};
use subscription::Queued;
pub use subscription::{Backlog, BatchId, OutgoingBatch, Subscription};

/// How many batches a consumer's queue holds by default.
pub const DEFAULT_QUEUE_BATCHES: usize = 1024;

/// How many encoded bytes may wait for consumers before a consumer that holds more than its share loses
/// batches. Consumers below their share may together use as much again.
pub const DEFAULT_QUEUED_BYTES: u64 = 128 << 20;

/// Publishes batches to consumers. Clones share the consumers.
#[derive(Clone)]
pub struct Hub {
    registry: Arc<Mutex<Registry>>,
    queue_batches: usize,
    queued_bytes: u64,
    /// The bytes of all batches that wait in a queue or in the transport. Each batch counts once.
    held_bytes: Arc<AtomicU64>,
    accounts: Arc<watch::Sender<Arc<Accounts>>>,
}

struct Registry {
    open: bool,
    entries: Vec<Entry>,
    /// Consumers for which the closed hub still has batches.
    draining: Vec<Arc<Consumer>>,
    left: u64,
    /// Of those that have left.
    fate: Fate,
    logs: Logs,
}

/// Limits the log lines about consumers, which can come and go, or fall behind and catch up, at any moment.
#[derive(Default)]
struct Logs {
    left: LogLimit,
    losing: LogLimit,
    keeping_up: LogLimit,
}

struct Entry {
    queue: mpsc::Sender<Queued>,
    consumer: Arc<Consumer>,
    /// The consumer lost the last batch.
    losing: bool,
}

/// What is left in a consumer's queue when the agent stops waiting for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undelivered {
    pub name: String,
    pub peer: String,
    pub volume: Volume,
}

impl Hub {
    /// A queue holds at least one batch. All consumers together hold at most twice `queued_bytes`, or one
    /// batch if that is more.
    pub fn new(queue_batches: usize, queued_bytes: u64) -> Self {
        let registry = Registry {
            open: true,
            entries: Vec::new(),
            draining: Vec::new(),
            left: 0,
            fate: Fate::default(),
            logs: Logs::default(),
        };
        Self {
            registry: Arc::new(Mutex::new(registry)),
            queue_batches: queue_batches.max(1),
            queued_bytes,
            held_bytes: Arc::default(),
            accounts: Arc::default(),
        }
    }

    /// The accounts of a scan or of a later one, for whoever has taken that scan's last batch.
    pub fn accounts(&self) -> watch::Receiver<Arc<Accounts>> {
        self.accounts.subscribe()
    }

    /// Takes the accounts of a scan before its last batch is published, if anybody reads them.
    pub fn tell_accounts(&self, accounts: impl FnOnce() -> Accounts) {
        if self.accounts.receiver_count() > 0 {
            self.accounts.send_replace(Arc::new(accounts()));
        }
    }

    /// Adds a consumer, which gets every batch published after this call. After [`Hub::close`] it gets none.
    pub fn subscribe(&self, name: &str, peer: &str) -> Subscription {
        self.add(Consumer::new(name, peer, true))
    }

    /// The same for an output, which is not listed among the consumers.
    pub fn subscribe_output(&self, name: &str, address: &str) -> Subscription {
        self.add(Consumer::new(name, address, false))
    }

    fn add(&self, consumer: Consumer) -> Subscription {
        let (sender, queue) = mpsc::channel(self.queue_batches);
        let consumer = Arc::new(consumer);
        let mut registry = self.registry();
        if registry.open {
            let consumer = Arc::clone(&consumer);
            registry.entries.push(Entry {
                queue: sender,
                consumer,
                losing: false,
            });
        }
        Subscription::new(self.clone(), queue, consumer)
    }

    /// Without consumers a scan need not be encoded.
    pub fn has_consumers(&self) -> bool {
        !self.registry().entries.is_empty()
    }

    /// Puts the batch into every queue that has room.
    pub fn publish(&self, batch: &Batch) {
        let registry = &mut *self.registry();
        let bytes = batch.body.len() as u64;
        let held_bytes = self.held_bytes.load(Relaxed);
        let room = Room {
            share_bytes: if held_bytes + bytes > self.queued_bytes {
                self.queued_bytes / registry.entries.len().max(1) as u64
            } else {
                u64::MAX
            },
            is_used_up: held_bytes > 0 && held_bytes + bytes > 2 * self.queued_bytes,
        };
        let held = Arc::new(Held::new(bytes, &self.held_bytes));
        for entry in &mut registry.entries {
            entry.offer(batch, &held, room, &mut registry.logs);
        }
    }

    /// Ends every subscription after what its queue holds.
    pub fn close(&self) {
        let mut registry = self.registry();
        registry.open = false;
        let entries = std::mem::take(&mut registry.entries);
        registry
            .draining
            .extend(entries.into_iter().map(|entry| entry.consumer));
    }

    /// Ends one subscription after what its queue holds.
    fn leave(&self, consumer: &Arc<Consumer>) {
        let mut registry = self.registry();
        let before = registry.entries.len();
        registry
            .entries
            .retain(|entry| !Arc::ptr_eq(&entry.consumer, consumer));
        if registry.entries.len() < before {
            registry.draining.push(Arc::clone(consumer));
        }
    }

    /// The consumers that have not taken everything, after [`Hub::close`].
    pub fn undelivered(&self) -> Vec<Undelivered> {
        let registry = self.registry();
        let consumers = registry.draining.iter();
        consumers
            .filter(|consumer| consumer.is_listed)
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
        let consumers = registry.entries.iter().map(|entry| &entry.consumer);
        let listed = consumers.filter(|consumer| consumer.is_listed);
        listed.map(|consumer| consumer.status()).collect()
    }

    /// How many consumers have left since the agent started.
    pub fn left(&self) -> u64 {
        self.registry().left
    }

    /// What became of the batches of all consumers since the agent started, those that have left included.
    pub fn fate(&self) -> Fate {
        let registry = self.registry();
        let entries = registry.entries.iter().map(|entry| &entry.consumer);
        let mut fate = registry.fate;
        let consumers = entries.chain(&registry.draining);
        for consumer in consumers.filter(|consumer| consumer.is_listed) {
            fate += &**consumer;
        }
        fate
    }

    /// The encoded bytes that wait for consumers, in queues and in the transport.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Relaxed)
    }

    /// Forgets a consumer that has left.
    fn forget(&self, consumer: &Arc<Consumer>, unsent: Volume) {
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
            registry.fate += &**consumer;
            registry.logs.left.event()
        };
        let Some(consumers_left) = consumers_left else {
            return;
        };
        let (delivered, lost) = (consumer.delivered(), consumer.lost.get());
        info!(
            name = consumer.name,
            peer = consumer.peer,
            delivered_batches = delivered.batches,
            delivered_records = delivered.records,
            lost_batches = lost.batches,
            lost_records = lost.records,
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

/// How much room there is for a batch.
#[derive(Clone, Copy)]
struct Room {
    /// How much a consumer may hold, with the batch included.
    share_bytes: u64,
    /// There is no room for it in any queue.
    is_used_up: bool,
}

impl Room {
    /// A consumer that keeps up holds nothing, and always has room for one batch.
    fn is_for(self, held_bytes: u64, batch_bytes: u64) -> bool {
        let is_in_share = held_bytes + batch_bytes <= self.share_bytes;
        !self.is_used_up && (held_bytes == 0 || is_in_share)
    }
}

impl Entry {
    fn offer(&mut self, batch: &Batch, held: &Arc<Held>, room: Room, logs: &mut Logs) {
        let consumer = &self.consumer;
        let (volume, bytes) = (Volume::from(batch), batch.body.len() as u64);
        let outcome = self.queue.try_reserve().and_then(|place| {
            if room.is_for(consumer.held_bytes.load(Relaxed), bytes) {
                Ok(place)
            } else {
                Err(TrySendError::Full(()))
            }
        });
        match outcome {
            Ok(place) => {
                // Counted before it is sent, since the consumer may take the batch at once.
                consumer.queued.add(volume);
                place.send(Queued {
                    batch: batch.clone(),
                    lost: consumer.lost.get(),
                    charge: Charge::new(consumer, held),
                });
                let was_losing = std::mem::take(&mut self.losing);
                if was_losing && let Some(consumers) = logs.keeping_up.event() {
                    let lost = consumer.lost.get();
                    info!(
                        name = consumer.name,
                        peer = consumer.peer,
                        lost_batches = lost.batches,
                        lost_records = lost.records,
                        consumers,
                        "a consumer keeps up again"
                    );
                }
            }
            Err(TrySendError::Full(())) => {
                consumer.lost.add(volume);
                let was_losing = std::mem::replace(&mut self.losing, true);
                if !was_losing && let Some(consumers) = logs.losing.event() {
                    warn!(
                        name = consumer.name,
                        peer = consumer.peer,
                        scan_id = batch.scan_id,
                        consumers,
                        "a consumer reads too slowly: its queue is full and it loses batches"
                    );
                }
            }
            // It is leaving.
            Err(TrySendError::Closed(())) => {}
        }
    }
}

#[cfg(test)]
mod tests;
