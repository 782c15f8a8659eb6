//! The time of day where the machine is: `TZ`, else `/etc/localtime`.
//!
//! [`Moment`] reads what people type, [`Steps`] cuts time into hours and days.
//!
//! When clocks are set forward or back, some times of day do not exist and some exist twice. [`Zone::instant`] has the rule.

use std::{
    fmt::Display,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use chrono::{
    DateTime, Datelike as _, FixedOffset, Local, NaiveDate, NaiveDateTime, NaiveTime, Offset as _,
    TimeDelta, TimeZone as _, Utc,
};

mod moment;
mod steps;
#[cfg(test)]
mod tests;

pub use moment::Moment;
pub use steps::{Step, Steps};

/// The time zone of what people read and type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Zone {
    /// The machine's own.
    #[default]
    Local,
    Utc,
}

/// Four digits for each year.
const YEARS: std::ops::RangeInclusive<i32> = 1970..=9999;

const A_DAY: Duration = Duration::from_hours(24);

impl Zone {
    pub fn utc_if(is_utc: bool) -> Self {
        if is_utc { Self::Utc } else { Self::Local }
    }

    /// The time of day at this moment. Moments that no calendar of four digits has are taken to the nearest one.
    pub fn civil(self, time: SystemTime) -> NaiveDateTime {
        self.at(time).naive_local()
    }

    /// When clocks show this time. If they skip it, because they are set forward, it counts from before they are set: where
    /// 3:00 follows 1:59, `02:30` means `03:30`. If they show it twice, because they are set back, it is the first time.
    pub fn instant(self, civil: NaiveDateTime) -> SystemTime {
        let first = self.instants(civil).first().copied();
        first.unwrap_or_else(|| moment(civil, self.offsets_around(civil)[0]))
    }

    /// All moments at which clocks show this time: none, one or two, in order.
    ///
    /// chrono's own answer is wrong for the last moment of a time that is shown twice (0.4.45), so this one asks which offset
    /// is in force before and after.
    pub fn instants(self, civil: NaiveDateTime) -> Vec<SystemTime> {
        let offsets = self.offsets_around(civil);
        let mut instants = offsets.map(|offset| moment(civil, offset)).to_vec();
        instants.retain(|&one| self.civil(one) == civil);
        instants.sort_unstable();
        instants.dedup();
        instants
    }

    /// When clocks show this time for the last time. If they skip it, that is the moment at which they are set forward.
    fn last_instant(self, civil: NaiveDateTime) -> SystemTime {
        let last = self.instants(civil).last().copied();
        last.unwrap_or_else(|| self.end_of_gap(civil))
    }

    /// The moment at which clocks are set forward past this time, which they skip.
    fn end_of_gap(self, civil: NaiveDateTime) -> SystemTime {
        let seconds = |offset| {
            let since = moment(civil, offset).duration_since(UNIX_EPOCH);
            since.unwrap_or_default().as_secs()
        };
        let [before, after] = self.offsets_around(civil);
        let (mut low, mut high) = (seconds(after), seconds(before));
        while low < high {
            let middle = u64::midpoint(low, high);
            if self.civil(UNIX_EPOCH + Duration::from_secs(middle)) < civil {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        UNIX_EPOCH + Duration::from_secs(high)
    }

    /// As RFC 3339 has it, with a space and without a fraction: `2026-01-02 03:04:05+01:00`, in UTC with `Z`.
    pub fn seconds(self, unix_ns: u64) -> impl Display {
        self.written(unix_ns, "%Y-%m-%d %H:%M:%S")
    }

    /// The same to minutes.
    pub fn minutes(self, unix_ns: u64) -> impl Display {
        self.written(unix_ns, "%Y-%m-%d %H:%M")
    }

    /// The day alone, with that of the week: `2026-01-02 Fri`.
    pub fn day(self, unix_ns: u64) -> impl Display {
        let time = self.at(UNIX_EPOCH + Duration::from_nanos(unix_ns));
        time.format("%Y-%m-%d %a").to_string()
    }

    /// The month alone: `2026-01`.
    pub fn month(self, unix_ns: u64) -> impl Display {
        let time = self.at(UNIX_EPOCH + Duration::from_nanos(unix_ns));
        time.format("%Y-%m").to_string()
    }

    /// The same as [`Zone::seconds`] to milliseconds.
    pub fn millis(self, unix_ns: u64) -> impl Display {
        self.written(unix_ns, "%Y-%m-%d %H:%M:%S%.3f")
    }

    fn written(self, unix_ns: u64, format: &str) -> String {
        let time = self.at(UNIX_EPOCH + Duration::from_nanos(unix_ns));
        let offset = match time.offset().local_minus_utc() {
            0 => "Z".to_owned(),
            _ => time.format("%:z").to_string(),
        };
        format!("{}{offset}", time.format(format))
    }

    fn at(self, time: SystemTime) -> DateTime<FixedOffset> {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let utc = i64::try_from(since.as_secs())
            .ok()
            .and_then(|seconds| DateTime::from_timestamp(seconds, since.subsec_nanos()))
            .filter(|utc| YEARS.contains(&utc.year()))
            .unwrap_or_else(last);
        let offset = match self {
            Self::Local => Local.offset_from_utc_datetime(&utc.naive_utc()).fix(),
            Self::Utc => Utc.fix(),
        };
        utc.with_timezone(&offset)
    }

    /// The offsets in force a day before and a day after: no zone is further from UTC, or changes its offset more often.
    fn offsets_around(self, civil: NaiveDateTime) -> [FixedOffset; 2] {
        let utc = FixedOffset::east_opt(0).expect("it is none");
        let as_if_utc = moment(civil, utc);
        let before = as_if_utc.checked_sub(A_DAY).unwrap_or(UNIX_EPOCH);
        [before, as_if_utc + A_DAY].map(|time| *self.at(time).offset())
    }
}

/// The last second that has four digits.
fn last() -> DateTime<Utc> {
    let year = *YEARS.end();
    let day = NaiveDate::from_ymd_opt(year, 12, 31).expect("a year ends with such a day");
    let midnight = day.and_time(NaiveTime::MIN);
    (midnight + TimeDelta::seconds(86_399)).and_utc()
}

/// Not before 1970.
fn moment(civil: NaiveDateTime, offset: FixedOffset) -> SystemTime {
    let utc = civil.checked_sub_offset(offset).unwrap_or(civil).and_utc();
    let since = (utc - DateTime::UNIX_EPOCH).to_std().unwrap_or_default();
    UNIX_EPOCH + since
}
