//! How collectors throttle the agent: they ask for fewer reports, or for a sample of the flows. All outputs get the same
//! records. If several collectors ask, the longest interval and the sparsest sampling apply.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use agent_common::sample;

/// A collector's wishes. Zero wishes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttle {
    /// The least time between two reports of a continuing flow.
    pub report_interval: Duration,
    /// Count one in this many flows.
    pub sample_rate: u32,
}

/// What all outputs' collectors ask for. Clones share it.
#[derive(Clone, Default)]
pub(super) struct AllThrottles(Arc<Mutex<BTreeMap<u64, Throttle>>>);

/// What the collector of one output asks for, withdrawn on drop.
pub(super) struct OutputThrottle {
    all: AllThrottles,
    id: u64,
    /// The most that the output's settings allow.
    most: Throttle,
}

impl Throttle {
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            report_interval: self.report_interval.max(other.report_interval),
            sample_rate: self.sample_rate.max(other.sample_rate),
        }
    }

    /// The values that exceed the ones in `own`; zero for the others.
    #[must_use]
    pub fn beyond(self, own: Self) -> Self {
        let is_longer = self.report_interval > own.report_interval;
        let is_rarer = self.sample_rate > own.sample_rate;
        Self {
            report_interval: self.report_interval * u32::from(is_longer),
            sample_rate: self.sample_rate * u32::from(is_rarer),
        }
    }

    fn within(self, most: Self) -> Self {
        Self {
            report_interval: self.report_interval.min(most.report_interval),
            sample_rate: sample::rate(self.sample_rate.min(most.sample_rate)),
        }
    }
}

impl AllThrottles {
    /// Adds an output, whose collector is granted `most` at most.
    pub fn add_output(&self, most: Throttle) -> OutputThrottle {
        let mut all = self.all();
        let id = all.last_key_value().map_or(0, |(id, _)| id + 1);
        all.insert(id, Throttle::default());
        drop(all);
        OutputThrottle {
            all: self.clone(),
            id,
            most,
        }
    }

    pub fn strongest(&self) -> Throttle {
        let all = self.all();
        all.values()
            .copied()
            .fold(Throttle::default(), Throttle::max)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Throttle>> {
        // No operation under the lock can fail halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutputThrottle {
    /// Sets what the collector asks for. Returns what the settings grant of it.
    pub fn set(&self, asked: Throttle) -> Throttle {
        let asked = asked.within(self.most);
        self.all.all().insert(self.id, asked);
        asked
    }
}

impl Drop for OutputThrottle {
    fn drop(&mut self) {
        self.all.all().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(minutes: u64, sample_rate: u32) -> Throttle {
        Throttle {
            report_interval: Duration::from_mins(minutes),
            sample_rate,
        }
    }

    #[test]
    fn what_asks_for_the_least_counts_within_what_the_output_allows_and_as_long_as_the_output_is_there()
     {
        let all = AllThrottles::default();
        let first = all.add_output(asked(5, 100));
        assert_eq!(all.strongest(), Throttle::default());
        assert_eq!(first.set(asked(1, 10)), asked(1, 10));
        assert_eq!(all.strongest(), asked(1, 10));

        let second = all.add_output(asked(3, 5));
        let endless = Throttle {
            report_interval: Duration::MAX,
            sample_rate: u32::MAX,
        };
        assert_eq!(second.set(endless), asked(3, 5));
        assert_eq!(all.strongest(), asked(3, 10));
        let deaf = all.add_output(asked(0, 0));
        let almost_deaf = all.add_output(asked(0, 1));
        for deaf in [&deaf, &almost_deaf] {
            assert_eq!(deaf.set(asked(10, 1000)), Throttle::default());
        }
        assert_eq!(all.strongest(), asked(3, 10));
        drop(second);
        assert_eq!(all.strongest(), asked(1, 10));
        let third = all.add_output(asked(5, 100));
        third.set(asked(2, 3));
        first.set(asked(0, 1));
        assert_eq!(all.strongest(), asked(2, 3));
        drop((first, third, deaf, almost_deaf));
        assert_eq!(all.strongest(), Throttle::default());
    }
}
