//! The common part of the agent's and the collector's servers: identifies the caller before reading the request's body,
//! and answers gRPC's own services.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::{Context as _, Result};
use hub::Hub;
use prost::Message;
use tls::{
    identity::Grant,
    reload::watch_files,
    token::{self, known::Shown},
};
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};
use tonic::{
    Status,
    body::Body,
    codegen::{
        Service,
        http::{HeaderMap, Request, Response},
    },
    transport,
};

use super::{
    Listeners,
    authentication::require_reader,
    caller::{Caller, OpenRequest, UNREAD_TIMEOUT, Unread},
    drained_or_given_up,
    grpc_only::GrpcOnly,
    limits::{AdmissionControl, Share, SharePlace},
    log_undelivered, request,
    standard::StandardServices,
    withdrawn,
};

/// An unanswered ping shows that the peer's machine is gone.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

const MAX_HEADER_BYTES: u32 = 8 << 10;

/// Streams accepted by HTTP/2 beyond the setting, so that an excess request gets an answer instead of waiting in the
/// client.
pub const STREAMS_TO_REFUSE: u32 = 8;

/// The calls that a process answers.
pub trait Calls: Send + Sync + 'static {
    fn admission(&self) -> &Arc<AdmissionControl>;

    fn standard(&self) -> &StandardServices;

    /// Decides whether the caller may make any call, including gRPC's own services, and what it may do.
    fn authenticate(
        &self,
        _headers: &HeaderMap,
        _caller: &Caller,
    ) -> Result<Option<Admitted>, Status> {
        Ok(None)
    }

    /// Answers a call that is not one of gRPC's own. The [`Grant`] of an admitted caller is in the request's
    /// extensions.
    fn answer(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> impl Future<Output = Result<Response<Body>, Status>> + Send;
}

/// A caller that a server has identified.
pub struct Admitted {
    pub grant: Grant,
    /// The source of the grant, if it can be withdrawn.
    pub tokens: Option<(token::ReloadableTokens, Shown)>,
}

/// The token of a call, for work that goes on while nobody reads the answer.
#[derive(Clone)]
pub struct Credential(token::ReloadableTokens, Shown);

impl Credential {
    /// Returns once the token is withdrawn.
    pub async fn withdrawn(self) {
        self.0.withdrawn(self.1).await;
    }
}

impl Admitted {
    pub fn for_good(grant: Grant) -> Self {
        Self {
            grant,
            tokens: None,
        }
    }
}

/// Answers requests. Clones serve the same process.
struct Services<C>(Arc<C>);

impl<C> Clone for Services<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C: Calls> Service<Request<Body>> for Services<C> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let calls = Arc::clone(&self.0);
        Box::pin(async move {
            let answered = answer(&*calls, request).await;
            Ok(answered.unwrap_or_else(Status::into_http))
        })
    }
}

async fn answer(calls: &impl Calls, mut request: Request<Body>) -> Result<Response<Body>, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    let caller = caller.ok_or_else(|| Status::internal("the caller is unknown"))?;
    // An error here opens no request, so a connection whose calls are all refused loses its place like one without
    // calls.
    let admitted = calls.authenticate(request.headers(), &caller)?;
    let tokens = admitted.and_then(|admitted| {
        request.extensions_mut().insert(admitted.grant);
        if let Some((tokens, shown)) = &admitted.tokens {
            let credential = Credential(tokens.clone(), shown.clone());
            request.extensions_mut().insert(credential);
        }
        admitted.tokens
    });
    let answered = answer_admitted(calls, request, &caller).await?;
    Ok(match tokens {
        Some((tokens, shown)) => withdrawn::ended_with(answered, tokens, shown),
        None => answered,
    })
}

async fn answer_admitted(
    calls: &impl Calls,
    request: Request<Body>,
    caller: &Caller,
) -> Result<Response<Body>, Status> {
    let admission = calls.admission();
    let grant = request.extensions().get::<Grant>();
    if let Some(grant) = grant {
        caller.belongs_to(grant, admission).await?;
    }
    let open = caller.open(admission)?;
    let Some(call) = calls.standard().find(request.uri().path()) else {
        return calls.answer(request, caller, open).await;
    };
    let (place, unread, share) = if call.is_stream {
        // Such a stream takes a consumer's place, and these are few.
        if let Some(grant) = grant {
            require_reader(grant, caller, admission)?;
        }
        let share = admission.share(Share::Streams, grant, &caller.peer).await?;
        (Some(admission.consumer(&caller.peer)?), None, share)
    } else {
        let share = admission.share(Share::HealthAnswers, grant, &caller.peer);
        let share = share.await?;
        // The answer has only a few bytes, and the share bounds how many each credential has.
        let unread = if share.is_some() {
            caller.unread(None, Instant::now() + UNREAD_TIMEOUT)
        } else {
            caller.answer(admission).await?
        };
        (None, Some(unread), share)
    };
    let kept = (open, place, unread, share);
    Ok(calls.standard().answer(call, request, kept).await)
}

/// Reads a single-message request, and takes a place for the answer. Until the message has arrived, only the
/// credential's own share is used.
pub async fn place_for<M: Message + Default>(
    request: Request<Body>,
    caller: &Caller,
    admission: &AdmissionControl,
) -> Result<(Unread, Option<SharePlace>), Status> {
    let (head, body) = request.into_parts();
    let grant = head.extensions.get::<Grant>();
    let share = admission.share(Share::Answers, grant, &caller.peer).await?;
    let _: M = request::message(&head.headers, body).await?;
    Ok((caller.answer(admission).await?, share))
}

/// The parts and settings of a server.
pub struct Serving<C> {
    pub calls: Arc<C>,
    pub hub: Hub,
    pub max_streams: u32,
    /// The most that a peer may send on a stream, and on a connection, before we read it. HTTP/2 buffers it in memory.
    pub stream_window_bytes: u32,
    pub connection_window_bytes: u32,
    pub drain_timeout: Duration,
    /// Dropping this ends the streams of gRPC's own services.
    pub streams: watch::Sender<()>,
}

impl<C: Calls> Serving<C> {
    /// Serves until `shutdown` resolves, then closes the hub and waits for the consumers: up to `drain_timeout` without
    /// progress, and up to four times that in total. Anything still queued is dropped and logged.
    pub async fn run(self, listeners: Listeners, shutdown: impl Future<Output = ()>) -> Result<()> {
        let Self {
            calls,
            hub,
            max_streams,
            stream_window_bytes,
            connection_window_bytes,
            drain_timeout,
            streams,
        } = self;
        let tls = listeners.tls();
        let (socket_files, connections) = listeners.into_connections(calls.admission());
        let (stopping, stopped) = oneshot::channel();
        let signal = async {
            shutdown.await;
            hub.close();
            calls.standard().stop().await;
            drop(streams);
            // The receiver is gone if the server has already ended.
            let _ = stopping.send(());
        };
        let serve = transport::Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .max_concurrent_streams(max_streams.saturating_add(STREAMS_TO_REFUSE))
            .initial_stream_window_size(stream_window_bytes)
            .initial_connection_window_size(connection_window_bytes)
            .http2_max_header_list_size(MAX_HEADER_BYTES)
            .accept_http1(true)
            .serve_with_incoming_shutdown(
                GrpcOnly(Services(Arc::clone(&calls))),
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
            never = watch_files(tls) => match never {},
        };
        drop(socket_files);
        served
    }
}
