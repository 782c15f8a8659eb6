//! Writes the reports and the conversations to files and tracks failures.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, Result};
use exporters::{
    Prepared,
    files::{Owner, Piece, shared::Shared},
    settings::Place,
};
use proto::{ConversationsStatus, PairsStatus};
use sys::log_limit::LogLimit;
use tls::identity::Identity;

use super::{Due, PairSettings, Pairs, Sightings, Time};

/// Lines in memory at a time.
const LINES_AT_ONCE: usize = 500;
/// The most bytes written per look, since batches wait meanwhile. The rest comes first at the next look. A line has
/// about 700 bytes.
const BYTES_OF_A_LOOK: usize = 8 << 20;
/// What a line counts as that is written nowhere.
const LEAST_BYTES: usize = 100;

/// Where the results of comparing agents are written.
#[derive(Debug)]
pub struct PairOutputs {
    pub reports: Option<Prepared>,
    pub conversations: Option<Prepared>,
    pub settings: PairSettings,
}

/// Compares agents and writes the results to files.
pub struct PairFiles {
    pairs: Pairs,
    reports: Option<Lines>,
    conversations: Option<Lines>,
    status: Arc<Mutex<Statuses>>,
}

/// The status of both kinds of lines, as far as they are written.
#[derive(Clone, Default)]
pub(crate) struct Statuses {
    pub pairs: PairsStatus,
    pub conversations: Option<ConversationsStatus>,
}

/// A file of lines.
struct Lines {
    /// What a line is, for the log.
    what: &'static str,
    files: Shared,
    address: String,
    not_written: u64,
    last_error: String,
    fails: LogLimit,
}

impl PairFiles {
    /// Fails if an output is not a file of lines.
    pub fn of(outputs: &PairOutputs) -> Result<Self> {
        let lines = |output: &Option<Prepared>, option, what| match output {
            Some(output) => Lines::of(output, option, what).map(Some),
            None => Ok(None),
        };
        let reports = lines(&outputs.reports, "--pairs", "reports of pairs")?;
        let conversations = lines(&outputs.conversations, "--conversations", "conversations")?;
        let files = Self {
            pairs: Pairs::new(outputs.settings, conversations.is_some()),
            reports,
            conversations,
            status: Arc::default(),
        };
        files.show();
        Ok(files)
    }

    pub(crate) fn status(&self) -> Arc<Mutex<Statuses>> {
        Arc::clone(&self.status)
    }

    /// Whether records need their details.
    pub(crate) fn makes_conversations(&self) -> bool {
        self.pairs.makes_conversations()
    }

    fn lines(&mut self) -> impl Iterator<Item = &mut Lines> {
        [&mut self.reports, &mut self.conversations]
            .into_iter()
            .flatten()
    }

    /// Creates the files, so that problems show at the start.
    pub(crate) async fn begin(&mut self) -> Result<()> {
        for lines in self.lines() {
            lines.begin().await?;
        }
        Ok(())
    }

    pub(crate) fn add_batch(&mut self, batch: &Sightings) {
        self.pairs.add_batch(batch, Time::now());
    }

    /// Writes the reports and conversations that are due.
    pub(crate) async fn look(&mut self) {
        self.write_due(BYTES_OF_A_LOOK).await;
        for lines in self.lines() {
            // A failure shows with the next line.
            drop(lines.files.complete_if_due().await);
        }
    }

    async fn write_due(&mut self, most: usize) {
        let time = Time::now();
        self.pairs.look(time);
        let mut written = 0;
        while self.pairs.has_more() && written < most {
            let due = self.pairs.due(time, LINES_AT_ONCE);
            written += self.write(&due).await.max(due.len() * LEAST_BYTES);
        }
        self.show();
    }

    /// Returns the length of the lines in bytes.
    async fn write(&mut self, due: &Due) -> usize {
        let mut bytes = 0;
        if let Some(file) = &mut self.reports {
            let lines = due.reports.iter();
            let lines = lines.map(|report| (&report.sender, report.line()));
            bytes += file.write(lines).await;
        }
        if let Some(file) = &mut self.conversations {
            let lines = due.conversations.iter();
            let lines = lines.map(|conversation| (&conversation.sender, conversation.line()));
            bytes += file.write(lines).await;
        }
        bytes
    }

    fn show(&self) {
        let not_written = |lines: &Option<Lines>| {
            let lines = lines.as_ref();
            let failed = lines.map(|lines| (lines.not_written, lines.last_error.clone()));
            failed.unwrap_or_default()
        };
        let (reports, conversations) =
            (not_written(&self.reports), not_written(&self.conversations));
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        *status = Statuses {
            pairs: PairsStatus {
                not_written: reports.0,
                last_error: reports.1,
                ..self.pairs.status()
            },
            conversations: self.pairs.conversations().map(|made| ConversationsStatus {
                not_written: conversations.0,
                last_error: conversations.1,
                ..made.clone()
            }),
        };
    }

    pub(crate) async fn close(mut self) {
        self.write_due(usize::MAX).await;
        // Lines may be left from the last look.
        self.write_due(usize::MAX).await;
        self.pairs.stop();
        while self.pairs.has_more() {
            let due = self.pairs.end(LINES_AT_ONCE);
            self.write(&due).await;
        }
        self.show();
        for mut lines in [self.reports, self.conversations].into_iter().flatten() {
            lines.files.close_at_the_end().await;
        }
    }
}

impl Lines {
    fn of(output: &Prepared, option: &str, what: &'static str) -> Result<Self> {
        let Some(Place::Lines(file)) = output.store() else {
            anyhow::bail!("{option} takes jsonl=PATH: it writes lines of JSON");
        };
        Ok(Self {
            what,
            address: file.address().display().to_string(),
            files: Shared::new(file),
            not_written: 0,
            last_error: String::new(),
            fails: LogLimit::default(),
        })
    }

    async fn begin(&mut self) -> Result<()> {
        let Self { what, address, .. } = self;
        let begun = self.files.begin().await;
        begun.with_context(|| format!("begin to write {what} to {address}"))?;
        tracing::info!(address, "comparing agents, writing {what} here");
        Ok(())
    }

    /// Returns their length in bytes.
    async fn write(&mut self, all: impl Iterator<Item = (&Identity, Vec<u8>)>) -> usize {
        let mut lines = BTreeMap::<_, (Vec<u8>, u64)>::new();
        for (sender, line) in all {
            let owner = Owner::of(&sender.to_string());
            let (text, number) = lines.entry(owner).or_default();
            text.extend(line);
            *number += 1;
        }
        let (mut pieces, mut numbers, mut bytes) = (Vec::new(), Vec::new(), 0);
        for (owner, (text, number)) in lines {
            bytes += text.len();
            let piece = Piece {
                bytes: text.into(),
                rows: number,
            };
            pieces.push((owner, piece));
            numbers.push(number);
        }
        for (written, number) in self.files.write(pieces).await.into_iter().zip(numbers) {
            let Err(error) = written else { continue };
            self.not_written += number;
            self.last_error = error;
            if let Some(times) = self.fails.event() {
                tracing::warn!(
                    address = self.address,
                    times,
                    "cannot write {}, which are lost: {}",
                    self.what,
                    self.last_error
                );
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use exporters::settings::{OutputArg, OutputArgs};

    use super::{super::tests::with_a_line, *};

    #[tokio::test]
    async fn every_line_is_written_however_often_a_file_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pairs.jsonl");
        let setting = format!(
            r#"{{"kind": "jsonl", "address": "{}", "rotate_bytes": 1, "compression": "none"}}"#,
            path.display()
        );
        let OutputArgs(args) = setting.parse().unwrap();
        let OutputArg::Output(output) = &args[0] else {
            panic!("no output");
        };
        let outputs = PairOutputs {
            reports: Some(output.clone().prepare().unwrap()),
            conversations: None,
            settings: PairSettings {
                settle: Duration::from_secs(2),
                max_flows: 20,
            },
        };
        let mut file = PairFiles::of(&outputs).unwrap();
        file.begin().await.unwrap();
        for _ in 0..5 {
            file.pairs = with_a_line();
            file.look().await;
        }
        assert_eq!(file.reports.unwrap().not_written, 0);
        let files = fs::read_dir(folder.path()).unwrap();
        let lines = files.map(|entry| {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            text.lines().count()
        });
        assert_eq!(lines.sum::<usize>(), 5);
    }
}
