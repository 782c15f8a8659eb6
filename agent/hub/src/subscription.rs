//! One consumer's end of the hub. It prepends the consumer's own fields to each batch.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use prost::{DecodeError, Message as _};
use proto::{
    FlowBatch,
    batch::{self, Batch, Head},
};

use super::{
    Hub,
    consumer::{Consumer, Fate, Volume},
    queue::Queued,
};

/// One consumer's end of the hub. Dropping it removes the consumer.
pub struct Subscription {
    hub: Hub,
    consumer: Arc<Consumer>,
    stream_seq: u64,
    told: Volume,
    /// Batches to deliver before the queue.
    first: First,
}

/// Batches for this consumer only, and whether they were dropped before it took them.
#[derive(Default)]
struct First(Arc<Mutex<VecDeque<Batch>>>, Arc<AtomicBool>);

impl First {
    fn batches(&self) -> MutexGuard<'_, VecDeque<Batch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_up(&self) {
        let given_up = std::mem::take(&mut *self.batches());
        if !given_up.is_empty() {
            self.1.store(true, Relaxed);
        }
    }
}

impl Subscription {
    pub(super) fn new(hub: Hub, consumer: Arc<Consumer>) -> Self {
        Self {
            hub,
            consumer,
            stream_seq: 0,
            told: Volume::default(),
            first: First::default(),
        }
    }

    /// Puts batches in front of all others. If the consumer does not take them within `patience`, the subscription
    /// ends.
    pub fn begin_with(&mut self, batches: Vec<Batch>, patience: Duration) {
        self.first = First(Arc::new(Mutex::new(batches.into())), Arc::default());
        // The task must not keep the batches of a consumer that leaves early.
        let (batches, was_given_up) = (Arc::downgrade(&self.first.0), Arc::clone(&self.first.1));
        tokio::spawn(async move {
            tokio::time::sleep(patience).await;
            if let Some(batches) = batches.upgrade() {
                First(batches, was_given_up).give_up();
            }
        });
    }

    /// Whether the subscription ended because the first batches were not taken in time.
    pub fn was_too_slow_at_first(&self) -> bool {
        self.first.1.load(Relaxed)
    }

    /// The next batch; `None` once the hub is closed and the queue is empty. Losses after the last batch are reported
    /// in an extra batch without records, whose `scan_id` is 0.
    ///
    /// Cancel safe: dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<OutgoingBatch> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// A handle to read this subscription's counts without owning it.
    pub fn backlog(&self) -> Backlog {
        Backlog {
            hub: self.hub.clone(),
            consumer: Arc::clone(&self.consumer),
        }
    }

    /// Counts records of delivered batches that the consumer's own filter left out.
    pub fn note_left_out(&self, volume: Volume) {
        self.consumer.queue.leave_out(volume);
    }

    /// Counts a batch that was taken and cannot be sent.
    pub fn note_lost(&self, volume: Volume) {
        self.consumer.queue.lose_taken(volume);
    }

    /// [`next`](Self::next), for callers that poll something else in the same task.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<OutgoingBatch>> {
        if self.was_too_slow_at_first() {
            return Poll::Ready(None);
        }
        let first = self.first.batches().pop_front();
        if let Some(batch) = first {
            let volume = Volume::from(&batch);
            self.consumer.queue.deliver(volume);
            self.stream_seq += 1;
            let none = Volume::default();
            let batch = OutgoingBatch::new(self.stream_seq, none, None, volume, batch.body);
            return Poll::Ready(Some(batch));
        }
        let (queued, lost) = ready!(self.consumer.queue.poll_take(context));
        let (id, volume, body) = match queued {
            Some(Queued { batch, held, .. }) => {
                let volume = Volume::from(&batch);
                let id = BatchId {
                    scan_id: batch.scan_id,
                    index: batch.index,
                };
                (Some(id), volume, held.attach(batch.body))
            }
            None if lost != self.told => (None, Volume::default(), Bytes::new()),
            None => return Poll::Ready(None),
        };
        self.told = lost;
        self.stream_seq += 1;
        let batch = OutgoingBatch::new(self.stream_seq, lost, id, volume, body);
        Poll::Ready(Some(batch))
    }
}

/// Reads how far a subscription is behind, and ends it.
pub struct Backlog {
    hub: Hub,
    consumer: Arc<Consumer>,
}

impl Backlog {
    pub fn fate(&self) -> Fate {
        self.consumer.queue.fate()
    }

    /// Ends the subscription once its queue is read, as if the hub were closed.
    pub fn leave(&self) {
        self.hub.leave(&self.consumer);
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let unsent = self.consumer.queue.abandon();
        self.hub.forget(&self.consumer, unsent);
    }
}

/// A batch for one consumer: the consumer's own fields, then the bytes that all consumers share.
#[derive(Debug, Clone)]
pub struct OutgoingBatch {
    stream_seq: u64,
    prefix: Bytes,
    lost: Volume,
    id: Option<BatchId>,
    volume: Volume,
    body: Bytes,
}

/// Identifies a batch among all that the hub published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchId {
    pub scan_id: u64,
    /// Its number within the scan.
    pub index: u32,
}

impl OutgoingBatch {
    fn new(
        stream_seq: u64,
        lost: Volume,
        id: Option<BatchId>,
        volume: Volume,
        body: Bytes,
    ) -> Self {
        let prefix = FlowBatch {
            stream_seq,
            ..FlowBatch::of_lost(lost.batches, lost.into())
        };
        Self {
            stream_seq,
            prefix: prefix.encode_to_vec().into(),
            lost,
            id,
            volume,
            body,
        }
    }

    /// Its number on the stream, from 1.
    pub fn stream_seq(&self) -> u64 {
        self.stream_seq
    }

    pub fn len_bytes(&self) -> usize {
        self.prefix.len() + self.body.len()
    }

    /// The volume of the shared part.
    pub fn volume(&self) -> Volume {
        self.volume
    }

    /// The consumer's losses that the batch reports: the total so far.
    pub fn lost(&self) -> Volume {
        self.lost
    }

    /// Which batch the shared part is; `None` if it is empty.
    pub fn id(&self) -> Option<BatchId> {
        self.id
    }

    /// Which batch the shared part is and who made it; `None` if it is empty.
    pub fn head(&self) -> Option<Head> {
        self.id?;
        Head::decode(&self.body[..]).ok()
    }

    /// Adds more fields for this consumer.
    #[must_use]
    pub fn with(self, more: &FlowBatch) -> Self {
        // Protobuf merges concatenated messages.
        let prefix = [&self.prefix[..], &more.encode_to_vec()].concat().into();
        Self { prefix, ..self }
    }

    /// Replaces the shared part by this consumer's own.
    #[must_use]
    pub fn with_body(self, body: Bytes) -> Self {
        Self { body, ..self }
    }

    /// The encoded `FlowBatch` in two parts. The second part is shared, and counts as held until the transport drops
    /// it.
    pub fn into_parts(self) -> [Bytes; 2] {
        [self.prefix, self.body]
    }

    /// Decodes the batch for a consumer inside the agent. Addresses and identifiers are not copied out of the
    /// shared bytes.
    pub fn decode(self) -> Result<FlowBatch, DecodeError> {
        // Protobuf merges concatenated messages.
        let mut batch = batch::read(&self.body)?;
        batch.merge(self.prefix)?;
        Ok(batch)
    }
}
