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
mod history;
mod once;
mod row;
mod steps;

pub use group::{By, Group, Part, Sums};
pub use steps::Stepping;

use files::{Found, Kind};
use group::Groups;
use once::{Once, Stream};
use row::Row;

/// The query.
pub struct Query {
    /// Which scan windows, by the Unix time of their end in microseconds: after `start`, up to and including `end`.
    pub time_us: Range<i64>,
    /// Adds up the same time so much earlier as well, in microseconds.
    pub earlier_us: Option<i64>,
    pub rules: Vec<Rule>,
    pub by: Vec<By>,
    /// Adds up each step of time by itself.
    pub steps: Option<Stepping>,
    pub order: Order,
    /// Whether groups have a history.
    pub history: bool,
    /// The most groups in the answer, or in each step of time.
    pub top: usize,
}

impl Query {
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
pub struct QueryResult {
    /// The first groups in the order asked for.
    pub groups: Vec<Group>,
    /// The number of all groups.
    pub all_groups: usize,
    /// The sum of all records.
    pub total: Sums,
    /// The same of the earlier time, and its windows.
    pub before: Option<Earlier>,
    /// The time that was asked for, as far as the files have records of it, whether or not these pass the rules. Unix time in
    /// microseconds.
    pub windows_us: Option<Range<i64>>,
    pub files: usize,
    /// Records of batches that were read before.
    pub repeated_records: u64,
    /// Losses that the streams of these records report.
    pub missing: StreamLosses,
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

/// The sums of the time with which a query compares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Earlier {
    pub total: Sums,
    pub windows_us: Option<Range<i64>>,
}

/// Of which time a record is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Now,
    /// So much earlier, in microseconds.
    Before(i64),
}

impl Query {
    /// The times that have a scan window which ends then: none, one, or both if they overlap.
    fn times_with(&self, window_end_us: i64) -> impl Iterator<Item = When> {
        let now = is_in(&self.time_us, window_end_us).then_some(When::Now);
        let before = self.earlier_us.filter(|earlier_us| {
            let later_us = window_end_us.saturating_add(*earlier_us);
            is_in(&self.time_us, later_us)
        });
        now.into_iter().chain(before.map(When::Before))
    }

    /// Whether a window may end in one of the times if it ends in this range.
    fn may_have(&self, first_us: i64, last_us: i64) -> bool {
        let may_have = |earlier_us: i64| {
            self.time_us.start < last_us.saturating_add(earlier_us)
                && first_us.saturating_add(earlier_us) <= self.time_us.end
        };
        may_have(0) || self.earlier_us.is_some_and(may_have)
    }
}

/// What a stream reports since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamLosses {
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

impl QueryResult {
    /// Over which time the sums of a group are, Unix time in microseconds: what the windows cover of its step, or all that they
    /// cover. `None` if that is no time.
    pub fn period_us(&self, group: &Group) -> Option<Range<i64>> {
        let windows_us = self.windows_us.clone()?;
        let period_us = match group.step() {
            Some(&Part::Step { start_us, end_us }) => {
                start_us.max(windows_us.start)..end_us.min(windows_us.end)
            }
            _ => windows_us,
        };
        (!period_us.is_empty()).then_some(period_us)
    }
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

impl StreamLosses {
    fn with(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            lost: self.lost.with(other.lost, of),
            left_out: self.left_out.with(other.left_out, of),
        }
    }
}

/// The sums so far.
struct Sum<'a> {
    answer: QueryResult,
    groups: Groups<'a>,
    once: Once,
    told: HashMap<Stream, StreamLosses>,
    /// From the start of the first window to the end of the last, of all records in the files.
    covered_us: Option<Range<i64>>,
    /// The same of the records in the time that was asked for.
    in_time_us: Option<Range<i64>>,
}

impl Sum<'_> {
    /// Records of the files have these windows, or windows between.
    fn note_windows(&mut self, windows_us: &Range<i64>) {
        widen(&mut self.covered_us, windows_us);
    }

    /// Adds a row if it matches the query. Fails if there are too many groups.
    fn row(&mut self, query: &Query, row: &Row<'_>) -> Result<()> {
        let known = Known {
            interface: row.interface,
            hosts: row.names,
        };
        if is_in(&query.time_us, row.window_us.end) {
            widen(&mut self.in_time_us, &row.window_us);
            self.groups.include(&row.window_us);
        }
        if query.times_with(row.window_us.end).next().is_none()
            || !passes(&query.rules, row.facts, known)
        {
            return Ok(());
        }
        if row.sample_rate > 1 {
            self.answer.sample_rates.insert(row.sample_rate);
        } else {
            self.answer.has_whole = true;
        }
        let sums = Sums::of(row);
        for when in query.times_with(row.window_us.end) {
            let total = match when {
                When::Now => &mut self.answer.total,
                When::Before(_) => &mut self.answer.before.get_or_insert_default().total,
            };
            total.add(&sums);
            self.groups.add(row, when)?;
        }
        Ok(())
    }

    /// Records what a stream reports as missing. The counts only grow, so the largest one is kept.
    fn note_told(&mut self, stream: Stream, told: StreamLosses) {
        let known = self.told.entry(stream).or_default();
        *known = known.with(told, u64::max);
    }
}

fn widen(all_us: &mut Option<Range<i64>>, windows_us: &Range<i64>) {
    let all_us = all_us.get_or_insert_with(|| windows_us.clone());
    all_us.start = all_us.start.min(windows_us.start);
    all_us.end = all_us.end.max(windows_us.end);
}

/// What both times have, if it is any.
fn both(one: &Range<i64>, other: &Range<i64>) -> Option<Range<i64>> {
    let both = one.start.max(other.start)..one.end.min(other.end);
    (!both.is_empty()).then_some(both)
}

fn is_in(time_us: &Range<i64>, window_end_us: i64) -> bool {
    time_us.start < window_end_us && window_end_us <= time_us.end
}

/// Runs a query over files and the files of folders. After each file, calls `progress` with the number read so far and
/// the total.
pub fn run(
    paths: &[PathBuf],
    query: &Query,
    mut progress: impl FnMut(usize, usize),
) -> Result<QueryResult> {
    if let Some(stepping) = &query.steps {
        stepping.refuse_too_many()?;
    }
    let found = files::find(paths)?;
    let mut sum = Sum {
        answer: QueryResult {
            before: query.earlier_us.map(|_| Earlier::default()),
            ..QueryResult::default()
        },
        groups: Groups::of(query),
        once: Once::default(),
        told: HashMap::new(),
        covered_us: None,
        in_time_us: None,
    };
    let all = found.len();
    for (number, found) in found.into_iter().enumerate() {
        match found.open()? {
            Some(file) => {
                let (path, kind, is_named) = (found.path.clone(), found.kind, found.is_named);
                // The Parquet library panics on some damaged files.
                let read = AssertUnwindSafe(|| read(found, file, query, &mut sum));
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
        covered_us,
        in_time_us,
        ..
    } = sum;
    let of_files = |time_us: &Range<i64>| both(time_us, covered_us.as_ref()?);
    answer.windows_us = of_files(&query.time_us);
    if let (Some(before), Some(earlier_us)) = (&mut answer.before, query.earlier_us) {
        let Range { start, end } = query.time_us;
        let earlier = |us: i64| us.saturating_sub(earlier_us);
        before.windows_us = of_files(&(earlier(start)..earlier(end)));
    }
    (answer.groups, answer.all_groups) = groups.top(&in_time_us.unwrap_or_default())?;
    for told in told.into_values() {
        answer.missing = answer.missing.with(told, u64::saturating_add);
    }
    Ok(answer)
}

fn read(found: Found, mut file: File, query: &Query, sum: &mut Sum<'_>) -> Result<()> {
    let Found {
        path, kind, place, ..
    } = found;
    let unread_bytes = match kind {
        Kind::Parquet => {
            return complete::Complete::open(file, path, place)?.add(query, sum);
        }
        Kind::InTheMaking => {
            let mut pieces = Pieces::new(&mut file)?;
            while let Some(batch) = pieces.next_batch()? {
                batch::add(&batch, place, query, sum)?;
            }
            pieces.rest_bytes()
        }
        Kind::Segment(acknowledged) => {
            sum.answer.unmarked_files += usize::from(acknowledged.is_none());
            let mut stored = Stored::in_file(file, acknowledged.unwrap_or_default())?;
            while let Some(batch) = stored.next_batch()? {
                batch::add(&batch, place, query, sum)?;
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
