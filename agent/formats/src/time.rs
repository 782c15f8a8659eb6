//! Times as text.

use std::{
    fmt,
    time::{Duration, UNIX_EPOCH},
};

use serde::{Serialize, Serializer};

/// A point in time as RFC 3339 text in UTC, with all nine digits of its nanoseconds. Many JSON readers, jq among them,
/// round a number of this size.
#[derive(Clone, Copy, Debug)]
pub struct UtcTime {
    unix_ns: u64,
}

impl UtcTime {
    pub const fn new(unix_ns: u64) -> Self {
        Self { unix_ns }
    }
}

impl fmt::Display for UtcTime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The largest number is a time in 2554.
        let time = UNIX_EPOCH + Duration::from_nanos(self.unix_ns);
        humantime::format_rfc3339_nanos(time).fmt(formatter)
    }
}

/// Writes many times, which mostly are of one day.
#[derive(Clone, Copy, Debug, Default)]
pub struct UtcTimes {
    /// Counted from 1970 on, and its date with the letter that follows.
    day: Option<(u64, [u8; 11])>,
}

impl UtcTimes {
    const DAY_NS: u64 = 86_400_000_000_000;

    /// Appends a time as [`UtcTime`] shows it.
    pub fn write(&mut self, unix_ns: u64, out: &mut Vec<u8>) {
        let (day, ns) = (unix_ns / Self::DAY_NS, unix_ns % Self::DAY_NS);
        let date = match self.day {
            Some((known, date)) if known == day => date,
            _ => {
                let text = UtcTime::new(unix_ns).to_string();
                let date = *text.as_bytes().first_chunk().expect("a date and a letter");
                self.day = Some((day, date));
                date
            }
        };
        let (seconds, ns) = (ns / 1_000_000_000, ns % 1_000_000_000);
        let mut time = *b"00:00:00.000000000Z";
        set_digits(&mut time[..2], seconds / 3600);
        set_digits(&mut time[3..5], seconds / 60 % 60);
        set_digits(&mut time[6..8], seconds % 60);
        set_digits(&mut time[9..18], ns);
        out.extend_from_slice(&date);
        out.extend_from_slice(&time);
    }
}

/// Writes a decimal number into all of these places.
fn set_digits(places: &mut [u8], mut number: u64) {
    for place in places.iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

impl Serialize for UtcTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn many_times_are_written_as_each_of_them_is_shown(
            times in prop::collection::vec(prop_oneof![any::<u64>(), 0..200_000_000_000_000_u64], 1..20),
        ) {
            let mut writer = UtcTimes::default();
            for unix_ns in times {
                let mut written = Vec::new();
                writer.write(unix_ns, &mut written);
                prop_assert_eq!(String::from_utf8(written).unwrap(), UtcTime::new(unix_ns).to_string());
            }
        }
    }

    #[test]
    fn a_time_is_exact_and_has_one_length() {
        for (unix_ns, text) in [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_399_999_999_999, "2000-02-28T23:59:59.999999999Z"),
            (1_700_000_000_000_000_001, "2023-11-14T22:13:20.000000001Z"),
            (u64::MAX, "2554-07-21T23:34:33.709551615Z"),
        ] {
            assert_eq!(UtcTime::new(unix_ns).to_string(), text);
            let json = serde_json::to_string(&UtcTime::new(unix_ns)).unwrap();
            assert_eq!(json, format!("\"{text}\""));
        }
    }
}
