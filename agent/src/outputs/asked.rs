//! How often collectors want reports of flows that go on. The longest of their intervals counts, since a report reaches all
//! outputs.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// What is asked of the agent. Clones share it.
#[derive(Clone, Default)]
pub(super) struct ReportIntervals(Arc<Mutex<BTreeMap<u64, Duration>>>);

/// What the collector of one output asks for, until it is dropped.
pub(super) struct AskedInterval {
    all: ReportIntervals,
    id: u64,
    /// The longest that the output's settings allow.
    most: Duration,
}

impl ReportIntervals {
    pub fn of_output(&self, most: Duration) -> AskedInterval {
        let mut all = self.all();
        let id = all.last_key_value().map_or(0, |(id, _)| id + 1);
        all.insert(id, Duration::ZERO);
        drop(all);
        AskedInterval {
            all: self.clone(),
            id,
            most,
        }
    }

    /// Zero if nobody asks.
    pub fn longest(&self) -> Duration {
        self.all().values().max().copied().unwrap_or_default()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Duration>> {
        // Nothing under the lock can fail halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AskedInterval {
    /// Zero asks for nothing. Returns what is asked for now.
    pub fn set(&self, asked: Duration) -> Duration {
        let asked = asked.min(self.most);
        self.all.all().insert(self.id, asked);
        asked
    }
}

impl Drop for AskedInterval {
    fn drop(&mut self) {
        self.all.all().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn the_longest_interval_counts_within_what_the_output_allows_and_as_long_as_the_output_is_there()
     {
        let all = ReportIntervals::default();
        let first = all.of_output(5 * MINUTE);
        assert_eq!(all.longest(), Duration::ZERO);
        assert_eq!(first.set(MINUTE), MINUTE);
        assert_eq!(all.longest(), MINUTE);

        let second = all.of_output(3 * MINUTE);
        assert_eq!(second.set(Duration::MAX), 3 * MINUTE);
        assert_eq!(all.longest(), 3 * MINUTE);
        let deaf = all.of_output(Duration::ZERO);
        assert_eq!(deaf.set(10 * MINUTE), Duration::ZERO);
        assert_eq!(all.longest(), 3 * MINUTE);
        drop(second);
        assert_eq!(all.longest(), MINUTE);
        let third = all.of_output(5 * MINUTE);
        third.set(2 * MINUTE);
        first.set(Duration::ZERO);
        assert_eq!(all.longest(), 2 * MINUTE);
        drop((first, third, deaf));
        assert_eq!(all.longest(), Duration::ZERO);
    }
}
