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

    fn event_at(&mut self, now: Instant) -> Option<u64> {
        self.since += 1;
        let is_due = self
            .last
            .is_none_or(|last| now.duration_since(last) >= AT_MOST_EVERY);
        is_due.then(|| {
            self.last = Some(now);
            std::mem::take(&mut self.since)
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
}
