//! The kernel's connection tracking (`ctnetlink`): connections whose addresses or ports it translates.

use std::{io, os::fd::AsFd as _, time::Duration};

use agent_common::translation::{End, Translation};
use anyhow::{Context as _, Result, bail};
use netlink_packet_core::{NLMSG_ALIGNTO, NetlinkMessage, NetlinkPayload};
use netlink_sys::{Socket, SocketAddr};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force},
};
use socket2::{SockFilter, SockRef};

use crate::{
    links::netlink::{Message, NetlinkSocket, attributes, field},
    netns::Namespace,
};

const NETLINK_NETFILTER: isize = 12;
/// `struct nfgenmsg`.
const HEADER_LEN_BYTES: usize = 4;
/// `struct nlmsghdr` and `struct nfgenmsg`.
const HEADERS_LEN_BYTES: u32 = 20;

// linux/netfilter/nfnetlink.h and nfnetlink_conntrack.h: the subsystem is in the upper byte.
const NEW: u16 = 256;
const GET: u16 = 256 + 1;
const DELETE: u16 = 256 + 2;
const GROUP_NEW: u32 = 1;
const GROUP_DESTROY: u32 = 3;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const IP_V4: [u16; 2] = [1, 2];
const IP_V6: [u16; 2] = [3, 4];
const PROTOCOL_NUMBER: u16 = 1;
const PORTS: [u16; 2] = [2, 3];
const ICMP_IDS: [u16; 2] = [4, 7];
/// `IPS_SRC_NAT` and `IPS_DST_NAT`.
const IS_TRANSLATED: u32 = 1 << 4 | 1 << 5;

/// Size of the receive buffer, which the kernel doubles.
const WAITING_LEN_BYTES: usize = 8 << 20;
/// Longer than any notification about a connection.
const RECEIVE_BUFFER_LEN_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    Begun(Translation),
    Ended(Translation),
}

/// Notifications about the translated connections of a network namespace, from the time when this was opened.
pub struct Conntrack {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Conntrack {
    pub fn open(namespace: &Namespace) -> Result<Self> {
        let socket = namespace.enter(|| {
            let mut socket = Socket::new(NETLINK_NETFILTER).context("open a netlink socket")?;
            prepare(&socket).context("prepare a netlink socket")?;
            socket
                .bind(&SocketAddr::new(0, 0))
                .and_then(|()| socket.set_non_blocking(true))
                .and_then(|()| socket.add_membership(GROUP_NEW))
                .and_then(|()| socket.add_membership(GROUP_DESTROY))
                .context("listen for connections")?;
            Ok(socket)
        })?;
        Ok(Self {
            socket,
            buffer: Vec::with_capacity(RECEIVE_BUFFER_LEN_BYTES),
        })
    }

    /// Waits for notifications while this reads.
    pub fn waiter(&self) -> Result<Waiter> {
        let socket = self.socket.as_fd().try_clone_to_owned();
        Ok(Waiter(socket.context("duplicate a netlink socket")?))
    }

    /// Reads up to `most` datagrams. Returns whether the socket is empty. Sets `has_missed` if the kernel has dropped some
    /// notifications, or if this fails: everything that they reported has already happened.
    pub fn read(
        &mut self,
        most: usize,
        has_missed: &mut bool,
        sink: &mut impl FnMut(News),
    ) -> Result<bool> {
        for _ in 0..most {
            self.buffer.clear();
            match self.socket.recv(&mut self.buffer, libc::MSG_DONTWAIT) {
                Ok(_) => {
                    let read = each_message(&self.buffer, &mut |message| {
                        if let Some(news) = news(message) {
                            sink(news);
                        }
                    });
                    *has_missed |= read.is_err();
                    read?;
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => *has_missed = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    *has_missed = true;
                    return Err(error).context("listen for connections");
                }
            }
        }
        Ok(false)
    }

    /// Lists the translated connections of a network namespace, up to `most`, and how many there are beyond. The result may
    /// lack some that begin or end meanwhile.
    pub fn list(namespace: &Namespace, most: usize) -> Result<(Vec<Translation>, u64)> {
        #[derive(Default)]
        struct Listed(Vec<Translation>, u64);
        let request = Message {
            kind: GET,
            body: vec![0; HEADER_LEN_BYTES],
        };
        let listed = namespace.enter(|| {
            let mut socket = NetlinkSocket::open(NETLINK_NETFILTER)?;
            socket
                .fold(&request, |Listed(all, beyond), message| {
                    if let Some(News::Begun(translation)) = news(&message) {
                        if all.len() < most {
                            all.push(translation);
                        } else {
                            *beyond += 1;
                        }
                    }
                    Ok(())
                })
                .context("list connections")
        })?;
        Ok((listed.0, listed.1))
    }
}

/// Waits for notifications on a thread of its own.
pub struct Waiter(std::os::fd::OwnedFd);

impl Waiter {
    /// Returns when there is something to read, or after a while.
    pub fn wait(&self, most: Duration) -> Result<()> {
        let most = Timespec::try_from(most).context("a short time")?;
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&most)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("wait for connections"),
        }
    }
}

/// Filters out connections that are not translated, and enlarges the receive buffer.
fn prepare(socket: &Socket) -> io::Result<()> {
    SockRef::from(socket).attach_filter(&filter())?;
    set_socket_recv_buffer_size_force(socket, WAITING_LEN_BYTES)
        .or_else(|_| set_socket_recv_buffer_size(socket, WAITING_LEN_BYTES))?;
    Ok(())
}

/// A classic BPF program, which the kernel runs before it charges a message to the socket. It finds the attribute with the
/// status (`SKF_AD_NLATTR`); a message without one passes.
fn filter() -> [SockFilter; 9] {
    const NLATTR: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_NLATTR).cast_unsigned();
    let statement = |code: u32, operand| SockFilter::new(code as u16, 0, 0, operand);
    let jump = |code: u32, operand, then, otherwise| {
        SockFilter::new(code as u16, then, otherwise, operand)
    };
    [
        statement(libc::BPF_LD | libc::BPF_IMM, HEADERS_LEN_BYTES),
        statement(libc::BPF_LDX | libc::BPF_IMM, STATUS.into()),
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NLATTR),
        jump(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, 0),
        statement(libc::BPF_MISC | libc::BPF_TAX, 0),
        // Both the attribute's value and what this loads are in network byte order.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_IND, 4),
        jump(
            libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K,
            IS_TRANSLATED,
            0,
            1,
        ),
        statement(libc::BPF_RET | libc::BPF_K, u32::MAX),
        statement(libc::BPF_RET | libc::BPF_K, 0),
    ]
}

fn each_message(datagram: &[u8], take: &mut impl FnMut(&Message)) -> Result<()> {
    let mut rest = datagram;
    while !rest.is_empty() {
        let message =
            NetlinkMessage::<Message>::deserialize(rest).context("decode a connection")?;
        let aligned_len = message.header.length.next_multiple_of(NLMSG_ALIGNTO.into());
        if aligned_len == 0 {
            bail!("a netlink message without a length");
        }
        rest = rest.get(aligned_len as usize..).unwrap_or_default();
        if let NetlinkPayload::InnerMessage(message) = message.payload {
            take(&message);
        }
    }
    Ok(())
}

/// `None` for connections that are not translated, and for protocols without ports or identifiers.
fn news(message: &Message) -> Option<News> {
    let body = message.body.get(HEADER_LEN_BYTES..)?;
    let translation = translation(body)?;
    match message.kind {
        NEW => Some(News::Begun(translation)),
        DELETE => Some(News::Ended(translation)),
        _ => None,
    }
}

fn translation(body: &[u8]) -> Option<Translation> {
    let original = tuple(nested(body, TUPLE_ORIGINAL)?)?;
    let reply = tuple(nested(body, TUPLE_REPLY)?)?;
    // An answer goes from the responder to the initiator.
    let [responder, initiator] = reply.ends;
    let translation = Translation {
        ip_version: original.ip_version,
        protocol: original.protocol,
        original: original.ends,
        translated: [initiator, responder],
    };
    let is_one = translation.original != translation.translated
        && reply.ip_version == original.ip_version
        && reply.protocol == original.protocol;
    is_one.then_some(translation)
}

struct Tuple {
    ip_version: u8,
    protocol: u8,
    ends: [End; 2],
}

fn tuple(tuple: &[u8]) -> Option<Tuple> {
    let (ip, protocol) = (nested(tuple, TUPLE_IP)?, nested(tuple, TUPLE_PROTOCOL)?);
    let number = *nested(protocol, PROTOCOL_NUMBER)?.first()?;
    let (ip_version, addresses) = match IP_V4.map(|kind| nested(ip, kind)) {
        [Some(source), Some(destination)] => (4, [source, destination]),
        _ => (6, [nested(ip, IP_V6[0])?, nested(ip, IP_V6[1])?]),
    };
    let port = |kind| Some(u16::from_be_bytes(field(nested(protocol, kind)?, 0).ok()?));
    let ports = match PORTS.map(port) {
        [Some(source), Some(destination)] => [source, destination],
        _ => [ICMP_IDS.into_iter().find_map(port)?; 2],
    };
    let mut ends = [End::default(); 2];
    for ((end, address), port) in ends.iter_mut().zip(addresses).zip(ports) {
        end.addr.get_mut(..address.len())?.copy_from_slice(address);
        end.port = port;
    }
    Some(Tuple {
        ip_version,
        protocol: number,
        ends,
    })
}

fn nested(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut all = attributes(bytes);
    Some(all.find(|(kind, _)| *kind == wanted)?.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::netlink::push_attribute;

    const NESTED: u16 = 1 << 15;

    fn tuple(addresses: [&[u8]; 2], protocol: u8, ports: &[(u16, u16)]) -> Vec<u8> {
        let (mut ip, mut of_protocol, mut tuple) = (Vec::new(), Vec::new(), Vec::new());
        let kinds = if addresses[0].len() == 4 {
            IP_V4
        } else {
            IP_V6
        };
        for (kind, address) in kinds.into_iter().zip(addresses) {
            push_attribute(&mut ip, kind, address);
        }
        push_attribute(&mut of_protocol, PROTOCOL_NUMBER, &[protocol]);
        for (kind, port) in ports {
            push_attribute(&mut of_protocol, *kind, &port.to_be_bytes());
        }
        push_attribute(&mut tuple, TUPLE_IP | NESTED, &ip);
        push_attribute(&mut tuple, TUPLE_PROTOCOL | NESTED, &of_protocol);
        tuple
    }

    fn message(kind: u16, original: &[u8], reply: &[u8]) -> Message {
        let mut body = vec![2, 0, 0, 0];
        push_attribute(&mut body, TUPLE_ORIGINAL | NESTED, original);
        push_attribute(&mut body, TUPLE_REPLY | NESTED, reply);
        Message { kind, body }
    }

    fn end(address: &[u8], port: u16) -> End {
        let mut addr = [0; 16];
        addr[..address.len()].copy_from_slice(address);
        End { addr, port }
    }

    #[test]
    fn a_translated_connection_has_both_forms_with_the_initiator_first() {
        let (client, router, server) = ([10, 0, 0, 5], [10, 0, 0, 7], [10, 0, 0, 8]);
        let ports = |source, destination| [(PORTS[0], source), (PORTS[1], destination)];
        let original = tuple([&client, &server], 17, &ports(4000, 53));
        let reply = tuple([&server, &router], 17, &ports(53, 9000));
        let expected = Translation {
            ip_version: 4,
            protocol: 17,
            original: [end(&client, 4000), end(&server, 53)],
            translated: [end(&router, 9000), end(&server, 53)],
        };
        let begun = message(NEW, &original, &reply);
        assert_eq!(news(&begun), Some(News::Begun(expected)));
        let ended = message(DELETE, &original, &reply);
        assert_eq!(news(&ended), Some(News::Ended(expected)));

        let plain = tuple([&server, &client], 17, &ports(53, 4000));
        assert_eq!(news(&message(NEW, &original, &plain)), None);
        // Every message that was cut off is none, or has the same values.
        for len in 0..begun.body.len() {
            let cut = Message {
                kind: NEW,
                body: begun.body[..len].to_vec(),
            };
            assert_eq!(news(&cut), None, "{len}");
        }
    }

    #[test]
    fn an_ipv6_ping_has_its_identifiers_for_ports() {
        let (client, router, server) = ([5; 16], [7; 16], [8; 16]);
        let id = |id| [(ICMP_IDS[1], id)];
        let original = tuple([&client, &server], 58, &id(3));
        let reply = tuple([&server, &router], 58, &id(4));
        let expected = Translation {
            ip_version: 6,
            protocol: 58,
            original: [end(&client, 3), end(&server, 3)],
            translated: [end(&router, 4), end(&server, 4)],
        };
        let message = message(NEW, &original, &reply);
        assert_eq!(news(&message), Some(News::Begun(expected)));
    }
}
