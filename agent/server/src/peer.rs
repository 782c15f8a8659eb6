//! Identifies the peer of a connection.

use std::{fmt, net::SocketAddr};

use rustix::process::geteuid;
use tls::source::Source;

/// The kernel's report about the peer.
#[derive(Debug, Clone)]
pub enum Peer {
    Unix { pid: Option<i32>, uid: u32 },
    Tcp(SocketAddr),
    Unknown,
}

impl Peer {
    /// Whether the peer is root or the agent's own user, on the same machine.
    pub fn runs_the_agent(&self) -> bool {
        match self {
            Self::Unix { uid, .. } => runs_this_process(*uid),
            Self::Tcp(_) | Self::Unknown => false,
        }
    }

    pub fn source(&self) -> Source {
        match self {
            Self::Unix { uid, .. } => Source::User(*uid),
            Self::Tcp(address) => Source::of_ip(address.ip()),
            Self::Unknown => Source::Unknown,
        }
    }

    /// Whether file permissions admitted the peer, so that it may see the filter rules.
    pub fn is_on_a_unix_socket(&self) -> bool {
        matches!(self, Self::Unix { .. })
    }
}

/// Whether this user is root or the user of this process.
pub fn runs_this_process(uid: u32) -> bool {
    runs(uid, geteuid().as_raw())
}

/// Whether this user is root or `agent_uid`.
fn runs(uid: u32, agent_uid: u32) -> bool {
    uid == 0 || uid == agent_uid
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix {
                pid: Some(pid),
                uid,
            } => write!(formatter, "unix pid={pid} uid={uid}"),
            Self::Unix { pid: None, uid } => write!(formatter, "unix uid={uid}"),
            Self::Tcp(address) => address.fmt(formatter),
            Self::Unknown => formatter.write_str("unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_agents_own_user_run_the_agent_and_nobody_else() {
        for (uid, agent_uid, is_trusted) in [
            (0, 0, true),
            (7, 0, false),
            (0, 7, true),
            (7, 7, true),
            (8, 7, false),
        ] {
            assert_eq!(runs(uid, agent_uid), is_trusted, "{uid} {agent_uid}");
        }
    }
}
