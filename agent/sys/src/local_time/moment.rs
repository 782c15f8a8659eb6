//! Reads a moment as people type it.

use std::time::{Duration, SystemTime};

use chrono::{Days, FixedOffset, NaiveDate, NaiveDateTime, NaiveTime};

use super::{Zone, moment};

/// A moment as somebody typed it, which may depend on now and on the time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moment {
    /// So long before now.
    Before(Duration),
    /// With an offset from UTC.
    At(SystemTime),
    /// As clocks show it.
    Civil(NaiveDateTime),
    /// The last time that clocks showed this, today or yesterday.
    Last(NaiveTime),
    Today(NaiveTime),
    Yesterday(NaiveTime),
}

impl Moment {
    /// Reads all but [`Moment::Before`].
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        for (word, of_day) in [
            ("today", Self::Today as fn(_) -> _),
            ("yesterday", Self::Yesterday),
        ] {
            if let Some(rest) = text.strip_prefix(word) {
                return time_after_a_day(rest).map(of_day);
            }
        }
        if let Some(time) = time_of_day(text) {
            return Some(Self::Last(time));
        }
        let (civil, offset) = without_offset(text);
        let (day, time) = civil.split_at_checked("2026-01-02".len())?;
        let is_written_out = day.bytes().all(|one| one.is_ascii_digit() || one == b'-');
        let day = NaiveDate::parse_from_str(day, "%Y-%m-%d").ok();
        let day = day.filter(|_| is_written_out)?;
        let civil = day.and_time(time_after_a_day(time)?);
        Some(match offset {
            Some(offset) => Self::At(moment(civil, offset)),
            None => Self::Civil(civil),
        })
    }

    /// The same for the end of a time that begins at `since`. A time of day without a day is the last one before now, or the next
    /// one if that is not after `since`.
    pub fn resolve_after(&self, since: SystemTime, now: SystemTime, zone: Zone) -> SystemTime {
        let Self::Last(time) = self else {
            return self.resolve(now, zone);
        };
        let last = self.resolve(now, zone);
        if last > since {
            return last;
        }
        let day = zone.civil(since).date();
        let days = (0..=2).filter_map(|later| day.checked_add_days(Days::new(later)));
        let mut instants = days.flat_map(|day| zone.instants(day.and_time(*time)));
        let first = instants.find(|&instant| instant > since);
        first.unwrap_or(last)
    }

    pub fn resolve(&self, now: SystemTime, zone: Zone) -> SystemTime {
        let today = || zone.civil(now).date();
        let yesterday = || today().checked_sub_days(Days::new(1)).unwrap_or_default();
        match self {
            Self::Before(duration) => now.checked_sub(*duration).unwrap_or(SystemTime::UNIX_EPOCH),
            Self::At(time) => *time,
            Self::Civil(civil) => zone.instant(*civil),
            Self::Today(time) => zone.instant(today().and_time(*time)),
            Self::Yesterday(time) => zone.instant(yesterday().and_time(*time)),
            Self::Last(time) => {
                let of_today = zone.instant(today().and_time(*time));
                if of_today <= now {
                    of_today
                } else {
                    zone.instant(yesterday().and_time(*time))
                }
            }
        }
    }
}

/// `T03:04`, ` 03:04`, or nothing: midnight.
fn time_after_a_day(text: &str) -> Option<NaiveTime> {
    if text.is_empty() {
        return Some(NaiveTime::MIN);
    }
    time_of_day(text.strip_prefix(['T', 't', ' '])?)
}

/// `3:04`, `03:04`, `03:04:05` or `03:04:05.678`.
fn time_of_day(text: &str) -> Option<NaiveTime> {
    let mut parts = text.split([':', '.']);
    let is_number = |part: &str| part.bytes().all(|one| one.is_ascii_digit());
    let [hours, minutes] = [parts.next()?, parts.next()?];
    let seconds = parts.next();
    let is_written_out = is_number(hours)
        && (1..=2).contains(&hours.len())
        && [Some(minutes), seconds]
            .into_iter()
            .flatten()
            .all(|part| part.len() == 2)
        && parts.all(is_number);
    let format = if seconds.is_some() {
        "%H:%M:%S%.f"
    } else {
        "%H:%M"
    };
    is_written_out
        .then(|| NaiveTime::parse_from_str(text, format).ok())
        .flatten()
}

/// The text before `Z`, `+01:00` or `-0100`, and that offset.
fn without_offset(text: &str) -> (&str, Option<FixedOffset>) {
    if let Some(civil) = text.strip_suffix(['Z', 'z']) {
        return (civil.trim_end(), FixedOffset::east_opt(0));
    }
    // A day has such signs, too.
    let sign = text
        .rfind(['+', '-'])
        .filter(|&place| place > "2026-01-02".len());
    let offset = sign.and_then(|place| Some((&text[..place], text[place..].parse().ok()?)));
    match offset {
        Some((civil, offset)) => (civil.trim_end(), Some(offset)),
        None => (text, None),
    }
}
