//! ClickHouse as a collector's storage, over HTTP. Flow records become rows of one table, batches rows of another one,
//! which also holds the losses. A batch counts as stored when ClickHouse has acknowledged both.
//!
//! [`insert`] sends rows and [`answer`] interprets the responses. Batches that are stored together take one INSERT per
//! table. If ClickHouse rejects one, fewer batches are tried, at once or the next time: so a bad batch fails alone and
//! a slow server makes progress. Passing failures are retried for a while. Then the agents get an error and keep their
//! batches. Rows sent twice stay duplicated until ClickHouse merges them.

use std::{fmt::Display, sync::Arc, time::Duration};

use anyhow::{Result, bail};
use bytes::Bytes;
use formats::parquet::Table;
use proto::{FlowBatch, batch};
use sys::process_memory;
use tls::output::ReloadableOutputTls;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

use super::{
    password::PasswordFile,
    settings::HostPort,
    transport::{Endpoint, Requests},
};

mod answer;
mod insert;
mod size;
#[cfg(test)]
mod tests;

use answer::Fault;
use insert::Insert;
use size::Size;
pub use size::refuse_too_large;

/// Time limit for storing a group. An agent waits 30 seconds for an acknowledgement, perhaps behind another group.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit at startup.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);
/// Pause before the first retry, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// No try begins with less time left than this.
const RESERVE: Duration = Duration::from_millis(500);
/// A failing group is retried for this fraction of the time limit. Then fewer of its batches are tried.
const TURNS: u32 = 8;
/// How long after a failure further groups fail immediately, since they have already waited for the previous one.
const FAILS_AT_ONCE: Duration = Duration::from_secs(1);
/// Most batches of a group that may be refused one by one. If there are more, the fault is not in the batches.
const MOST_REFUSED: usize = 32;

/// Settings of the ClickHouse output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub to: HostPort,
    pub database: String,
    /// The table of records. The table of batches has the suffix `_batches`.
    pub table: String,
    pub login: Option<Login>,
    /// Least time between the starts of two groups of inserts, unless there is much to store.
    pub insert_every: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    pub user: String,
    /// `None` for a ClickHouse user without a password.
    pub password_file: Option<PasswordFile>,
}

pub struct ClickHouse {
    settings: Arc<Settings>,
    tls: Option<ReloadableOutputTls>,
    requests: Requests,
    /// Time limit for a group.
    patience: Duration,
    /// When the last group started.
    began: Option<Instant>,
    failed: Option<(Instant, Arc<str>)>,
    /// Most batches per INSERT. Reduced after a failure, raised again after a success.
    most: usize,
}

/// Whether a batch is stored, or why not.
type StoreResult = Result<(), Arc<str>>;

impl ClickHouse {
    pub fn new(settings: Settings, tls: Option<ReloadableOutputTls>) -> Self {
        let endpoint = Endpoint::new(settings.to.clone(), tls.clone());
        Self {
            settings: Arc::new(settings),
            tls,
            // Longer than a group's time limit, which ends a request first.
            requests: Requests::new(endpoint, 2 * PATIENCE),
            patience: PATIENCE,
            began: None,
            failed: None,
            most: usize::MAX,
        }
    }

    /// Waits longer for a group, for tests, whose machine may be busy.
    #[doc(hidden)]
    pub fn is_patient(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// The TLS files in use; `None` without TLS.
    pub fn tls(&self) -> Option<ReloadableOutputTls> {
        self.tls.clone()
    }

    /// When to start the next group. ClickHouse prefers few large inserts to many small ones.
    pub fn gathers_until(&self) -> Option<Instant> {
        Some(self.began? + self.settings.insert_every)
    }

    /// Inserts zero rows into each table at startup. Fails if the configuration must change. Returns the reason if the
    /// server cannot be asked at the moment: it may be restarted independently of the collector.
    pub async fn begin(&mut self) -> Result<Option<Arc<str>>> {
        let login = self.settings.login.as_ref();
        if self.tls.is_none() && login.is_some_and(|login| login.password_file.is_some()) {
            tracing::warn!(
                "the password is sent unencrypted, and anyone on the path can read it: use https://"
            );
        }
        let deadline = Instant::now() + FIRST_PATIENCE;
        for table in [Table::Flows, Table::Batches] {
            let rows = table.file(&[])?;
            match self.bring(table, &rows, Until::of(deadline)).await {
                Ok(()) => {}
                Err(Fault::Passing(why) | Fault::Tried(why)) => return Ok(Some(why)),
                Err(Fault::Lasting(why) | Fault::OfTheRows(why)) => bail!("{why}"),
            }
        }
        Ok(None)
    }

    /// Stores batches. Returns for each whether it is stored. A failed one may be stored nevertheless.
    pub async fn store(&mut self, raw: &[Bytes]) -> Vec<StoreResult> {
        let now = Instant::now();
        self.began = Some(now);
        if let Some((at, why)) = &self.failed
            && now.saturating_duration_since(*at) < FAILS_AT_ONCE
        {
            return vec![Err(Arc::clone(why)); raw.len()];
        }
        let deadline = now + self.patience;
        let mut fates = vec![Err("it was not tried".into()); raw.len()];
        if let Err(why) = self.store_all(raw, deadline, &mut fates).await {
            self.failed = Some((Instant::now(), why));
        }
        fates
    }

    /// Stores the batches group by group. Fails if more than single batches are at fault. Then the remaining batches
    /// get the same error.
    async fn store_all(
        &mut self,
        raw: &[Bytes],
        deadline: Instant,
        fates: &mut [StoreResult],
    ) -> StoreResult {
        let sizes = sizes(raw.to_vec()).await;
        let sizes = sizes.inspect_err(|why| fates.fill(Err(Arc::clone(why))))?;
        let (mut start, mut refused, mut stores) = (0, 0, false);
        let mut failure = None;
        while start < raw.len() {
            let group = start..start + size::together(&sizes[start..]).min(self.most);
            let began = Instant::now();
            let is_single = group.len() == 1;
            let until = if is_single && group.end == raw.len() {
                Until::of(deadline)
            } else {
                Until {
                    gives_up: deadline.min(began + self.patience / TURNS),
                    // Leave time for the other batches.
                    deadline: if is_single {
                        deadline.min(began + self.patience / 2)
                    } else {
                        deadline
                    },
                }
            };
            let fault = match self.store_group(&raw[group.clone()], until).await {
                Ok(()) => {
                    fates[group.clone()].fill(Ok(()));
                    (start, stores) = (group.end, true);
                    if began.elapsed() < self.patience / 4 {
                        self.most = self.most.saturating_mul(2);
                    }
                    continue;
                }
                Err(fault) => fault,
            };
            let has_time = Instant::now() + RESERVE < deadline;
            // A group that was cut short by earlier ones is not necessarily too large.
            let had_its_turn = began.elapsed() >= self.patience / 2;
            if !is_single && fault.may_be_of_the_rows(has_time) && (has_time || had_its_turn) {
                self.most = group.len() / 2;
                if has_time {
                    continue;
                }
            }
            match fault {
                Fault::OfTheRows(why) if is_single && refused < MOST_REFUSED => {
                    refused += 1;
                    fates[start] = Err(why);
                }
                Fault::Tried(why) if is_single && has_time => {
                    fates[start] = Err(Arc::clone(&why));
                    failure = Some(why);
                }
                Fault::Passing(why)
                | Fault::Tried(why)
                | Fault::Lasting(why)
                | Fault::OfTheRows(why) => {
                    fates[start..].fill(Err(Arc::clone(&why)));
                    return Err(why);
                }
            }
            start = group.end;
        }
        failure.filter(|_| !stores).map_or(Ok(()), Err)
    }

    /// Inserts the records first, so that a row of a batch implies that its records are there.
    async fn store_group(&mut self, raw: &[Bytes], until: Until) -> Result<(), Fault> {
        let batches = decoded(raw.to_vec()).await?;
        let flows = batches.iter().any(|batch| !batch.records.is_empty());
        let flows = flows.then_some(Table::Flows);
        for table in flows.into_iter().chain([Table::Batches]) {
            let rows = rows(table, Arc::clone(&batches)).await?;
            self.bring(table, &rows, until).await?;
        }
        Ok(())
    }

    /// Inserts the rows, and retries passing failures.
    async fn bring(&mut self, table: Table, rows: &Bytes, until: Until) -> Result<(), Fault> {
        let mut pause = FIRST_PAUSE;
        let mut last = None;
        loop {
            let insert = Insert {
                settings: &self.settings,
                table,
                rows,
            };
            let fault = match insert.send(&mut self.requests, until.deadline).await {
                Ok(()) => return Ok(()),
                Err(fault) => fault,
            };
            let next = Instant::now() + pause;
            let has_time = next + RESERVE < until.deadline
                && match &fault {
                    Fault::Passing(_) => true,
                    Fault::Tried(_) => next < until.gives_up,
                    Fault::Lasting(_) | Fault::OfTheRows(_) => return Err(fault),
                };
            // The previous fault says more than a try that was cut short.
            if !has_time {
                return Err(last.unwrap_or(fault));
            }
            last = Some(fault);
            sleep(pause).await;
            pause = (2 * pause).min(LAST_PAUSE);
        }
    }
}

/// Time limits for a group.
#[derive(Clone, Copy)]
struct Until {
    /// No retry begins after this if fewer rows may succeed.
    gives_up: Instant,
    deadline: Instant,
}

impl Until {
    fn of(deadline: Instant) -> Self {
        Self {
            gives_up: deadline,
            deadline,
        }
    }
}

async fn sizes(raw: Vec<Bytes>) -> Result<Vec<Size>, Arc<str>> {
    let measured = spawn_blocking(move || raw.iter().map(Size::of).collect::<Result<_, _>>());
    match measured.await {
        Ok(Ok(sizes)) => Ok(sizes),
        Ok(Err(error)) => Err(error.to_string().into()),
        Err(error) => Err(error.to_string().into()),
    }
}

async fn decoded(raw: Vec<Bytes>) -> Result<Arc<[FlowBatch]>, Fault> {
    let read = spawn_blocking(move || raw.iter().map(batch::read).collect::<Result<Arc<_>, _>>());
    let of_the_rows =
        |error: &dyn Display| Fault::OfTheRows(format!("read a batch: {error}").into());
    let read = read.await.map_err(|error| of_the_rows(&error))?;
    read.map_err(|error| of_the_rows(&error))
}

async fn rows(table: Table, batches: Arc<[FlowBatch]>) -> Result<Bytes, Fault> {
    let made = spawn_blocking(move || {
        let made = table.file(&batches);
        drop(batches);
        // Free the memory, or every thread of tokio's pool would keep this much.
        process_memory::give_back();
        made
    });
    let of_the_rows =
        |error: &dyn Display| Fault::OfTheRows(format!("make Parquet of a batch: {error}").into());
    let made = made.await.map_err(|error| of_the_rows(&error))?;
    made.map_err(|error| of_the_rows(&format!("{error:#}")))
}
