//! `flow.v1.FlowControl`: shows and replaces the filter rules, over a Unix socket.
//!
//! Rules are parsed in place from the message, one set at a time, so a set never takes more than a small multiple of
//! its message.

use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use prost::{
    DecodeError, Message as _,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use proto::Filters;
use rules::{
    Parts, Rule,
    bounds::{self, MAX_MESSAGE_BYTES},
    fault::Fault,
};
use sys::background;
use tokio::sync::{Semaphore, oneshot};
use tonic::{Status, body::Body, codegen::http::HeaderMap};

use super::{
    limits::{AdmissionControl, Refusal},
    peer::Peer,
    request,
};
use crate::active_rules::{Author, ReplaceError, Replaced, Rules, Stopping};

pub struct FilterRules {
    running: Arc<dyn Rules>,
    one_at_a_time: Arc<Semaphore>,
}

impl FilterRules {
    pub(super) fn new(running: Arc<dyn Rules>) -> Self {
        Self {
            running,
            one_at_a_time: Arc::new(Semaphore::new(1)),
        }
    }

    /// Whether the rules in force were set by a client.
    pub(super) fn are_by_client(&self) -> bool {
        self.running.active().author == Author::Client
    }

    /// The rules in force, as an encoded `Filters`.
    pub(super) fn active(&self) -> Bytes {
        self.running.active().message.clone()
    }

    /// Replaces the rules with the body's. Returns the parts of an encoded `Filters`.
    pub(super) async fn set(&self, headers: &HeaderMap, body: Body) -> Result<Vec<Bytes>, Status> {
        let stopping = |_| Status::unavailable(Stopping.to_string());
        let turn = Arc::clone(&self.one_at_a_time).acquire_owned().await;
        let turn = turn.map_err(stopping)?;
        let message = request::bytes(headers, body, MAX_MESSAGE_BYTES).await?;
        let (sender, read) = oneshot::channel();
        let work = move || {
            // The client may be gone. The next set has to wait all the same.
            drop(sender.send(rules(message).map(|rules| (rules, turn))));
        };
        background::start("read-rules", work).map_err(|error| {
            Status::unavailable(format!("no thread to read the rules: {error}"))
        })?;
        let failed = |_| Status::internal("the thread that reads the rules has failed");
        let (rules, _turn) = read.await.map_err(failed)??;
        match self.running.replace(rules, Author::Client).await {
            Ok(replaced) => Ok(answer(replaced)),
            Err(error @ ReplaceError::Refused(_)) => {
                tracing::warn!("the filter rules stay as they were: {error}");
                Err(Status::failed_precondition(error.to_string()))
            }
            Err(error @ ReplaceError::Stopping(_)) => Err(Status::unavailable(error.to_string())),
        }
    }
}

/// The parts of an encoded `Filters`. Protobuf merges concatenated messages.
fn answer(Replaced { active, warnings }: Replaced) -> Vec<Bytes> {
    let warnings = Filters {
        warnings,
        ..Filters::default()
    };
    vec![active.message.clone(), warnings.encode_to_vec().into()]
}

/// Anyone who can connect to a Unix socket may see the rules.
pub(super) fn may_see_rules(peer: &Peer, admission: &AdmissionControl) -> Result<(), Status> {
    if peer.is_on_a_unix_socket() {
        return Ok(());
    }
    admission.refuse(Refusal::Caller, peer);
    Err(Status::permission_denied(
        "filter rules, settings and requests for scans are available only on the agent's Unix socket: connect to that",
    ))
}

pub(super) fn may_change_rules(peer: &Peer, admission: &AdmissionControl) -> Result<(), Status> {
    may_see_rules(peer, admission)?;
    if peer.runs_the_agent() {
        return Ok(());
    }
    admission.refuse(Refusal::Caller, peer);
    Err(Status::permission_denied(
        "only root and the agent's own user may change the filter rules",
    ))
}

/// The rules of an encoded `SetFiltersRequest`. Fails if any of them is invalid.
fn rules(message: Bytes) -> Result<Vec<Rule>, Status> {
    let refused = |fault: Fault| Status::invalid_argument(fault.to_string());
    let texts = texts(message)?;
    let texts: Vec<&str> = texts
        .iter()
        .map(|text| std::str::from_utf8(text))
        .collect::<Result<_, _>>()
        .map_err(|error| Status::invalid_argument(format!("a rule is not UTF-8: {error}")))?;
    bounds::check(&texts).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let mut rules = Parts::default();
    for (index, text) in texts.into_iter().enumerate() {
        rules
            .add_for_packets(text)
            .map_err(|fault| refused(fault.at(&format!("rule {}", index + 1))))?;
    }
    Ok(rules.into_set())
}

/// The rules' texts, as slices of the message. Fails if there are more than a set can have.
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

#[cfg(test)]
mod tests {
    use proto::SetFiltersRequest;

    use super::*;
    use crate::active_rules::FixedRules;

    fn read(message: impl Into<Bytes>) -> Result<Vec<String>, String> {
        let rules = rules(message.into()).map_err(|status| status.message().to_owned())?;
        Ok(rules.iter().map(ToString::to_string).collect())
    }

    fn message(rules: &[&str]) -> Vec<u8> {
        let rules = rules.iter().map(ToString::to_string).collect();
        SetFiltersRequest { rules }.encode_to_vec()
    }

    #[test]
    fn rules_are_read_in_their_order_and_fields_that_are_not_known_passed_over() {
        let known = message(&["exclude all", "include ingress; include egress"]);
        let expected = ["exclude all", "include ingress", "include egress"];
        // An unknown field, and the known one with another type.
        for unknown in [[2 << 3, 5], [1 << 3, 5]] {
            assert_eq!(read([&unknown, &known[..]].concat()).unwrap(), expected);
        }
        assert!(read(message(&[])).unwrap().is_empty());
        let conditions = read(message(&["port https", "exclude 10.0.0.1", "udp"])).unwrap();
        let expected = [
            "exclude net 10.0.0.1/32",
            "include port 443",
            "include proto udp",
            "exclude all",
        ];
        assert_eq!(conditions, expected);
    }

    #[test]
    fn what_is_no_set_of_rules_is_refused_with_the_reason() {
        const FIELD: u8 = 1 << 3 | 2;
        let too_many = vec!["exclude all"; bounds::MAX_RULES + 1];
        assert_eq!(read(message(&too_many[1..])).unwrap().len(), 1024);
        let commas = "exclude port 1".to_owned() + &",1".repeat(2_000_000);
        for (message, reason) in [
            (message(&too_many), "more than 1024 filter rules"),
            (message(&[&commas]), "commas"),
            (message(&["exclude all", "drop all"]), "rule 2"),
            (message(&["host example.com"]), "give the address"),
            (vec![FIELD, 2, b'a'], "a rule is longer than the message"),
            (vec![FIELD, 1, 0xff], "a rule is not UTF-8"),
            (vec![FIELD], "this is no SetFiltersRequest"),
            (vec![0], "this is no SetFiltersRequest"),
        ] {
            let error = read(message).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn an_answer_has_the_rules_and_what_their_author_may_not_have_meant() {
        let rules = rules(message(&["exclude all"]).into()).unwrap();
        let replaced = Replaced {
            active: FixedRules::new(&rules).active(),
            warnings: vec!["nothing is counted".to_owned()],
        };
        let told = Filters::decode(&answer(replaced).concat()[..]).unwrap();
        let expected = Filters {
            rules: vec!["exclude all".to_owned()],
            generation: 1,
            warnings: vec!["nothing is counted".to_owned()],
        };
        assert_eq!(told, expected);
    }

    #[test]
    fn rules_are_for_unix_sockets_and_their_change_for_those_who_run_the_agent() {
        let admission = AdmissionControl::new(super::super::limits::Limits::default().fixed());
        let unix = |uid| Peer::Unix { pid: None, uid };
        let own_uid = rustix::process::geteuid().as_raw();
        let tcp = Peer::Tcp(([127, 0, 0, 1], 1).into());
        let mut refused = 0;
        for (peer, may_see, may_change) in [
            (unix(0), true, true),
            (unix(own_uid), true, true),
            (unix(own_uid + 1), true, false),
            (tcp, false, false),
            (Peer::Unknown, false, false),
        ] {
            assert_eq!(may_see_rules(&peer, &admission).is_ok(), may_see, "{peer}");
            assert_eq!(
                may_change_rules(&peer, &admission).is_ok(),
                may_change,
                "{peer}"
            );
            refused += u64::from(!may_see) + u64::from(!may_change);
            assert_eq!(admission.status().refused_callers, refused);
        }
    }
}
