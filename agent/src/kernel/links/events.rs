//! The kernel's notifications about links that leave a network namespace.

use std::io;

use anyhow::{Context as _, Result};
use netlink_packet_core::{NLMSG_ALIGNTO, NetlinkMessage, NetlinkPayload};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::netlink::{Message, field};

/// Longer than any notification of the kernel (`if_nlmsg_size`).
const RECEIVE_BUFFER_LEN_BYTES: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// The link with this index was deleted, or moved to another namespace.
    Left(u32),
    /// Some events did not fit into the socket.
    Missed,
}

/// The events of the network namespace in which it was opened, from then on.
pub(crate) struct LinkEvents {
    socket: Socket,
    buffer: Vec<u8>,
}

impl LinkEvents {
    pub(crate) fn open() -> Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE).context("open a netlink socket")?;
        socket
            .bind(&SocketAddr::new(0, 0))
            .and_then(|()| socket.add_membership(libc::RTNLGRP_LINK))
            .context("listen for changes of interfaces")?;
        Ok(Self {
            socket,
            buffer: Vec::with_capacity(RECEIVE_BUFFER_LEN_BYTES),
        })
    }

    /// Waits for notifications. The result is empty if none of them matters here.
    pub(crate) fn next(&mut self) -> Result<Vec<LinkEvent>> {
        self.buffer.clear();
        match self.socket.recv(&mut self.buffer, 0) {
            Ok(_) => events(&self.buffer),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                Ok(vec![LinkEvent::Missed])
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Vec::new()),
            Err(error) => Err(error).context("listen for changes of interfaces"),
        }
    }
}

fn events(datagram: &[u8]) -> Result<Vec<LinkEvent>> {
    let mut events = Vec::new();
    let mut rest = datagram;
    while !rest.is_empty() {
        let message = NetlinkMessage::<Message>::deserialize(rest)
            .context("decode a change of an interface")?;
        let aligned_len = message.header.length.next_multiple_of(NLMSG_ALIGNTO.into());
        rest = rest.get(aligned_len as usize..).unwrap_or_default();
        if let NetlinkPayload::InnerMessage(message) = message.payload {
            events.extend(event(&message)?);
        }
    }
    Ok(events)
}

/// Reads an event from `struct ifinfomsg`. The family tells it from the message about a port that leaves its
/// bridge.
fn event(message: &Message) -> Result<Option<LinkEvent>> {
    let [family] = field(&message.body, 0)?;
    let is_departure = message.kind == libc::RTM_DELLINK && i32::from(family) == libc::AF_UNSPEC;
    let ifindex = u32::from_ne_bytes(field(&message.body, 4)?);
    Ok(is_departure.then_some(LinkEvent::Left(ifindex)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_link_that_is_gone_has_left() {
        let message = |kind, family: i32| {
            let mut body = vec![0; 16];
            body[0] = u8::try_from(family).unwrap();
            body[4..8].copy_from_slice(&7_u32.to_ne_bytes());
            Message { kind, body }
        };
        for (kind, family, expected) in [
            (libc::RTM_DELLINK, libc::AF_UNSPEC, Some(LinkEvent::Left(7))),
            (libc::RTM_DELLINK, libc::AF_BRIDGE, None),
            (libc::RTM_NEWLINK, libc::AF_UNSPEC, None),
        ] {
            assert_eq!(event(&message(kind, family)).unwrap(), expected);
        }
        let body = vec![0; 3];
        let kind = libc::RTM_DELLINK;
        assert!(event(&Message { kind, body }).is_err());
    }
}
