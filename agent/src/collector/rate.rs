//! How fast a call is read: an agent that sends more waits with the rest, and nobody else does.

use std::time::Duration;

use tokio::time::Instant;

/// What was saved up while the agent sent less, in time. A scan's records come all at once.
const SAVED: Duration = Duration::from_secs(1);

pub(super) struct Rate {
    records_per_second: u32,
    /// When all that was taken had its time.
    paid_until: Instant,
    /// How long it was waited is known up to here.
    waited_until: Instant,
}

impl Rate {
    pub(super) fn new(records_per_second: u32) -> Self {
        let now = Instant::now();
        Self {
            records_per_second,
            paid_until: now.checked_sub(SAVED).unwrap_or(now),
            waited_until: now,
        }
    }

    /// Notes records that were taken.
    pub(super) fn takes(&mut self, records: u64, now: Instant) {
        let time = Duration::from_secs_f64(records as f64 / f64::from(self.records_per_second));
        let saved_since = now.checked_sub(SAVED).unwrap_or(now);
        self.paid_until = self.paid_until.max(saved_since) + time;
        self.waited_until = now;
    }

    /// How long it was waited since this was asked last.
    pub(super) fn waited(&mut self, now: Instant) -> Duration {
        let until = now.min(self.paid_until);
        let waited = until.saturating_duration_since(self.waited_until);
        self.waited_until = self.waited_until.max(until);
        waited
    }

    /// When more may be taken, if that is not now.
    pub(super) fn holds_until(&self, now: Instant) -> Option<Instant> {
        (self.paid_until > now).then_some(self.paid_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_records_may_come_at_once_and_more_than_that_waits() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut rate = Rate::new(1000);
        assert_eq!(rate.holds_until(at(10)), None);
        // A second was saved, not ten of them.
        rate.takes(1000, at(10));
        assert_eq!(rate.holds_until(at(10)), None);
        rate.takes(2000, at(10));
        assert_eq!(rate.holds_until(at(10)), Some(at(12)));
        assert_eq!(rate.waited(at(11)), Duration::from_secs(1));
        assert_eq!(rate.waited(at(15)), Duration::from_secs(1));
        assert_eq!(rate.waited(at(15)), Duration::ZERO);
        assert_eq!(rate.holds_until(at(12)), None);
        rate.takes(1000, at(12));
        assert_eq!(rate.holds_until(at(12)), Some(at(13)));
    }
}
