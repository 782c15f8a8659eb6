//! The subcommands.

use std::{
    io::{self, Write as _},
    ops::RangeInclusive,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Error, Result, bail};
use formats::harmless::harmless;
use view::client::{self, ClientError, Target};

use self::run::RefusedSettings;
use crate::agent::BETWEEN_SCANS;

mod answer;
pub mod audit;
pub mod check;
pub mod collect;
pub mod config;
mod connect;
pub mod filter;
pub mod flows;
pub mod hyphens;
pub mod keep;
pub mod query;
pub mod run;
pub mod settings;
pub mod status;
pub mod token;
pub mod top;
pub mod watch;

/// What the exit statuses of all commands mean. `docs/settings.md` has the same table.
const EXIT_STATUSES: [(u8, &str); 4] = [
    (0, "success"),
    (1, "an error, or a check found something wrong"),
    (2, "an argument or a setting is not valid"),
    (
        NOTHING,
        "no error, but nothing to show: no flow matches, or nothing was scanned yet",
    ),
];
/// The exit status of a command that found nothing.
const NOTHING: u8 = 3;

/// The exit statuses as a part of the help.
pub fn exit_statuses() -> String {
    let lines = EXIT_STATUSES.map(|(status, meaning)| format!("\n  {status}  {meaning}"));
    format!("Exit status:{}", lines.concat())
}

/// Success, or [`NOTHING`] if the user asked for what matches a filter and nothing does.
fn unless_nothing_matches(has_filter: bool, found: usize) -> ExitCode {
    if has_filter && found == 0 {
        NOTHING.into()
    } else {
        ExitCode::SUCCESS
    }
}

/// The longest duration that a setting may have: adding it to any point in time must not overflow the clocks.
const LONGEST: Duration = Duration::from_hours(100 * 365 * 24);

/// Parses a setting such as `10s` or `2m`.
fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text)
        .map_err(|error| format!("{error}; expected a time such as 500ms, 10s or 1h 30m"))?;
    if time > LONGEST {
        return Err("at most 36500days".to_owned());
    }
    Ok(time)
}

/// A parser for numbers whose error names the range.
fn number(range: RangeInclusive<u32>) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let (least, most) = (range.start(), range.end());
        number.ok_or_else(|| format!("expected a number from {least} to {most}"))
    }
}

/// Options that contradict each other get the exit status of one that clap refuses.
fn refused(error: Error) -> Error {
    RefusedSettings(error).into()
}

/// How long to stay silent before telling the user that we wait.
const SILENCE: Duration = Duration::from_secs(1);

/// Waits for an answer. Prints a notice if it takes long.
fn patiently<T>(target: &Target, answer: impl Future<Output = T>) -> impl Future<Output = T> {
    patiently_after(SILENCE, target, answer)
}

/// Requests a scan and waits for it. Returns its number, or `None` for a client that may not request one.
async fn scan_first(target: &Target) -> Result<Option<u64>, ClientError> {
    // The agent spaces out scans on request, so most of this wait is nothing to tell.
    let silence = BETWEEN_SCANS + SILENCE;
    match patiently_after(silence, target, client::scan_now(target)).await {
        Ok(scan_id) => Ok(Some(scan_id)),
        Err(ClientError::Refused { .. } | ClientError::TooOld { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn patiently_after<T>(
    silence: Duration,
    target: &Target,
    answer: impl Future<Output = T>,
) -> T {
    tokio::pin!(answer);
    tokio::select! {
        answered = &mut answer => return answered,
        () = tokio::time::sleep(silence) => {
            notice(&format!("waiting for the agent at {target} to answer"));
        }
    }
    answer.await
}

/// The answer to a call that only agents know. If a collector listens there, the error says so, and what to do instead.
async fn of_an_agent<T>(
    target: &Target,
    answered: Result<T, ClientError>,
    instead: &str,
) -> Result<T> {
    match answered {
        Err(ClientError::TooOld { .. }) if client::is_collector(target).await => {
            bail!("a collector listens on {target}, not an agent: {instead}")
        }
        answered => Ok(answered?),
    }
}

/// Writes a message to stderr, since stdout is for answers. Ignores a closed stderr.
fn notice(text: &str) {
    let _ = writeln!(io::stderr(), "flow-agent: {}", harmless(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_table_of_exit_statuses() {
        let page = include_str!("../../../docs/settings.md");
        let lines = EXIT_STATUSES.map(|(status, meaning)| format!("| {status} | {meaning} |\n"));
        assert!(page.contains(&lines.concat()), "{}", lines.concat());
    }

    #[test]
    fn a_time_that_no_clock_reaches_is_refused() {
        assert_eq!(time("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(time("36500days"), Ok(LONGEST));
        assert!(time("584542046090years").is_err());
        for text in ["10", "-1s", "", "soon"] {
            let error = time(text).unwrap_err();
            assert!(error.ends_with("such as 500ms, 10s or 1h 30m"), "{error}");
        }
    }
}
