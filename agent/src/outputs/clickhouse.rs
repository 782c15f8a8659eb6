//! ClickHouse, in which a collector stores batches over HTTP: their records are rows of a table, and the batches themselves rows
//! of another one, which says what was lost. A batch counts as stored when ClickHouse has answered that both have it.
//!
//! [`insert`] brings rows there, and [`answer`] says what an answer means. What is stored together is one INSERT for each table.
//! If ClickHouse does not take the rows, it is tried in halves, so that a batch is refused alone. Whatever else fails is tried
//! again for a while, and then told: the agents keep it. What comes again is there twice until ClickHouse merges it away.

use std::{collections::BTreeSet, ops::Range, sync::Arc, time::Duration};

use anyhow::{Result, bail};
use bytes::Bytes;
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
use crate::{batch, freed_memory, proto::FlowBatch, tls::output::InForce};

mod answer;
mod insert;
#[cfg(test)]
mod tests;

use answer::Fault;
use insert::Insert;

/// How long it may take to store a group. An agent waits 30 seconds for an acknowledgement, perhaps behind another group.
const PATIENCE: Duration = Duration::from_secs(10);
/// At the start.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);
/// Before the next try, at first and in the end.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// No try begins with less time than this.
const RESERVE: Duration = Duration::from_millis(500);
/// For so long after a failure what comes is told the same at once: it has waited for those before it.
const FAILS_AT_ONCE: Duration = Duration::from_secs(1);
/// An INSERT may have a hundred partitions (`max_partitions_per_insert_block`), of which the tables have one a day. Agents whose
/// clocks are wrong must not keep those of others from being stored.
const MOST_DAYS: usize = 50;
/// Batches of a group that are refused alone. With more of them it is not the batches that are wrong.
const MOST_REFUSED: usize = 32;
const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;

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
        }
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
            match self.bring(table, &rows, deadline).await {
                Ok(()) => {}
                Err(Fault::Passing(why)) => return Ok(Some(why)),
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

    /// Fails with what is wrong with more than the rows, and then with those that it has not come to.
    async fn keep_all(&mut self, raw: &[Bytes], deadline: Instant, fates: &mut [Kept]) -> Kept {
        let encoded = raw.to_vec();
        let batches = decoded(encoded).await;
        let batches = batches.inspect_err(|why| fates.fill(Err(Arc::clone(why))))?;
        // The first one is the last.
        let mut waiting = of_few_days(&batches);
        let mut refused = 0;
        while let Some(group) = waiting.pop() {
            match self.store(&batches, group.clone(), deadline).await {
                Ok(()) => fates[group].fill(Ok(())),
                Err(Fault::OfTheRows(_)) if group.len() > 1 => {
                    let middle = group.start + group.len() / 2;
                    waiting.push(middle..group.end);
                    waiting.push(group.start..middle);
                }
                Err(Fault::OfTheRows(why)) if refused < MOST_REFUSED => {
                    refused += 1;
                    fates[group].fill(Err(why));
                }
                Err(Fault::Passing(why) | Fault::Lasting(why) | Fault::OfTheRows(why)) => {
                    fates[group.start..].fill(Err(Arc::clone(&why)));
                    return Err(why);
                }
            }
        }
        Ok(())
    }

    /// The records come first, so that a row of a batch says that they are there.
    async fn store(
        &mut self,
        batches: &Arc<[FlowBatch]>,
        group: Range<usize>,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let has_records = |batch: &FlowBatch| !batch.records.is_empty();
        let flows = batches[group.clone()].iter().any(has_records);
        let flows = flows.then_some(Table::Flows);
        for table in flows.into_iter().chain([Table::Batches]) {
            let rows = rows(table, Arc::clone(batches), group.clone()).await?;
            self.bring(table, &rows, deadline).await?;
        }
        Ok(())
    }

    /// Inserts the rows, and tries again what may work in a moment.
    async fn bring(&mut self, table: Table, rows: &Bytes, deadline: Instant) -> Result<(), Fault> {
        let mut pause = FIRST_PAUSE;
        let mut last = None;
        loop {
            let insert = Insert {
                settings: &self.settings,
                table,
                rows,
            };
            let fault = match insert.send(&mut self.requests, deadline).await {
                Ok(()) => return Ok(()),
                Err(Fault::Passing(why)) => Fault::Passing(why),
                Err(fault) => return Err(fault),
            };
            // A try that was cut short says less than the one before it.
            let has_time = Instant::now() + pause + RESERVE < deadline;
            if !has_time {
                return Err(last.unwrap_or(fault));
            }
            last = Some(fault);
            sleep(pause).await;
            pause = (2 * pause).min(LAST_PAUSE);
        }
    }
}

async fn decoded(raw: Vec<Bytes>) -> Result<Arc<[FlowBatch]>, Arc<str>> {
    let read = spawn_blocking(move || raw.iter().map(batch::read).collect::<Result<Arc<_>, _>>());
    match read.await {
        Ok(Ok(batches)) => Ok(batches),
        Ok(Err(error)) => Err(error.to_string().into()),
        Err(error) => Err(error.to_string().into()),
    }
}

async fn rows(
    table: Table,
    batches: Arc<[FlowBatch]>,
    group: Range<usize>,
) -> Result<Bytes, Fault> {
    let made = spawn_blocking(move || {
        let made = table.file(&batches[group]);
        drop(batches);
        // Each thread of tokio's pool would keep as much.
        freed_memory::give_back();
        made
    });
    let of_the_rows = |error: &dyn std::fmt::Display| {
        Fault::OfTheRows(format!("make Parquet of a batch: {error}").into())
    };
    let made = made.await.map_err(|error| of_the_rows(&error))?;
    made.map_err(|error| of_the_rows(&format!("{error:#}")))
}

/// Groups of neighbours, the last one first.
fn of_few_days(batches: &[FlowBatch]) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut days = BTreeSet::new();
    for (place, batch) in batches.iter().enumerate() {
        let day = batch.window_end_unix_ns / DAY_NS;
        let is_full = days.len() >= MOST_DAYS && !days.contains(&day);
        match groups.last_mut() {
            Some(group) if !is_full => group.end = place + 1,
            _ => {
                days.clear();
                groups.push(place..place + 1);
            }
        }
        days.insert(day);
    }
    groups.reverse();
    groups
}
