//! Where the agent listens, and why it cannot.

use std::{
    fmt, io,
    net::{SocketAddr, ToSocketAddrs as _},
    path::PathBuf,
    str::FromStr,
};

use thiserror::Error;

/// `unix:PATH` or a TCP address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddr {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl ListenAddr {
    /// Whether the kernel chooses the port, a different one each time.
    pub fn is_any_port(&self) -> bool {
        matches!(self, Self::Tcp(address) if address.port() == 0)
    }
}

impl FromStr for ListenAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("the path after `unix:` is missing".to_owned()),
            Some(path) => Ok(Self::Unix(PathBuf::from(path))),
            None => {
                let mut addresses = text.to_socket_addrs().map_err(|error| {
                    format!("neither unix:PATH nor an address with a port, as in 127.0.0.1:50051 ({error})")
                })?;
                addresses
                    .next()
                    .map(Self::Tcp)
                    .ok_or_else(|| format!("{text} has no address"))
            }
        }
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(formatter),
        }
    }
}

#[derive(Debug, Error)]
pub enum ListenError {
    #[error("another agent listens on unix:{path}: stop it, or choose another --listen")]
    AnotherAgent { path: String },
    #[error("{path} exists and is no socket: move it away, or choose another --listen")]
    NotASocket { path: String },
    #[error(
        "{path} is not this agent's lock but {reason}: remove it, or choose another --listen, in a \
         directory where nobody else may write"
    )]
    ForeignLock { path: String, reason: String },
    #[error("the directory {directory} does not exist: create it, or choose another --listen")]
    NoDirectory { directory: String },
    #[error("{address} is in use: stop what listens there, or choose another --listen")]
    PortInUse { address: SocketAddr },
    #[error("no permission to listen on {address}: run as root, or choose another --listen")]
    NoPermission { address: String, source: io::Error },
    #[error("cannot listen on a socket that the service manager passes")]
    Passed(#[source] io::Error),
    #[error("cannot listen on {address}: choose another --listen")]
    Other { address: String, source: io::Error },
}

impl ListenError {
    pub(super) fn from_io(address: &ListenAddr, source: io::Error) -> Self {
        let text = address.to_string();
        match (source.kind(), address) {
            (io::ErrorKind::AddrInUse, &ListenAddr::Tcp(address)) => Self::PortInUse { address },
            (io::ErrorKind::PermissionDenied, _) => Self::NoPermission {
                address: text,
                source,
            },
            _ => Self::Other {
                address: text,
                source,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_shows_as_it_is_read_and_knows_whether_the_kernel_chooses_its_port() {
        for (text, is_any_port) in [
            ("unix:/run/a.sock", false),
            ("127.0.0.1:80", false),
            ("[::1]:0", true),
        ] {
            let address: ListenAddr = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(address.is_any_port(), is_any_port);
        }
    }

    #[test]
    fn why_nothing_listens_is_told_by_its_kind_and_with_the_address() {
        let told = |address: &str, kind: io::ErrorKind| {
            ListenError::from_io(&address.parse().unwrap(), kind.into()).to_string()
        };
        let in_use = io::ErrorKind::AddrInUse;
        assert!(told("127.0.0.1:80", in_use).starts_with("127.0.0.1:80 is in use"));
        assert!(told("unix:/a", in_use).starts_with("cannot listen on unix:/a"));
        let denied = told("127.0.0.1:80", io::ErrorKind::PermissionDenied);
        assert!(denied.starts_with("no permission to listen on 127.0.0.1:80"));
    }
}
