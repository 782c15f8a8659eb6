//! What is missing between the batches of a spool. Each loss counts once, however often the spool is opened and read.

use std::collections::VecDeque;

use super::super::waiting::Point;
use crate::hub::Volume;

#[derive(Debug, Default)]
pub struct Losses {
    /// Up to what was acknowledged.
    done: Volume,
    /// Behind that, each with the number that it ends with.
    later: VecDeque<(u64, Volume)>,
    /// Found when the spool was opened, and still ahead.
    ahead: Volume,
}

impl Losses {
    pub fn new(done: Volume, ahead: Volume) -> Self {
        Self {
            done,
            later: VecDeque::new(),
            ahead,
        }
    }

    /// All that is known to be missing.
    pub fn all(&self) -> Volume {
        let mut all = self.done;
        all += self.ahead;
        for (_, missing) in &self.later {
            all += *missing;
        }
        all
    }

    pub fn done(&self) -> Volume {
        self.done
    }

    /// This is missing between the points. Returns what of it was not known.
    pub fn meet(&mut self, missing: Volume, from: Point, to: Point) -> Volume {
        if missing == Volume::default() {
            return missing;
        }
        match self.later.back_mut() {
            Some((end, sum)) if *end == from.seq => {
                *end = to.seq;
                *sum += missing;
            }
            _ => self.later.push_back((to.seq, missing)),
        }
        let news = without(missing, self.ahead);
        self.ahead = without(self.ahead, missing);
        news
    }

    /// What ends up to this number is told for good.
    pub fn acknowledge(&mut self, seq: u64) {
        while let Some((_, missing)) = self.later.pop_front_if(|(end, _)| *end <= seq) {
            self.done += missing;
        }
    }
}

/// What of a volume goes beyond another one.
pub fn without(volume: Volume, other: Volume) -> Volume {
    Volume {
        batches: volume.batches.saturating_sub(other.batches),
        records: volume.records.saturating_sub(other.records),
        packets: volume.packets.saturating_sub(other.packets),
        bytes: volume.bytes.saturating_sub(other.bytes),
    }
}
