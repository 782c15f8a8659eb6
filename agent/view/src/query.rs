//! Adds up the flow records of a time range from Parquet files, complete or unfinished, and from spools.

use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
};

use anyhow::{Context as _, Result, anyhow};
use exporters::delivery::spool::Stored;
use formats::parquet::pieces::Pieces;
use rules::{Known, Rule, passes};

mod batch;
mod columns;
mod complete;
mod files;
mod group;
mod once;
mod row;

pub use group::{By, Group, Part, Sums};

use files::{Found, Kind};
use group::Groups;
use once::{Once, Stream};
use row::Row;

/// The query.
pub struct Question {
    /// Which scan windows, by the Unix time of their end in microseconds: after `start`, up to and including `end`.
    pub time_us: Range<i64>,
    pub rules: Vec<Rule>,
    pub by: Vec<By>,
    pub order: Order,
    /// The most groups in the answer.
    pub top: usize,
}

impl Question {
    /// Whether a record's texts of this kind are to be read.
    fn needs(&self, by: By) -> bool {
        let names_hosts = || self.rules.iter().any(|rule| !rule.names.is_empty());
        self.by.contains(&by) || by == By::Name && names_hosts()
    }
}

/// What the groups with the most come first by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Bytes in both directions.
    Bytes,
    /// Packets in both directions.
    Packets,
    /// Flows that began.
    Begun,
}

#[derive(Debug, Default)]
pub struct Answer {
    /// The first groups in the order asked for.
    pub groups: Vec<Group>,
    /// The number of all groups.
    pub all_groups: usize,
    /// The sum of all records.
    pub total: Sums,
    /// From the start of the first window to the end of the last, Unix time in microseconds.
    pub windows_us: Option<Range<i64>>,
    pub files: usize,
    /// Records of batches that were read before.
    pub repeated_records: u64,
    /// Losses that the streams of these records report.
    pub missing: Told,
    /// Sample rates of records, if flows were sampled.
    pub sample_rates: BTreeSet<u32>,
    /// Whether some records are unsampled.
    pub has_whole: bool,
    /// Files that end in damage, and the unreadable bytes.
    pub damaged: Vec<(PathBuf, u64)>,
    /// Records left out because no agent would have sent them. A file of an earlier collector may have some.
    pub unsound_records: u64,
    /// Files that were removed before they could be read.
    pub gone_files: usize,
    /// Spool files without a known acknowledged position.
    pub unmarked_files: usize,
}

/// What a stream reports since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Never written to the files.
    pub lost: Missing,
    /// Left out by the settings of an agent's output.
    pub left_out: Missing,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    pub records: u64,
    pub packets: u64,
    pub bytes: u64,
}

impl Missing {
    fn with(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            records: of(self.records, other.records),
            packets: of(self.packets, other.packets),
            bytes: of(self.bytes, other.bytes),
        }
    }
}

impl Told {
    fn with(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            lost: self.lost.with(other.lost, of),
            left_out: self.left_out.with(other.left_out, of),
        }
    }
}

/// The sums so far.
struct Sum<'a> {
    answer: Answer,
    groups: Groups<'a>,
    once: Once,
    told: HashMap<Stream, Told>,
}

impl Sum<'_> {
    /// Adds a row if it matches the query. Fails if there are too many groups.
    fn row(&mut self, question: &Question, row: &Row<'_>) -> Result<()> {
        let known = Known {
            interface: row.interface,
            hosts: row.names,
        };
        if !is_in(&question.time_us, row.window_us.end)
            || !passes(&question.rules, row.facts, known)
        {
            return Ok(());
        }
        let windows = self
            .answer
            .windows_us
            .get_or_insert_with(|| row.window_us.clone());
        windows.start = windows.start.min(row.window_us.start);
        windows.end = windows.end.max(row.window_us.end);
        if row.sample_rate > 1 {
            self.answer.sample_rates.insert(row.sample_rate);
        } else {
            self.answer.has_whole = true;
        }
        self.answer.total.add(&Sums::of(row));
        self.groups.add(row)
    }

    /// Records what a stream reports as missing. The counts only grow, so the largest one is kept.
    fn note_told(&mut self, stream: Stream, told: Told) {
        let known = self.told.entry(stream).or_default();
        *known = known.with(told, u64::max);
    }
}

fn is_in(time_us: &Range<i64>, window_end_us: i64) -> bool {
    time_us.start < window_end_us && window_end_us <= time_us.end
}

/// Runs a query over files and the files of folders. After each file, calls `progress` with the number read so far and
/// the total.
pub fn answer(
    paths: &[PathBuf],
    question: &Question,
    mut progress: impl FnMut(usize, usize),
) -> Result<Answer> {
    let found = files::find(paths)?;
    let mut sum = Sum {
        answer: Answer::default(),
        groups: Groups::by(&question.by),
        once: Once::default(),
        told: HashMap::new(),
    };
    let all = found.len();
    for (number, found) in found.into_iter().enumerate() {
        match found.open()? {
            Some(file) => {
                let (path, kind, is_named) = (found.path.clone(), found.kind, found.is_named);
                // The Parquet library panics on some damaged files.
                let read = AssertUnwindSafe(|| read(found, file, question, &mut sum));
                let read = catch_unwind(read).unwrap_or_else(|_| Err(anyhow!("it is damaged")));
                let read = read.with_context(|| format!("read {}", path.display()));
                let others_exist = all > 1;
                match kind {
                    _ if !others_exist => read?,
                    _ if is_named => read.context("leave this file out to read the others")?,
                    Kind::Parquet | Kind::InTheMaking => {
                        read.context("name the other files, or move this one out of the folder")?;
                    }
                    // The spool holds undelivered flows, so do not suggest moving it.
                    Kind::Segment(_) => read.context("name the other files of the spool")?,
                }
                sum.answer.files += 1;
            }
            // A collector has acknowledged it.
            None if matches!(found.kind, Kind::Segment(_)) => {}
            None => sum.answer.gone_files += 1,
        }
        progress(number + 1, all);
    }
    let Sum {
        mut answer,
        groups,
        told,
        ..
    } = sum;
    (answer.groups, answer.all_groups) = groups.top(question.order, question.top);
    for told in told.into_values() {
        answer.missing = answer.missing.with(told, u64::saturating_add);
    }
    Ok(answer)
}

fn read(found: Found, mut file: File, question: &Question, sum: &mut Sum<'_>) -> Result<()> {
    let Found {
        path, kind, place, ..
    } = found;
    let unread_bytes = match kind {
        Kind::Parquet => {
            return complete::Complete::open(file, path, place)?.add(question, sum);
        }
        Kind::InTheMaking => {
            let mut pieces = Pieces::new(&mut file)?;
            while let Some(batch) = pieces.next_batch()? {
                batch::add(&batch, place, question, sum)?;
            }
            pieces.rest_bytes()
        }
        Kind::Segment(acknowledged) => {
            sum.answer.unmarked_files += usize::from(acknowledged.is_none());
            let mut stored = Stored::in_file(file, acknowledged.unwrap_or_default())?;
            while let Some(batch) = stored.next_batch()? {
                batch::add(&batch, place, question, sum)?;
            }
            stored.unread_bytes()
        }
    };
    if unread_bytes > 0 {
        sum.answer.damaged.push((path, unread_bytes));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
