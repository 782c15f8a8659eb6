//! What waits for one consumer, and what became of the rest. The hub appends batches. The consumer takes the oldest, which
//! it loses if it falls behind.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use proto::batch::Batch;
use tokio::task::coop;

use super::{
    consumer::{Fate, Volume},
    held::Held,
};

#[derive(Clone)]
pub(super) struct Queued {
    /// Counts what the hub published, so that the oldest batch of several queues has the lowest.
    pub(super) number: u64,
    pub(super) batch: Batch,
    pub(super) held: Arc<Held>,
}

#[derive(Default)]
pub(super) struct Queue(Mutex<State>);

/// Behind one lock: at every moment a batch is in one sum of the fate.
#[derive(Default)]
struct State {
    waiting: VecDeque<Queued>,
    fate: Fate,
    /// Nothing more comes.
    has_ended: bool,
    /// Of the task that waits for a batch or the end.
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
    /// Appends a batch. If `most` wait already, the oldest of them is lost. Returns whether nothing waited before.
    pub(super) fn push(&self, queued: Queued, most: usize) -> bool {
        let mut state = self.state();
        // It is leaving.
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

    /// Loses a batch that finds no room, although nothing waits.
    pub(super) fn refuse(&self, batch: &Batch) {
        let mut state = self.state();
        if !state.has_ended {
            state.fate.lost += Volume::from(batch);
        }
    }

    /// The number of the oldest batch that waits.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.state().waiting.front().map(|oldest| oldest.number)
    }

    /// Loses the oldest batch, unless it came after this one.
    pub(super) fn lose(&self, number: u64) {
        let mut state = self.state();
        let oldest = state.waiting.front();
        if oldest.is_some_and(|oldest| oldest.number <= number) {
            let lost = state.lose_oldest();
            drop(state);
            drop(lost);
        }
    }

    /// The oldest batch, or `None` at the end, and all that was lost until then. Everything that is lost is older than
    /// what waits.
    pub(super) fn poll_take(&self, context: &mut Context<'_>) -> Poll<(Option<Queued>, Volume)> {
        // Like a channel of tokio's: who always finds a batch lets others run.
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

    /// Ends after what waits.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.has_ended = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends at once. Returns what waited, which is in no sum any more.
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

    /// Counts what was delivered without having waited here.
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
