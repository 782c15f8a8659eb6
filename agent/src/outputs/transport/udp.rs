//! Messages as datagrams. Nobody says whether they arrive, but a host that has no receiver often says that.

use std::{
    io::ErrorKind,
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
    time::timeout,
};

use super::{Failure, PATIENCE};
use crate::outputs::settings::HostPort;

/// Of IPv6 and UDP. IPv4's header is shorter.
const HEADERS_LEN_BYTES: usize = 48;

/// How long to wait for a host to say that nobody listens, before a datagram counts as sent.
const DOUBT: Duration = Duration::from_millis(200);

pub(in crate::outputs) struct Udp {
    pub(super) to: HostPort,
    socket: Option<UdpSocket>,
    /// How many connections were made: the addresses of the host take turns.
    connections: usize,
    /// When the last datagram was handed over, until it counts as sent.
    doubted_since: Option<Instant>,
}

impl Udp {
    pub(in crate::outputs) fn new(to: HostPort) -> Self {
        Self {
            to,
            socket: None,
            connections: 0,
            doubted_since: None,
        }
    }

    pub(super) async fn send(&mut self, message: &[u8]) -> Result<(), Failure> {
        let (socket, is_first) = match self.socket.take() {
            Some(socket) => (socket, false),
            None => (self.connect().await?, true),
        };
        match socket.send(message).await {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error()) => {
                let most_bytes = path_len_bytes(&socket, message.len());
                self.socket = Some(socket);
                return Err(Failure::TooLong { most_bytes });
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                self.doubted_since = None;
                return Err(Failure::LastRefused);
            }
            Err(error) => return Err(anyhow!(error).context("send").into()),
        }
        if is_first && is_refused(&socket).await {
            return Err(anyhow!("nobody listens there").into());
        }
        self.socket = Some(socket);
        Ok(())
    }

    /// The host may still say that nobody took the last datagram.
    pub(super) fn doubts(&mut self) {
        self.doubted_since = Some(Instant::now());
    }

    pub(super) fn is_doubted(&self) -> bool {
        self.doubted_since.is_some()
    }

    /// Fails if the host has said that nobody took the last datagram. After a while there is no doubt any more.
    pub(super) fn notice(&mut self) -> Result<(), Failure> {
        let Some(since) = self.doubted_since else {
            return Ok(());
        };
        if self.socket.as_ref().is_some_and(has_refusal) {
            self.socket = None;
            self.doubted_since = None;
            return Err(Failure::LastRefused);
        }
        if since.elapsed() >= DOUBT {
            self.doubted_since = None;
        }
        Ok(())
    }

    async fn connect(&mut self) -> anyhow::Result<UdpSocket> {
        let looking_up = lookup_host((self.to.host.as_str(), self.to.port));
        let found = timeout(PATIENCE, looking_up)
            .await
            .context("nobody tells the address of the host")?
            .context("look up the host")?;
        let found: Vec<_> = found.collect();
        let turn = self.connections.checked_rem(found.len());
        let to = found[turn.context("the host has no address")?];
        self.connections = self.connections.wrapping_add(1);
        let here = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(here).await.context("open a socket")?;
        // A datagram that is too long for its way comes back as an error instead of going in fragments.
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

/// Whether the host says within a while that nobody listens.
async fn is_refused(socket: &UdpSocket) -> bool {
    let _ = timeout(DOUBT, socket.ready(Interest::ERROR)).await;
    has_refusal(socket)
}

/// Whether the host has said so. The socket is asked, since tokio reads none that has only an error.
fn has_refusal(socket: &UdpSocket) -> bool {
    let error = socket.take_error();
    matches!(error, Ok(Some(error)) if error.kind() == ErrorKind::ConnectionRefused)
}

/// What fits into a datagram on the way to the receiver; less than `too_long` in any case.
fn path_len_bytes(socket: &UdpSocket, too_long: usize) -> usize {
    let mtu = sockopt::ip_mtu(socket).or_else(|_| sockopt::ipv6_mtu(socket));
    let known = mtu.map_or(usize::MAX, |mtu| {
        (mtu as usize).saturating_sub(HEADERS_LEN_BYTES)
    });
    known.min(too_long - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST_TIME: Duration = Duration::from_mins(10);

    #[tokio::test]
    async fn a_receiver_that_goes_refuses_the_last_message_and_one_that_is_not_there_the_first() {
        let receiver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = receiver.local_addr().unwrap();
        let mut udp = Udp::new(HostPort {
            host: address.ip().to_string(),
            port: address.port(),
        });
        udp.send(&[1]).await.unwrap();
        drop(receiver);
        // Nothing is known when it is handed over.
        udp.send(&[2]).await.unwrap();
        let refused = async {
            loop {
                if let Err(failure) = udp.send(&[3]).await {
                    break failure;
                }
            }
        };
        let failure = timeout(MOST_TIME, refused).await.unwrap();
        assert!(matches!(failure, Failure::LastRefused), "{failure}");
        let failure = udp.send(&[4]).await.unwrap_err();
        assert!(matches!(failure, Failure::Again { .. }), "{failure}");
        assert_eq!(failure.to_string(), "nobody listens there");
        let _receiver = UdpSocket::bind(address).await.unwrap();
        udp.send(&[5]).await.unwrap();
    }
}
