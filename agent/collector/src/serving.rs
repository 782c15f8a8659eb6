//! The gRPC server of a collector: `flow.v1.FlowCollector` for agents, and `Observe` of `flow.v1.FlowAgent` for
//! observers of all agents' flows.

use std::{future::Future, sync::Arc, time::Duration};

use anyhow::Result;
use futures_util::{StreamExt as _, stream};
use http_body::Frame;
use hub::Hub;
use prost::Message as _;
use proto::{CollectorStatus, ExportAck, GetCollectorStatusRequest, ObserveRequest};
use server::{
    Limits, Listeners,
    answer::{self, Form},
    authentication::{Authentication, require_role},
    caller::{Caller, OpenRequest, Unread},
    calls::{Admitted, Calls, Credential, STREAMS_TO_REFUSE, Serving, place_for},
    encoding::Compressor,
    limits::{AdmissionControl, Refusal, Share},
    listen::Listening,
    live_status::server_status,
    metrics::{
        MetricsListener,
        collector::{CollectorSite, StreamSums},
    },
    request,
    service::consumer_name,
    standard::StandardServices,
    warn_of_files, withdrawn,
};
use tls::{
    identity::{Grant, Role},
    token::ReloadableTokens,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tonic::{
    Code, Status,
    body::Body,
    codegen::http::{HeaderMap, Request, Response},
};

use super::{CallPlaces, Intake, Messages};

/// How much an agent may send on a call before we read it: 1.3 MB a second over a path of 50 ms. While the call waits
/// for its share, HTTP/2 holds this in memory, and for frames of few bytes up to half of the connection's window on
/// top.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// How long the end of a call waits to be read.
const UNREAD_END: Duration = Duration::from_secs(30);
/// RFC 9113, 6.9.1.
const MOST_WINDOW_BYTES: u32 = (1 << 31) - 1;
/// Acknowledgements that wait for the agent to read them. Later ones are merged into one.
const UNREAD_ACKS: usize = 1;

const SERVICES: &[&str] = &[
    "flow.v1.FlowCollector",
    "flow.v1.FlowCollectorControl",
    "flow.v1.FlowAgent",
];

/// The parts from which a collector's server answers.
pub(super) struct CollectorServer {
    pub hub: Hub,
    pub intake: Arc<Intake>,
    pub limits: watch::Receiver<Limits>,
    /// At shutdown, how long a consumer may go without taking any of its queued batches.
    pub drain_timeout: Duration,
    /// Where metrics are served. `None` serves none.
    pub metrics: Option<MetricsListener>,
    /// Tokens for TCP callers, who must show one of them. `None` if they need none.
    pub tokens: Option<ReloadableTokens>,
}

impl CollectorServer {
    /// Serves until `shutdown` is ready, then closes the hub and waits for the consumers, as an agent does.
    pub(super) async fn run(
        self,
        listeners: Listeners,
        shutdown: impl Future<Output = ()>,
    ) -> Result<()> {
        let Self {
            hub,
            intake,
            limits,
            drain_timeout,
            metrics,
            tokens,
        } = self;
        let admission = Arc::new(AdmissionControl::new(limits.clone()));
        let (max_streams, files) = {
            let limits = limits.borrow();
            (limits.max_streams, limits.files(listeners.len()))
        };
        warn_of_files(files);
        let (serving, not_serving) = watch::channel(());
        // The collector is ready as soon as it listens.
        let (_ready, ready) = watch::channel(true);
        let calls = Arc::new(CollectorCalls {
            hub: hub.clone(),
            intake,
            admission,
            listening: listeners.listening(),
            compressor: Arc::default(),
            authentication: Authentication {
                tokens,
                asks_for_certificates: listeners.asks_for_certificates(),
            },
            standard: StandardServices::new(SERVICES, ready, not_serving).await?,
        });
        let metrics = metrics.map(|listener| {
            let calls = Arc::clone(&calls);
            listener.serve(CollectorSite {
                status: move || calls.sums(),
            })
        });
        let metrics = async {
            match metrics {
                Some(serves) => serves.await,
                None => std::future::pending().await,
            }
        };
        let server = Serving {
            calls,
            hub,
            max_streams,
            stream_window_bytes: STREAM_WINDOW_BYTES,
            // The other calls of a connection are read while one call waits: they may hold the share it waits for.
            connection_window_bytes: max_streams
                .saturating_add(STREAMS_TO_REFUSE)
                .saturating_mul(STREAM_WINDOW_BYTES)
                .min(MOST_WINDOW_BYTES),
            drain_timeout,
            streams: serving,
        };
        tokio::select! {
            outcome = server.run(listeners, shutdown) => outcome,
            never = metrics => match never {},
        }
    }
}

struct CollectorCalls {
    hub: Hub,
    intake: Arc<Intake>,
    admission: Arc<AdmissionControl>,
    listening: Vec<Listening>,
    compressor: Arc<Compressor>,
    standard: StandardServices,
    authentication: Authentication,
}

impl Calls for CollectorCalls {
    fn admission(&self) -> &Arc<AdmissionControl> {
        &self.admission
    }

    fn standard(&self) -> &StandardServices {
        &self.standard
    }

    fn authenticate(
        &self,
        headers: &HeaderMap,
        caller: &Caller,
    ) -> Result<Option<Admitted>, Status> {
        self.authentication
            .authenticate(headers, caller, &self.admission)
            .map(Some)
    }

    async fn answer(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        let grant = request.extensions().get::<Grant>().cloned();
        let grant = grant.ok_or_else(|| Status::internal("nobody was admitted"))?;
        let require = |role| require_role(&grant, role, caller, &self.admission);
        match request.uri().path() {
            "/flow.v1.FlowCollector/Export" => {
                // A relay need not have the role to send: it brings batches of others and none of its own.
                if !grant.roles.has(Role::Relay) {
                    require(Role::Send)?;
                }
                self.export(request, caller, grant, open)
            }
            "/flow.v1.FlowCollectorControl/GetCollectorStatus" => {
                require(Role::Status)?;
                self.get_status(request, caller, open).await
            }
            "/flow.v1.FlowAgent/Observe" => {
                require(Role::Observe)?;
                self.observe(request, caller, open).await
            }
            path => Err(unknown(path)),
        }
    }
}

impl CollectorCalls {
    fn export(
        &self,
        request: Request<Body>,
        caller: &Caller,
        grant: Grant,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        let (head, body) = request.into_parts();
        let messages = Messages::new(body, request::may_be_gzip(&head.headers)?);
        let (call, places) = self
            .intake
            .call(&caller.peer, grant)
            .inspect_err(|refused| {
                if refused.code() == Code::ResourceExhausted {
                    let why = refused.message();
                    self.admission
                        .refuse_because(Refusal::Agent, &caller.peer, &why);
                }
            })?;
        let (acks, told) = mpsc::channel(UNREAD_ACKS);
        let (ended, end) = oneshot::channel();
        let (admission, caller) = (Arc::clone(&self.admission), caller.clone());
        let credential = head.extensions.get::<Credential>().cloned();
        tokio::spawn(async move {
            // Withdrawing the credential also ends the answer, but only where the answer is read.
            let withdrawn = async {
                match credential {
                    Some(credential) => credential.withdrawn().await,
                    None => std::future::pending().await,
                }
            };
            let outcome = tokio::select! {
                outcome = call.run(messages, &acks) => outcome,
                () = withdrawn => Err(withdrawn::status()),
            };
            if let Err(status) = &outcome
                && status.code() == Code::PermissionDenied
            {
                admission.refuse_because(Refusal::Identity, &caller.peer, &status.message());
            }
            let unread = caller.unread(None, Instant::now() + UNREAD_END);
            // The connection may be gone.
            let _ = ended.send((outcome, unread));
        });
        Ok(acknowledgements(told, end, (open, places)))
    }

    fn status(&self) -> CollectorStatus {
        self.with_server(self.intake.status())
    }

    /// The status for metrics, which show the streams only as sums.
    fn sums(&self) -> (CollectorStatus, StreamSums) {
        let status = self.with_server(self.intake.status_without_streams());
        (status, self.intake.stream_sums())
    }

    fn with_server(&self, status: CollectorStatus) -> CollectorStatus {
        CollectorStatus {
            consumers: self.hub.status(),
            server: Some(server_status(&self.hub, &self.admission, &self.listening)),
            tokens_reload_error: self
                .authentication
                .tokens
                .as_ref()
                .and_then(ReloadableTokens::fault)
                .unwrap_or_default(),
            ..status
        }
    }

    async fn get_status(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        let place =
            place_for::<GetCollectorStatusRequest>(request, caller, &self.admission).await?;
        let status = self.status().encode_to_vec();
        Ok(answer::one(vec![status.into()], (open, place)))
    }

    async fn observe(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        let (head, body) = request.into_parts();
        let grant = head.extensions.get::<Grant>();
        let admission = &self.admission;
        let share = admission.share(Share::Streams, grant, &caller.peer).await?;
        let request: ObserveRequest = request::message(&head.headers, body).await?;
        if request.snapshot {
            return Err(Status::failed_precondition(
                "a collector keeps no flows to take a snapshot of: observe without one \
                 (flow-agent watch --output json)",
            ));
        }
        let place = self.admission.consumer(&caller.peer)?;
        let (peer, shared) = (&caller.peer, (&self.hub, &*self.admission));
        let form = Form::asked(&request, &head.headers, peer, shared, &self.compressor)?;
        let subscription = self
            .hub
            .subscribe(&consumer_name(&request), &caller.peer.to_string());
        Ok(answer::batches(subscription, form, (open, place, share)))
    }
}

fn unknown(path: &str) -> Status {
    let agents = path.starts_with("/flow.v1.");
    let hint = if agents { ", which an agent may" } else { "" };
    Status::unimplemented(format!("this collector does not know {path}{hint}"))
}

/// The agent's side of a call: acknowledgements, and at the end the status of the call.
fn acknowledgements(
    acks: mpsc::Receiver<ExportAck>,
    end: oneshot::Receiver<(Result<(), Status>, Unread)>,
    kept: (OpenRequest, CallPlaces),
) -> Response<Body> {
    let state = Some((acks, end, kept));
    let frames = stream::unfold(state, |state| async {
        let (mut acks, end, kept) = state?;
        if let Some(ack) = acks.recv().await {
            return Some((
                Frame::data(answer::whole(&ack.encode_to_vec())),
                Some((acks, end, kept)),
            ));
        }
        let outcome = match end.await {
            Ok((outcome, _unread)) => outcome,
            Err(_) => Err(Status::internal("the call broke off")),
        };
        Some((Frame::trailers(answer::trailers(outcome)), None))
    });
    answer::framed(frames.boxed())
}
