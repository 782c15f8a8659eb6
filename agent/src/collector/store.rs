//! Where a collector stores batches: files of JSON Lines or Parquet.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result, bail, ensure};

use super::incoming::Incoming;
use crate::{
    hub::Volume,
    log_limit::LogLimit,
    output::{LostSoFar, json::JsonLines},
    outputs::{
        Output,
        files::{Rotated, Written},
        parquet,
        settings::Kind,
    },
    proto::{RecordSum, StoreStatus},
};

/// A line has some 700 bytes, and a batch some thousand lines.
const MOST_PIECE_BYTES: usize = 32 << 20;

/// What is kept of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Jsonl,
    Parquet,
}

impl Form {
    /// The batch in this form. `lost` is what was told of losses on its stream. Fails if it takes too much room.
    pub(super) fn piece(self, incoming: &Incoming, mut lost: LostSoFar) -> Result<Vec<u8>> {
        match self {
            Self::Jsonl => {
                let mut text = Bounded(Vec::new());
                let mut lines = JsonLines::default();
                let batch = &incoming.batch;
                let mut write = || {
                    lines.begin(&mut text, batch, &mut lost)?;
                    lines.numbered_flows(&mut text, batch)?;
                    lines.end(&mut text, batch)
                };
                write().context("the batch as JSON Lines")?;
                Ok(text.0)
            }
            Self::Parquet => Ok(parquet::piece_of(&incoming.raw)),
        }
    }
}

/// Bytes in memory, and not too many.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MOST_PIECE_BYTES {
            let mib = MOST_PIECE_BYTES >> 20;
            return Err(io::Error::other(format!("more than {mib} MiB")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How a store does, for whoever asks.
#[derive(Clone)]
pub(crate) struct StoreStatuses(Arc<Mutex<StoreStatus>>);

impl StoreStatuses {
    pub(super) fn get(&self) -> StoreStatus {
        self.status().clone()
    }

    fn status(&self) -> MutexGuard<'_, StoreStatus> {
        // Nothing under the lock can fail halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Store {
    form: Form,
    file: Rotated,
    stored: Volume,
    status: StoreStatuses,
    /// A disk that is nearly full takes what is short, and nothing else.
    fails: LogLimit,
    works: LogLimit,
}

impl Store {
    /// Fails if the output is none in which a collector can store.
    pub(crate) fn of(output: &Output) -> Result<Self> {
        let (kind, address) = (output.kind().name(), output.address());
        let (form, file) = match (output.kind(), output.files_of_a_collector()) {
            (Kind::Jsonl, Some(file)) => (Form::Jsonl, file),
            (Kind::Parquet, Some(file)) => (Form::Parquet, file),
            _ => bail!(
                "--output {kind}={address} does not say when flows are on a disk: a collector stores in jsonl=PATH or \
                 parquet=FOLDER"
            ),
        };
        ensure!(
            !output.leaves_out(),
            "a collector stores all that comes: take filter, only_ended and min_bytes out of --output {kind}={address}"
        );
        let status = StoreStatus {
            kind: kind.to_owned(),
            address,
            stored: Some(RecordSum::default()),
            ..StoreStatus::default()
        };
        Ok(Self {
            form,
            file,
            stored: Volume::default(),
            status: StoreStatuses(Arc::new(Mutex::new(status))),
            fails: LogLimit::default(),
            works: LogLimit::default(),
        })
    }

    pub(super) fn form(&self) -> Form {
        self.form
    }

    pub(super) fn status(&self) -> StoreStatuses {
        self.status.clone()
    }

    pub(super) fn kind(&self) -> String {
        self.status.get().kind
    }

    pub(super) fn address(&self) -> String {
        self.status.get().address
    }

    /// Makes the file, so that a start tells what would be wrong later.
    pub(super) async fn begin(&mut self) -> Result<()> {
        self.file.write(&[]).await?;
        Ok(())
    }

    /// Completes a file that is old enough although nothing comes. What fails is tried again, and told with the next batch.
    pub(super) async fn look(&mut self) {
        drop(self.file.complete_if_due().await);
    }

    /// Returns when all of it is on the disk. Says once that this fails, and once that it works again.
    pub(super) async fn keep(&mut self, pieces: &[u8], reports: Volume) -> Result<()> {
        // It would tell nothing of the disk.
        if pieces.is_empty() {
            return Ok(());
        }
        let kept = self.write(pieces).await;
        let mut status = self.status.status();
        match &kept {
            Ok(()) => {
                self.stored += reports;
                status.stored = Some(self.stored.into());
                let has_failed = std::mem::take(&mut status.failing);
                if has_failed && self.works.event().is_some() {
                    tracing::info!(address = status.address, "flows are stored again");
                }
            }
            Err(error) => {
                status.last_error = format!("{error:#}");
                if !std::mem::replace(&mut status.failing, true) {
                    status.failures += 1;
                    if let Some(times) = self.fails.event() {
                        tracing::warn!(
                            address = status.address,
                            times,
                            "flows cannot be stored: {error:#}; agents keep them, and are told to call another collector"
                        );
                    }
                }
            }
        }
        kept
    }

    async fn write(&mut self, pieces: &[u8]) -> Result<()> {
        while self.file.write(pieces).await? == Written::Anew {}
        self.file.sync().await
    }

    pub(super) async fn close(mut self) {
        if let Err(error) = self.file.close().await {
            tracing::warn!(
                address = self.address(),
                "the last file could not be completed: {error:#}; the next start does it"
            );
        }
    }
}
