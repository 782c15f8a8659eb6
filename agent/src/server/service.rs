//! Answers the calls. It checks who asks before it reads a byte of a request's body.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use prost::Message;
use tokio::{sync::watch, task::spawn_blocking};
use tonic::{
    Status,
    body::Body,
    codegen::{
        Service,
        http::{Request, Response},
    },
};

use super::{
    answer::{self, Form},
    caller::{Caller, OpenRequest},
    encoding::{Compressor, Encoding},
    filter_rules::{FilterRules, may_change_rules, may_see_rules},
    filtered::StreamFilter,
    limits::{Doors, Place},
    list::Choice,
    live_status::LiveStatus,
    request,
    standard::StandardServices,
};
use crate::{
    asks::{AskError, Asks},
    hub::Hub,
    proto::{
        FlowOrder, GetFiltersRequest, GetSettingsRequest, GetStatusRequest, ListFlowsRequest,
        ObserveRequest, ScanNowRequest, ScanNowResponse, SettingsInForce,
    },
};

const CONSUMER_NAME_CHARS: usize = 64;

/// Whoever asks for all flows keeps them in the agent's memory until they are read.
const SNAPSHOT_PATIENCE: Duration = Duration::from_mins(1);

/// What it calls itself, and not for ever.
pub(super) fn consumer_name(request: &ObserveRequest) -> String {
    request.consumer.chars().take(CONSUMER_NAME_CHARS).collect()
}

fn refused(error: AskError) -> Status {
    match error {
        AskError::Stopping(_) => Status::unavailable(error.to_string()),
        AskError::TooLarge => Status::resource_exhausted(error.to_string()),
    }
}

/// The services of flow.proto that the agent serves, and gRPC's own. Clones serve the same agent.
#[derive(Clone)]
pub(super) struct FlowServices(pub(super) Arc<Calls>);

impl Service<Request<Body>> for FlowServices {
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

pub(super) struct Calls {
    pub(super) hub: Hub,
    pub(super) asks: Asks,
    pub(super) status: Arc<LiveStatus>,
    pub(super) rules: FilterRules,
    pub(super) settings: watch::Receiver<SettingsInForce>,
    pub(super) doors: Arc<Doors>,
    pub(super) compressor: Arc<Compressor>,
    pub(super) standard: StandardServices,
}

impl Calls {
    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Status::internal("nobody knows who is asking"))?;
        let open = caller.open(&self.doors)?;
        match request.uri().path() {
            "/flow.v1.FlowAgent/Observe" => self.observe(request, &caller, open).await,
            "/flow.v1.FlowAgent/ListFlows" => self.list_flows(request, &caller, open).await,
            "/flow.v1.FlowControl/ScanNow" => self.scan_now(request, &caller, open).await,
            "/flow.v1.FlowAgent/GetStatus" => self.get_status(request, &caller, open).await,
            "/flow.v1.FlowControl/GetFilters" => self.get_filters(request, &caller, open).await,
            "/flow.v1.FlowControl/GetSettings" => self.get_settings(request, &caller, open).await,
            "/flow.v1.FlowControl/SetFilters" => self.set_filters(request, &caller, open).await,
            path => {
                let Some(call) = self.standard.find(path) else {
                    let error = format!("this agent does not know {path}");
                    return Err(Status::unimplemented(error));
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

    async fn observe(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        let (head, body) = request.into_parts();
        let request: ObserveRequest = request::message(&head.headers, body).await?;
        let form = Form {
            filter: StreamFilter::read(&request.filter)?,
            encoding: Encoding::asked(&head.headers, caller.peer.is_on_a_unix_socket()),
            compressor: Arc::clone(&self.compressor),
        };
        let place = self.doors.consumer(&caller.peer)?;
        let name = consumer_name(&request);
        let peer = caller.peer.to_string();
        let subscription = if request.snapshot {
            let observed = self.asks.observe(&name, &peer).await;
            let (snapshot, mut subscription) = observed.map_err(refused)?;
            subscription.begin_with(snapshot.batches, SNAPSHOT_PATIENCE);
            subscription
        } else {
            self.hub.subscribe(&name, &peer)
        };
        Ok(answer::batches(subscription, form, (open, place)))
    }

    async fn list_flows(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        let (head, body) = request.into_parts();
        let request: ListFlowsRequest = request::message(&head.headers, body).await?;
        let order = FlowOrder::try_from(request.order).map_err(|_| {
            Status::invalid_argument("this agent does not know that order of flows")
        })?;
        let choice = Choice {
            filter: StreamFilter::read(&request.filter)?,
            order,
            limit: (request.limit != 0).then_some(request.limit as usize),
        };
        let place = self.doors.answer(&caller.peer).await?;
        let snapshot = self.asks.flows().await.map_err(refused)?;
        let room = self.asks.bytes.clone();
        let listed = spawn_blocking(move || choice.of(snapshot, &room)).await;
        let listed = listed.map_err(|error| Status::internal(error.to_string()))??;
        Ok(answer::list(listed, SNAPSHOT_PATIENCE, (open, place)))
    }

    /// It costs a scan, so not everyone may ask for it who can read a loopback port.
    async fn scan_now(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        may_see_rules(&caller.peer, &self.doors)?;
        let place = self.place_for::<ScanNowRequest>(request, caller).await?;
        let scan_id = self.asks.scan().await.map_err(refused)?;
        let answer = ScanNowResponse { scan_id }.encode_to_vec();
        Ok(answer::one(vec![answer.into()], (open, place)))
    }

    /// Reads a request that asks for one message, and takes a place for the answer.
    async fn place_for<M: Message + Default>(
        &self,
        request: Request<Body>,
        caller: &Caller,
    ) -> Result<Place, Status> {
        let (head, body) = request.into_parts();
        let _: M = request::message(&head.headers, body).await?;
        self.doors.answer(&caller.peer).await
    }

    async fn get_status(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        let place = self.place_for::<GetStatusRequest>(request, caller).await?;
        let status = self.status.now().encode_to_vec();
        Ok(answer::one(vec![status.into()], (open, place)))
    }

    async fn get_filters(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        may_see_rules(&caller.peer, &self.doors)?;
        let place = self.place_for::<GetFiltersRequest>(request, caller).await?;
        Ok(answer::one(vec![self.rules.in_force()], (open, place)))
    }

    /// Rules are among the settings.
    async fn get_settings(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        may_see_rules(&caller.peer, &self.doors)?;
        let place = self
            .place_for::<GetSettingsRequest>(request, caller)
            .await?;
        let settings = SettingsInForce {
            filters_by_client: self.rules.are_by_client(),
            ..self.settings.borrow().clone()
        };
        let settings = settings.encode_to_vec();
        Ok(answer::one(vec![settings.into()], (open, place)))
    }

    async fn set_filters(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        may_change_rules(&caller.peer, &self.doors)?;
        let (head, body) = request.into_parts();
        let parts = self.rules.set(&head.headers, body).await?;
        Ok(answer::one(parts, open))
    }
}
