//! ClickHouse, in which a collector stores batches over HTTP: their records are rows of a table, and the batches themselves rows
//! of another one, which says what was lost. A batch counts as stored when ClickHouse has answered that both have it.
//!
//! [`insert`] brings rows there, and [`answer`] says what an answer means. What is stored together is one INSERT for each table.
//! If ClickHouse does not take it, fewer batches are tried, at once or the next time, so that a batch is refused alone and a slow
//! server gets on. What ClickHouse may take later is tried again for a while, and then told: the agents keep it. What comes again
//! is there twice until ClickHouse merges it away.

use std::{fmt::Display, sync::Arc, time::Duration};

use anyhow::{Result, bail};
use bytes::Bytes;
use proto::{FlowBatch, batch};
use sys::process_memory;
use tls::output::InForce;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

use super::{
    parquet::Table,
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

/// How long it may take to store a group. An agent waits 30 seconds for an acknowledgement, perhaps behind another group.
const PATIENCE: Duration = Duration::from_secs(10);
/// At the start.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);
/// Before the next try, at first and in the end.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// No try begins with less time than this.
const RESERVE: Duration = Duration::from_millis(500);
/// A group that fails is tried for a part of the patience, and then fewer of its batches.
const TURNS: u32 = 8;
/// For so long after a failure what comes is told the same at once: it has waited for those before it.
const FAILS_AT_ONCE: Duration = Duration::from_secs(1);
/// Batches of a group that are refused alone. With more of them it is not the batches that are wrong.
const MOST_REFUSED: usize = 32;

/// What the settings say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub to: HostPort,
    pub database: String,
    /// The table of records. That of batches has `_batches` behind its name.
    pub table: String,
    pub login: Option<Login>,
    /// From the beginning of an INSERT to that of the next one, at least, unless there is much to store.
    pub insert_every: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    pub user: String,
    /// ClickHouse may have users without a password.
    pub password_file: Option<PasswordFile>,
}

pub struct ClickHouse {
    settings: Arc<Settings>,
    tls: Option<InForce>,
    requests: Requests,
    /// For a group.
    patience: Duration,
    /// When the last group began.
    began: Option<Instant>,
    failed: Option<(Instant, Arc<str>)>,
    /// Batches of an INSERT. Fewer after one that failed, and more again after one that did not.
    most: usize,
}

/// Whether a batch is stored, or why it is not.
type Kept = Result<(), Arc<str>>;

impl ClickHouse {
    pub fn new(settings: Settings, tls: Option<InForce>) -> Self {
        let endpoint = Endpoint::new(settings.to.clone(), tls.clone());
        Self {
            settings: Arc::new(settings),
            tls,
            // The deadline of a group ends a request.
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

    /// Its files of TLS, if it speaks TLS.
    pub fn tls(&self) -> Option<InForce> {
        self.tls.clone()
    }

    /// Until when it is better to wait for more: ClickHouse takes few large inserts, and not many small ones.
    pub fn gathers_until(&self) -> Option<Instant> {
        Some(self.began? + self.settings.insert_every)
    }

    /// Inserts no row into each of the tables. Fails if somebody has to change something. Returns why that cannot be known now: a
    /// server and a collector are restarted one without the other.
    pub async fn begin(&mut self) -> Result<Option<Arc<str>>> {
        let login = self.settings.login.as_ref();
        if self.tls.is_none() && login.is_some_and(|login| login.password_file.is_some()) {
            tracing::warn!(
                "the password is sent as it is, and without TLS everyone on the way can read it: say https://"
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

    /// Returns when each of the batches is stored or will not be. What fails may be stored nevertheless.
    pub async fn keep(&mut self, raw: &[Bytes]) -> Vec<Kept> {
        let now = Instant::now();
        self.began = Some(now);
        if let Some((at, why)) = &self.failed
            && now.saturating_duration_since(*at) < FAILS_AT_ONCE
        {
            return vec![Err(Arc::clone(why)); raw.len()];
        }
        let deadline = now + self.patience;
        let mut fates = vec![Err("it was not tried".into()); raw.len()];
        if let Err(why) = self.keep_all(raw, deadline, &mut fates).await {
            self.failed = Some((Instant::now(), why));
        }
        fates
    }

    /// Fails with what is wrong with more than the rows of a batch, and then with those that it has not come to.
    async fn keep_all(&mut self, raw: &[Bytes], deadline: Instant, fates: &mut [Kept]) -> Kept {
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
                    // A single batch leaves time to the others.
                    deadline: if is_single {
                        deadline.min(began + self.patience / 2)
                    } else {
                        deadline
                    },
                }
            };
            let fault = match self.store(&raw[group.clone()], until).await {
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
            // What was cut short by those before it may not be too large.
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

    /// The records come first, so that a row of a batch says that they are there.
    async fn store(&mut self, raw: &[Bytes], until: Until) -> Result<(), Fault> {
        let batches = decoded(raw.to_vec()).await?;
        let flows = batches.iter().any(|batch| !batch.records.is_empty());
        let flows = flows.then_some(Table::Flows);
        for table in flows.into_iter().chain([Table::Batches]) {
            let rows = rows(table, Arc::clone(&batches)).await?;
            self.bring(table, &rows, until).await?;
        }
        Ok(())
    }

    /// Inserts the rows, and tries again what may work in a moment.
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
            // A try that was cut short says less than the one before it.
            if !has_time {
                return Err(last.unwrap_or(fault));
            }
            last = Some(fault);
            sleep(pause).await;
            pause = (2 * pause).min(LAST_PAUSE);
        }
    }
}

/// How long a group is tried.
#[derive(Clone, Copy)]
struct Until {
    /// No other try begins after this if fewer rows may do better.
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
        // Each thread of tokio's pool would keep as much.
        process_memory::give_back();
        made
    });
    let of_the_rows =
        |error: &dyn Display| Fault::OfTheRows(format!("make Parquet of a batch: {error}").into());
    let made = made.await.map_err(|error| of_the_rows(&error))?;
    made.map_err(|error| of_the_rows(&format!("{error:#}")))
}
