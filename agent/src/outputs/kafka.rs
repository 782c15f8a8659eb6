//! Kafka, in which a collector stores batches: each is a message of a topic. A message counts as stored when all replicas that
//! are in sync have it (`acks=all`).
//!
//! A [`group`] is what is to be stored together, in the order of the batches. The [`partitioner`] says in which partition a
//! message belongs, the [`cluster`] which broker leads that, and [`produce`] brings it there on a [`connection`]. Whatever fails, the cluster is
//! asked anew, from the brokers of the settings on, and what is not acknowledged is sent again: so a leader that has moved, a
//! broker with another address, a renewed password or certificate need no care of their own. What is not stored in time is told,
//! and the agents keep it.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Result, bail};
use bytes::Bytes;
use thiserror::Error;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::{files::Compression, settings::HostPort};
use crate::tls::output::InForce;

mod cluster;
mod connection;
mod cut;
mod group;
mod partitioner;
mod produce;

use cluster::Cluster;
use group::Group;
use produce::Answer;

/// How long it may take to store a group. An agent waits 30 seconds for an acknowledgement, perhaps behind another group.
const PATIENCE: Duration = Duration::from_secs(10);
/// At the start.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);
/// Before the next try, at first and in the end.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// For so long after a failure what comes is told the same at once: it has waited for those before it.
const FAILS_AT_ONCE: Duration = Duration::from_secs(1);
/// How old what is known of the cluster may be, as for Kafka's own producer (metadata.max.age.ms).
const KNOWN_FOR: Duration = Duration::from_mins(5);

/// What the settings say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Those that are asked for the cluster.
    pub brokers: Vec<HostPort>,
    pub topic: String,
    pub creates_topic: bool,
    pub compression: Compression,
    pub login: Option<Login>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    pub mechanism: Mechanism,
    pub user: String,
    /// Its first line is the password.
    pub password_file: PathBuf,
}

/// Of SASL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    Plain,
    ScramSha256,
    ScramSha512,
}

/// A batch, and what its message says beside it.
pub struct Record<'a> {
    /// Empty if the batch does not name its agent.
    pub agent_id: &'a str,
    pub hostname: &'a str,
    pub stream_id: u64,
    pub stream_seq: u64,
    pub batch: Bytes,
}

/// Why something is not stored.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{why}")]
struct Fault {
    why: Arc<str>,
    /// Another try in a moment would fail, too.
    is_lasting: bool,
}

impl Fault {
    fn passing(why: impl Into<Arc<str>>) -> Self {
        Self {
            why: why.into(),
            is_lasting: false,
        }
    }

    fn lasting(why: impl Into<Arc<str>>) -> Self {
        Self {
            why: why.into(),
            is_lasting: true,
        }
    }
}

pub struct Kafka {
    settings: Arc<Settings>,
    tls: Option<InForce>,
    cluster: Option<Cluster>,
    /// The cluster's quota lets nothing through before.
    rests_until: Option<Instant>,
    failed: Option<(Instant, Arc<str>)>,
}

impl Kafka {
    pub fn new(settings: Settings, tls: Option<InForce>) -> Self {
        Self {
            settings: Arc::new(settings),
            tls,
            cluster: None,
            rests_until: None,
            failed: None,
        }
    }

    /// Its files of TLS, if it speaks TLS.
    pub fn tls(&self) -> Option<InForce> {
        self.tls.clone()
    }

    /// Asks for the topic. Fails if somebody has to change something. Returns why it cannot be asked now: brokers and a
    /// collector are restarted one without the other.
    pub async fn begin(&mut self) -> Result<Option<Arc<str>>> {
        let is_plain = |login: &Login| login.mechanism == Mechanism::Plain;
        if self.tls.is_none() && self.settings.login.as_ref().is_some_and(is_plain) {
            tracing::warn!(
                "sasl plain sends the password as it is, and without TLS everyone on the way can read it: say tls://, or \
                 choose a scram mechanism"
            );
        }
        match self.bring(&mut Group::of(&[]), FIRST_PATIENCE).await {
            Some(fault) if fault.is_lasting => bail!("{fault}"),
            fault => Ok(fault.map(|fault| fault.why)),
        }
    }

    /// Returns when each of the records is stored or will not be. What fails may be stored nevertheless.
    pub async fn keep(&mut self, records: &[Record<'_>]) -> Vec<Result<(), Arc<str>>> {
        if let Some((at, why)) = &self.failed
            && at.elapsed() < FAILS_AT_ONCE
        {
            return vec![Err(Arc::clone(why)); records.len()];
        }
        let mut group = Group::of(records);
        self.failed = None;
        if let Some(fault) = self.bring(&mut group, PATIENCE).await {
            self.failed = Some((Instant::now(), Arc::clone(&fault.why)));
            group.gives_up(&fault.why);
        }
        group.fates()
    }

    /// Stores what waits of the group. Returns why some of it still does when the time is over.
    async fn bring(&mut self, group: &mut Group<'_>, patience: Duration) -> Option<Fault> {
        let deadline = Instant::now() + patience;
        let mut pause = FIRST_PAUSE;
        let mut last = None;
        loop {
            let tried = timeout_at(deadline, self.attempt(group, deadline)).await;
            let fault = match tried {
                Ok(Ok(())) => return None,
                Ok(Err(fault)) => fault,
                // What was told before says more.
                Err(_) => last.unwrap_or_else(|| {
                    Fault::passing(format!(
                        "the brokers have not answered within {} s",
                        patience.as_secs()
                    ))
                }),
            };
            self.cluster = None;
            if fault.is_lasting || Instant::now() + pause >= deadline {
                return Some(fault);
            }
            last = Some(fault);
            sleep(pause).await;
            pause = (2 * pause).min(LAST_PAUSE);
        }
    }

    async fn attempt(&mut self, group: &mut Group<'_>, deadline: Instant) -> Result<(), Fault> {
        self.rest(deadline).await?;
        let is_known = |cluster: &&mut Cluster| cluster.asked.elapsed() < KNOWN_FOR;
        let cluster = if let Some(cluster) = self.cluster.as_mut().filter(is_known) {
            cluster
        } else {
            let found = Cluster::find(Arc::clone(&self.settings), self.tls.clone()).await?;
            self.cluster.insert(found)
        };
        let Settings {
            topic, compression, ..
        } = &*self.settings;
        let mut failed = BTreeMap::new();
        loop {
            let mut places = group.next(cluster.partitions());
            // The others go on.
            places.retain(|partition, _| !failed.contains_key(partition));
            if places.is_empty() {
                return failed.into_values().next().map_or(Ok(()), Err);
            }
            let batches = places
                .iter()
                .map(|(&partition, places)| (partition, group.messages(places, *compression)));
            let (answers, throttled) = cluster.produce(batches.collect()).await;
            for (partition, answer) in answers {
                let places = places.get(&partition).map_or(&[][..], Vec::as_slice);
                match answer {
                    Answer::Stored => group.stored(places),
                    Answer::TooLong => group.too_long(places, topic),
                    Answer::Failed(fault) => drop(failed.insert(partition, fault)),
                }
            }
            if !throttled.is_zero() {
                self.rests_until = Some(Instant::now() + throttled);
                if group.waits() {
                    return Err(Fault::passing(over_quota(throttled)));
                }
            }
        }
    }

    /// A cluster that has taken more than its quota allows says when it takes more. What is sent before is not answered until
    /// then, and would be sent again meanwhile.
    async fn rest(&mut self, deadline: Instant) -> Result<(), Fault> {
        let Some(until) = self.rests_until else {
            return Ok(());
        };
        if until >= deadline {
            let rests = until.saturating_duration_since(Instant::now());
            return Err(Fault::lasting(over_quota(rests)));
        }
        sleep_until(until).await;
        self.rests_until = None;
        Ok(())
    }
}

fn over_quota(rests: Duration) -> String {
    format!(
        "the cluster's quota for this client lets nothing through for {} ms: raise it (producer_byte_rate), or send less",
        rests.as_millis()
    )
}
