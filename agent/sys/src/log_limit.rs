//! Limits log lines about events that may happen at every scan: only one in a while is logged, with the number
//! of events that it stands for.

use std::time::{Duration, Instant};

const AT_MOST_EVERY: Duration = Duration::from_secs(10);

/// Lets one event in a while through.
#[derive(Debug, Default)]
pub struct LogLimit {
    last: Option<Instant>,
    since: u64,
}

impl LogLimit {
    /// Counts an event. `Some` says that it should be logged, with the number of events since the last logged
    /// one, itself included.
    pub fn event(&mut self) -> Option<u64> {
        self.event_at(Instant::now())
    }

    /// When [`LogLimit::rest`] has something to tell; `None` if every event was logged.
    pub fn rest_due_in(&self) -> Option<Duration> {
        (self.since > 0).then(|| self.due_in_at(Instant::now()))
    }

    /// How many events were not logged, when it is time to: there may be no other one that tells of them.
    pub fn rest(&mut self) -> Option<u64> {
        self.rest_at(Instant::now())
    }

    fn event_at(&mut self, now: Instant) -> Option<u64> {
        self.since += 1;
        self.rest_at(now)
    }

    fn rest_at(&mut self, now: Instant) -> Option<u64> {
        (self.since > 0 && self.due_in_at(now).is_zero()).then(|| {
            self.last = Some(now);
            std::mem::take(&mut self.since)
        })
    }

    fn due_in_at(&self, now: Instant) -> Duration {
        self.last.map_or(Duration::ZERO, |last| {
            AT_MOST_EVERY.saturating_sub(now.duration_since(last))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_event_is_told_at_once_and_then_how_many_there_were() {
        let (mut limit, start) = (LogLimit::default(), Instant::now());
        let mut told = Vec::new();
        for tenth in 0..=150 {
            let now = start + Duration::from_millis(tenth * 100);
            told.extend(limit.event_at(now).map(|count| (tenth, count)));
        }
        assert_eq!(told, [(0, 1), (100, 100)]);
    }

    #[test]
    fn the_last_events_are_told_of_when_no_other_one_follows() {
        let (mut limit, start) = (LogLimit::default(), Instant::now());
        assert_eq!((limit.rest_at(start), limit.rest_due_in()), (None, None));
        assert_eq!(limit.event_at(start), Some(1));
        assert_eq!(limit.rest_due_in(), None);
        for _ in 0..3 {
            assert_eq!(limit.event_at(start), None);
        }
        assert_eq!(limit.due_in_at(start), AT_MOST_EVERY);
        assert!(limit.rest_due_in().is_some());
        assert_eq!(limit.rest_at(start), None);
        let later = start + AT_MOST_EVERY;
        assert_eq!(limit.due_in_at(later), Duration::ZERO);
        assert_eq!(limit.rest_at(later), Some(3));
        assert_eq!((limit.rest_at(later), limit.rest_due_in()), (None, None));
    }
}
