//! Binds the agent's listeners, and accepts Unix and TCP connections as one stream.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt as _, stream};
use proto::{ListenerStatus, TlsStatus};
use sys::clock;
use tls::server::ReloadableServerTls;
use tokio::net::{TcpListener, UnixListener};
use tracing::info;

use super::{
    address::{ListenAddr, ListenError},
    authority::Filter,
    caller::{Caller, CertificateName},
    connection::Connection,
    farewell::Farewells,
    guarded::Guarded,
    handshake::Handshake,
    idle::Idle,
    limits::{AdmissionControl, Places, Refusal},
    passed::{PassedSocket, PassedSockets},
    peer::Peer,
    socket_file::SocketFile,
};

const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Bound listeners that are not served yet, so connections wait in their backlogs. Dropping this removes the socket
/// files and their locks.
pub struct Listeners {
    all: Vec<Listener>,
    socket_files: Vec<SocketFile>,
    /// TLS for the TCP listeners, if it is configured.
    tls: Option<ReloadableServerTls>,
}

/// A listener as the status shows it.
pub struct Listening {
    address: String,
    tls: Option<ReloadableServerTls>,
}

impl Listening {
    pub fn status(&self) -> ListenerStatus {
        ListenerStatus {
            address: self.address.clone(),
            tls: self.tls.as_ref().map(|tls| {
                let status = tls.status();
                TlsStatus {
                    client_certificates: status.asks_for_certificates,
                    not_before_unix_ns: clock::nanos(status.validity.not_before),
                    not_after_unix_ns: clock::nanos(status.validity.not_after),
                    reload_error: status.fault.unwrap_or_default(),
                }
            }),
        }
    }
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listeners {
    /// Binds all addresses or none. The service manager may have opened some for this process already.
    pub async fn bind(
        addresses: &[ListenAddr],
        passed: PassedSockets,
    ) -> Result<Self, ListenError> {
        let mut bound = Self {
            all: Vec::new(),
            socket_files: Vec::new(),
            tls: None,
        };
        let mut open = Vec::new();
        for socket in passed.into_sockets() {
            let address = socket.address().map_err(ListenError::Passed)?;
            let listener = Listener::passed(socket).map_err(ListenError::Passed)?;
            bound.all.push(listener);
            let shown = address.as_ref().map(tracing::field::display);
            info!(
                address = shown,
                "listening on a socket of the service manager"
            );
            open.extend(address);
        }
        for address in addresses {
            if open.contains(address) {
                continue;
            }
            let failed = |error| ListenError::from_io(address, error);
            match address {
                ListenAddr::Unix(path) => {
                    let (file, listener) = SocketFile::bind(path).await?;
                    bound.all.push(Listener::Unix(listener));
                    bound.socket_files.push(file);
                    info!(%address, "listening");
                }
                ListenAddr::Tcp(tcp) => {
                    let listener = TcpListener::bind(tcp).await.map_err(failed)?;
                    // Port 0 asks the kernel for a free one.
                    info!(address = %listener.local_addr().map_err(failed)?, "listening");
                    bound.all.push(Listener::Tcp(listener));
                }
            }
        }
        Ok(bound)
    }

    /// Makes the TCP listeners speak TLS. Clients on Unix sockets are identified by their users.
    #[must_use]
    pub fn with_tls(self, tls: Option<ReloadableServerTls>) -> Self {
        Self { tls, ..self }
    }

    /// The TCP addresses, with the ports that the kernel chose.
    pub fn tcp_addresses(&self) -> Vec<SocketAddr> {
        let tcp = self.all.iter().filter_map(|listener| match listener {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(_) => None,
        });
        tcp.collect()
    }

    /// The listeners as the status shows them.
    pub fn listening(&self) -> Vec<Listening> {
        let tell = |listener: &Listener| Listening {
            address: listener.address(),
            tls: listener.tls(self.tls.as_ref()),
        };
        self.all.iter().map(tell).collect()
    }

    /// Whether every client over TCP needs a certificate.
    pub fn asks_for_certificates(&self) -> bool {
        let tls = self.tls.as_ref();
        tls.is_some_and(|tls| tls.status().asks_for_certificates)
    }

    pub fn tls(&self) -> Option<ReloadableServerTls> {
        self.tls.clone()
    }

    /// The number of listeners.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a server without listeners is not started"
    )]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// The accepted connections. The stream never fails: if the process is out of file descriptors, it waits.
    pub fn into_connections(
        self,
        admission: &Arc<AdmissionControl>,
    ) -> (
        Vec<SocketFile>,
        impl Stream<Item = io::Result<Guarded>> + Unpin + use<>,
    ) {
        let streams = self.all.into_iter().map(|listener| {
            let gate = Gate {
                tls: listener.tls(self.tls.as_ref()),
                listener,
                places: Places::new(admission.limits().max_connections),
                admission: Arc::clone(admission),
                farewells: Farewells::default(),
                idle: Arc::default(),
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

/// A listener and the places of its connections.
struct Gate {
    listener: Listener,
    tls: Option<ReloadableServerTls>,
    places: Places,
    admission: Arc<AdmissionControl>,
    farewells: Farewells,
    idle: Arc<Idle>,
}

impl Gate {
    /// The next connection that gets a place. A connection without an open request may have to give way to it.
    /// Connections without a place are turned away.
    async fn next(&mut self) -> Guarded {
        loop {
            let connection = tokio::select! {
                connection = self.listener.accept(&self.admission) => connection,
                () = self.farewells.close_next() => continue,
            };
            let peer = connection.peer();
            let most = self.admission.limits().max_connections;
            let place = loop {
                let place = self.places.take_of(most, &peer);
                if place.is_some() || !self.idle.make_room(&self.admission) {
                    break place;
                }
            };
            if let Some(place) = place {
                let certificate = CertificateName::default();
                let own = connection.own_address();
                let connection = self.behind_tls(connection, &certificate);
                let caller = Caller::new(peer).accepted(own, certificate);
                caller.hold(place, &self.idle);
                return Guarded::new(connection, caller, Arc::clone(&self.admission));
            }
            self.admission.refuse(Refusal::Connection, &peer);
            self.farewells.say(connection, self.tls.is_some());
        }
    }

    fn behind_tls(&self, connection: Connection, name: &CertificateName) -> Connection {
        match (&self.tls, connection) {
            (Some(tls), Connection::Tcp(stream)) => {
                let peer = stream.peer_addr().map_or(Peer::Unknown, Peer::Tcp);
                let admission = Arc::clone(&self.admission);
                let name = Arc::clone(name);
                let handshake = Handshake::new(&tls.acceptor(), stream, (peer, name), admission);
                Connection::Tls(Box::new(handshake))
            }
            (_, connection) => connection,
        }
    }
}

impl Listener {
    fn passed(socket: PassedSocket) -> io::Result<Self> {
        match socket {
            PassedSocket::Unix(listener) => {
                listener.set_nonblocking(true)?;
                UnixListener::from_std(listener).map(Self::Unix)
            }
            PassedSocket::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener).map(Self::Tcp)
            }
        }
    }

    /// The address in the form of the setting.
    fn address(&self) -> String {
        match self {
            Self::Unix(listener) => {
                let address = listener.local_addr().ok();
                let path = address.as_ref().and_then(|address| address.as_pathname());
                path.map_or_else(String::new, |path| format!("unix:{}", path.display()))
            }
            Self::Tcp(listener) => {
                let address = listener.local_addr();
                address.map_or_else(|_| String::new(), |address| address.to_string())
            }
        }
    }

    /// The configured TLS, if this listener uses it.
    fn tls(&self, tls: Option<&ReloadableServerTls>) -> Option<ReloadableServerTls> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp(_) => tls.cloned(),
        }
    }

    async fn accept(&self, admission: &AdmissionControl) -> Connection {
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
                    admission.cannot_accept(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_listener_counts_and_those_on_tcp_tell_their_ports() {
        let directory = tempfile::tempdir().unwrap();
        let tcp: ListenAddr = "127.0.0.1:0".parse().unwrap();
        let unix = ListenAddr::Unix(directory.path().join("a.sock"));
        let addresses = [tcp.clone(), unix, tcp];
        let listeners = Listeners::bind(&addresses, PassedSockets::default());
        let listeners = listeners.await.unwrap();
        assert_eq!(listeners.len(), 3);
        let addresses = listeners.tcp_addresses();
        assert_eq!(addresses.len(), 2);
        assert_ne!(addresses[0].port(), addresses[1].port());
    }
}
