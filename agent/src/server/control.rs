//! `flow.v1.FlowControl`: filter rules come in over a Unix socket, what is in force goes out.
//!
//! A set is read as it stands in the message, one set at a time, so that what it takes is a small multiple
//! of the message, whatever is in it.

use bytes::{Buf as _, Bytes};
use prost::{
    DecodeError, Message as _,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use tokio::sync::Semaphore;
use tonic::{Status, body::Body, codegen::http::HeaderMap};

use super::{
    caller::Peer,
    limits::{Doors, Refusal},
    request,
};
use crate::{
    control::{Changed, Control, ControlError, MAX_MESSAGE_BYTES},
    filter::{self, Fault, Rule, bounds},
    wire::Filters,
};

pub(super) struct Rules {
    control: Control,
    one_at_a_time: Semaphore,
}

impl Rules {
    pub(super) fn new(control: Control) -> Self {
        Self {
            control,
            one_at_a_time: Semaphore::new(1),
        }
    }

    /// An encoded `Filters`.
    pub(super) fn in_force(&self) -> Bytes {
        self.control.in_force().message.clone()
    }

    /// Replaces the rules by those of the body; the parts of an encoded `Filters`.
    pub(super) async fn set(&self, headers: &HeaderMap, body: Body) -> Result<Vec<Bytes>, Status> {
        let stopping = |_| Status::unavailable(ControlError::Stopping.to_string());
        let _turn = self.one_at_a_time.acquire().await.map_err(stopping)?;
        let message = request::bytes(headers, body, MAX_MESSAGE_BYTES).await?;
        let rules = tokio::task::spawn_blocking(move || rules(message))
            .await
            .map_err(|error| Status::internal(format!("the rules could not be read: {error}")))??;
        match self.control.set_filters(rules).await {
            Ok(Changed { in_force, warnings }) => {
                let warnings = Filters {
                    warnings,
                    ..Filters::default()
                };
                // What is concatenated is merged.
                Ok(vec![
                    in_force.message.clone(),
                    warnings.encode_to_vec().into(),
                ])
            }
            Err(error @ ControlError::Refused(_)) => {
                Err(Status::failed_precondition(error.to_string()))
            }
            Err(error @ ControlError::Stopping) => Err(Status::unavailable(error.to_string())),
        }
    }
}

/// Whoever can connect to a Unix socket may see the rules.
pub(super) fn may_see_rules(peer: &Peer, doors: &Doors) -> Result<(), Status> {
    if peer.is_on_a_unix_socket() {
        return Ok(());
    }
    doors.refuse(Refusal::Caller, peer);
    Err(Status::permission_denied(
        "the filter rules are a matter of the agent's Unix socket: connect to that",
    ))
}

pub(super) fn may_change_rules(peer: &Peer, doors: &Doors) -> Result<(), Status> {
    may_see_rules(peer, doors)?;
    if peer.runs_the_agent() {
        return Ok(());
    }
    doors.refuse(Refusal::Caller, peer);
    Err(Status::permission_denied(
        "only root and the agent's own user may change the filter rules",
    ))
}

/// The rules of an encoded `SetFiltersRequest`: all or none.
fn rules(message: Bytes) -> Result<Vec<Rule>, Status> {
    let refused = |fault: Fault| Status::invalid_argument(fault.to_string());
    let texts = texts(message)?;
    let texts: Vec<&str> = texts
        .iter()
        .map(|text| std::str::from_utf8(text))
        .collect::<Result<_, _>>()
        .map_err(|error| Status::invalid_argument(format!("a rule is not UTF-8: {error}")))?;
    bounds::check(&texts).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let mut rules = Vec::new();
    for (index, text) in texts.into_iter().enumerate() {
        let filter::Rules(parsed) = text
            .parse()
            .map_err(|fault: Fault| refused(fault.at(&format!("rule {}", index + 1))))?;
        rules.extend(parsed);
    }
    Ok(rules)
}

/// The rules' texts as parts of the message, and no more of them than a set can have.
fn texts(mut message: Bytes) -> Result<Vec<Bytes>, Status> {
    const RULES_TAG: u32 = 1;
    let broken = |error: DecodeError| {
        Status::invalid_argument(format!("this is no SetFiltersRequest: {error}"))
    };
    let mut texts = Vec::new();
    while message.has_remaining() {
        let (tag, wire_type) = decode_key(&mut message).map_err(broken)?;
        if (tag, wire_type) != (RULES_TAG, WireType::LengthDelimited) {
            skip_field(wire_type, tag, &mut message, DecodeContext::default()).map_err(broken)?;
            continue;
        }
        let len_bytes = decode_varint(&mut message).map_err(broken)? as usize;
        if len_bytes > message.remaining() {
            return Err(Status::invalid_argument(
                "this is no SetFiltersRequest: a rule is longer than the message",
            ));
        }
        if texts.len() == bounds::MAX_RULES {
            return Err(Status::invalid_argument(format!(
                "more than {} filter rules (a term takes several values: net A,B)",
                bounds::MAX_RULES
            )));
        }
        texts.push(message.split_to(len_bytes));
    }
    Ok(texts)
}
