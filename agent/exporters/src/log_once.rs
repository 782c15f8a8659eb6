//! Logs an event once, and again only after it has stayed away for a while.

use std::time::{Duration, Instant};

/// An event is logged again after this long without one.
const QUIET: Duration = Duration::from_hours(1);

#[derive(Debug, Default)]
pub(super) struct LogOnce {
    last: Option<Instant>,
}

impl LogOnce {
    /// Records an event. Returns whether to log it.
    pub(super) fn event(&mut self) -> bool {
        self.event_at(Instant::now())
    }

    fn event_at(&mut self, now: Instant) -> bool {
        let last = self.last.replace(now);
        last.is_none_or(|last| now.duration_since(last) > QUIET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_logged_again_only_after_it_stayed_away() {
        let (mut once, start) = (LogOnce::default(), Instant::now());
        let mut logged = Vec::new();
        for minute in (0..180).chain([240]).chain([301, 302]) {
            if once.event_at(start + Duration::from_mins(minute)) {
                logged.push(minute);
            }
        }
        assert_eq!(logged, [0, 240, 301]);
    }
}
