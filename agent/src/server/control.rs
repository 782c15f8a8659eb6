//! `flow.v1.FlowControl`: filter rules come in over a Unix socket, what is in force goes out.

use std::os::unix::fs::MetadataExt as _;

use tonic::{Request, Response, Status};

use super::Peer;
use crate::{
    control::{Changed, Control, ControlError},
    filter::{Fault, Rule, Rules},
    wire::{Filters, GetFiltersRequest, SetFiltersRequest, flow_control_server::FlowControl},
};

/// Answers on every listener, and refuses those who came by another way than a Unix socket.
pub(super) struct Service(pub Control);

#[tonic::async_trait]
impl FlowControl for Service {
    async fn set_filters(
        &self,
        request: Request<SetFiltersRequest>,
    ) -> Result<Response<Filters>, Status> {
        let uid = unix_uid(&request)?;
        if uid != 0 && Some(uid) != own_uid() {
            return Err(Status::permission_denied(
                "only root and the agent's own user may change the filter rules",
            ));
        }
        let rules = rules(&request.into_inner().rules)
            .map_err(|fault| Status::invalid_argument(fault.to_string()))?;
        match self.0.set_filters(rules).await {
            Ok(Changed { in_force, warnings }) => Ok(Response::new(Filters {
                warnings,
                ..(*in_force).clone()
            })),
            Err(error @ ControlError::Refused(_)) => {
                Err(Status::failed_precondition(error.to_string()))
            }
            Err(error @ ControlError::Stopping) => Err(Status::unavailable(error.to_string())),
        }
    }

    async fn get_filters(
        &self,
        request: Request<GetFiltersRequest>,
    ) -> Result<Response<Filters>, Status> {
        unix_uid(&request)?;
        Ok(Response::new((*self.0.filters()).clone()))
    }
}

fn unix_uid<T>(request: &Request<T>) -> Result<u32, Status> {
    match request.extensions().get::<Peer>() {
        Some(Peer::Unix { uid, .. }) => Ok(*uid),
        Some(Peer::Tcp(_) | Peer::Unknown) | None => Err(Status::permission_denied(
            "the filter rules are a matter of the agent's Unix socket: connect to that",
        )),
    }
}

fn own_uid() -> Option<u32> {
    std::fs::metadata("/proc/self")
        .ok()
        .map(|process| process.uid())
}

/// All or none.
fn rules(texts: &[String]) -> Result<Vec<Rule>, Fault> {
    let mut rules = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let Rules(parsed) = text
            .parse()
            .map_err(|fault: Fault| fault.at(&format!("rule {}", index + 1)))?;
        rules.extend(parsed);
    }
    Ok(rules)
}
