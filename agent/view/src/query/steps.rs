//! The steps of time that a query adds up by.

use std::{
    ops::Range,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Result, bail};
use sys::local_time::{Step, Steps, Zone};

use super::group::Part;

/// The most steps of an answer, empty ones included.
const MOST_STEPS: usize = 100_000;

/// Into which steps to cut the time of a query.
#[derive(Clone, Debug)]
pub struct Stepping {
    pub step: Step,
    /// Steps begin when clocks of this zone say so.
    pub zone: Zone,
    /// Which steps are in the answer even if they have no records, in Unix time in microseconds: those that have any part of
    /// this. Where it is open (`i64::MIN`, `i64::MAX`), steps begin or end with the records.
    pub shown_us: Range<i64>,
}

impl Stepping {
    pub(super) fn steps(&self) -> TimeSteps {
        TimeSteps(Steps::new(self.step, self.zone))
    }

    /// Fails if there are too many steps even without any record.
    pub(super) fn refuse_too_many(&self) -> Result<()> {
        self.steps().all(self, None).map(drop)
    }
}

/// Finds the step of a record.
pub(super) struct TimeSteps(Steps);

impl TimeSteps {
    /// The step that has the end of this scan window. Like the time of a query, a step is without its first moment and
    /// with its last one.
    pub(super) fn of(&mut self, window_end_us: i64) -> Part {
        self.with(window_end_us.saturating_sub(1))
    }

    /// The step that has this moment and the one after.
    fn with(&mut self, unix_us: i64) -> Part {
        let unix_us = u64::try_from(unix_us).unwrap_or_default();
        let step = self.0.of(UNIX_EPOCH + Duration::from_micros(unix_us));
        Part::Step {
            start_us: micros(step.start),
            end_us: micros(step.end),
        }
    }

    /// All steps from the first to the last, which must not be more than an answer may have. `of_records` are the first and
    /// the last step that have records. Without them and with an open time, there are none.
    pub(super) fn all(
        &mut self,
        stepping: &Stepping,
        of_records: Option<(Part, Part)>,
    ) -> Result<Vec<Part>> {
        let shown_us = &stepping.shown_us;
        let mut of_shown = || {
            let is_open = shown_us.start == i64::MIN || shown_us.end == i64::MAX;
            (!is_open && !shown_us.is_empty())
                .then(|| (self.with(shown_us.start), self.of(shown_us.end)))
        };
        let Some((first, last)) = of_records.or_else(&mut of_shown) else {
            return Ok(Vec::new());
        };
        let first = match shown_us.start {
            i64::MIN => first,
            start_us => self.with(start_us).min(first),
        };
        let last = match shown_us.end {
            i64::MAX => last,
            end_us => self.of(end_us).max(last),
        };
        let mut all = vec![first];
        while let Some(Part::Step { end_us, .. }) = all.last()
            && all.last() < Some(&last)
        {
            if all.len() == MOST_STEPS {
                bail!(
                    "there are more than {MOST_STEPS} steps: ask for longer ones with --by, or for less time"
                );
            }
            let next = self.with(*end_us);
            all.push(next);
        }
        Ok(all)
    }
}

fn micros(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
