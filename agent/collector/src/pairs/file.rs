//! Writes the reports to a file and tracks failures.

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
use proto::PairsStatus;
use sys::log_limit::LogLimit;

use super::{PairSettings, Pairs, Report, Sightings, Time};

/// Report lines in memory at a time.
const REPORTS_AT_ONCE: usize = 500;
/// The most bytes written per look, since batches wait meanwhile. The rest comes first at the next look. A line has
/// about 700 bytes.
const BYTES_OF_A_LOOK: usize = 8 << 20;

/// Compares agents and writes the results to a file.
pub struct PairFile {
    pairs: Pairs,
    files: Shared,
    address: String,
    status: Arc<Mutex<PairsStatus>>,
    not_written: u64,
    last_error: String,
    fails: LogLimit,
}

impl PairFile {
    /// Fails if the output is not a file of lines.
    pub fn of(output: &Prepared, settings: PairSettings) -> Result<Self> {
        let Some(Place::Lines(file)) = output.store() else {
            anyhow::bail!("--pairs takes jsonl=PATH: a report is a line of JSON");
        };
        let pairs = Pairs::new(settings);
        let status = Arc::new(Mutex::new(pairs.status()));
        Ok(Self {
            pairs,
            address: file.address().display().to_string(),
            files: Shared::new(file),
            status,
            not_written: 0,
            last_error: String::new(),
            fails: LogLimit::default(),
        })
    }

    pub(crate) fn status(&self) -> Arc<Mutex<PairsStatus>> {
        Arc::clone(&self.status)
    }

    /// Creates the file, so that problems show at the start.
    pub(crate) async fn begin(&mut self) -> Result<()> {
        let begun = self.files.begin().await;
        begun.with_context(|| format!("begin to report pairs in {}", self.address))?;
        tracing::info!(address = self.address, "comparing agents, reporting here");
        Ok(())
    }

    pub(crate) fn add_batch(&mut self, batch: &Sightings) {
        self.pairs.add_batch(batch, Time::now());
    }

    /// Writes the reports that are due.
    pub(crate) async fn look(&mut self) {
        self.write_due(BYTES_OF_A_LOOK).await;
        // A failure shows with the next report.
        drop(self.files.complete_if_due().await);
    }

    async fn write_due(&mut self, most: usize) {
        let time = Time::now();
        self.pairs.look(time);
        let mut written = 0;
        while self.pairs.has_more() && written < most {
            let reports = self.pairs.due(time, REPORTS_AT_ONCE);
            written += self.write(&reports).await;
        }
        self.show();
    }

    /// Returns the length of the reports in bytes.
    async fn write(&mut self, reports: &[Report]) -> usize {
        let mut lines = BTreeMap::<_, (Vec<u8>, u64)>::new();
        for report in reports {
            let owner = Owner::of(&report.sender.to_string());
            let (text, number) = lines.entry(owner).or_default();
            text.extend(report.line());
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
                    "cannot write the reports of pairs, which are lost: {}",
                    self.last_error
                );
            }
        }
        bytes
    }

    fn show(&self) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        *status = PairsStatus {
            not_written: self.not_written,
            last_error: self.last_error.clone(),
            ..self.pairs.status()
        };
    }

    pub(crate) async fn close(mut self) {
        self.write_due(usize::MAX).await;
        // Reports may be left from the last look.
        self.write_due(usize::MAX).await;
        self.pairs.stop();
        while self.pairs.has_more() {
            let reports = self.pairs.end(REPORTS_AT_ONCE);
            self.write(&reports).await;
        }
        self.show();
        self.files.close_at_the_end().await;
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
        let settings = PairSettings {
            settle: Duration::from_secs(2),
            max_flows: 20,
        };
        let mut file = PairFile::of(&output.clone().prepare().unwrap(), settings).unwrap();
        file.begin().await.unwrap();
        for _ in 0..5 {
            file.pairs = with_a_line();
            file.look().await;
        }
        assert_eq!(file.not_written, 0);
        let files = fs::read_dir(folder.path()).unwrap();
        let lines = files.map(|entry| {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            text.lines().count()
        });
        assert_eq!(lines.sum::<usize>(), 5);
    }
}
