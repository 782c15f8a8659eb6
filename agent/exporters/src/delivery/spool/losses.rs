//! The gaps between the batches of a spool. Each one counts once, however often the spool is opened and read.

use std::collections::VecDeque;

use hub::Volume;

use super::super::waiting::{Point, without};

#[derive(Debug, Default)]
pub struct Losses {
    /// Total of the gaps up to the acknowledged point.
    done: Volume,
    /// Later gaps, each with its last sequence number.
    later: VecDeque<(u64, Volume)>,
    /// Known since the spool was opened, but not reached yet.
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

    /// Total of all known gaps.
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

    /// Adds a gap between two points.
    pub fn meet(&mut self, missing: Volume, from: Point, to: Point) {
        if missing == Volume::default() {
            return;
        }
        match self.later.back_mut() {
            Some((end, sum)) if *end == from.seq => {
                *end = to.seq;
                *sum += missing;
            }
            _ => self.later.push_back((to.seq, missing)),
        }
        self.ahead = without(self.ahead, missing);
    }

    /// Gaps up to this sequence number become final.
    pub fn acknowledge(&mut self, seq: u64) {
        while let Some((_, missing)) = self.later.pop_front_if(|(end, _)| *end <= seq) {
            self.done += missing;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_that_follow_each_other_are_one_and_others_are_told_for_good_alone() {
        let at = |seq| Point {
            seq,
            ..Point::default()
        };
        let packets = |packets| Volume {
            packets,
            ..Volume::default()
        };
        let mut losses = Losses::new(Volume::default(), packets(100));
        for (missing, from, to) in [(1, 1, 2), (2, 2, 4), (4, 6, 7), (0, 7, 9)] {
            losses.meet(packets(missing), at(from), at(to));
        }
        assert_eq!(losses.all(), packets(100));
        for (seq, done) in [(3, 0), (4, 3), (6, 3), (7, 7)] {
            losses.acknowledge(seq);
            assert_eq!(losses.done(), packets(done), "{seq}");
        }
        assert_eq!(losses.all(), packets(100));
    }
}
