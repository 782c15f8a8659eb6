//! The addresses to listen on, and why listening fails.
//!
//! Host names are not resolved: settings must mean the same at boot, before there is a network, as later.

use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

use thiserror::Error;

const EXPECTED: &str =
    "expected unix:PATH, or an IP address with a port, as in 127.0.0.1:50051 or [::1]:50051";

/// The longest path of a socket in bytes: `sun_path` less its NUL (unix(7)).
pub const MAX_PATH_BYTES: usize = 107;

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

    /// Fails if other hosts can reach this address: traffic there has to be encrypted, or explicitly allowed in the
    /// clear.
    pub fn refuse_open(&self) -> Result<(), ListenError> {
        match *self {
            Self::Tcp(address) if !address.ip().to_canonical().is_loopback() => {
                Err(ListenError::Open { address })
            }
            Self::Tcp(_) | Self::Unix(_) => Ok(()),
        }
    }
}

impl FromStr for ListenAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some(path) => unix(path).map(Self::Unix),
            None => tcp(text, EXPECTED).map(Self::Tcp),
        }
    }
}

fn unix(path: &str) -> Result<PathBuf, String> {
    if path.is_empty() {
        return Err("the path after `unix:` is missing".to_owned());
    }
    if path.contains('\0') {
        return Err("the path has a NUL, which no file's name has".to_owned());
    }
    if path.len() > MAX_PATH_BYTES {
        let len = path.len();
        return Err(format!(
            "the path has {len} bytes, and that of a socket has at most {MAX_PATH_BYTES}: choose a shorter one"
        ));
    }
    Ok(PathBuf::from(path))
}

/// Parses an IP address with a port. `expected` is the error for any other text.
pub fn tcp(text: &str, expected: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let is_name = |host: &&str| {
        let mut letters = host.chars();
        !host.is_empty() && letters.all(|letter| letter.is_alphanumeric() || "-_.".contains(letter))
    };
    let (host, port) = text.rsplit_once(':').ok_or(expected)?;
    let port: u16 = port.parse().map_err(|_| expected)?;
    match host {
        "localhost" => Ok((Ipv4Addr::LOCALHOST, port).into()),
        "*" => Err(format!("every address is 0.0.0.0:{port}, or [::]:{port}")),
        _ if is_name(&host) => Err(format!(
            "the name {host} is not looked up: give its address, as in 192.0.2.1:{port}"
        )),
        _ => Err(expected.to_owned()),
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
    #[error("{path} exists and is not a socket: move it away, or choose another --listen")]
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
    #[error(
        "other hosts may reach {address}, and whoever does could read all flows: give --tls-certificate and --tls-key, \
         or --insecure-listen if that is meant"
    )]
    Open { address: SocketAddr },
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
    fn no_name_but_that_of_this_host_is_taken() {
        let parsed = |text: &str| text.parse::<ListenAddr>();
        assert_eq!(parsed("localhost:80"), parsed("127.0.0.1:80"));
        for (text, told) in [
            (
                "collector.example:50051",
                "the name collector.example is not looked up: give its address, as in 192.0.2.1:50051",
            ),
            ("999.0.0.1:80", "the name 999.0.0.1 is not looked up"),
            ("*:80", "every address is 0.0.0.0:80, or [::]:80"),
            ("localhost", EXPECTED),
            ("::1:80", EXPECTED),
            ("[localhost]:80", EXPECTED),
            (":80", EXPECTED),
            ("127.0.0.1:65536", EXPECTED),
            ("", EXPECTED),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.starts_with(told), "{text}: {error}");
        }
    }

    #[test]
    fn a_path_is_as_long_as_the_kernel_takes_it() {
        let parsed =
            |bytes: usize| format!("unix:/{}", "a".repeat(bytes - 1)).parse::<ListenAddr>();
        let Ok(ListenAddr::Unix(longest)) = parsed(MAX_PATH_BYTES) else {
            panic!("{MAX_PATH_BYTES} bytes are refused");
        };
        std::os::unix::net::SocketAddr::from_pathname(longest).unwrap();
        let error = parsed(MAX_PATH_BYTES + 1).unwrap_err();
        assert!(error.starts_with("the path has 108 bytes, and "), "{error}");
        for text in ["unix:", "unix:a\0b"] {
            assert!(text.parse::<ListenAddr>().is_err(), "{text}");
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
