//! Answers the calls of an agent's services.

use std::{sync::Arc, time::Duration};

use hub::Hub;
use prost::Message as _;
use proto::{
    FlowOrder, GetFiltersRequest, GetSettingsRequest, GetStatusRequest, ListFlowsRequest,
    ObserveRequest, ScanNowRequest, ScanNowResponse, SettingsInForce,
};
use tokio::{sync::watch, task::spawn_blocking};
use tonic::{
    Status,
    body::Body,
    codegen::http::{Request, Response},
};

use super::{
    answer::{self, Form},
    caller::{Caller, OpenRequest},
    calls::{Calls, place_for},
    encoding::Compressor,
    filter_rules::{FilterRules, may_change_rules, may_see_rules},
    filtered::StreamFilter,
    limits::AdmissionControl,
    list::Choice,
    live_status::LiveStatus,
    request,
    standard::StandardServices,
};
use crate::scanner_requests::{RequestError, ScannerClient};

const CONSUMER_NAME_CHARS: usize = 64;

/// How long an unread list of flows may stay in the agent's memory.
const SNAPSHOT_PATIENCE: Duration = Duration::from_mins(1);

/// The consumer's name for itself, limited in length.
pub fn consumer_name(request: &ObserveRequest) -> String {
    request.consumer.chars().take(CONSUMER_NAME_CHARS).collect()
}

fn refused(error: RequestError) -> Status {
    match error {
        RequestError::Stopping(_) => Status::unavailable(error.to_string()),
        RequestError::TooLarge => Status::resource_exhausted(error.to_string()),
    }
}

/// The state that an agent answers from.
pub struct AgentCalls {
    pub hub: Hub,
    pub scanner: ScannerClient,
    pub status: Arc<LiveStatus>,
    pub rules: FilterRules,
    pub settings: watch::Receiver<SettingsInForce>,
    pub admission: Arc<AdmissionControl>,
    pub compressor: Arc<Compressor>,
    pub standard: StandardServices,
}

impl Calls for AgentCalls {
    fn admission(&self) -> &Arc<AdmissionControl> {
        &self.admission
    }

    fn standard(&self) -> &StandardServices {
        &self.standard
    }

    async fn answer(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        match request.uri().path() {
            "/flow.v1.FlowAgent/Observe" => self.observe(request, caller, open).await,
            "/flow.v1.FlowAgent/ListFlows" => self.list_flows(request, caller, open).await,
            "/flow.v1.FlowControl/ScanNow" => self.scan_now(request, caller, open).await,
            "/flow.v1.FlowAgent/GetStatus" => self.get_status(request, caller, open).await,
            "/flow.v1.FlowControl/GetFilters" => self.get_filters(request, caller, open).await,
            "/flow.v1.FlowControl/GetSettings" => self.get_settings(request, caller, open).await,
            "/flow.v1.FlowControl/SetFilters" => self.set_filters(request, caller, open).await,
            path => {
                let error = format!("this agent does not know {path}");
                Err(Status::unimplemented(error))
            }
        }
    }
}

impl AgentCalls {
    async fn observe(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        let (head, body) = request.into_parts();
        let request: ObserveRequest = request::message(&head.headers, body).await?;
        let place = self.admission.consumer(&caller.peer)?;
        let (peer, shared) = (&caller.peer, (&self.hub, &*self.admission));
        let form = Form::asked(&request, &head.headers, peer, shared, &self.compressor)?;
        let name = consumer_name(&request);
        let peer = caller.peer.to_string();
        let subscription = if request.snapshot {
            let observed = self.scanner.observe(&name, &peer).await;
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
        let place = caller.answer(&self.admission).await?;
        let snapshot = self.scanner.flows().await.map_err(refused)?;
        let room = self.scanner.bytes.clone();
        let listed = spawn_blocking(move || choice.of(snapshot, &room)).await;
        let listed = listed.map_err(|error| Status::internal(error.to_string()))??;
        Ok(answer::list(listed, SNAPSHOT_PATIENCE, (open, place)))
    }

    /// A scan is costly, so not everyone who can reach a loopback port may ask for one.
    async fn scan_now(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        may_see_rules(&caller.peer, &self.admission)?;
        let place = place_for::<ScanNowRequest>(request, caller, &self.admission).await?;
        let scan_id = self.scanner.scan().await.map_err(refused)?;
        let answer = ScanNowResponse { scan_id }.encode_to_vec();
        Ok(answer::one(vec![answer.into()], (open, place)))
    }

    async fn get_status(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        let place = place_for::<GetStatusRequest>(request, caller, &self.admission).await?;
        let status = self.status.now().encode_to_vec();
        Ok(answer::one(vec![status.into()], (open, place)))
    }

    async fn get_filters(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        may_see_rules(&caller.peer, &self.admission)?;
        let place = place_for::<GetFiltersRequest>(request, caller, &self.admission).await?;
        Ok(answer::one(vec![self.rules.active()], (open, place)))
    }

    /// Rules are among the settings.
    async fn get_settings(
        &self,
        request: Request<Body>,
        caller: &Caller,
        open: OpenRequest,
    ) -> Result<Response<Body>, Status> {
        may_see_rules(&caller.peer, &self.admission)?;
        let place = place_for::<GetSettingsRequest>(request, caller, &self.admission).await?;
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
        may_change_rules(&caller.peer, &self.admission)?;
        let (head, body) = request.into_parts();
        let parts = self.rules.set(&head.headers, body).await?;
        Ok(answer::one(parts, open))
    }
}
