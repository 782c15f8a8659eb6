//! Looks up which user of this host owns the other end of a TCP connection, with the kernel's `sock_diag`
//! (`inet_diag.h`).

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use netlink_sys::{Socket, SocketAddr as KernelAddr, protocols::NETLINK_SOCK_DIAG};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const NLMSG_HEADER_BYTES: usize = 16;
/// `struct inet_diag_req_v2`.
const REQUEST_BYTES: usize = 56;
/// Offsets of the fields read from `struct inet_diag_msg`.
const STATE_AT: usize = 1;
const PORTS_AT: [usize; 2] = [4, 6];
const ADDRESSES_AT: [usize; 2] = [8, 24];
const UID_AT: usize = 64;
/// `TCP_ESTABLISHED`. A closed socket belongs to nobody, but the kernel reports root.
const ESTABLISHED: u8 = 1;
/// `INET_DIAG_NOCOOKIE`.
const ANY_COOKIE: [u8; 8] = [0xff; 8];

/// The user that owns the socket at `peer` connected to `own`, if that socket is in this network namespace.
pub(super) fn lookup(peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    // A kernel without sock_diag identifies nobody.
    asked(peer, own).ok().flatten()
}

fn asked(peer: SocketAddr, own: SocketAddr) -> io::Result<Option<u32>> {
    let socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.connect(&KernelAddr::new(0, 0))?;
    socket.send(&request(peer, own), 0)?;
    // The kernel answers while the request is sent.
    let (answer, _) = socket.recv_from_full()?;
    let kind = answer.get(4..).and_then(|rest| rest.first_chunk().copied());
    let is_socket = kind.map(u16::from_ne_bytes) == Some(SOCK_DIAG_BY_FAMILY);
    let socket = answer.get(NLMSG_HEADER_BYTES..).filter(|_| is_socket);
    Ok(socket.and_then(|socket| user(socket, [peer, own])))
}

/// The user in a `struct inet_diag_msg`, if its socket is connected and has these ends. If there is none, the kernel
/// answers with a listener at `peer`'s port (`__inet_lookup`).
fn user(socket: &[u8], ends: [SocketAddr; 2]) -> Option<u32> {
    let is_end = |number: usize| {
        let port = socket.get(PORTS_AT[number]..)?.first_chunk().copied()?;
        let address = socket.get(ADDRESSES_AT[number]..)?;
        let address = match *socket.first()? {
            AF_INET => IpAddr::from(*address.first_chunk::<4>()?),
            _ => IpAddr::from(*address.first_chunk::<16>()?),
        };
        let end = ends[number];
        let is_it = u16::from_be_bytes(port) == end.port()
            && address.to_canonical() == end.ip().to_canonical();
        is_it.then_some(())
    };
    is_end(0)?;
    is_end(1)?;
    let uid = socket.get(UID_AT..)?.first_chunk().copied()?;
    (*socket.get(STATE_AT)? == ESTABLISHED).then_some(u32::from_ne_bytes(uid))
}

fn request(peer: SocketAddr, own: SocketAddr) -> Vec<u8> {
    let [from, to] = [peer, own].map(|address| address.ip().to_canonical());
    let family = match from {
        IpAddr::V4(_) => AF_INET,
        IpAddr::V6(_) => AF_INET6,
    };
    let len = NLMSG_HEADER_BYTES + REQUEST_BYTES;
    let mut request = Vec::with_capacity(len);
    request.extend((len as u32).to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(NLM_F_REQUEST.to_ne_bytes());
    // The request's number, and the sender, which the kernel fills in.
    request.extend([0; 8]);
    // No extensions; any state.
    request.extend([family, IPPROTO_TCP, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes());
    request.extend(peer.port().to_be_bytes());
    request.extend(own.port().to_be_bytes());
    for address in [from, to] {
        let mut bytes = [0; 16];
        match address {
            IpAddr::V4(v4) => bytes[..4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => bytes.copy_from_slice(&v6.octets()),
        }
        request.extend(bytes);
    }
    // Any interface.
    request.extend([0; 4]);
    request.extend(ANY_COOKIE);
    request
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::process::geteuid;

    use super::*;

    #[test]
    fn the_kernel_knows_whose_the_other_end_of_a_connection_is_and_of_none_says_nothing() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                continue;
            };
            let own = listener.local_addr().unwrap();
            let client = TcpStream::connect(own).unwrap();
            let (_accepted, peer) = listener.accept().unwrap();
            assert_eq!(lookup(peer, own), Some(geteuid().as_raw()), "{address}");
            let mut other = peer;
            other.set_ip("192.0.2.1".parse().unwrap());
            assert_eq!(lookup(other, own), None, "{address}");
            drop(client);
            // Must not be root's, although the kernel reports root while the connection is closing.
            assert_eq!(lookup(peer, own), None, "{address}");
        }
    }

    #[test]
    fn a_listener_at_the_port_of_a_stranger_is_not_the_stranger() {
        for (address, stranger) in [("0.0.0.0:0", "192.0.2.1"), ("[::]:0", "2001:db8::1")] {
            let Ok(listener) = TcpListener::bind(address) else {
                continue;
            };
            let own = listener.local_addr().unwrap();
            let peer = SocketAddr::new(stranger.parse().unwrap(), own.port());
            assert_eq!(lookup(peer, own), None, "{address}");
        }
    }
}
