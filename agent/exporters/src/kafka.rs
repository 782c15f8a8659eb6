//! Kafka as a collector's storage: each batch is a message of a topic. A message counts as stored when all in-sync
//! replicas have it (`acks=all`).
//!
//! A [`group`] holds the batches that are stored together, in order. The [`partitioner`] chooses the partition of a
//! message, the [`cluster`] knows the broker that leads it, and [`produce`] sends the message on a [`connection`].
//! After any failure the metadata is fetched again, starting from the brokers of the settings, and unacknowledged
//! messages are sent again. That covers moved leaders, brokers with another address, and renewed passwords and
//! certificates without special handling. If a batch is not stored in time, the agent gets an error and keeps it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Result, bail};
use bytes::Bytes;
use thiserror::Error;
use tls::output::ReloadableOutputTls;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::{files::Compression, password::PasswordFile, settings::HostPort};

mod abort;
mod cluster;
mod connection;
mod failures;
mod group;
mod partitioner;
mod produce;

use cluster::Cluster;
use failures::Failures;
use group::Group;
use produce::{Answer, RESERVE};

/// Time limit for storing a group. An agent waits 30 seconds for an acknowledgement, perhaps behind another group.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit at startup.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);
/// Pause before the first retry, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// Refresh the metadata after this time, as Kafka's own producer does (metadata.max.age.ms).
const KNOWN_FOR: Duration = Duration::from_mins(5);

/// Settings of the Kafka output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Brokers to ask for the cluster's metadata.
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
    pub password_file: PasswordFile,
}

/// SASL mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    Plain,
    ScramSha256,
    ScramSha512,
}

/// A batch and its message's metadata.
pub struct Record<'a> {
    /// Empty if the batch does not name its agent.
    pub agent_id: &'a str,
    pub hostname: &'a str,
    /// The identity that sent the batch.
    pub identity: String,
    pub stream_id: u64,
    pub stream_seq: u64,
    pub batch: Bytes,
}

/// Why something was not stored.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{why}")]
struct Fault {
    why: Arc<str>,
    /// Retrying soon would fail too.
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
    tls: Option<ReloadableOutputTls>,
    cluster: Option<Cluster>,
    /// The cluster's quota blocks requests until then.
    rests_until: Option<Instant>,
    failures: Failures,
}

/// Why some batches of a group are not stored.
enum Unstored {
    /// Nothing can be stored in the cluster.
    All(Fault),
    /// The number of partitions, and the failed ones with their faults.
    In(usize, BTreeMap<usize, Fault>),
}

impl Kafka {
    pub fn new(settings: Settings, tls: Option<ReloadableOutputTls>) -> Self {
        Self {
            settings: Arc::new(settings),
            tls,
            cluster: None,
            rests_until: None,
            failures: Failures::default(),
        }
    }

    /// The TLS files in use; `None` without TLS.
    pub fn tls(&self) -> Option<ReloadableOutputTls> {
        self.tls.clone()
    }

    /// Asks for the topic at startup. Fails if the configuration must change. Returns the reason if the brokers cannot
    /// be asked at the moment: they may be restarted independently of the collector.
    pub async fn begin(&mut self) -> Result<Option<Arc<str>>> {
        let is_plain = |login: &Login| login.mechanism == Mechanism::Plain;
        if self.tls.is_none() && self.settings.login.as_ref().is_some_and(is_plain) {
            tracing::warn!(
                "sasl plain sends the password unencrypted, and anyone on the path can read it: use tls://, or a \
                 scram mechanism"
            );
        }
        match self.bring(&mut Group::of(&[]), FIRST_PATIENCE).await {
            Some(Unstored::All(fault)) if fault.is_lasting => bail!("{fault}"),
            Some(Unstored::All(fault)) => Ok(Some(fault.why)),
            // There was nothing to store.
            Some(Unstored::In(..)) | None => Ok(None),
        }
    }

    /// Stores records. Returns for each whether it is stored. A failed one may be stored nevertheless.
    pub async fn store(&mut self, records: &[Record<'_>]) -> Vec<Result<(), Arc<str>>> {
        let now = Instant::now();
        if let Some(why) = self.failures.of_all(now) {
            return vec![Err(Arc::clone(why)); records.len()];
        }
        let mut group = Group::of(records);
        let (partitions, whys) = self.failures.of_partitions(now);
        group.gives_up_in(partitions, &whys);
        if !group.waits() {
            return group.fates();
        }
        match self.bring(&mut group, PATIENCE).await {
            None => {}
            Some(Unstored::All(fault)) => {
                self.failures.all_failed(Instant::now(), &fault.why);
                group.gives_up(&fault.why);
            }
            Some(Unstored::In(partitions, faults)) => {
                let now = Instant::now();
                let whys = faults.into_iter().map(|(at, fault)| (at, fault.why));
                let whys: BTreeMap<_, _> = whys.collect();
                for (&at, why) in &whys {
                    self.failures.failed(at, partitions, now, why);
                }
                group.gives_up_in(partitions, &whys);
                group.gives_up(&not_in_time(PATIENCE));
            }
        }
        group.fates()
    }

    /// Stores the waiting batches of the group. Returns the reason if some still wait at the deadline. Returns earlier
    /// if all of them wait for partitions that already failed before this group.
    async fn bring(&mut self, group: &mut Group<'_>, patience: Duration) -> Option<Unstored> {
        let start = Instant::now();
        let deadline = start + patience;
        let mut pause = FIRST_PAUSE;
        let mut last = None;
        loop {
            let mut faults = BTreeMap::new();
            let attempt = self.attempt(group, deadline, &mut faults);
            let tried = timeout_at(deadline, attempt).await;
            let (asked, partitions) = self.cluster.as_ref().map_or((deadline, 0), |cluster| {
                (cluster.asked, cluster.partitions())
            });
            let unstored = match tried {
                Ok(Ok(())) if faults.is_empty() => return None,
                Ok(Err(fault)) => Unstored::All(fault),
                Ok(Ok(())) => Unstored::In(partitions, faults),
                Err(_) if !faults.is_empty() => Unstored::In(partitions, faults),
                // The previous fault says more than a timeout.
                Err(_) => {
                    last.unwrap_or_else(|| Unstored::All(Fault::passing(not_in_time(patience))))
                }
            };
            self.cluster = None;
            let is_over = match &unstored {
                Unstored::All(fault) => fault.is_lasting,
                // Retry if the fault may come from outdated metadata.
                Unstored::In(_, faults) => faults.iter().all(|(&partition, fault)| {
                    let is_known = self.failures.is_known(partition, start);
                    fault.is_lasting || is_known && asked >= start
                }),
            };
            if is_over || Instant::now() + pause + RESERVE >= deadline {
                return Some(unstored);
            }
            last = Some(unstored);
            sleep(pause).await;
            pause = (2 * pause).min(LAST_PAUSE);
        }
    }

    /// Stores the waiting batches of the group, but not of failed partitions.
    async fn attempt(
        &mut self,
        group: &mut Group<'_>,
        deadline: Instant,
        faults: &mut BTreeMap<usize, Fault>,
    ) -> Result<(), Fault> {
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
        loop {
            let mut places = group.next(cluster.partitions());
            // Other partitions continue.
            places.retain(|partition, _| !faults.contains_key(partition));
            if places.is_empty() {
                return Ok(());
            }
            let batches = places
                .iter()
                .map(|(&partition, places)| (partition, group.messages(places, *compression)));
            let batches = batches.collect();
            let told = |partition, answer| {
                let places = places.get(&partition).map_or(&[][..], Vec::as_slice);
                match answer {
                    Answer::Stored => {
                        group.stored(places);
                        self.failures.works(partition);
                    }
                    Answer::TooLong => group.too_long(places, topic),
                    Answer::Failed(fault) => drop(faults.insert(partition, fault)),
                }
            };
            let throttled = cluster.produce(batches, deadline, told).await;
            if !throttled.is_zero() {
                self.rests_until = Some(Instant::now() + throttled);
                if group.waits() {
                    return Err(Fault::passing(over_quota(throttled)));
                }
            }
        }
    }

    /// Waits until the cluster's quota allows requests again. A request sent earlier would not be answered until then,
    /// and would be sent again meanwhile.
    async fn rest(&mut self, deadline: Instant) -> Result<(), Fault> {
        let Some(until) = self.rests_until else {
            return Ok(());
        };
        // Leave time for the request after the pause.
        if until + 2 * RESERVE >= deadline {
            let rests = until.saturating_duration_since(Instant::now());
            return Err(Fault::lasting(over_quota(rests)));
        }
        sleep_until(until).await;
        self.rests_until = None;
        Ok(())
    }
}

fn not_in_time(patience: Duration) -> Arc<str> {
    let seconds = patience.as_secs();
    format!("the brokers have not answered within {seconds} s").into()
}

fn over_quota(rests: Duration) -> String {
    format!(
        "the cluster's quota for this client lets nothing through for {} ms: raise it (producer_byte_rate), or send less",
        rests.as_millis()
    )
}
