//! A collector: stores what agents send, and acknowledges what is stored.
//!
//! Each call of `FlowCollector.Export` is a task of [`export`]. It reads a batch ([`incoming`]), makes of it what each of the
//! [`store`]s keeps, and puts that into the queue of the [`writer`]. This one writes what waits of all calls, brings it to the
//! disk, gives it to those who observe, and tells the calls, which acknowledge. [`streams`] knows what has come from whom.
//!
//! Nothing is kept but what is under way: an agent keeps each batch until it is acknowledged, and sends it again to any
//! collector. So there may be any number of collectors, and a batch may be stored twice, under the same stream and number.
//!
//! May depend on: `server`, `exporters`, `formats`, `hub`, `tls`, `proto`, `sys`. Knows nothing about the kernel.

use std::{
    hash::RandomState,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use exporters::{Prepared, Relief};
use futures_util::future::join_all;
use hub::{DEFAULT_DRAIN_TIMEOUT, DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES, Hub};
use proto::{CollectorStatus, PairsStatus};
use server::{
    Limits, ListenAddr, Listeners, PassedSockets,
    counted::Counted,
    metrics::{MetricsListener, collector::StreamSums},
};
use sys::{clock, open_files};
use tls::{
    identity::Identity,
    in_force::followed,
    server::{InForce, ServerTls},
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
pub use incoming::MOST_BATCH_BYTES;
use messages::Messages;

use claims::Claims;
use pairs::PairFile;
pub use pairs::PairSettings;
use senders::Senders;
use serving::CollectorServer;
use store::{Form, Store, StoreStatuses};
use streams::Streams;
use writer::{Entry, Writer};

/// Batches that wait for the writer.
const QUEUE_BATCHES: usize = 1024;
/// How long calls may take at the end for what they have sent.
const LAST_CALLS: Duration = Duration::from_secs(5);

/// What agents may do.
#[derive(Debug, Clone, Copy)]
pub struct AgentLimits {
    /// Calls at the same time.
    pub most: u32,
    /// The same of one address.
    pub most_per_address: u32,
    /// Records that are taken of one sender in a second; without it as many as it sends.
    pub records_per_second: Option<u32>,
}

/// What a collector does, resolved from options and variables.
#[derive(Debug)]
pub struct Config {
    pub listen: Vec<ListenAddr>,
    /// What TCP listeners speak, if it is TLS.
    pub tls: Option<ServerTls>,
    pub limits: Limits,
    /// Those that callers over TCP need, if they need one.
    pub tokens: Option<Known>,
    pub agents: AgentLimits,
    /// What agents are asked for.
    pub asks: Relief,
    /// Where everything is stored.
    pub stores: Vec<Prepared>,
    /// Where metrics are served, if at all.
    pub metrics: Option<SocketAddr>,
    /// Whether agents are compared, and where that is reported.
    pub pairs: Option<(Prepared, PairSettings)>,
}

/// A collector whose listeners are open.
pub struct Collector {
    config: Config,
    hub: Hub,
    listeners: Listeners,
    metrics: Option<MetricsListener>,
    stores: Vec<Store>,
    pairs: Option<PairFile>,
}

impl Collector {
    pub async fn start(config: Config) -> Result<Self> {
        let stores = config.stores.iter().map(Store::of);
        let mut stores = stores.collect::<Result<Vec<_>>>()?;
        for store in &mut stores {
            store.begin().await?;
        }
        let pairs = config.pairs.as_ref();
        let pairs = pairs.map(|(output, settings)| PairFile::of(output, *settings));
        let mut pairs = pairs.transpose()?;
        if let Some(pairs) = &mut pairs {
            pairs.begin().await?;
        }
        open_files::raise_limit()?;
        let listeners = Listeners::bind(&config.listen, PassedSockets::default()).await?;
        let listeners = listeners.with_tls(config.tls.clone().map(InForce::new));
        let metrics = match config.metrics {
            Some(address) => Some(MetricsListener::bind(address).await?),
            None => None,
        };
        for store in &stores {
            tracing::info!(
                kind = store.kind(),
                address = store.address(),
                "flows are stored here"
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

    /// Collects until `stop`. Returns when what has come is stored and acknowledged.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<()> {
        let Self {
            config,
            hub,
            listeners,
            metrics,
            stores,
            pairs,
        } = self;
        let tokens = config.tokens.map(token::InForce::new);
        let max_agents = config.agents.most;
        let (queue, entries) = mpsc::channel(QUEUE_BATCHES);
        let (serving, stopping) = watch::channel(());
        let intake = Arc::new(Intake {
            hub: hub.clone(),
            streams: Streams::default(),
            claims: Claims::default(),
            forms: stores.iter().map(Store::form).collect(),
            stores: stores.iter().map(Store::status).collect(),
            pairs: pairs.as_ref().map(PairFile::status),
            queue: queue.downgrade(),
            digests: RandomState::new(),
            senders: Senders::default(),
            calls: Arc::new(Semaphore::new(max_agents as usize)),
            of_addresses: Counted::default(),
            of_credentials: Counted::default(),
            limits: config.agents,
            asks: config.asks,
            stopping,
            started_boot_ns: clock::boot_now_ns(),
        });
        let stores_followed = stores.iter().map(|store| followed(store.tls()));
        let stores_followed = join_all(stores_followed.collect::<Vec<_>>());
        let tokens_followed = followed(tokens.clone());
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
            // An error means that the sender is gone, so the collector is ending, too.
            let _ = server_end.await;
        }));
        tokio::select! {
            () = stop => {}
            // It never ends.
            _ = stores_followed => {}
            never = tokens_followed => match never {},
            ended = &mut server => return ended.context("the server task")?,
            ended = &mut writer => {
                ended.context("the writer task")?;
                bail!("the writer has ended: please report this");
            }
        }
        tracing::info!("stopping: what has come is stored and acknowledged first");
        // Calls take nothing more, and end when what they have is stored.
        drop(serving);
        let all = intake.calls.acquire_many(max_agents);
        let calls_ended = tokio::time::timeout(LAST_CALLS, all).await.is_ok();
        if !calls_ended {
            tracing::warn!(
                "calls of agents did not end in time: what is not acknowledged comes again"
            );
            leaves_out_ended.store(true, Relaxed);
        }
        // The receiver is gone if the server has ended.
        let _ = end_server.send(());
        let outcome = server.await.context("the server task")?;
        // The writer ends when nobody can put anything into its queue.
        drop(queue);
        writer.await.context("the writer task")?;
        outcome
    }
}

/// What the calls of agents share.
struct Intake {
    hub: Hub,
    streams: Streams,
    claims: Claims,
    /// Of the stores, in their order.
    forms: Vec<Form>,
    stores: Vec<StoreStatuses>,
    pairs: Option<Arc<Mutex<PairsStatus>>>,
    /// The collector itself keeps it open: connections may outlive the server.
    queue: mpsc::WeakSender<Entry>,
    /// Digests of batches.
    digests: RandomState,
    senders: Senders,
    calls: Arc<Semaphore>,
    /// Calls of each address and of each credential.
    of_addresses: Counted<Source>,
    of_credentials: Counted<Identity>,
    limits: AgentLimits,
    /// What agents are asked for.
    asks: Relief,
    /// Its sender goes when the collector stops.
    stopping: watch::Receiver<()>,
    started_boot_ns: u64,
}

impl Intake {
    /// Without consumers and listeners, of which the server knows.
    fn status(&self) -> CollectorStatus {
        CollectorStatus {
            streams: self.streams.status(),
            ..self.status_without_streams()
        }
    }

    /// What metrics say of the streams.
    fn stream_sums(&self) -> StreamSums {
        self.streams.sums()
    }

    /// The status without its streams, of which there may be thousands.
    fn status_without_streams(&self) -> CollectorStatus {
        let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname");
        CollectorStatus {
            hostname: hostname.unwrap_or_default().trim().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_unix_ns: clock::unix_of_boot_ns(self.started_boot_ns),
            uptime_ns: clock::boot_now_ns().saturating_sub(self.started_boot_ns),
            stores: self.stores.iter().map(StoreStatuses::get).collect(),
            pairs: self.pairs.as_ref().map(|pairs| {
                let pairs = pairs.lock().unwrap_or_else(PoisonError::into_inner);
                pairs.clone()
            }),
            report_interval_ns: clock::nanos(self.asks.report_interval),
            sample_rate: self.asks.sample_rate,
            ..CollectorStatus::default()
        }
    }
}
