//! Binds the agent's listeners, and accepts Unix and TCP connections in one stream.

use std::{
    fmt, io,
    net::{SocketAddr, ToSocketAddrs as _},
    path::PathBuf,
    pin::Pin,
    str::FromStr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{Stream, StreamExt as _, stream};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};
use tracing::info;

use super::{
    authority::Filter,
    caller::Peer,
    farewell::Farewells,
    guarded::Guarded,
    limits::{Doors, Places, Refusal},
    socket_file::SocketFile,
};

const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

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

/// Bound listeners that are not served yet, so connections wait. Dropping it removes its socket files and
/// their locks.
pub struct Listeners {
    listeners: Vec<Listener>,
    socket_files: Vec<SocketFile>,
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listeners {
    /// Binds all addresses or none.
    pub async fn bind(addresses: &[ListenAddr]) -> Result<Self, ListenError> {
        let mut bound = Self {
            listeners: Vec::new(),
            socket_files: Vec::new(),
        };
        for address in addresses {
            let failed = |error| ListenError::from_io(address, error);
            match address {
                ListenAddr::Unix(path) => {
                    let (file, listener) = SocketFile::bind(path).await?;
                    bound.listeners.push(Listener::Unix(listener));
                    bound.socket_files.push(file);
                    info!(%address, "listening");
                }
                ListenAddr::Tcp(tcp) => {
                    let listener = TcpListener::bind(tcp).await.map_err(failed)?;
                    // Port 0 asks the kernel for a free one.
                    info!(address = %listener.local_addr().map_err(failed)?, "listening");
                    bound.listeners.push(Listener::Tcp(listener));
                }
            }
        }
        Ok(bound)
    }

    /// The TCP addresses, with the ports that the kernel chose.
    pub fn tcp_addresses(&self) -> Vec<SocketAddr> {
        let tcp = self.listeners.iter().filter_map(|listener| match listener {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(_) => None,
        });
        tcp.collect()
    }

    pub(super) fn len(&self) -> usize {
        self.listeners.len()
    }

    /// The accepted connections. The stream never fails: if the process has no file left, it waits.
    pub(super) fn into_connections(
        self,
        doors: &Arc<Doors>,
    ) -> (
        Vec<SocketFile>,
        impl Stream<Item = io::Result<Guarded>> + Unpin + use<>,
    ) {
        let streams = self.listeners.into_iter().map(|listener| {
            let gate = Gate {
                listener,
                places: Places::new(doors.limits.max_connections),
                doors: Arc::clone(doors),
                farewells: Farewells::default(),
            };
            Box::pin(stream::unfold(gate, |mut gate| async {
                Some((Ok(gate.next().await), gate))
            }))
        });
        // Without listeners the stream must wait, not end.
        let streams = stream::select_all(streams).chain(stream::pending());
        (self.socket_files, streams)
    }
}

/// A listener and the places for its connections.
struct Gate {
    listener: Listener,
    places: Places,
    doors: Arc<Doors>,
    farewells: Farewells,
}

impl Gate {
    /// The next connection that gets a place. Others are told that there is none.
    async fn next(&mut self) -> Guarded {
        loop {
            let connection = tokio::select! {
                connection = self.listener.accept(&self.doors) => connection,
                () = self.farewells.close_next() => continue,
            };
            let peer = connection.peer();
            if let Some(place) = self.places.take(&peer) {
                return Guarded::new(connection, peer, place, Arc::clone(&self.doors));
            }
            self.doors.refuse(Refusal::Connection, &peer);
            self.farewells.say(connection);
        }
    }
}

impl Listener {
    async fn accept(&self, doors: &Doors) -> Connection {
        loop {
            let accepted = match self {
                Self::Unix(listener) => listener
                    .accept()
                    .await
                    .map(|(stream, _)| Connection::Unix(stream, Filter::default())),
                Self::Tcp(listener) => listener
                    .accept()
                    .await
                    .map(|(stream, _)| Connection::Tcp(stream)),
            };
            match accepted {
                Ok(connection) => return connection,
                Err(error) => {
                    doors.cannot_accept(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// A connection of either kind.
pub enum Connection {
    Unix(UnixStream, Filter),
    Tcp(TcpStream),
}

impl Connection {
    fn peer(&self) -> Peer {
        match self {
            Self::Unix(stream, _) => {
                stream
                    .peer_cred()
                    .map_or(Peer::Unknown, |credentials| Peer::Unix {
                        pid: credentials.pid(),
                        uid: credentials.uid(),
                    })
            }
            Self::Tcp(stream) => stream.peer_addr().map_or(Peer::Unknown, Peer::Tcp),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream, filter) => filter.poll_read(Pin::new(stream), context, buffer),
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream, _) => Pin::new(stream).poll_write(context, bytes),
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream, _) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream, _) => Pin::new(stream).poll_flush(context),
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream, _) => Pin::new(stream).poll_shutdown(context),
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
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
