//! A collector: stores the batches that agents send, and acknowledges them once they are stored.
//!
//! Each call of `FlowCollector.Export` is a task of [`export`]. It decodes a batch ([`incoming`]), encodes it for each
//! [`store`], and queues it for the [`writer`]. The writer stores the queued batches of all calls together, publishes
//! them to observers, and reports to the calls, which acknowledge. [`streams`] tracks what each agent has sent.
//!
//! The collector keeps only batches in progress. An agent keeps each batch until it is acknowledged, and sends it
//! again to any collector. So any number of collectors may run, and a batch may be stored twice, under the same stream
//! and number.
//!
//! May depend on: `server`, `exporters`, `formats`, `hub`, `tls`, `proto`, `sys`. Knows nothing about the kernel.

use std::{
    hash::RandomState,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use exporters::{Prepared, Throttle};
use futures_util::future::join_all;
use hub::{DEFAULT_DRAIN_TIMEOUT, DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES, Hub};
use proto::CollectorStatus;
use server::{
    Limits, ListenAddr, Listeners, PassedSockets,
    counted::Counted,
    metrics::{MetricsListener, collector::StreamSums},
};
use sys::{clock, open_files};
use tls::{
    identity::Identity,
    reload::watch_files,
    server::{ReloadableServerTls, ServerTls},
    source::Source,
    token::{self, Known},
};
use tokio::sync::{Semaphore, mpsc, watch};

mod claims;
mod export;
mod incoming;
mod messages;
pub mod pairs;
mod rate;
mod senders;
mod serving;
pub mod store;
mod streams;
mod writer;

use export::CallPlaces;
use messages::Messages;

use claims::Claims;
use pairs::{PairFiles, PairOutputs, Statuses};
use senders::Senders;
use serving::CollectorServer;
use store::{Form, Store, StoreStatuses};
use streams::Streams;
use writer::{Entry, Writer};

/// Batches that wait for the writer.
const QUEUE_BATCHES: usize = 1024;
/// At shutdown, how long calls may take to finish the batches they have sent.
const LAST_CALLS: Duration = Duration::from_secs(5);

/// Limits for agents.
#[derive(Debug, Clone, Copy)]
pub struct AgentLimits {
    /// Open calls.
    pub most: u32,
    /// Open calls from one address.
    pub most_per_address: u32,
    /// Records accepted per second from one sender. `None` sets no limit.
    pub records_per_second: Option<u32>,
}

/// The settings of a collector, resolved from options and variables.
#[derive(Debug)]
pub struct Config {
    pub listen: Vec<ListenAddr>,
    /// TLS for the TCP listeners, if they use it.
    pub tls: Option<ServerTls>,
    pub limits: Limits,
    /// Tokens for TCP callers, who must show one of them. `None` if they need none.
    pub tokens: Option<Known>,
    pub agents: AgentLimits,
    /// What agents are asked for.
    pub throttle: Throttle,
    /// The stores. Each of them gets every batch.
    pub stores: Vec<Prepared>,
    /// Where metrics are served. `None` serves none.
    pub metrics: Option<SocketAddr>,
    /// The outputs for what comparing agents tells. `None` compares none.
    pub pairs: Option<PairOutputs>,
}

/// A collector whose listeners are open.
pub struct Collector {
    config: Config,
    hub: Hub,
    listeners: Listeners,
    metrics: Option<MetricsListener>,
    stores: Vec<Store>,
    pairs: Option<PairFiles>,
}

impl Collector {
    pub async fn start(config: Config) -> Result<Self> {
        let stores = config.stores.iter().map(Store::of);
        let mut stores = stores.collect::<Result<Vec<_>>>()?;
        for store in &mut stores {
            store.begin().await?;
        }
        let pairs = config.pairs.as_ref().map(PairFiles::of);
        let mut pairs = pairs.transpose()?;
        if let Some(pairs) = &mut pairs {
            pairs.begin().await?;
        }
        open_files::raise_limit()?;
        let listeners = Listeners::bind(&config.listen, PassedSockets::default()).await?;
        let listeners = listeners.with_tls(config.tls.clone().map(ReloadableServerTls::new));
        let metrics = match config.metrics {
            Some(address) => Some(MetricsListener::bind(address).await?),
            None => None,
        };
        for store in &stores {
            tracing::info!(
                kind = store.kind(),
                address = store.address(),
                "storing flows here"
            );
        }
        Ok(Self {
            config,
            hub: Hub::new(DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES),
            listeners,
            metrics,
            stores,
            pairs,
        })
    }

    /// Runs until `stop`. Returns once every batch received is stored and acknowledged.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<()> {
        let Self {
            config,
            hub,
            listeners,
            metrics,
            stores,
            pairs,
        } = self;
        let tokens = config.tokens.map(token::ReloadableTokens::new);
        let max_agents = config.agents.most;
        let (queue, entries) = mpsc::channel(QUEUE_BATCHES);
        let (serving, stopping) = watch::channel(());
        let intake = Arc::new(Intake {
            hub: hub.clone(),
            streams: Streams::default(),
            claims: Claims::default(),
            forms: stores.iter().map(Store::form).collect(),
            stores: stores.iter().map(Store::status).collect(),
            pairs: pairs.as_ref().map(PairFiles::status),
            makes_conversations: pairs.as_ref().is_some_and(PairFiles::makes_conversations),
            queue: queue.downgrade(),
            digests: RandomState::new(),
            senders: Senders::default(),
            calls: Arc::new(Semaphore::new(max_agents as usize)),
            of_addresses: Counted::default(),
            of_credentials: Counted::default(),
            limits: config.agents,
            throttle: config.throttle,
            stopping,
            started_boot_ns: clock::boot_now_ns(),
        });
        let store_files = stores.iter().map(|store| watch_files(store.tls()));
        let store_files = join_all(store_files.collect::<Vec<_>>());
        let token_files = watch_files(tokens.clone());
        let writer = Writer::new(stores, intake.streams.clone(), hub.clone(), pairs, entries);
        let leaves_out_ended = writer.leaves_out_ended();
        let mut writer = tokio::spawn(writer.run());
        let (end_server, server_end) = tokio::sync::oneshot::channel::<()>();
        let server = CollectorServer {
            hub,
            intake: Arc::clone(&intake),
            limits: Limits::fixed(config.limits),
            drain_timeout: DEFAULT_DRAIN_TIMEOUT,
            metrics,
            tokens,
        };
        let mut server = tokio::spawn(server.run(listeners, async move {
            // An error means that the sender is gone, so the collector is ending as well.
            let _ = server_end.await;
        }));
        tokio::select! {
            () = stop => {}
            // This future never ends.
            _ = store_files => {}
            never = token_files => match never {},
            ended = &mut server => return ended.context("the server task")?,
            ended = &mut writer => {
                ended.context("the writer task")?;
                bail!("the writer has ended: please report this");
            }
        }
        tracing::info!("stopping: storing and acknowledging received batches first");
        // Calls take no more batches, and end once the batches they have are stored.
        drop(serving);
        let all = intake.calls.acquire_many(max_agents);
        let calls_ended = tokio::time::timeout(LAST_CALLS, all).await.is_ok();
        if !calls_ended {
            tracing::warn!(
                "agents' calls did not end in time: agents will send unacknowledged batches again"
            );
            leaves_out_ended.store(true, Relaxed);
        }
        // The receiver is gone if the server has ended.
        let _ = end_server.send(());
        let outcome = server.await.context("the server task")?;
        // The writer ends once all senders of its queue are gone.
        drop(queue);
        writer.await.context("the writer task")?;
        outcome
    }
}

/// State that the calls of all agents share.
struct Intake {
    hub: Hub,
    streams: Streams,
    claims: Claims,
    /// The form of each store, in their order.
    forms: Vec<Form>,
    stores: Vec<StoreStatuses>,
    pairs: Option<Arc<Mutex<Statuses>>>,
    makes_conversations: bool,
    /// Weak, because connections may outlive the server. The collector itself keeps the queue open.
    queue: mpsc::WeakSender<Entry>,
    /// The key for digests of batches.
    digests: RandomState,
    senders: Senders,
    calls: Arc<Semaphore>,
    /// Open calls by address and by credential.
    of_addresses: Counted<Source>,
    of_credentials: Counted<Identity>,
    limits: AgentLimits,
    /// What agents are asked for.
    throttle: Throttle,
    /// Its sender is dropped when the collector stops.
    stopping: watch::Receiver<()>,
    started_boot_ns: u64,
}

impl Intake {
    /// The status without consumers and listeners, which the server adds.
    fn status(&self) -> CollectorStatus {
        CollectorStatus {
            streams: self.streams.status(),
            ..self.status_without_streams()
        }
    }

    /// The sums over all streams, for metrics.
    fn stream_sums(&self) -> StreamSums {
        self.streams.sums()
    }

    /// The status without its streams, since there may be thousands.
    fn status_without_streams(&self) -> CollectorStatus {
        let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname");
        let compared = self.pairs.as_ref().map(|statuses| {
            let statuses = statuses.lock().unwrap_or_else(PoisonError::into_inner);
            statuses.clone()
        });
        let compared = compared.map(|statuses| (statuses.pairs, statuses.conversations));
        let (pairs, conversations) = compared.unzip();
        CollectorStatus {
            hostname: hostname.unwrap_or_default().trim().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_unix_ns: clock::unix_of_boot_ns(self.started_boot_ns),
            uptime_ns: clock::boot_now_ns().saturating_sub(self.started_boot_ns),
            stores: self.stores.iter().map(StoreStatuses::get).collect(),
            pairs,
            conversations: conversations.flatten(),
            report_interval_ns: clock::nanos(self.throttle.report_interval),
            sample_rate: self.throttle.sample_rate,
            ..CollectorStatus::default()
        }
    }
}
