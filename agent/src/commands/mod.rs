//! The subcommands: arguments come in, what they say goes to stdout.

use std::time::Duration;

pub mod audit;
pub mod check;
pub mod filter;
pub mod run;
pub mod status;
pub mod watch;

/// The longest time that a setting may be: the clocks can add it to any moment.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A setting such as `10s` or `2m`.
fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time > LONGEST {
        return Err("at most 36500days".to_owned());
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_no_clock_reaches_is_refused() {
        assert_eq!(time("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(time("36500days"), Ok(LONGEST));
        assert!(time("584542046090years").is_err());
        assert!(time("10").is_err());
    }
}
