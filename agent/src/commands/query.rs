//! `flow-agent query`: adds up flows from Parquet files and spools, without a server.

use std::{
    io::{self, IsTerminal as _, Write as _},
    ops::Range,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use rules::Rules;
use view::query::{self, By, Order, Question};

use super::{notice, refused, unless_nothing_matches};

mod show;

/// How often to print the progress.
const PROGRESS: Duration = Duration::from_millis(500);

/// Add up the flows that Parquet files or a spool have.
///
/// The files are those of `--output parquet=FOLDER`, of an agent or of `flow-agent collect`. Those that are still in the making
/// are read, too. A spool is the folder in which an agent keeps what no collector has acknowledged. A record belongs to
/// the time in which its scan window ends, so the answer says which windows it has. A flow that was seen at several
/// interfaces or by several hosts is counted by each.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folders, or files of them.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,

    /// From when on: a time before now, as in 90m or 2h, or a time of UTC, as in 2026-01-02, 2026-01-02T03:04 or
    /// 2026-01-02T03:04:05Z [default: the first record].
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_QUERY_SINCE", value_parser = moment)]
    pub since: Option<SystemTime>,

    /// Until when, as with --since [default: the last record].
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_QUERY_UNTIL", value_parser = moment)]
    pub until: Option<SystemTime>,

    /// Count only these flows, as in 'port https', 'host example.com' or 'exclude net 10.0.0.0/8'; repeatable, or separated
    /// by semicolons. --help has the language.
    #[arg(long, value_name = "RULES", env = "FLOW_AGENT_QUERY_FILTER", long_help = rules::HELP_FOR_FLOWS)]
    pub filter: Vec<Rules>,

    /// What to add up by; repeatable, or separated by commas.
    #[arg(
        long,
        value_name = "WHAT",
        env = "FLOW_AGENT_QUERY_BY",
        value_enum,
        value_delimiter = ',',
        default_value = "address"
    )]
    pub by: Vec<By>,

    /// What comes first.
    #[arg(
        long,
        value_name = "ORDER",
        env = "FLOW_AGENT_QUERY_SORT",
        value_enum,
        default_value = "bytes"
    )]
    pub sort: Order,

    /// The most groups to show; 0 shows all.
    #[arg(
        short = 'n',
        long,
        value_name = "GROUPS",
        env = "FLOW_AGENT_QUERY_TOP",
        default_value_t = 20
    )]
    pub top: usize,

    /// A table, JSON Lines, or CSV on stdout.
    #[arg(
        short = 'o',
        long,
        value_name = "FORMAT",
        env = "FLOW_AGENT_QUERY_OUTPUT",
        value_enum,
        default_value = "table"
    )]
    pub output: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// A table.
    Table,
    /// JSON Lines: one for each group, and one for the total.
    Json,
    /// Comma-separated values with a line of names, one line for each group.
    Csv,
}

/// A time before now, or a UTC time.
fn moment(text: &str) -> Result<SystemTime, String> {
    if let Ok(before) = super::time(text) {
        let then = SystemTime::now().checked_sub(before);
        return then.ok_or_else(|| "that is before all clocks".to_owned());
    }
    let text = text.trim_end_matches('Z');
    let parsed = ["", ":00", " 00:00:00"]
        .iter()
        .find_map(|rest| humantime::parse_rfc3339_weak(&format!("{text}{rest}")).ok());
    parsed.ok_or_else(|| {
        "expected a time before now, as in 90m or 2h, or a time of UTC, as in 2026-01-02, 2026-01-02T03:04 or \
         2026-01-02T03:04:05Z"
            .to_owned()
    })
}

fn micros(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

impl Args {
    /// The time range. Fails if options contradict each other.
    fn time_us(&self) -> Result<Range<i64>> {
        let since = self.since.map_or(i64::MIN, micros);
        let until = self.until.map_or(i64::MAX, micros);
        ensure!(
            since < until,
            "--since is not before --until, so nothing lies between them"
        );
        for (number, by) in self.by.iter().enumerate() {
            ensure!(
                !self.by[..number].contains(by),
                "--by has the same twice: take one out"
            );
        }
        Ok(since..until)
    }
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let question = Question {
        time_us: args.time_us().map_err(refused)?,
        rules: rules::set(&args.filter),
        by: args.by.clone(),
        order: args.sort,
        top: if args.top == 0 { usize::MAX } else { args.top },
    };
    let mut progress = Progress::new();
    let answer = query::answer(&args.paths, &question, |read, all| progress.tell(read, all));
    progress.clear();
    let answer = answer?;
    let out = formats::buffered(io::stdout());
    match show::show(out, args.output, &args.by, &answer) {
        Err(error) if formats::is_broken_pipe(&error) => {}
        written => written.context("write to stdout")?,
    }
    for text in show::missing(args.output, &answer) {
        notice(&text);
    }
    let has_filter = !args.filter.is_empty();
    Ok(unless_nothing_matches(has_filter, answer.all_groups))
}

/// Prints the progress of a long query on a terminal.
struct Progress {
    is_terminal: bool,
    last: Instant,
    is_shown: bool,
}

impl Progress {
    fn new() -> Self {
        Self {
            is_terminal: io::stderr().is_terminal(),
            last: Instant::now(),
            is_shown: false,
        }
    }

    fn tell(&mut self, read: usize, all: usize) {
        if !self.is_terminal || self.last.elapsed() < PROGRESS {
            return;
        }
        (self.last, self.is_shown) = (Instant::now(), true);
        // If stderr is closed, the progress is not needed.
        let _ = write!(io::stderr(), "\rflow-agent: read {read} of {all} files");
    }

    fn clear(&self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_before_now_or_of_utc() {
        let of_utc = |text| micros(moment(text).unwrap()) / 1_000_000;
        assert_eq!(of_utc("2026-01-02"), 1_767_312_000);
        for text in [
            "2026-01-02T03:04",
            "2026-01-02 03:04",
            "2026-01-02T03:04:00",
            "2026-01-02T03:04:00Z",
        ] {
            assert_eq!(of_utc(text), 1_767_312_000 + 3 * 3600 + 4 * 60, "{text}");
        }
        let then = moment("2h").unwrap();
        let ago = then.elapsed().unwrap();
        assert!(ago >= Duration::from_hours(2) && ago < Duration::from_hours(3));
        for text in [
            "",
            "yesterday",
            "10",
            "2026-13-01",
            "2026-01-02T03:04+01:00",
        ] {
            assert!(
                moment(text)
                    .unwrap_err()
                    .starts_with("expected a time before now"),
                "{text}"
            );
        }
    }
}
