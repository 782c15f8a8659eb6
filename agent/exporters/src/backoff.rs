//! How long to wait before a retry: twice as long each time, with jitter, so that a hundred agents do not return to a
//! collector at the same moment.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Backoff {
    tries: u32,
}

impl Backoff {
    /// The next wait, at least as long as the receiver asked for.
    pub(super) fn next(&mut self, at_least: Option<Duration>) -> Duration {
        let longest = FIRST.saturating_mul(1 << self.tries.min(16)).min(LONGEST);
        self.tries = self.tries.saturating_add(1);
        let wait = longest.mul_f64(0.5 + 0.5 * random());
        wait.max(at_least.unwrap_or_default())
    }

    pub(super) fn reset(&mut self) {
        self.tries = 0;
    }
}

/// A random number from 0 to 1, from the seed that the standard library draws from the system for each map.
fn random() -> f64 {
    RandomState::new().hash_one(0) as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_the_longest_and_begin_anew_after_success() {
        let mut backoff = Backoff::default();
        for tries in 0..100 {
            let longest = FIRST.saturating_mul(1 << tries.min(16)).min(LONGEST);
            let wait = backoff.next(None);
            assert!((longest / 2..=longest).contains(&wait), "{tries}: {wait:?}");
        }
        backoff.reset();
        assert!(backoff.next(None) <= FIRST);
    }

    #[test]
    fn a_receiver_is_left_alone_for_as_long_as_it_asks() {
        let asked = Duration::from_mins(5);
        assert_eq!(Backoff::default().next(Some(asked)), asked);
    }

    #[test]
    fn two_waits_differ() {
        let waits: Vec<_> = (0..8).map(|_| Backoff::default().next(None)).collect();
        assert!(waits.iter().any(|wait| *wait != waits[0]), "{waits:?}");
    }
}
