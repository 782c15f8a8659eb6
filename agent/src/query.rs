//! Adds up the flow records of Parquet files, and of the files that are still in the making, over a time.

use std::{
    collections::HashMap,
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::filter::{Rule, passes};

mod columns;
mod files;
mod group;
mod once;
mod pieces;
mod row;

pub use group::{By, Group, Part, Sums};

use files::{Found, Kind};
use group::Groups;
use once::Once;
use row::Row;

/// What is asked.
pub struct Question {
    /// Of the ends of scan windows, Unix time in microseconds: after the first, up to the second.
    pub time_us: Range<i64>,
    pub rules: Vec<Rule>,
    pub by: Vec<By>,
    pub order: Order,
    /// The most groups in the answer.
    pub top: usize,
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
    /// Those with the most, in order.
    pub groups: Vec<Group>,
    /// How many there are.
    pub all_groups: usize,
    /// Of everything that was counted.
    pub total: Sums,
    /// From the beginning of the first window that was counted to the end of the last one, Unix time in microseconds.
    pub windows_us: Option<Range<i64>>,
    pub files: usize,
    /// Records of batches that came again.
    pub repeated_records: u64,
    /// What did not get into the files, as the streams say that were counted.
    pub lost: Lost,
    /// Files that cannot be read to their end, and the bytes there.
    pub damaged: Vec<(PathBuf, u64)>,
    /// Files that were removed before they could be read.
    pub gone_files: usize,
}

/// What is missing on a stream since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    pub records: u64,
    pub packets: u64,
    pub bytes: u64,
}

/// What is read from a file at once: rows, and what else it says.
trait Source {
    fn add(self, question: &Question, sum: &mut Sum<'_>) -> Result<()>;
}

/// What was counted so far.
struct Sum<'a> {
    answer: Answer,
    groups: Groups<'a>,
    once: Once,
    /// By stream.
    lost: HashMap<(usize, u64), Lost>,
}

impl Sum<'_> {
    /// Counts a row if it is asked for.
    fn row(&mut self, question: &Question, row: &Row<'_>) -> Result<()> {
        if !is_in(&question.time_us, row.window_us.end)
            || !passes(&question.rules, row.facts, row.interface)
        {
            return Ok(());
        }
        let windows = self
            .answer
            .windows_us
            .get_or_insert_with(|| row.window_us.clone());
        windows.start = windows.start.min(row.window_us.start);
        windows.end = windows.end.max(row.window_us.end);
        self.answer.total.add(&Sums::of(row));
        self.groups.add(row)
    }

    /// Notes what is lost on a stream, of which the greatest counts, since it grows.
    fn note_lost(&mut self, stream: (usize, u64), lost: Lost) {
        let known = self.lost.entry(stream).or_default();
        known.records = known.records.max(lost.records);
        known.packets = known.packets.max(lost.packets);
        known.bytes = known.bytes.max(lost.bytes);
    }
}

fn is_in(time_us: &Range<i64>, window_end_us: i64) -> bool {
    time_us.start < window_end_us && window_end_us <= time_us.end
}

/// Reads files, or those of folders. Calls `progress` after each with how many were read, and how many there are.
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
        lost: HashMap::new(),
    };
    let all = found.len();
    for (number, found) in found.into_iter().enumerate() {
        match found.open()? {
            Some(file) => {
                let path = found.path.clone();
                read(found, file, question, &mut sum)
                    .with_context(|| format!("read {}", path.display()))?;
                sum.answer.files += 1;
            }
            None => sum.answer.gone_files += 1,
        }
        progress(number + 1, all);
    }
    let Sum {
        mut answer,
        groups,
        lost,
        ..
    } = sum;
    (answer.groups, answer.all_groups) = groups.top(question.order, question.top);
    for lost in lost.into_values() {
        answer.lost.records += lost.records;
        answer.lost.packets += lost.packets;
        answer.lost.bytes += lost.bytes;
    }
    Ok(answer)
}

fn read(found: Found, file: File, question: &Question, sum: &mut Sum<'_>) -> Result<()> {
    match found.kind {
        Kind::Parquet => columns::Complete::open(file, found.place)?.add(question, sum),
        Kind::InTheMaking => pieces::InTheMaking {
            file,
            path: found.path,
            place: found.place,
        }
        .add(question, sum),
    }
}

/// Names a file in an error.
fn shown(path: &Path) -> impl std::fmt::Display + '_ {
    path.display()
}

#[cfg(test)]
mod tests;
