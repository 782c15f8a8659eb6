//! Messages as datagrams. There are no acknowledgements, but a host without a receiver often reports that by ICMP, and
//! so does a router that drops datagrams.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};
use rustix::{
    io::Errno,
    net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery},
};
use tokio::{
    io::Interest,
    net::{UdpSocket, lookup_host},
    task::JoinHandle,
    time::timeout,
};

use super::{Failure, PATIENCE};
use crate::settings::HostPort;

/// Headers of IPv6 and UDP. IPv4's is shorter.
const HEADERS_LEN_BYTES: usize = 48;

/// How long to wait for an ICMP error before a datagram counts as sent.
const DOUBT: Duration = Duration::from_millis(200);

pub(crate) struct Udp {
    pub(super) to: HostPort,
    socket: Option<UdpSocket>,
    /// How often to check whether the host's address has changed. The old one may not report errors.
    every: Duration,
    looked_up: Instant,
    looking_up: Option<JoinHandle<io::Result<Vec<SocketAddr>>>>,
    /// Number of sockets so far. The host's addresses are used in turn.
    connections: usize,
    /// When the last datagram was sent, until it counts as sent.
    doubted_since: Option<Instant>,
    /// A datagram was sent but not reported as in doubt yet: its sender still waits for an early error.
    has_left: bool,
}

impl Udp {
    /// `every`: how often to look up the host name again.
    pub(crate) fn new(to: HostPort, every: Duration) -> Self {
        Self {
            to,
            socket: None,
            every,
            looked_up: Instant::now(),
            looking_up: None,
            connections: 0,
            doubted_since: None,
            has_left: false,
        }
    }

    pub(super) async fn send(&mut self, message: &[u8]) -> Result<(), Failure> {
        self.has_left = false;
        // Check before sending, because errors of the send itself are about this message.
        if let Some(error) = self.socket.as_ref().and_then(answer) {
            return Err(self.last_refused(&error));
        }
        if self.has_moved().await {
            self.socket = None;
            // The receiver at the other address knows no templates.
            return Err(Failure::Anew);
        }
        let (socket, is_first) = match self.socket.take() {
            Some(socket) => (socket, false),
            None => (self.connect().await?, true),
        };
        let socket = self.socket.insert(socket);
        match socket.send(message).await {
            Ok(_) => self.has_left = true,
            Err(error) if is_too_long(&error) => return Err(too_long(socket, message)),
            // The error about the previous datagram arrived just now.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                return Err(self.last_refused(&error));
            }
            Err(error) => {
                self.socket = None;
                return Err(anyhow!(error).context("send").into());
            }
        }
        if is_first && let Some(error) = answer_in_time(socket).await {
            self.has_left = false;
            if is_too_long(&error) {
                return Err(too_long(socket, message));
            }
            self.socket = None;
            return Err(anyhow!(in_words(&error)).into());
        }
        Ok(())
    }

    /// Whether the host name no longer resolves to the current address. Lookups run in the background, and a failed one
    /// changes nothing.
    async fn has_moved(&mut self) -> bool {
        let Some(socket) = &self.socket else {
            return false;
        };
        if let Some(looking_up) = self.looking_up.take_if(|lookup| lookup.is_finished()) {
            self.looked_up = Instant::now();
            let found = looking_up.await.ok().and_then(Result::ok);
            let (found, peer) = (found.unwrap_or_default(), socket.peer_addr());
            let Some(other) = found
                .first()
                .filter(|_| peer.is_ok_and(|peer| !found.contains(&peer)))
            else {
                return false;
            };
            tracing::info!(host = self.to.host, address = %other, "the host's address has changed: sending to the new one");
            return true;
        }
        let is_due = self.looking_up.is_none() && self.looked_up.elapsed() >= self.every;
        if is_due && self.to.host.parse::<IpAddr>().is_err() {
            let HostPort { host, port } = self.to.clone();
            let looking_up = async move { Ok(lookup_host((host, port)).await?.collect()) };
            self.looking_up = Some(tokio::spawn(looking_up));
        }
        false
    }

    /// Whether a datagram has left although its future was dropped, and no error came back.
    pub(super) fn has_taken(&self) -> bool {
        // Reading an error clears it. Unless this datagram has left, the error is about an earlier one and stays for
        // `notice`.
        self.has_left && self.socket.as_ref().and_then(answer).is_none()
    }

    /// Starts waiting for an ICMP error about the last datagram.
    pub(super) fn doubts(&mut self) {
        self.doubted_since = Some(Instant::now());
        self.has_left = false;
    }

    pub(super) fn is_doubted(&self) -> bool {
        self.doubted_since.is_some()
    }

    /// Fails if an ICMP error about the last datagram came. After a while it counts as sent.
    pub(super) fn notice(&mut self) -> Result<(), Failure> {
        let Some(since) = self.doubted_since else {
            return Ok(());
        };
        if let Some(error) = self.socket.as_ref().and_then(answer) {
            return Err(self.last_refused(&error));
        }
        if since.elapsed() >= DOUBT {
            self.doubted_since = None;
        }
        Ok(())
    }

    /// Closes the socket: the next message uses another one, perhaps to another address of the host.
    fn last_refused(&mut self, error: &io::Error) -> Failure {
        self.socket = None;
        self.doubted_since = None;
        self.has_left = false;
        Failure::LastRefused {
            why: in_words(error),
        }
    }

    async fn connect(&mut self) -> anyhow::Result<UdpSocket> {
        let looking_up = lookup_host((self.to.host.as_str(), self.to.port));
        let found = timeout(PATIENCE, looking_up)
            .await
            .context("looking up the host timed out")?
            .context("look up the host")?;
        let found: Vec<_> = found.collect();
        self.looked_up = Instant::now();
        self.looking_up = None;
        let turn = self.connections.checked_rem(found.len());
        let to = found[turn.context("the host has no address")?];
        self.connections = self.connections.wrapping_add(1);
        let here = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(here).await.context("open a socket")?;
        // Report datagrams that exceed the path MTU instead of fragmenting them.
        if to.is_ipv4() {
            sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)
        } else {
            sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO)
        }
        .context("forbid fragments")?;
        socket.connect(to).await.context("connect")?;
        Ok(socket)
    }
}

/// Waits for an ICMP error about the first datagram.
async fn answer_in_time(socket: &UdpSocket) -> Option<io::Error> {
    let _ = timeout(DOUBT, socket.ready(Interest::ERROR)).await;
    answer(socket)
}

/// The pending error, from an ICMP message that the kernel considers permanent. Asks the socket itself, because tokio
/// reads nothing from a socket that has only an error.
fn answer(socket: &UdpSocket) -> Option<io::Error> {
    socket.take_error().unwrap_or_else(Some)
}

fn in_words(answer: &io::Error) -> String {
    if answer.kind() == ErrorKind::ConnectionRefused {
        "nobody listens there".to_owned()
    } else {
        format!("datagrams are rejected: {answer}")
    }
}

fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error())
}

fn too_long(socket: &UdpSocket, message: &[u8]) -> Failure {
    let most_bytes = path_len_bytes(socket, message.len());
    Failure::TooLong { most_bytes }
}

/// The datagram length that fits the path; always less than `too_long`.
fn path_len_bytes(socket: &UdpSocket, too_long: usize) -> usize {
    let mtu = sockopt::ip_mtu(socket).or_else(|_| sockopt::ipv6_mtu(socket));
    let known = mtu.map_or(usize::MAX, |mtu| {
        (mtu as usize).saturating_sub(HEADERS_LEN_BYTES)
    });
    known.min(too_long - 1)
}

#[cfg(test)]
mod tests {
    use lab::{Lab, Namespace, privilege::is_root_or_skip};

    use super::*;

    const MOST_TIME: Duration = Duration::from_mins(2);

    #[tokio::test]
    async fn a_receiver_that_goes_refuses_the_last_message_and_one_that_is_not_there_the_first() {
        let receiver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = receiver.local_addr().unwrap();
        let to = HostPort {
            host: address.ip().to_string(),
            port: address.port(),
        };
        let mut udp = Udp::new(to, Duration::MAX);
        udp.send(&[1]).await.unwrap();
        drop(receiver);
        // Sending succeeds: the error arrives later.
        udp.send(&[2]).await.unwrap();
        let refused = async {
            loop {
                if let Err(failure) = udp.send(&[3]).await {
                    break failure;
                }
            }
        };
        let failure = timeout(MOST_TIME, refused).await.unwrap();
        assert!(matches!(failure, Failure::LastRefused { .. }), "{failure}");
        assert_eq!(failure.to_string(), "nobody listens there");
        let failure = udp.send(&[4]).await.unwrap_err();
        assert!(matches!(failure, Failure::Again { .. }), "{failure}");
        assert_eq!(failure.to_string(), "nobody listens there");
        let _receiver = UdpSocket::bind(address).await.unwrap();
        udp.send(&[5]).await.unwrap();
    }

    /// Addresses that a router may reject datagrams to.
    #[test]
    fn what_a_router_refuses_does_not_count_as_sent() {
        const BEHIND: &str = "203.0.113.1";
        if !is_root_or_skip("exporters::what_a_router_refuses_does_not_count_as_sent") {
            return;
        }
        let lab = Lab::addressed().unwrap();
        let (host, router) = (&lab.agent.namespace, &lab.peer.namespace);
        let via = lab.peer.ipv4.to_string();
        let ip = |namespace: &Namespace, command: &str| {
            let arguments: Vec<_> = command.split(' ').collect();
            namespace.ip(&arguments).unwrap();
        };
        ip(host, &format!("route add {BEHIND} via {via}"));
        router.set_sysctl("net/ipv4/ip_forward", "1").unwrap();
        ip(router, &format!("address add {BEHIND}/32 dev lo"));
        let bind = || Ok(std::net::UdpSocket::bind((BEHIND, 0))?);
        let receiver = router.enter(bind).unwrap();
        let port = receiver.local_addr().unwrap().port();
        let sends = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let failures = runtime.block_on(async {
                let to = HostPort {
                    host: BEHIND.to_owned(),
                    port,
                };
                let mut udp = Udp::new(to, Duration::MAX);
                udp.send(&[1]).await.unwrap();
                assert!(udp.has_taken());
                ip(router, &format!("address del {BEHIND}/32 dev lo"));
                ip(router, &format!("route add prohibit {BEHIND}"));
                udp.send(&[2]).await.unwrap();
                udp.doubts();
                assert!(!udp.has_taken(), "not the next one");
                // Under load the ICMP error may arrive after `DOUBT`.
                let mut known = Ok(());
                let begun = Instant::now();
                while known.is_ok() {
                    assert!(begun.elapsed() < MOST_TIME);
                    udp.doubts();
                    known = udp.notice();
                }
                assert!(!udp.has_taken());
                // The error about the retry may arrive late too. Then the next send reports it.
                let refused = loop {
                    assert!(begun.elapsed() < MOST_TIME);
                    match udp.send(&[3]).await {
                        Err(refused @ Failure::Again { .. }) => break refused,
                        late => drop(late),
                    }
                };
                [known.unwrap_err(), refused]
            });
            Ok(failures)
        };
        let [last, first] = host.enter(sends).unwrap();
        assert!(matches!(last, Failure::LastRefused { .. }), "{last}");
        assert!(matches!(first, Failure::Again { .. }), "{first}");
        for failure in [last, first] {
            let told = failure.to_string();
            assert!(
                told.starts_with("datagrams are rejected: No route to host"),
                "{told}"
            );
        }
    }
}
