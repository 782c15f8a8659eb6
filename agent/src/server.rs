//! The gRPC server: the hub's batches and the agent's status come in, `flow.v1.FlowAgent` goes out
//! on every listener, and `flow.v1.FlowControl` on Unix sockets.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use futures_util::{Stream, stream};
use tokio::sync::{oneshot, watch};
use tonic::{Request, Response, Status, service::Routes, transport::Server};
use tracing::warn;

use crate::{
    control::{Control, MAX_MESSAGE_BYTES},
    hub::{Hub, OutgoingBatch, Subscription},
    wire::{
        AgentStatus, GetStatusRequest, ObserveRequest, ServerStatus,
        flow_control_server::FlowControlServer,
        serving::flow_agent_server::{FlowAgent, FlowAgentServer},
    },
};

mod authority;
mod control;
mod grpc_only;
pub mod listen;
mod socket_file;

pub use listen::{ListenAddr, ListenError, Listeners, Peer};

/// How long consumers may take for what is queued when the agent stops.
pub const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A consumer whose machine is gone is found out by a ping that nobody answers.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

const CONSUMER_NAME_CHARS: usize = 64;

/// Serves until `shutdown` is ready, then closes the hub and waits for the consumers, at most
/// `drain_timeout`; what they have not taken by then is lost and logged. What is to be sent is
/// published before `shutdown`.
pub async fn run(
    listeners: Listeners,
    hub: Hub,
    status: watch::Receiver<Arc<AgentStatus>>,
    control: Control,
    drain_timeout: Duration,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    let (socket_files, connections) = listeners.into_connections();
    let service = FlowAgentServer::new(Service {
        hub: hub.clone(),
        status,
    });
    // As the fallback it gets what is under no known path as well.
    let control = FlowControlServer::new(control::Service(control))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let paths = Routes::new(grpc_only::GrpcOnly(control)).into_axum_router();
    let routes = Routes::from(paths.fallback_service(grpc_only::GrpcOnly(service)));

    let (stopping, stopped) = oneshot::channel();
    let signal = async {
        shutdown.await;
        hub.close();
        // Nobody waits where the server has ended already.
        let _ = stopping.send(());
    };
    let serve = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .accept_http1(true)
        .add_routes(routes)
        .serve_with_incoming_shutdown(connections, signal);
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

struct Service {
    hub: Hub,
    status: watch::Receiver<Arc<AgentStatus>>,
}

type BatchStream = Pin<Box<dyn Stream<Item = Result<OutgoingBatch, Status>> + Send>>;

#[tonic::async_trait]
impl FlowAgent for Service {
    type ObserveStream = BatchStream;

    async fn observe(
        &self,
        request: Request<ObserveRequest>,
    ) -> Result<Response<BatchStream>, Status> {
        let peer = request
            .extensions()
            .get::<Peer>()
            .map(ToString::to_string)
            .unwrap_or_default();
        let ObserveRequest { filter, consumer } = request.into_inner();
        if !filter.is_empty() {
            return Err(Status::invalid_argument(
                "this agent does not know filters: observe without one, and filter what comes",
            ));
        }
        let name: String = consumer.chars().take(CONSUMER_NAME_CHARS).collect();
        Ok(Response::new(batches(self.hub.subscribe(&name, &peer))))
    }

    async fn get_status(
        &self,
        _request: Request<GetStatusRequest>,
    ) -> Result<Response<AgentStatus>, Status> {
        let mut status = AgentStatus::clone(&self.status.borrow());
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        status.uptime_ns = (now.as_nanos() as u64).saturating_sub(status.started_unix_ns);
        status.consumers = self.hub.status();
        status.server = Some(ServerStatus {
            consumers_left: self.hub.left(),
            held_bytes: self.hub.held_bytes(),
        });
        Ok(Response::new(status))
    }
}

fn batches(subscription: Subscription) -> BatchStream {
    Box::pin(stream::unfold(subscription, |mut subscription| async {
        let batch = subscription.next().await?;
        Some((Ok(batch), subscription))
    }))
}
