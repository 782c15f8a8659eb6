//! The gRPC server of a collector: `flow.v1.FlowCollector` for agents, and `Observe` of `flow.v1.FlowAgent` for those who read
//! what all agents send.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::{Context as _, Result};
use futures_util::{StreamExt as _, stream};
use http_body::Frame;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot, watch};
use tonic::{
    Status,
    body::Body,
    codegen::{
        Service,
        http::{Request, Response},
    },
};

use super::{
    Limits, Listeners,
    answer::{self, Form},
    caller::{Caller, OpenRequest},
    certificates, drained_or_given_up,
    encoding::{Compressor, Encoding},
    filtered::StreamFilter,
    grpc_only::GrpcOnly,
    http2,
    limits::Doors,
    listen::Listening,
    log_undelivered, request,
    service::consumer_name,
    standard::StandardServices,
    warn_of_files,
};
use crate::{
    collector::{Intake, MOST_BATCH_BYTES, export},
    hub::Hub,
    proto::{CollectorStatus, ExportAck, GetCollectorStatusRequest, ObserveRequest, ServerStatus},
};

/// How much an agent may send before we read it.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// Acknowledgements that an agent does not read wait here, then they become one.
const UNREAD_ACKS: usize = 1;

const SERVICES: &[&str] = &[
    "flow.v1.FlowCollector",
    "flow.v1.FlowCollectorControl",
    "flow.v1.FlowAgent",
];

/// What a collector's server answers from.
pub(crate) struct CollectorServer {
    pub hub: Hub,
    pub intake: Arc<Intake>,
    pub limits: watch::Receiver<Limits>,
    /// How long consumers may take nothing of what is queued at the end.
    pub drain_timeout: Duration,
}

impl CollectorServer {
    /// Serves until `shutdown` is ready, then closes the hub and waits for the consumers, as an agent does.
    pub(crate) async fn run(
        self,
        listeners: Listeners,
        shutdown: impl Future<Output = ()>,
    ) -> Result<()> {
        let Self {
            hub,
            intake,
            limits,
            drain_timeout,
        } = self;
        let doors = Arc::new(Doors::new(limits.clone()));
        let (max_streams, files) = {
            let limits = limits.borrow();
            (limits.max_streams, limits.files(listeners.len()))
        };
        warn_of_files(files);
        let (told, tls) = (listeners.told(), listeners.tls());
        let (socket_files, connections) = listeners.into_connections(&doors);
        let (serving, not_serving) = watch::channel(());
        // It is ready as soon as it listens.
        let (_ready, ready) = watch::channel(true);
        let calls = Arc::new(Calls {
            hub: hub.clone(),
            intake,
            doors,
            listening: told,
            compressor: Arc::default(),
            standard: StandardServices::new(SERVICES, ready, not_serving).await?,
        });
        let services = CollectorServices(Arc::clone(&calls));
        let (stopping, stopped) = oneshot::channel();
        let signal = async {
            shutdown.await;
            hub.close();
            calls.standard.stop().await;
            drop(serving);
            // Nobody waits if the server has already ended.
            let _ = stopping.send(());
        };
        let serve = http2(max_streams, STREAM_WINDOW_BYTES).serve_with_incoming_shutdown(
            GrpcOnly(services),
            connections,
            signal,
        );
        let deadline = async {
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
            drained_or_given_up(&hub, drain_timeout).await;
        };
        let served = tokio::select! {
            served = serve => served.context("serve gRPC"),
            () = deadline => {
                log_undelivered(&hub);
                Ok(())
            }
            never = certificates(tls) => match never {},
        };
        drop(socket_files);
        served
    }
}

/// The services that a collector serves. Clones serve the same collector.
#[derive(Clone)]
struct CollectorServices(Arc<Calls>);

impl Service<Request<Body>> for CollectorServices {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let calls = Arc::clone(&self.0);
        Box::pin(async move {
            let answered = calls.answer(request).await;
            Ok(answered.unwrap_or_else(Status::into_http))
        })
    }
}

struct Calls {
    hub: Hub,
    intake: Arc<Intake>,
    doors: Arc<Doors>,
    listening: Vec<Listening>,
    compressor: Arc<Compressor>,
    standard: StandardServices,
}

impl Calls {
    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Status::internal("nobody knows who is asking"))?;
        let open = caller.open(&self.doors)?;
        match request.uri().path() {
            "/flow.v1.FlowCollector/Export" => self.export(request, &caller, open),
            "/flow.v1.FlowCollectorControl/GetCollectorStatus" => {
                self.get_status(request, &caller, open).await
            }
            "/flow.v1.FlowAgent/Observe" => self.observe(request, &caller, open).await,
            path => {
                let Some(call) = self.standard.find(path) else {
                    return Err(unknown(path));
                };
                let place = if call.is_stream {
                    self.doors.consumer(&caller.peer)?
                } else {
                    self.doors.answer(&caller.peer).await?
                };
                Ok(self.standard.answer(call, request, (open, place)).await)
            }
        }
    }

    fn export(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        let (head, body) = request.into_parts();
        let messages = request::messages(&head.headers, body, MOST_BATCH_BYTES)?;
        let call = self.intake.call(caller.peer.to_string())?;
        let (acks, told) = mpsc::channel(UNREAD_ACKS);
        let (ended, end) = oneshot::channel();
        tokio::spawn(async move {
            let outcome = call.run(messages, &acks).await;
            // The connection may be gone.
            let _ = ended.send(outcome);
        });
        Ok(acknowledgements(told, end, open))
    }

    async fn get_status(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        let (head, body) = request.into_parts();
        let _: GetCollectorStatusRequest = request::message(&head.headers, body).await?;
        let place = self.doors.answer(&caller.peer).await?;
        let fate = self.hub.fate();
        let status = CollectorStatus {
            consumers: self.hub.status(),
            server: Some(ServerStatus {
                consumers_left: self.hub.left(),
                held_bytes: self.hub.held_bytes(),
                delivered_batches: fate.delivered.batches,
                delivered_records: fate.delivered.records,
                lost_batches: fate.lost.batches,
                lost_records: fate.lost.records,
                listeners: self.listening.iter().map(Listening::status).collect(),
                ..self.doors.status()
            }),
            ..self.intake.status()
        };
        let status = status.encode_to_vec();
        Ok(answer::one(vec![status.into()], (open, place)))
    }

    async fn observe(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        let (head, body) = request.into_parts();
        let request: ObserveRequest = request::message(&head.headers, body).await?;
        if request.snapshot {
            return Err(Status::failed_precondition(
                "a collector keeps no flows, so there is no snapshot of them: observe without one \
                 (flow-agent watch --output json)",
            ));
        }
        let form = Form {
            filter: StreamFilter::read(&request.filter)?,
            encoding: Encoding::asked(&head.headers, caller.peer.is_on_a_unix_socket()),
            compressor: Arc::clone(&self.compressor),
        };
        let place = self.doors.consumer(&caller.peer)?;
        let subscription = self
            .hub
            .subscribe(&consumer_name(&request), &caller.peer.to_string());
        Ok(answer::batches(subscription, form, (open, place)))
    }
}

fn unknown(path: &str) -> Status {
    let agents = path.starts_with("/flow.v1.");
    let hint = if agents { ", which an agent may" } else { "" };
    Status::unimplemented(format!("this collector does not know {path}{hint}"))
}

/// What an agent reads: acknowledgements, and in the end how the call went.
fn acknowledgements(
    acks: mpsc::Receiver<ExportAck>,
    end: oneshot::Receiver<Result<(), Status>>,
    open: OpenRequest,
) -> Response<Body> {
    let state = Some((acks, end, open));
    let frames = stream::unfold(state, |state| async {
        let (mut acks, end, open) = state?;
        if let Some(ack) = acks.recv().await {
            return Some((Frame::data(export::framed(ack)), Some((acks, end, open))));
        }
        let outcome = end.await;
        let outcome = outcome.unwrap_or_else(|_| Err(Status::internal("the call broke off")));
        Some((Frame::trailers(answer::trailers(outcome)), None))
    });
    answer::framed(frames.boxed())
}
