//! Cuts time into steps as clocks and calendars have them: minutes, hours, days.

use std::{
    ops::Range,
    time::{Duration, SystemTime},
};

use chrono::{Datelike as _, Days, Months, NaiveDate, NaiveTime, TimeDelta};

use super::Zone;

const DAY_SECONDS: u32 = 24 * 60 * 60;

/// How long a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// This is a fraction of a day. Steps begin at midnight and at its multiples.
    Seconds(u32),
    /// The first of these days is a Monday: weeks begin on Mondays.
    Days(u32),
    /// Years begin in January.
    Months(u32),
}

impl Step {
    pub const MINUTE: Self = Self::Seconds(60);
    pub const HOUR: Self = Self::Seconds(60 * 60);
    pub const DAY: Self = Self::Days(1);
    pub const WEEK: Self = Self::Days(7);
    pub const MONTH: Self = Self::Months(1);

    /// Whole days, or a whole fraction of a day in seconds.
    pub fn of(duration: Duration) -> Option<Self> {
        let seconds = u32::try_from(duration.as_secs()).ok()?;
        if seconds == 0 || duration.subsec_nanos() != 0 {
            None
        } else if seconds % DAY_SECONDS == 0 {
            Some(Self::Days(seconds / DAY_SECONDS))
        } else {
            DAY_SECONDS
                .is_multiple_of(seconds)
                .then_some(Self::Seconds(seconds))
        }
    }
}

/// Finds the step of a moment. Every moment lies in exactly one step, also where clocks are set forward or back.
pub struct Steps {
    step: Step,
    zone: Zone,
    /// Where the steps of the last day or days begin that were looked at, and where the last one ends.
    known: Vec<SystemTime>,
}

impl Steps {
    pub fn new(step: Step, zone: Zone) -> Self {
        Self {
            step,
            zone,
            known: Vec::new(),
        }
    }

    /// The step that has this moment.
    pub fn of(&mut self, time: SystemTime) -> Range<SystemTime> {
        if let Some(step) = self.known_of(time) {
            return step;
        }
        self.known = self.around(time);
        // No calendar goes on for ever.
        self.known_of(time)
            .unwrap_or(time..time + Duration::from_secs(1))
    }

    fn known_of(&self, time: SystemTime) -> Option<Range<SystemTime>> {
        let next = self.known.partition_point(|&begin| begin <= time);
        let begin = *self.known.get(next.checked_sub(1)?)?;
        Some(begin..*self.known.get(next)?)
    }

    /// The beginnings of all steps of the day that has this moment, or of the step of days.
    fn around(&self, time: SystemTime) -> Vec<SystemTime> {
        let day = self.zone.civil(time).date();
        let (first, next) = match self.step {
            Step::Seconds(_) => (day, plus_days(day, 1)),
            Step::Days(days) => {
                let monday = NaiveDate::from_ymd_opt(1969, 12, 29).unwrap_or_default();
                let since = u64::try_from((day - monday).num_days()).unwrap_or_default();
                let first = plus_days(monday, since - since % u64::from(days));
                (first, plus_days(first, days.into()))
            }
            Step::Months(months) => {
                let since = day.year().cast_unsigned() * 12 + day.month0();
                let first = day.with_day(1).unwrap_or(day) - Months::new(since % months);
                (
                    first,
                    first
                        .checked_add_months(Months::new(months))
                        .unwrap_or(NaiveDate::MAX),
                )
            }
        };
        let [begin, end] = [first, next].map(|day| self.zone.start_of_day(day));
        let mut begins = vec![begin, end];
        if let Step::Seconds(seconds) = self.step {
            let midnight = day.and_time(NaiveTime::MIN);
            for second in (0..DAY_SECONDS).step_by(seconds as usize) {
                let civil = midnight + TimeDelta::seconds(second.into());
                let shown = self.zone.instants(civil);
                if shown.is_empty() {
                    begins.push(self.zone.instant(civil));
                }
                begins.extend(shown);
            }
            begins.retain(|one| (begin..=end).contains(one));
        }
        begins.sort_unstable();
        begins.dedup();
        begins
    }
}

fn plus_days(day: NaiveDate, days: u64) -> NaiveDate {
    day.checked_add_days(Days::new(days))
        .unwrap_or(NaiveDate::MAX)
}
