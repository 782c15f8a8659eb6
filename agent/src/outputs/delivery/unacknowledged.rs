//! Batches that were sent, or will be, and that the collector has not acknowledged.

use std::{collections::VecDeque, ops::AddAssign as _};

use crate::{
    hub::{OutgoingBatch, Volume},
    outputs::tally::sum_of,
    proto::RecordSum,
};

/// Batches, and bytes, of which more are left in the queue: there the oldest can make room for others.
const MOST_BATCHES: usize = 1024;
const MOST_BYTES: usize = 32 << 20;

/// In the order of their numbers, without gaps.
#[derive(Default)]
pub(super) struct Unacknowledged {
    batches: VecDeque<OutgoingBatch>,
    bytes: usize,
}

impl Unacknowledged {
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// One batch always has room, however long it is.
    pub(super) fn has_room(&self) -> bool {
        self.batches.len() < MOST_BATCHES && self.bytes < MOST_BYTES
    }

    pub(super) fn push(&mut self, batch: OutgoingBatch) {
        self.bytes += batch.len_bytes();
        self.batches.push_back(batch);
    }

    /// The first batch with a number above this one.
    pub(super) fn after(&self, seq: u64) -> Option<&OutgoingBatch> {
        let first = self.batches.front()?.stream_seq();
        let place = (seq + 1).saturating_sub(first);
        self.batches.get(usize::try_from(place).ok()?)
    }

    /// Forgets all batches up to this number, and returns what they report, if there are any.
    pub(super) fn acknowledge(&mut self, seq: u64) -> Option<RecordSum> {
        let mut sum: Option<Volume> = None;
        let is_acknowledged = |batch: &mut OutgoingBatch| batch.stream_seq() <= seq;
        while let Some(batch) = self.batches.pop_front_if(is_acknowledged) {
            self.bytes -= batch.len_bytes();
            sum.get_or_insert_default().add_assign(batch.volume());
        }
        sum.map(sum_of)
    }
}
