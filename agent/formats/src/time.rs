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

impl Serialize for UtcTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
