//! Writes the reports into a file, and tells how that goes.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use bytes::Bytes;

use super::{PairSettings, Pairs, Report, Sightings, Time};
use crate::{
    log_limit::LogLimit,
    outputs::{Prepared, files::Rotated, settings::Place},
    proto::PairsStatus,
};

/// Lines that are in memory together.
const REPORTS_AT_ONCE: usize = 1000;
/// Batches wait while a look lasts. What is left over comes first at the next one.
const REPORTS_OF_A_LOOK: usize = 20_000;

/// Compares agents, and has a file for what it finds.
pub(crate) struct PairFile {
    pairs: Pairs,
    file: Rotated,
    address: String,
    status: Arc<Mutex<PairsStatus>>,
    not_written: u64,
    last_error: String,
    fails: LogLimit,
}

impl PairFile {
    /// Fails if the output is no file of lines.
    pub(crate) fn of(output: &Prepared, settings: PairSettings) -> Result<Self> {
        let Some(Place::Lines(file)) = output.store() else {
            anyhow::bail!("--pairs takes jsonl=PATH: a report is a line of JSON");
        };
        let pairs = Pairs::new(settings);
        let status = Arc::new(Mutex::new(pairs.status()));
        Ok(Self {
            pairs,
            address: file.address().display().to_string(),
            file,
            status,
            not_written: 0,
            last_error: String::new(),
            fails: LogLimit::default(),
        })
    }

    pub(in crate::collector) fn status(&self) -> Arc<Mutex<PairsStatus>> {
        Arc::clone(&self.status)
    }

    /// Makes the file, so that a start tells what would be wrong later.
    pub(in crate::collector) async fn begin(&mut self) -> Result<()> {
        let begun = self.file.write(Bytes::new()).await;
        begun.with_context(|| format!("begin to report pairs in {}", self.address))?;
        tracing::info!(
            address = self.address,
            "agents are compared, and reported here"
        );
        Ok(())
    }

    pub(in crate::collector) fn take(&mut self, batch: &Sightings) {
        self.pairs.take(batch, Time::now());
    }

    /// Writes what can be reported by now.
    pub(in crate::collector) async fn look(&mut self) {
        self.write_due(REPORTS_OF_A_LOOK).await;
        // What fails is told with the next report.
        drop(self.file.complete_if_due().await);
    }

    async fn write_due(&mut self, most: usize) {
        let time = Time::now();
        self.pairs.look(time);
        let mut written = 0;
        while self.pairs.has_more() && written < most {
            let reports = self.pairs.due(time, REPORTS_AT_ONCE);
            self.write(&reports).await;
            written += reports.len();
        }
        self.show();
    }

    async fn write(&mut self, reports: &[Report]) {
        if reports.is_empty() {
            return;
        }
        let lines: Vec<u8> = reports.iter().flat_map(Report::line).collect();
        let Err(error) = self.file.write(lines).await else {
            return;
        };
        self.not_written += reports.len() as u64;
        self.last_error = format!("{error:#}");
        if let Some(times) = self.fails.event() {
            tracing::warn!(
                address = self.address,
                times,
                "reports of pairs are lost: {}",
                self.last_error
            );
        }
    }

    fn show(&self) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        *status = PairsStatus {
            not_written: self.not_written,
            last_error: self.last_error.clone(),
            ..self.pairs.status()
        };
    }

    pub(in crate::collector) async fn close(mut self) {
        self.write_due(usize::MAX).await;
        // Some may have been left over.
        self.write_due(usize::MAX).await;
        self.pairs.stop();
        while self.pairs.has_more() {
            let reports = self.pairs.end(REPORTS_AT_ONCE);
            self.write(&reports).await;
        }
        self.show();
        self.file.close_at_the_end().await;
    }
}
