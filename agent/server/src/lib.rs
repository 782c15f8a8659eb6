//! The gRPC server of an agent, and the parts of which a collector builds its own.
//!
//! It serves `flow.v1.FlowAgent` (batches and status) on every listener, and `flow.v1.FlowControl` (filter rules) on Unix sockets, with
//! reflection and health for gRPC's own tools. A connection comes through [`listen`]; [`calls`] knows who asks, and hands the
//! request to the [`service`] of the agent. [`limits`] and [`authentication`] decide who gets in. [`scanner_requests`] and
//! [`active_rules`] are what the server needs from the agent. [`metrics`] serves Prometheus.
//!
//! May depend on: `hub`, `tls`, `rules`, `formats`, `exporters`, `proto`, `sys`. Knows nothing about how a collector stores.

use std::{convert::Infallible, future::Future, sync::Arc, time::Duration};

use anyhow::Result;
use exporters::Outputs;
use hub::Hub;
use proto::{AgentStatus, SettingsInForce};
use sys::open_files;
use tokio::{sync::watch, time::Instant};
use tracing::warn;

use crate::{
    active_rules::Rules,
    metrics::{Health, MetricsListener, TimePrograms},
    scanner_requests::ScannerClient,
};

pub mod active_rules;
pub mod address;
pub mod answer;
pub mod authentication;
mod authority;
pub mod caller;
pub mod calls;
mod connection;
pub mod counted;
pub mod encoding;
mod farewell;
mod filter_rules;
mod filtered;
mod grpc_only;
mod guarded;
mod handshake;
mod idle;
pub mod limits;
mod list;
pub mod listen;
pub mod live_status;
mod local_user;
pub mod metrics;
mod passed;
pub mod peer;
pub mod request;
pub mod scanner_requests;
pub mod service;
pub mod silent;
mod socket_file;
pub mod standard;
pub mod withdrawn;

pub use address::{ListenAddr, ListenError};
pub use limits::{DEFAULT_MAX_CONNECTIONS, DEFAULT_MAX_CONSUMERS, DEFAULT_MAX_STREAMS, Limits};
pub use listen::Listeners;
pub use passed::{PassedSockets, Stored};
pub use peer::Peer;

use calls::Serving;
use filter_rules::FilterRules;
use limits::AdmissionControl;
use live_status::LiveStatus;
use service::AgentCalls;
use standard::StandardServices;

/// The total wait for consumers that make progress, as a multiple of the drain timeout. systemd waits longer.
pub const MAX_DRAIN_TIMEOUTS: u32 = 4;

/// How much a peer may send on a stream before we read it. HTTP/2 buffers it in memory.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// The services of flow.proto that an agent serves.
const SERVICES: &[&str] = &["flow.v1.FlowAgent", "flow.v1.FlowControl"];

/// The state that the server answers from.
pub struct Server {
    pub hub: Hub,
    pub outputs: Outputs,
    pub scanner: ScannerClient,
    pub status: watch::Receiver<Arc<AgentStatus>>,
    pub rules: Arc<dyn Rules>,
    pub settings: watch::Receiver<SettingsInForce>,
    /// The limits of consumers and connections may change while it serves; the stream limit is fixed at the start.
    pub limits: watch::Receiver<Limits>,
    /// How long consumers may go without progress at the end.
    pub drain_timeout: Duration,
    pub metrics: Option<(MetricsListener, TimePrograms)>,
    /// Whether everything selected at the start is counted.
    pub counting: watch::Receiver<bool>,
}

impl Server {
    /// Serves until `shutdown` resolves, then closes the hub and waits for the consumers: up to `drain_timeout` without
    /// progress, and up to [`MAX_DRAIN_TIMEOUTS`] times that in total. Anything still queued is dropped and logged.
    /// Publish the last batches before `shutdown` resolves.
    pub async fn run(self, listeners: Listeners, shutdown: impl Future<Output = ()>) -> Result<()> {
        let Self {
            hub,
            outputs,
            scanner,
            status,
            rules,
            settings,
            mut limits,
            drain_timeout,
            metrics,
            counting,
        } = self;
        let admission = Arc::new(AdmissionControl::new(limits.clone()));
        let max_streams = limits.borrow_and_update().max_streams;
        let count = listeners.len();
        warn_of_files(limits.borrow().files(count));
        let listening = listeners.listening();
        let (serving, not_serving) = watch::channel(());
        let live = Arc::new(LiveStatus::new(
            hub.clone(),
            outputs,
            status.clone(),
            Arc::clone(&admission),
            scanner.bytes.clone(),
            listening,
        ));
        let shown = Arc::clone(&live);
        let health = Health::new(counting.clone(), not_serving.clone(), Instant::now());
        let calls = Arc::new(AgentCalls {
            hub: hub.clone(),
            scanner,
            status: live,
            rules: FilterRules::new(rules),
            settings,
            admission,
            compressor: Arc::default(),
            standard: StandardServices::new(SERVICES, counting.clone(), not_serving.clone())
                .await?,
        });
        let server = Serving {
            calls,
            hub,
            max_streams,
            stream_window_bytes: STREAM_WINDOW_BYTES,
            connection_window_bytes: 2 * STREAM_WINDOW_BYTES,
            drain_timeout,
            streams: serving,
        };
        let other_limits = async {
            while limits.changed().await.is_ok() {
                let files = limits.borrow_and_update().files(count);
                warn_of_files(files);
            }
            std::future::pending::<Infallible>().await
        };

        let metrics = async {
            match metrics {
                Some(listener) => {
                    metrics::serve(listener, move || shown.now(), health, status).await
                }
                None => std::future::pending().await,
            }
        };

        tokio::select! {
            outcome = server.run(listeners, shutdown) => outcome,
            never = other_limits => match never {},
            never = metrics => match never {},
        }
    }
}

/// Returns once consumers have made no progress for `drain_timeout`, or have taken too long in total.
async fn drained_or_given_up(hub: &Hub, drain_timeout: Duration) {
    for _ in 0..MAX_DRAIN_TIMEOUTS {
        let before = (undelivered_batches(hub), hub.held_bytes());
        tokio::time::sleep(drain_timeout).await;
        if undelivered_batches(hub) >= before.0 && hub.held_bytes() >= before.1 {
            return;
        }
    }
}

fn undelivered_batches(hub: &Hub) -> u64 {
    let left = hub.undelivered();
    left.iter().map(|left| left.volume.batches).sum()
}

/// Warns if the process may run out of file descriptors: without one, a connection cannot even be refused properly.
pub fn warn_of_files(connections: usize) {
    let limit = open_files::limit();
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    if may_run_out(open, connections, limit) {
        warn!(
            open,
            connections,
            limit,
            "the listeners may run out of file descriptors: lower --max-connections, or raise the limit \
             (ulimit -n, LimitNOFILE=)"
        );
    }
}

fn may_run_out(open: usize, connections: usize, limit: u64) -> bool {
    (open + connections) as u64 > limit
}

fn log_undelivered(hub: &Hub) {
    for left in hub.undelivered() {
        warn!(
            name = left.name,
            peer = left.peer,
            lost_batches = left.volume.batches,
            lost_records = left.volume.records,
            "a consumer did not take its queued batches before the agent stopped"
        );
    }
}

#[cfg(test)]
mod tests {
    use hub::DEFAULT_QUEUED_BYTES;
    use lab::log::logged;
    use proto::batch::Batch;

    use super::*;

    #[test]
    fn a_limit_of_files_that_the_listeners_can_exceed_is_told_at_the_start() {
        assert!(!may_run_out(2, 3, 5));
        assert!(may_run_out(2, 4, 5));
        let log = logged(|| warn_of_files(u32::MAX as usize));
        assert!(log.contains("--max-connections"), "{log}");
    }

    #[test]
    fn what_nobody_took_before_the_end_is_told() {
        let hub = Hub::new(1, DEFAULT_QUEUED_BYTES);
        let _slow = hub.subscribe("slow", "a peer");
        hub.publish(&Batch {
            body: vec![1].into(),
            records: 7,
            delta: agent_common::Pair::default(),
            scan_id: 1,
            index: 0,
            last_of_scan: true,
        });
        hub.close();
        let log = logged(|| log_undelivered(&hub));
        let fields = r#"name="slow" peer="a peer" lost_batches=1 lost_records=7"#;
        assert!(log.contains(fields), "{log}");
    }
}
