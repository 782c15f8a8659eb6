//! Counts durations in buckets, for a histogram.

use std::time::Duration;

/// Upper bounds of the buckets.
const BOUNDS: [Duration; 15] = [
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_mins(1),
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// The last bucket has no upper bound.
    counts: [u64; BOUNDS.len() + 1],
    sum: Duration,
}

impl Durations {
    pub fn note(&mut self, took: Duration) {
        self.counts[BOUNDS.partition_point(|&bound| bound < took)] += 1;
        self.sum += took;
    }

    pub fn bounds() -> &'static [Duration] {
        &BOUNDS
    }

    /// How many durations fell into each bucket: above the previous bound, up to this one. One more than there are
    /// bounds.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    pub fn sum(&self) -> Duration {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_up_to_its_bound() {
        let mut durations = Durations::default();
        assert!(BOUNDS.is_sorted());
        let (first, last) = (BOUNDS[0], BOUNDS[BOUNDS.len() - 1]);
        let tick = Duration::from_nanos(1);
        for took in [Duration::ZERO, first, first + tick, last, last + tick] {
            durations.note(took);
        }
        let mut expected = vec![0; BOUNDS.len() + 1];
        expected[0] = 2;
        expected[1] = 1;
        expected[BOUNDS.len() - 1] = 1;
        expected[BOUNDS.len()] = 1;
        assert_eq!(durations.counts(), expected);
        assert_eq!(durations.sum(), (first + last + tick) * 2);
    }
}
