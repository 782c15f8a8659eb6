//! How fast an agent's records are taken: one that sends more waits with the rest, and nobody else does.

use std::time::Duration;

use tokio::time::Instant;

/// What was saved up while the agent sent less, in time. A scan's records come all at once.
const SAVED: Duration = Duration::from_secs(1);

/// Of a stream, whatever its calls.
#[derive(Clone, Copy, Default)]
pub(super) struct Debt {
    /// When all that was taken had its time.
    paid_at: Option<Instant>,
}

impl Debt {
    /// Notes a batch that is taken.
    pub(super) fn grows(&mut self, records: u64, records_per_second: u32, now: Instant) {
        // A batch without records is work, too.
        let records = records.max(1);
        let time = Duration::from_secs_f64(records as f64 / f64::from(records_per_second));
        let saved_since = now.checked_sub(SAVED).unwrap_or(now);
        let paid_at = self.paid_at.map_or(saved_since, |at| at.max(saved_since));
        self.paid_at = Some(paid_at + time);
    }

    /// When more may be taken, if that is not now.
    pub(super) fn is_owed_until(&self, now: Instant) -> Option<Instant> {
        self.paid_at.filter(|&at| at > now)
    }

    /// How long something waited that came at this moment and that may be taken, or goes, now.
    pub(super) fn waited(&self, since: Instant, now: Instant) -> Duration {
        let until = self.paid_at.map_or(since, |at| at.min(now));
        until.saturating_duration_since(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_records_may_come_at_once_and_more_than_that_waits() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut debt = Debt::default();
        assert_eq!(debt.is_owed_until(at(10)), None);
        assert_eq!(debt.waited(at(10), at(11)), Duration::ZERO);
        // A second was saved, not ten of them.
        debt.grows(1000, 1000, at(10));
        assert_eq!(debt.is_owed_until(at(10)), None);
        debt.grows(2000, 1000, at(10));
        assert_eq!(debt.is_owed_until(at(10)), Some(at(12)));
        assert_eq!(debt.is_owed_until(at(12)), None);
        // What came at 11 waited a second, whenever it was looked at, and what came later did not.
        assert_eq!(debt.waited(at(11), at(12)), Duration::from_secs(1));
        assert_eq!(debt.waited(at(11), at(15)), Duration::from_secs(1));
        assert_eq!(debt.waited(at(13), at(15)), Duration::ZERO);
        // It went before its time came.
        assert_eq!(debt.waited(at(10), at(11)), Duration::from_secs(1));
        debt.grows(1000, 1000, at(12));
        assert_eq!(debt.is_owed_until(at(12)), Some(at(13)));
        // Whatever it did before, no more than a second is saved.
        debt.grows(2000, 1000, at(30));
        assert_eq!(debt.is_owed_until(at(30)), Some(at(31)));
    }

    #[test]
    fn batches_without_records_wait_too() {
        let now = Instant::now();
        let mut debt = Debt::default();
        for _ in 0..1001 {
            debt.grows(0, 1000, now);
        }
        assert!(debt.is_owed_until(now).is_some());
    }
}
