//! Limits repeated log messages: logs an event once, and again only after it stayed away for a while.

use std::time::{Duration, Instant};

/// The spell ends after this long without an event.
const QUIET: Duration = Duration::from_hours(1);

#[derive(Debug, Default)]
pub(super) struct Spell {
    last: Option<Instant>,
}

impl Spell {
    /// Records an event. Returns whether it is the first of its spell.
    pub(super) fn begins(&mut self) -> bool {
        self.begins_at(Instant::now())
    }

    fn begins_at(&mut self, now: Instant) -> bool {
        let last = self.last.replace(now);
        last.is_none_or(|last| now.duration_since(last) > QUIET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spell_goes_on_as_long_as_events_come() {
        let (mut spell, start) = (Spell::default(), Instant::now());
        let mut told = Vec::new();
        for minute in (0..180).chain([240]).chain([301, 302]) {
            if spell.begins_at(start + Duration::from_mins(minute)) {
                told.push(minute);
            }
        }
        assert_eq!(told, [0, 240, 301]);
    }
}
