//! Identifies the callers of a collector: by a token, by the connection's client certificate, or, if the settings
//! require neither, by the peer address and user that the kernel reports. A certificate, or an address without a
//! credential, permits sending only: no host's credential gives access to the flows of others.

use std::{fmt, net::Ipv6Addr};

use tls::{
    identity::{Grant, Identity, Role, Roles},
    token::{
        ReloadableTokens,
        known::{Shown, Unknown},
    },
};
use tonic::{Status, codegen::http::HeaderMap};

use super::{
    caller::Caller,
    calls::Admitted,
    limits::{AdmissionControl, Refusal},
    peer::{Peer, runs_this_process},
};

/// How callers over TCP identify themselves.
pub struct Authentication {
    /// `None` if callers identify themselves by certificate only.
    pub tokens: Option<ReloadableTokens>,
    /// Every caller over TCP has to have a certificate.
    pub asks_for_certificates: bool,
}

impl Authentication {
    /// Grants the caller its rights; these may cover nothing but the server's health.
    pub fn authenticate(
        &self,
        headers: &HeaderMap,
        caller: &Caller,
        admission: &AdmissionControl,
    ) -> Result<Admitted, Status> {
        let granted = match &caller.peer {
            // The file's mode admits only its owner and group, who may do everything.
            Peer::Unix { uid, .. } => Ok(Admitted::for_good(Grant {
                identity: Identity::User(*uid),
                roles: Roles::all(),
            })),
            Peer::Tcp(_) if self.tokens.is_some() || self.asks_for_certificates => {
                self.by_credential(headers, caller)
            }
            Peer::Tcp(_) => Ok(Admitted::for_good(without_credential(caller))),
            Peer::Unknown => Err(Status::unauthenticated("the caller is unknown")),
        };
        granted.inspect_err(|_| admission.refuse(Refusal::Token, &caller.peer))
    }

    fn by_credential(&self, headers: &HeaderMap, caller: &Caller) -> Result<Admitted, Status> {
        let by_certificate = caller.certificate.get().cloned();
        let Some(tokens) = &self.tokens else {
            let identity = by_certificate.ok_or_else(nameless)?;
            return Ok(Admitted::for_good(sender(identity)));
        };
        let shown = match (tokens.shown(headers), by_certificate) {
            (Ok(shown), Some(identity)) => narrowed(shown, &identity)?,
            (Ok(shown), None) => shown,
            (Err(Unknown::NotShown), Some(identity)) => {
                return Ok(Admitted::for_good(sender(identity)));
            }
            (Err(unknown), _) => return Err(Status::unauthenticated(unknown.to_string())),
        };
        Ok(Admitted {
            grant: shown.grant.clone(),
            tokens: Some((tokens.clone(), shown)),
        })
    }
}

/// A token that may send is valid only on a connection of its own host.
fn narrowed(shown: Shown, certificate: &Identity) -> Result<Shown, Status> {
    let is_of_another = shown.grant.roles.has(Role::Send) && shown.grant.identity != *certificate;
    if is_of_another {
        let told = format!(
            "the token of {} came with the certificate of {certificate}",
            shown.grant.identity
        );
        return Err(Status::unauthenticated(told));
    }
    Ok(shown)
}

fn nameless() -> Status {
    Status::unauthenticated(
        "the client certificate has no DNS name among its subject alternative names: issue one for the name of its host",
    )
}

fn sender(identity: Identity) -> Grant {
    Grant {
        identity,
        roles: [Role::Send].into_iter().collect(),
    }
}

/// On this host, root and the collector's own user may do everything. All others may send.
fn without_credential(caller: &Caller) -> Grant {
    match (caller.local_user(), &caller.peer) {
        (Some(uid), _) if runs_this_process(uid) => Grant {
            identity: Identity::User(uid),
            roles: Roles::all(),
        },
        (Some(uid), _) => sender(Identity::User(uid)),
        (None, Peer::Tcp(address)) => sender(Identity::Address(address.ip().to_canonical())),
        (None, Peer::Unix { uid, .. }) => sender(Identity::User(*uid)),
        (None, Peer::Unknown) => Grant {
            identity: Identity::Address(Ipv6Addr::UNSPECIFIED.into()),
            roles: Roles::default(),
        },
    }
}

/// Fails unless the caller has this role.
pub fn require_role(
    grant: &Grant,
    role: Role,
    caller: &Caller,
    admission: &AdmissionControl,
) -> Result<(), Status> {
    if grant.roles.has(role) {
        return Ok(());
    }
    let missing = Missing { grant, role };
    admission.refuse_because(Refusal::Role, &caller.peer, &missing);
    Err(Status::permission_denied(missing.to_string()))
}

/// Fails if the caller may only send.
pub fn require_reader(
    grant: &Grant,
    caller: &Caller,
    admission: &AdmissionControl,
) -> Result<(), Status> {
    if grant.roles.has(Role::Observe) {
        return Ok(());
    }
    require_role(grant, Role::Status, caller, admission)
}

struct Missing<'a> {
    grant: &'a Grant,
    role: Role,
}

impl fmt::Display for Missing<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Grant { identity, roles } = self.grant;
        let role = self.role.name();
        write!(
            formatter,
            "{identity} does not have the role {role} (it has: {roles}): show a token with it (flow-agent token new NAME \
             --role {role}, at the collector), or use the collector's Unix socket"
        )
    }
}
