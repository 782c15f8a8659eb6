//! The gRPC server: the hub's batches and the agent's status come in, `flow.v1.FlowAgent` goes out
//! on every listener, and `flow.v1.FlowControl` on Unix sockets.

use std::{future::Future, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use tokio::sync::{oneshot, watch};
use tonic::transport;
use tracing::warn;

use crate::{hub::Hub, limits::open_files, proto::AgentStatus, rules::RunningRules};

mod answer;
mod authority;
mod caller;
mod farewell;
mod filter_rules;
mod grpc_only;
mod guarded;
mod limits;
pub mod listen;
mod request;
mod service;
mod socket_file;

pub use limits::{DEFAULT_MAX_CONNECTIONS, DEFAULT_MAX_CONSUMERS, DEFAULT_MAX_STREAMS, Limits};
pub use listen::{ListenAddr, ListenError, Listeners};

use filter_rules::FilterRules;
use grpc_only::GrpcOnly;
use limits::Doors;
use service::{Calls, FlowServices};

/// How long consumers may take for what is queued when the agent stops.
pub const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A consumer whose machine is gone is found out by a ping that nobody answers.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// What a peer may send ahead of us, which HTTP/2 keeps in memory.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 128 << 10;
const MAX_HEADER_BYTES: u32 = 8 << 10;

/// Streams beyond the setting that HTTP/2 lets in, so that a request that is too many gets an answer
/// instead of waiting in the client.
const STREAMS_TO_REFUSE: u32 = 8;

/// What the server answers from.
pub struct Server {
    pub hub: Hub,
    pub status: watch::Receiver<Arc<AgentStatus>>,
    pub rules: RunningRules,
    pub limits: Limits,
    /// How long consumers may take for what is queued at the end.
    pub drain_timeout: Duration,
}

impl Server {
    /// Serves until `shutdown` is ready, then closes the hub and waits for the consumers; what they have not
    /// taken when the time is over is lost and logged. What is to be sent is published before `shutdown`.
    pub async fn run(self, listeners: Listeners, shutdown: impl Future<Output = ()>) -> Result<()> {
        let Self {
            hub,
            status,
            rules,
            limits,
            drain_timeout,
        } = self;
        let doors = Arc::new(Doors::new(limits));
        warn_of_files(limits.files(listeners.len()));
        let (socket_files, connections) = listeners.into_connections(&doors);
        let services = FlowServices(Arc::new(Calls {
            hub: hub.clone(),
            status,
            rules: FilterRules::new(rules),
            doors,
        }));

        let (stopping, stopped) = oneshot::channel();
        let signal = async {
            shutdown.await;
            hub.close();
            // Nobody waits where the server has ended already.
            let _ = stopping.send(());
        };
        let serve = transport::Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .max_concurrent_streams(limits.max_streams.saturating_add(STREAMS_TO_REFUSE))
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_max_header_list_size(MAX_HEADER_BYTES)
            .accept_http1(true)
            .serve_with_incoming_shutdown(GrpcOnly(services), connections, signal);
        let deadline = async {
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(drain_timeout).await;
        };

        let served = tokio::select! {
            served = serve => served.context("serve gRPC"),
            () = deadline => {
                log_undelivered(&hub);
                Ok(())
            }
        };
        drop(socket_files);
        served
    }
}

/// Connections that have no file cannot be refused in good order either.
fn warn_of_files(connections: usize) {
    let limit = open_files();
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    if (open + connections) as u64 > limit {
        warn!(
            open,
            connections,
            limit,
            "the listeners may run out of files: lower --max-connections, or raise the limit \
             (ulimit -n, LimitNOFILE=)"
        );
    }
}

fn log_undelivered(hub: &Hub) {
    for left in hub.undelivered() {
        warn!(
            name = left.name,
            peer = left.peer,
            lost_batches = left.volume.batches,
            lost_records = left.volume.records,
            "a consumer did not take what was queued before the agent stopped"
        );
    }
}
