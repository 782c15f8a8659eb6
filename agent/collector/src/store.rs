//! Where a collector stores batches: JSON Lines or Parquet files, a Kafka topic, or ClickHouse tables.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use exporters::{
    Output, Prepared,
    clickhouse::{self, ClickHouse},
    files::{Owner, Piece, shared::Shared},
    kafka::{Kafka, Record},
    settings,
};
use formats::{LostSoFar, json::JsonLines, parquet};
use hub::Volume;
use proto::{RecordSum, StoreStatus};
use sys::log_limit::LogLimit;
use tls::output::ReloadableOutputTls;
use tokio::time::Instant;

use super::{incoming::Incoming, streams::Facts};

/// The most bytes of a batch in a store's form. A line has about 700 bytes, and a batch a few thousand lines.
const MOST_PIECE_BYTES: usize = 32 << 20;

/// A store's form of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Jsonl,
    Parquet,
    /// The encoded batch as received, with the sender's identity.
    Batch,
    /// Also the encoded batch. The rows for the tables are made later.
    Rows,
}

impl Form {
    /// The batch in this form. `lost` is the losses reported on its stream so far. Fails if the result is too large.
    pub(super) fn piece(self, incoming: &Incoming, mut lost: LostSoFar) -> Result<Bytes> {
        match self {
            Self::Jsonl => {
                let mut text = Bounded(Vec::new());
                let mut lines = JsonLines::default();
                let batch = &incoming.batch;
                let mut write = || {
                    lines.begin(&mut text, batch, &mut lost)?;
                    lines.numbered_flows(&mut text, batch)?;
                    lines.exchanges(&mut text, batch)?;
                    lines.end(&mut text, batch)
                };
                write().context("the batch as JSON Lines")?;
                // The queue counts its length, so its capacity should be no larger.
                text.0.shrink_to_fit();
                Ok(text.0.into())
            }
            Self::Parquet => Ok(parquet::piece_of(&incoming.raw).into()),
            Self::Batch => Ok(incoming.raw.clone()),
            Self::Rows => {
                clickhouse::refuse_too_large(&incoming.raw)?;
                Ok(incoming.raw.clone())
            }
        }
    }
}

/// A buffer in memory with a limit.
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

/// A batch for a store.
pub(super) struct Part<'a> {
    pub facts: &'a Facts,
    /// The batch in the store's form.
    pub piece: Bytes,
}

/// Whether a store has stored a batch, or why it has not.
pub(super) type StoreResult = Result<(), Arc<str>>;

/// The status of a store. Clones share it.
#[derive(Clone)]
pub(crate) struct StoreStatuses(Arc<Mutex<StoreStatus>>);

impl StoreStatuses {
    pub(super) fn get(&self) -> StoreStatus {
        self.status().clone()
    }

    fn status(&self) -> MutexGuard<'_, StoreStatus> {
        // Code under this lock does not panic halfway, so the data behind a poisoned lock is consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct Store {
    form: Form,
    place: Place,
    stored: Volume,
    status: StoreStatuses,
    /// Failures and recoveries may alternate, so both are limited: a nearly full disk, or a topic, accepts short
    /// batches and refuses long ones.
    fails: LogLimit,
    works: LogLimit,
}

/// Where a store writes.
enum Place {
    File(Shared),
    Topic(Kafka),
    Tables(Box<ClickHouse>),
}

impl Store {
    /// Fails if a collector cannot store in this output.
    pub fn refuse_others(output: &Prepared) -> Result<()> {
        let (kind, address) = named(output.output());
        ensure!(
            output.output().is_store(),
            "--output {kind}={address} cannot confirm that flows are stored: a collector stores in jsonl=PATH, \
             parquet=FOLDER, kafka=tcp://HOST:PORT/TOPIC or clickhouse=http://HOST:PORT/DATABASE/TABLE"
        );
        ensure!(
            !output.output().leaves_out(),
            "a collector stores everything: remove filter, only_ended and min_bytes from --output {kind}={address}"
        );
        Ok(())
    }

    /// Opens the store of an output. Fails if a collector cannot store in it.
    pub(crate) fn of(output: &Prepared) -> Result<Self> {
        Self::refuse_others(output)?;
        let (kind, address) = named(output.output());
        output.tell_of_secret(kind);
        let (form, place) = match output.store().context("the output is refused")? {
            settings::Place::Lines(file) => (Form::Jsonl, Place::File(Shared::new(file))),
            settings::Place::Columns(file) => (Form::Parquet, Place::File(Shared::new(file))),
            settings::Place::Topic(kafka) => (Form::Batch, Place::Topic(kafka)),
            settings::Place::Tables(tables) => (Form::Rows, Place::Tables(tables.into())),
        };
        let status = StoreStatus {
            kind: kind.to_owned(),
            address,
            stored: Some(RecordSum::default()),
            ..StoreStatus::default()
        };
        Ok(Self {
            form,
            place,
            stored: Volume::default(),
            status: StoreStatuses(Arc::new(Mutex::new(status))),
            fails: LogLimit::default(),
            works: LogLimit::default(),
        })
    }

    #[cfg(test)]
    pub(super) fn is_patient(&mut self, patience: std::time::Duration) {
        if let Place::Tables(tables) = &mut self.place {
            tables.is_patient(patience);
        }
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

    /// The store's TLS files, if it uses TLS.
    pub(super) fn tls(&self) -> Option<ReloadableOutputTls> {
        match &self.place {
            Place::File(_) => None,
            Place::Topic(kafka) => kafka.tls(),
            Place::Tables(tables) => tables.tls(),
        }
    }

    /// Creates the file, or checks the topic or the tables, so that problems show at the start.
    pub(super) async fn begin(&mut self) -> Result<()> {
        let begun = match &mut self.place {
            Place::File(files) => return files.begin().await,
            Place::Topic(kafka) => kafka.begin().await,
            Place::Tables(tables) => tables.begin().await,
        };
        let begun = begun.with_context(|| format!("begin to store in {}", self.address()))?;
        if let Some(why) = begun {
            self.fails(&why);
        }
        Ok(())
    }

    /// Until when the store prefers to wait for more batches.
    pub(super) fn gathers_until(&self) -> Option<Instant> {
        match &self.place {
            Place::File(_) | Place::Topic(_) => None,
            Place::Tables(tables) => tables.gathers_until(),
        }
    }

    /// Completes a file that is old enough, even if no batches come. A failure is retried, and shows with the next
    /// batch.
    pub(super) async fn look(&mut self) {
        if let Place::File(files) = &mut self.place {
            drop(files.complete_if_due().await);
        }
        if self.status.status().failing
            && let Some(times) = self.fails.rest()
        {
            self.warn(times);
        }
    }

    /// Returns once each of the parts is stored or has failed. Logs once that storing fails, and once that it works
    /// again.
    pub(super) async fn store(&mut self, parts: &[Part<'_>]) -> Vec<StoreResult> {
        // Storing nothing says nothing about the store.
        if parts.is_empty() {
            return Vec::new();
        }
        let stored = match &mut self.place {
            Place::File(files) => {
                let stored = files.write(parts.iter().map(Part::piece).collect()).await;
                let stored = stored.into_iter();
                stored.map(|stored| stored.map_err(Arc::from)).collect()
            }
            Place::Topic(kafka) => {
                let records: Vec<_> = parts.iter().map(Part::record).collect();
                kafka.store(&records).await
            }
            Place::Tables(tables) => {
                let batches: Vec<_> = parts.iter().map(|part| part.piece.clone()).collect();
                tables.store(&batches).await
            }
        };
        let mut failure = None;
        for (part, stored) in parts.iter().zip(&stored) {
            match stored {
                Ok(()) => self.stored += part.facts.volume,
                Err(why) => failure = failure.or(Some(why)),
            }
        }
        self.status.status().stored = Some(self.stored.into());
        match failure {
            Some(why) => self.fails(why),
            None => self.works(),
        }
        stored
    }

    fn works(&mut self) {
        let mut status = self.status.status();
        let has_failed = std::mem::take(&mut status.failing);
        if has_failed && self.works.event().is_some() {
            tracing::info!(address = status.address, "storing flows again");
        }
    }

    fn fails(&mut self, why: &str) {
        let mut status = self.status.status();
        let is_told = status.failing && status.last_error == why;
        why.clone_into(&mut status.last_error);
        if !std::mem::replace(&mut status.failing, true) {
            status.failures += 1;
        }
        drop(status);
        // A different reason is logged as well.
        if !is_told && let Some(times) = self.fails.event() {
            self.warn(times);
        }
    }

    /// [`look`](Self::look) logs the warnings that the limit held back.
    fn warn(&self, times: u64) {
        let status = self.status.get();
        tracing::warn!(
            address = status.address,
            times,
            "cannot store flows: {}; agents keep them, and are asked to call another collector",
            status.last_error
        );
    }

    pub(super) async fn close(mut self) {
        if let Place::File(files) = &mut self.place {
            files.close_at_the_end().await;
        }
    }
}

impl Part<'_> {
    /// The part as a file stores it.
    fn piece(&self) -> (Owner, Piece) {
        let (identity, _) = &self.facts.stream;
        let piece = Piece {
            bytes: self.piece.clone(),
            rows: self.facts.rows,
        };
        (Owner::of(&identity.of_host().start().to_string()), piece)
    }

    /// The part as Kafka stores it.
    fn record(&self) -> Record<'_> {
        let Facts {
            agent,
            stream: (identity, stream_id),
            seq,
            ..
        } = self.facts;
        Record {
            agent_id: &agent.agent_id,
            hostname: &agent.hostname,
            identity: identity.to_string(),
            stream_id: *stream_id,
            stream_seq: *seq,
            batch: self.piece.clone(),
        }
    }
}

/// The kind and address of the output in the settings.
fn named(output: &Output) -> (&'static str, String) {
    (output.kind().name(), output.address())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use exporters::settings::{OutputArg, OutputArgs};

    use super::*;

    fn prepared(setting: &str) -> Prepared {
        let OutputArgs(args) = setting.parse().unwrap();
        let OutputArg::Output(output) = &args[0] else {
            panic!("no output");
        };
        output.clone().prepare().unwrap()
    }

    #[test]
    fn only_what_says_when_flows_are_stored_and_takes_all_of_them_is_a_store() {
        let folder = tempfile::tempdir().unwrap();
        let lines = format!("jsonl={}", folder.path().join("flows.jsonl").display());
        let store = Store::of(&prepared(&lines)).unwrap();
        let told = store.status().get();
        assert_eq!((store.kind(), told.kind), ("jsonl".into(), "jsonl".into()));
        assert_eq!(store.address(), told.address);
        assert!(lines.ends_with(&told.address), "{}", told.address);
        assert_eq!(told.stored, Some(RecordSum::default()));
        let address = told.address;
        let chosen = format!(r#"{{"kind": "jsonl", "address": "{address}", "only_ended": true}}"#);
        for refused in ["ipfix=udp://127.0.0.1:4739", &chosen] {
            assert!(Store::of(&prepared(refused)).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_piece_has_as_much_as_it_may_and_no_more() {
        let mut piece = Bounded(Vec::new());
        let half = vec![0; MOST_PIECE_BYTES / 2];
        for _ in 0..2 {
            piece.write_all(&half).unwrap();
        }
        piece.flush().unwrap();
        assert!(piece.write_all(&[0]).is_err());
        assert_eq!(piece.0.len(), MOST_PIECE_BYTES);
    }
}
