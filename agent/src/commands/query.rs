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
use sys::local_time::{Moment, Zone};
use view::query::{self, Order, Query, Stepping};

use super::{notice, refused, unless_nothing_matches};

mod by;
mod show;

use by::What;
use show::Shape;

/// How often to print the progress.
const PROGRESS: Duration = Duration::from_millis(500);

/// Add up the flows in Parquet files or a spool.
///
/// The files are those of `--output parquet=FOLDER`, of an agent or of `flow-agent collect`, including unfinished ones.
/// A spool is the folder where an agent keeps flows that no collector has acknowledged. A record counts at the time
/// when its scan window ends, so the answer says which windows it has. A flow seen at several interfaces or by several
/// hosts counts at each.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folders, or files in them.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,

    /// The start: a time before now, as in 90m or 2h; the last time that clocks showed 21:27; today, yesterday, or
    /// "yesterday 21:27"; or a date, as in 2026-01-02, 2026-01-02T03:04 or, in UTC, 2026-01-02T03:04:05Z [default: the
    /// first record].
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_QUERY_SINCE", value_parser = moment)]
    pub since: Option<Moment>,

    /// The end, written like --since; 21:27 is the last such time, or the next if that is not after --since [default:
    /// the last record].
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_QUERY_UNTIL", value_parser = moment)]
    pub until: Option<Moment>,

    /// Compare with the same period this much earlier, as in 24h or 7d: what is new, gone, more or less. Needs --since.
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_QUERY_COMPARE", value_parser = super::time)]
    pub compare: Option<Duration>,

    /// Read times of --since and --until that name no zone as UTC, and show UTC, rather than local time.
    #[arg(long)]
    pub utc: bool,

    /// Count only these flows, as in 'port https', 'host example.com' or 'exclude net 10.0.0.0/8'; repeatable, or separated
    /// by semicolons. --help has the language.
    #[arg(long, value_name = "RULES", env = "FLOW_AGENT_QUERY_FILTER", long_help = rules::HELP_FOR_FLOWS)]
    pub filter: Vec<Rules>,

    /// What to group by; repeatable, or separated by commas. Steps of time come first, in order, starting at local
    /// midnight, and --top applies to each of them.
    #[arg(
        long,
        value_name = "WHAT",
        env = "FLOW_AGENT_QUERY_BY",
        value_parser = by::Parser,
        value_delimiter = ',',
        default_value = "address"
    )]
    pub by: Vec<What>,

    /// The sort order; with --compare, by the largest difference.
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

/// A time before now, or a time of day or a date.
fn moment(text: &str) -> Result<Moment, String> {
    if let Ok(before) = super::time(text) {
        return Ok(Moment::Before(before));
    }
    Moment::parse(text).ok_or_else(|| {
        "expected a time before now, as in 90m or 2h, a time of day, as in 21:27 or yesterday 21:27, or a date, as in \
         2026-01-02, 2026-01-02T03:04 or 2026-01-02T03:04:05Z"
            .to_owned()
    })
}

fn micros(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

impl Args {
    fn zone(&self) -> Zone {
        Zone::utc_if(self.utc)
    }

    /// The time range. Fails if options contradict each other.
    fn time_us(&self, now: SystemTime) -> Result<Range<i64>> {
        let zone = self.zone();
        let since = self.since.as_ref().map(|since| since.resolve(now, zone));
        let until = self.until.as_ref().map(|until| match since {
            Some(since) => until.resolve_after(since, now, zone),
            None => until.resolve(now, zone),
        });
        if let (Some(since), Some(until)) = (since, until) {
            ensure!(
                since < until,
                "--since must be before --until: {} and {}",
                show::time(micros(since), zone),
                show::time(micros(until), zone),
            );
        }
        let (since, until) = (
            since.map_or(i64::MIN, micros),
            until.map_or(i64::MAX, micros),
        );
        Ok(since..until)
    }

    /// The query to the files. Fails if options contradict each other.
    fn query(&self, now: SystemTime) -> Result<Query> {
        let mut time_us = self.time_us(now)?;
        if let Some(earlier) = self.compare {
            ensure!(
                self.since.is_some(),
                "--compare needs --since: it compares periods of equal length"
            );
            ensure!(
                !earlier.is_zero(),
                "--compare 0s compares a period with itself"
            );
            // The earlier time ends that much before now.
            time_us.end = time_us.end.min(micros(now));
            ensure!(
                !time_us.is_empty(),
                "--since is in the future, so there is nothing to compare"
            );
        }
        let (by, step) = by::separated(&self.by)?;
        // Up to now if one end of the time is known: an agent that has stopped leaves a gap, and the future is none.
        let is_open = self.since.is_none() && self.until.is_none();
        let end_us = if is_open {
            time_us.end
        } else {
            time_us.end.min(micros(now))
        };
        let steps = step.map(|step| Stepping {
            step,
            zone: self.zone(),
            shown_us: time_us.start..end_us,
        });
        Ok(Query {
            time_us,
            earlier_us: self
                .compare
                .map(sys::clock::nanos)
                .map(|ns| (ns / 1000).cast_signed()),
            rules: rules::set(&self.filter),
            by,
            steps,
            order: self.sort,
            history: false,
            top: if self.top == 0 { usize::MAX } else { self.top },
        })
    }
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let mut query = args.query(SystemTime::now()).map_err(refused)?;
    let width = (args.output == Form::Table).then(terminal_width).flatten();
    query.history = query.steps.is_none() && query.earlier_us.is_none() && width.is_some();
    let mut progress = Progress::new();
    let answer = query::run(&args.paths, &query, |read, all| progress.tell(read, all));
    progress.clear();
    let answer = answer?;
    let out = formats::buffered(io::stdout());
    let shape = Shape {
        form: args.output,
        by: &query.by,
        step: query.steps.as_ref().map(|stepping| stepping.step),
        zone: args.zone(),
        order: args.sort,
        width,
    };
    match show::show(out, &shape, &answer) {
        Err(error) if formats::is_broken_pipe(&error) => {}
        written => written.context("write to stdout")?,
    }
    for text in show::missing(args.output, &answer) {
        notice(&text);
    }
    let has_filter = !args.filter.is_empty();
    // Not by the groups: steps of time have rows without records.
    let before = answer.before.as_ref().map(|earlier| earlier.total.records);
    let has_records = answer.total.records > 0 || before > Some(0);
    Ok(unless_nothing_matches(has_filter, has_records.into()))
}

/// `None` if stdout is no terminal.
fn terminal_width() -> Option<usize> {
    let is_terminal = io::stdout().is_terminal();
    let size = is_terminal.then(terminal_size::terminal_size).flatten();
    size.map(|(width, _)| width.0.into())
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

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// What these options ask for if it is 05:04 of 2026-01-02, UTC.
    fn asked(options: &[&str]) -> Query {
        let line = ["query", "folder", "--utc"].iter().chain(options);
        let line = <Line as clap::Parser>::try_parse_from(line).unwrap();
        line.args.query(now()).unwrap()
    }

    fn now() -> SystemTime {
        Moment::parse("2026-01-02T05:04Z")
            .unwrap()
            .resolve(UNIX_EPOCH, Zone::Utc)
    }

    /// After that midnight.
    fn minutes(time_us: &Range<i64>) -> [i64; 2] {
        let midnight_us = micros(now()) - (5 * 60 + 4) * 60_000_000;
        [time_us.start, time_us.end].map(|us| us.saturating_sub(midnight_us) / 60_000_000)
    }

    #[test]
    fn a_time_of_day_in_until_is_after_since() {
        for (since, until, expected) in [
            ("04:04", "06:04", [244, 364]),
            ("22:00", "04:00", [-120, 240]),
            ("22:00", "06:00", [-120, 360]),
            ("2h", "06:04", [184, 364]),
            ("yesterday", "06:00", [-1440, -1080]),
            ("7d", "04:00", [304 - 7 * 1440, 240]),
        ] {
            let query = asked(&["--since", since, "--until", until]);
            assert_eq!(minutes(&query.time_us), expected, "{since} {until}");
        }
        assert_eq!(minutes(&asked(&["--until", "06:04"]).time_us)[1], -1076);
    }

    #[test]
    fn steps_are_shown_up_to_now_and_not_into_the_future() {
        let shown = |options: &[&str]| {
            let options = [&["--by", "hour"], options].concat();
            asked(&options).steps.unwrap().shown_us
        };
        let until = shown(&["--until", "2999-01-01"]);
        assert_eq!((until.start, minutes(&until)[1]), (i64::MIN, 304));
        assert_eq!(
            minutes(&shown(&["--since", "04:04", "--until", "06:04"])),
            [244, 304]
        );
        assert_eq!(shown(&[]), i64::MIN..i64::MAX);
    }

    #[test]
    fn a_time_is_before_now_or_one_that_clocks_show() {
        let of_utc = |text| {
            let moment = moment(text).unwrap();
            micros(moment.resolve(SystemTime::now(), Zone::Utc)) / 1_000_000
        };
        assert_eq!(of_utc("2026-01-02"), 1_767_312_000);
        for text in [
            "2026-01-02T03:04",
            "2026-01-02 03:04",
            "2026-01-02T03:04:00Z",
            "2026-01-02T04:04+01:00",
        ] {
            assert_eq!(of_utc(text), 1_767_312_000 + 3 * 3600 + 4 * 60, "{text}");
        }
        assert_eq!(moment("2h"), Ok(Moment::Before(Duration::from_hours(2))));
        for text in ["yesterday", "21:27", "today 21:27"] {
            assert!(moment(text).is_ok(), "{text}");
        }
        for text in ["", "tomorrow", "10", "2026-13-01"] {
            let error = moment(text).unwrap_err();
            assert!(error.starts_with("expected a time before now"), "{text}");
        }
    }
}
