//! Cuts time into steps as clocks and calendars have them: minutes, hours, days.

use std::{
    collections::BTreeMap,
    ops::Range,
    time::{Duration, SystemTime},
};

use chrono::{Datelike as _, Days, Months, NaiveDate, NaiveTime, TimeDelta};

use super::Zone;

const DAY_SECONDS: u32 = 24 * 60 * 60;

/// How many steps are kept, at 16 bytes each: those of a year in minutes.
const MOST_KNOWN: usize = 366 * 24 * 60;

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
    /// Of each day that was looked at, or step of days, by its beginning: where its steps begin, and where the last one ends.
    /// Records need not be in order of time, and a comparison looks at two days in turn.
    known: BTreeMap<SystemTime, Vec<SystemTime>>,
    /// How many moments all of these are.
    kept: usize,
}

impl Steps {
    pub fn new(step: Step, zone: Zone) -> Self {
        Self {
            step,
            zone,
            known: BTreeMap::new(),
            kept: 0,
        }
    }

    /// The step that has this moment.
    pub fn of(&mut self, time: SystemTime) -> Range<SystemTime> {
        if let Some(step) = self.known_of(time) {
            return step;
        }
        let begins = self.around(time);
        if self.kept + begins.len() > MOST_KNOWN {
            self.known.clear();
            self.kept = 0;
        }
        self.kept += begins.len();
        self.known
            .extend(begins.first().map(|&first| (first, begins.clone())));
        // No calendar goes on for ever.
        self.known_of(time)
            .unwrap_or(time..time + Duration::from_secs(1))
    }

    /// The same if its day is known.
    pub(super) fn known_of(&self, time: SystemTime) -> Option<Range<SystemTime>> {
        let (_, begins) = self.known.range(..=time).next_back()?;
        let next = begins.partition_point(|&begin| begin <= time);
        let begin = *begins.get(next.checked_sub(1)?)?;
        Some(begin..*begins.get(next)?)
    }

    /// The beginnings of all steps of the day that has this moment, or of the step of days. If clocks are set back past
    /// midnight, the day before lasts until they show midnight again.
    fn around(&self, time: SystemTime) -> Vec<SystemTime> {
        let start_of = |day: NaiveDate| self.zone.last_instant(day.and_time(NaiveTime::MIN));
        let mut day = self.zone.civil(time).date();
        if time < start_of(day) {
            day = day.pred_opt().unwrap_or(day);
        }
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
        let [begin, end] = [first, next].map(start_of);
        let mut begins = vec![begin, end];
        if let Step::Seconds(seconds) = self.step {
            // Where the next day's midnight comes twice, the first time lies in this day.
            let is_next_shown = self.zone.instants(next.and_time(NaiveTime::MIN)).len() > 1;
            for day in [Some(first), is_next_shown.then_some(next)]
                .into_iter()
                .flatten()
            {
                let midnight = day.and_time(NaiveTime::MIN);
                for second in (0..DAY_SECONDS).step_by(seconds as usize) {
                    let civil = midnight + TimeDelta::seconds(second.into());
                    let shown = self.zone.instants(civil);
                    if shown.is_empty() {
                        begins.push(self.zone.end_of_gap(civil));
                    }
                    begins.extend(shown);
                }
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
