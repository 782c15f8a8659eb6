//! What is missing between the batches of a spool. Each loss counts once, however often the spool is opened and read.

use std::collections::VecDeque;

use hub::Volume;

use super::super::waiting::{Point, without};

#[derive(Debug, Default)]
pub struct Losses {
    /// Up to what was acknowledged.
    done: Volume,
    /// Behind that, each with the number that it ends with.
    later: VecDeque<(u64, Volume)>,
    /// Known since the spool was opened, and still ahead.
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

    /// This is missing between the points.
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

    /// What ends up to this number is told for good.
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
