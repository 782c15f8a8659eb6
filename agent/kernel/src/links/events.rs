//! The kernel's notifications about the links of a network namespace, their TC filters and qdiscs, and default routes.

use std::io;

use anyhow::{Context as _, Result};
use netlink_packet_core::{NLMSG_ALIGNTO, NetlinkMessage, NetlinkPayload};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rules::link_names::LinkNames;

use super::{
    IFINFOMSG_LEN_BYTES, LOOPBACK_IFINDEX, altnames,
    netlink::{Message, attributes, field},
    notifications,
    routes::DefaultRoutes,
    text,
};

/// Longer than any notification of the kernel (`if_nlmsg_size`).
const RECEIVE_BUFFER_LEN_BYTES: usize = 64 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// A link is new or has changed.
    Changed {
        ifindex: u32,
        names: LinkNames,
        /// The bridge, bond or similar that it is a port of.
        master: Option<u32>,
    },
    /// The link with this index was deleted, or moved to another namespace.
    Left(u32),
    /// A filter or a qdisc of this link was removed; the qdisc may have had filters.
    TcRemoved(u32),
    /// A default route leads over these links.
    DefaultRoute(Vec<u32>),
    /// A default route leads over a nexthop object; the kernel has to be asked for its links.
    DefaultRouteByNexthop,
    /// Some notifications did not fit into the socket's buffer. Everything they reported has already happened.
    Missed,
}

/// The events of one network namespace, from the time when this was opened there.
pub(crate) struct LinkEvents {
    socket: Socket,
    buffer: Vec<u8>,
    /// A notification did not fit, and some that did are still unread.
    has_missed: bool,
}

impl LinkEvents {
    pub(crate) fn open() -> Result<Self> {
        // Routes are included even if patterns select, since the selection may change.
        const GROUPS: [u32; 4] = [
            libc::RTNLGRP_LINK,
            libc::RTNLGRP_TC,
            libc::RTNLGRP_IPV4_ROUTE,
            libc::RTNLGRP_IPV6_ROUTE,
        ];
        let mut socket = Socket::new(NETLINK_ROUTE).context("open a netlink socket")?;
        notifications::prepare(&socket).context("prepare a netlink socket")?;
        socket
            .bind(&SocketAddr::new(0, 0))
            .and_then(|()| {
                let mut groups = GROUPS.into_iter();
                groups.try_for_each(|group| socket.add_membership(group))
            })
            .context("listen for changes of interfaces")?;
        Ok(Self {
            socket,
            buffer: Vec::with_capacity(RECEIVE_BUFFER_LEN_BYTES),
            has_missed: false,
        })
    }

    /// Waits for notifications. The result is empty if none of them matters here.
    ///
    /// When the kernel drops a notification it reports that once, ahead of everything that is waiting to be read. Until
    /// all of that is read it drops more without another report (`netlink_overrun`, `netlink_rcv_wake`, 6.18).
    pub(crate) fn next(&mut self) -> Result<Vec<LinkEvent>> {
        self.buffer.clear();
        let flags = if self.has_missed {
            libc::MSG_DONTWAIT
        } else {
            0
        };
        match self.socket.recv(&mut self.buffer, flags) {
            Ok(_) => events(&self.buffer),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                self.has_missed = true;
                Ok(Vec::new())
            }
            Err(error) if self.has_missed && error.kind() == io::ErrorKind::WouldBlock => {
                self.has_missed = false;
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

/// Reads an event. The family distinguishes a link (`struct ifinfomsg`) from a message about a bridge port. `struct
/// tcmsg` has the index at the same offset.
fn event(message: &Message) -> Result<Option<LinkEvent>> {
    let body = &message.body;
    if message.kind == libc::RTM_NEWROUTE {
        let mut routes = DefaultRoutes::default();
        routes.add(body)?;
        if !routes.nexthops.is_empty() {
            return Ok(Some(LinkEvent::DefaultRouteByNexthop));
        }
        routes.ifindexes.remove(&LOOPBACK_IFINDEX);
        let ifindexes: Vec<u32> = routes.ifindexes.into_iter().collect();
        return Ok((!ifindexes.is_empty()).then_some(LinkEvent::DefaultRoute(ifindexes)));
    }
    let [family] = field(body, 0)?;
    if i32::from(family) != libc::AF_UNSPEC {
        return Ok(None);
    }
    let ifindex = u32::from_ne_bytes(field(body, 4)?);
    Ok(match message.kind {
        libc::RTM_DELLINK => Some(LinkEvent::Left(ifindex)),
        libc::RTM_DELQDISC | libc::RTM_DELTFILTER => Some(LinkEvent::TcRemoved(ifindex)),
        libc::RTM_NEWLINK => {
            let all = body.get(IFINFOMSG_LEN_BYTES..).unwrap_or_default();
            let find = |wanted: u16| attributes(all).find(|(kind, _)| *kind == wanted);
            let master = find(libc::IFLA_MASTER).map(|(_, master)| field(master, 0));
            let master = master.transpose()?.map(u32::from_ne_bytes);
            let list = find(libc::IFLA_PROP_LIST).map(|(_, list)| altnames(list));
            find(libc::IFLA_IFNAME).map(|(_, name)| LinkEvent::Changed {
                ifindex,
                names: LinkNames {
                    name: text(name),
                    altnames: list.unwrap_or_default(),
                },
                master,
            })
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use lab::{Namespace, privilege::is_root_or_skip};
    use rustix::net::sockopt::set_socket_recv_buffer_size;

    use super::*;

    #[test]
    fn what_is_dropped_while_the_rest_is_read_is_missed_as_well() {
        if !is_root_or_skip("kernel::what_is_dropped_while_the_rest_is_read_is_missed_as_well") {
            return;
        }
        let namespace = Namespace::new("events").unwrap();
        let mut events = namespace.enter(LinkEvents::open).unwrap();
        set_socket_recv_buffer_size(&events.socket, 1).unwrap();
        let mut told = Vec::new();
        for name in ["early0", "early1", "early2", "late0"] {
            namespace
                .ip(&["link", "add", name, "type", "veth"])
                .unwrap();
            if name == "early2" {
                // The notifications that fitted are still unread.
                assert_eq!(events.next().unwrap(), []);
            }
        }
        while !told.contains(&LinkEvent::Missed) {
            told.extend(events.next().unwrap());
        }
        // A caller that lists all interfaces only on `Missed` finds the last interface, too.
        assert_eq!(told.pop(), Some(LinkEvent::Missed));
        let is_late = |event: &LinkEvent| matches!(event, LinkEvent::Changed { names, .. } if names.name == "late0");
        assert!(!told.iter().any(is_late), "{told:?}");
    }

    #[test]
    fn a_link_that_is_there_is_told_from_one_that_left_and_from_a_port_of_a_bridge() {
        let message = |kind, family: i32| {
            let mut body = vec![0; 16];
            body[0] = u8::try_from(family).unwrap();
            body[4..8].copy_from_slice(&7_u32.to_ne_bytes());
            body.extend(8_u16.to_ne_bytes());
            body.extend(libc::IFLA_IFNAME.to_ne_bytes());
            body.extend(b"eth\0");
            body.extend(8_u16.to_ne_bytes());
            body.extend(libc::IFLA_MASTER.to_ne_bytes());
            body.extend(9_u32.to_ne_bytes());
            Message { kind, body }
        };
        let there = LinkEvent::Changed {
            ifindex: 7,
            names: "eth".into(),
            master: Some(9),
        };
        for (kind, family, expected) in [
            (libc::RTM_DELLINK, libc::AF_UNSPEC, Some(LinkEvent::Left(7))),
            (libc::RTM_DELLINK, libc::AF_BRIDGE, None),
            (
                libc::RTM_DELQDISC,
                libc::AF_UNSPEC,
                Some(LinkEvent::TcRemoved(7)),
            ),
            (
                libc::RTM_DELTFILTER,
                libc::AF_UNSPEC,
                Some(LinkEvent::TcRemoved(7)),
            ),
            (libc::RTM_NEWQDISC, libc::AF_UNSPEC, None),
            (libc::RTM_NEWLINK, libc::AF_UNSPEC, Some(there)),
            (libc::RTM_NEWLINK, libc::AF_BRIDGE, None),
        ] {
            assert_eq!(event(&message(kind, family)).unwrap(), expected);
        }
        let body = vec![0; 3];
        let kind = libc::RTM_DELLINK;
        assert!(event(&Message { kind, body }).is_err());
    }
}
