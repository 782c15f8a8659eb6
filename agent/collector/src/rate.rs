//! Limits how fast a sender's records are taken. A sender that exceeds the rate waits, and delays nobody else.

use std::time::Duration;

use tokio::time::Instant;

/// A sender that was idle may send this long's records at once, since the records of a scan arrive together.
const SAVED: Duration = Duration::from_secs(1);

/// The time that a sender owes for its records.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Debt {
    /// When the debt is paid.
    paid_at: Option<Instant>,
}

impl Debt {
    /// Adds the records of a batch that was taken.
    pub(super) fn add(&mut self, records: u64, records_per_second: u32, now: Instant) {
        // A batch without records is work, too.
        let records = records.max(1);
        let time = Duration::from_secs_f64(records as f64 / f64::from(records_per_second));
        let saved_since = now.checked_sub(SAVED).unwrap_or(now);
        let paid_at = self.paid_at.map_or(saved_since, |at| at.max(saved_since));
        self.paid_at = Some(paid_at + time);
    }

    /// When the next batch may be taken, if that is later than `now`.
    pub(super) fn owes_until(&self, now: Instant) -> Option<Instant> {
        self.paid_at.filter(|&at| at > now)
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
        assert_eq!(debt.owes_until(at(10)), None);
        // One second was saved, not ten.
        debt.add(1000, 1000, at(10));
        assert_eq!(debt.owes_until(at(10)), None);
        debt.add(2000, 1000, at(10));
        assert_eq!(debt.owes_until(at(10)), Some(at(12)));
        assert_eq!(debt.owes_until(at(12)), None);
        debt.add(1000, 1000, at(12));
        assert_eq!(debt.owes_until(at(12)), Some(at(13)));
        // However long it was idle, it saves at most a second.
        debt.add(2000, 1000, at(30));
        assert_eq!(debt.owes_until(at(30)), Some(at(31)));
    }

    #[test]
    fn batches_without_records_wait_too() {
        let now = Instant::now();
        let mut debt = Debt::default();
        for _ in 0..1001 {
            debt.add(0, 1000, now);
        }
        assert!(debt.owes_until(now).is_some());
    }
}
