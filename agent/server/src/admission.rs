//! Who calls a collector: by a token, by the client certificate of the connection, or, where the settings ask for neither, by
//! what the kernel says of the other end. A certificate and an address without a credential are good for sending alone: no
//! host's credential shows the flows of others.

use std::{fmt, net::Ipv6Addr};

use tls::{
    identity::{Grant, Identity, Role, Roles},
    token::{
        InForce,
        known::{Shown, Unknown},
    },
};
use tonic::{Status, codegen::http::HeaderMap};

use super::{
    caller::Caller,
    calls::Admitted,
    limits::{Doors, Refusal},
    peer::{Peer, runs_this_process},
};

/// By what callers over TCP are known.
pub struct Admission {
    /// Without it, certificates are all that callers show.
    pub tokens: Option<InForce>,
    /// Every caller over TCP has a certificate.
    pub asks_for_certificates: bool,
}

impl Admission {
    /// What the caller may do, which may be nothing but to ask for the server's health.
    pub fn admit(
        &self,
        headers: &HeaderMap,
        caller: &Caller,
        doors: &Doors,
    ) -> Result<Admitted, Status> {
        let granted = match &caller.peer {
            // Whoever reaches the socket may use it: its owner and group.
            Peer::Unix { uid, .. } => Ok(Admitted::for_good(Grant {
                identity: Identity::User(*uid),
                roles: Roles::all(),
            })),
            Peer::Tcp(_) if self.tokens.is_some() || self.asks_for_certificates => {
                self.by_credential(headers, caller)
            }
            Peer::Tcp(_) => Ok(Admitted::for_good(without_credential(caller))),
            Peer::Unknown => Err(Status::unauthenticated("nobody knows who is asking")),
        };
        granted.inspect_err(|_| doors.refuse(Refusal::Token, &caller.peer))
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

/// A token that may send is good on its own host's connection alone.
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

/// Root and the collector's own user on this host may do all, and others send.
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
pub fn must(grant: &Grant, role: Role, caller: &Caller, doors: &Doors) -> Result<(), Status> {
    if grant.roles.has(role) {
        return Ok(());
    }
    let missing = Missing { grant, role };
    doors.refuse_because(Refusal::Role, &caller.peer, &missing);
    Err(Status::permission_denied(missing.to_string()))
}

/// Fails if the caller may do nothing but send.
pub fn must_read(grant: &Grant, caller: &Caller, doors: &Doors) -> Result<(), Status> {
    if grant.roles.has(Role::Observe) {
        return Ok(());
    }
    must(grant, Role::Status, caller, doors)
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
