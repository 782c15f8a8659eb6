//! The queue of one consumer, and the outcome of its batches. The hub appends batches; the consumer takes the oldest.
//! The oldest are dropped if it falls behind.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use proto::batch::Batch;
use tokio::task::coop;

use super::{
    consumer::{Fate, Volume},
    held_bytes::HeldBytes,
};

#[derive(Clone)]
pub(super) struct Queued {
    /// Counts the hub's batches, so the oldest batch across queues has the lowest number.
    pub(super) number: u64,
    pub(super) batch: Batch,
    pub(super) held: Arc<HeldBytes>,
}

#[derive(Default)]
pub(super) struct Queue(Mutex<State>);

/// Behind one lock, so that at every moment a batch is in exactly one sum of the fate.
#[derive(Default)]
struct State {
    waiting: VecDeque<Queued>,
    fate: Fate,
    /// No more batches will be appended.
    has_ended: bool,
    /// The task that waits for a batch or the end.
    waker: Option<Waker>,
}

impl State {
    fn lose_oldest(&mut self) -> Option<Queued> {
        let lost = self.waiting.pop_front()?;
        let volume = Volume::from(&lost.batch);
        self.fate.queued -= volume;
        self.fate.lost += volume;
        Some(lost)
    }
}

impl Queue {
    /// Appends a batch. If `most` are queued already, drops the oldest. Returns whether the queue was empty.
    pub(super) fn push(&self, queued: Queued, most: usize) -> bool {
        let mut state = self.state();
        // The consumer is leaving.
        if state.has_ended {
            return false;
        }
        let was_empty = state.waiting.is_empty();
        let is_full = state.waiting.len() >= most;
        let lost = is_full.then(|| state.lose_oldest());
        state.fate.queued += Volume::from(&queued.batch);
        state.waiting.push_back(queued);
        let waker = state.waker.take();
        drop(state);
        drop(lost);
        if let Some(waker) = waker {
            waker.wake();
        }
        was_empty
    }

    /// Counts a batch as lost that found no room although nothing was queued.
    pub(super) fn refuse(&self, batch: &Batch) {
        let mut state = self.state();
        if !state.has_ended {
            state.fate.lost += Volume::from(batch);
        }
    }

    /// The number of the oldest queued batch.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.state().waiting.front().map(|oldest| oldest.number)
    }

    /// Drops the oldest batch if its number is at most `number`.
    pub(super) fn lose(&self, number: u64) {
        let mut state = self.state();
        let oldest = state.waiting.front();
        if oldest.is_some_and(|oldest| oldest.number <= number) {
            let lost = state.lose_oldest();
            drop(state);
            drop(lost);
        }
    }

    /// The oldest batch, or `None` at the end, and all losses so far. Every lost batch is older than the queued ones.
    pub(super) fn poll_take(&self, context: &mut Context<'_>) -> Poll<(Option<Queued>, Volume)> {
        // Like tokio's channels: a task that always finds a batch yields to others now and then.
        let turn = ready!(coop::poll_proceed(context));
        let mut state = self.state();
        let queued = state.waiting.pop_front();
        if let Some(queued) = &queued {
            let volume = Volume::from(&queued.batch);
            state.fate.queued -= volume;
            state.fate.delivered += volume;
        } else if !state.has_ended {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        turn.made_progress();
        Poll::Ready((queued, state.fate.lost))
    }

    /// Ends once the queue is read.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.has_ended = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends at once. Returns the batches that were queued; no sum counts them any longer.
    pub(super) fn abandon(&self) -> Volume {
        let mut state = self.state();
        state.has_ended = true;
        let unsent = std::mem::take(&mut state.fate.queued);
        let rest = (std::mem::take(&mut state.waiting), state.waker.take());
        drop(state);
        drop(rest);
        unsent
    }

    pub(super) fn fate(&self) -> Fate {
        self.state().fate
    }

    /// Counts a delivered batch that was not in this queue.
    pub(super) fn deliver(&self, volume: Volume) {
        self.state().fate.delivered += volume;
    }

    /// Counts a delivered batch as lost.
    pub(super) fn lose_taken(&self, volume: Volume) {
        let fate = &mut self.state().fate;
        fate.delivered -= volume;
        fate.lost += volume;
    }

    /// Counts records of delivered batches that do not reach the consumer.
    pub(super) fn leave_out(&self, volume: Volume) {
        let fate = &mut self.state().fate;
        fate.delivered -= volume;
        fate.left_out += volume;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock can fail halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
