//! The links of this network namespace, and their counters; [`routes`] has its default routes.
//!
//! They come from `NETLINK_ROUTE`, which follows the calling thread's network namespace. `/sys/class/net` does not: it
//! shows the namespace of whoever mounted it.

use std::{
    collections::BTreeSet,
    fs,
    os::{
        fd::{AsRawFd as _, BorrowedFd},
        linux::fs::MetadataExt as _,
    },
};

use agent_common::LinkType;
use anyhow::{Context as _, Result};
use libc::{
    ARPHRD_ETHER, ARPHRD_IPGRE, ARPHRD_LOOPBACK, ARPHRD_NONE, ARPHRD_PPP, ARPHRD_SIT,
    ARPHRD_TUNNEL, ARPHRD_TUNNEL6, IFLA_ALT_IFNAME, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND,
    IFLA_LINK, IFLA_LINK_NETNSID, IFLA_LINKINFO, IFLA_MASTER, IFLA_MTU, IFLA_PROP_LIST,
    IFLA_STATS64, IFLA_XDP,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use rules::{link_names::LinkNames, pattern::Pattern};

pub mod driver;
pub(crate) mod events;
pub(crate) mod generic;
pub(crate) mod netlink;
mod notifications;
pub mod qdisc;
mod routes;
pub mod statistics;
pub mod tags;

use netlink::{Message, NetlinkSocket, attributes, field, push_attribute};

/// The index of `lo` in every network namespace (`LOOPBACK_IFINDEX`).
pub const LOOPBACK_IFINDEX: u32 = 1;

// linux/if_link.h, linux/rtnetlink.h.
const IFINFOMSG_LEN_BYTES: usize = 16;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_VXLAN_LINK: u16 = 3;
const XDP_ATTACHED_NONE: u8 = 0;
const XDP_ATTACHED_SKB: u8 = 2;

// linux/rtnetlink.h with its padding, linux/net_namespace.h.
const RTGENMSG_LEN_BYTES: usize = 4;
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;

// linux/if_arp.h.
const ARPHRD_RAWIP: u16 = 519;
const ARPHRD_IP6GRE: u16 = 823;

/// A network interface as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub ifindex: u32,
    pub name: String,
    /// Its alternative names.
    pub altnames: Vec<String>,
    /// `ARPHRD_*` of `linux/if_arp.h`.
    pub hardware_type: u16,
    pub is_up: bool,
    pub is_loopback: bool,
    pub mtu_bytes: u32,
    /// The type, as `ip link add type` names it. Empty for a NIC and for other devices with their own driver.
    pub kind: String,
    /// The other end of a veth or netkit, if it is in this network namespace.
    pub peer_ifindex: Option<u32>,
    /// The link under a VLAN device, macvlan or similar, or the link that a tunnel sends over. `None` if the kernel
    /// does not report it, or if it is in another network namespace.
    pub lower_ifindex: Option<u32>,
    /// Its other end, or the link under it, if that is in another network namespace: this namespace's id for that
    /// namespace (`IFLA_LINK_NETNSID`), and the index there.
    pub elsewhere: Option<(i32, u32)>,
    /// Its master: the bridge, bond or other device that has it as port, slave or virtual function.
    pub master_ifindex: Option<u32>,
    /// Another link here has it as its master. Set only for links that were listed together, and for those without a
    /// kind.
    pub has_lower: bool,
    pub xdp: AttachedXdp,
    /// The attached XDP program.
    pub xdp_program_id: Option<u32>,
    pub counters: Counters,
}

/// Whether an XDP program is attached, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AttachedXdp {
    #[default]
    None,
    /// In the driver or the hardware.
    Native,
    /// In the kernel's generic path, before TC.
    Generic,
}

/// The interface's own counters: `IFLA_STATS64`, `struct rtnl_link_stats64`. `rx_dropped` includes `rx_missed_errors`,
/// the sum that `/proc/net/dev` shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub rx_dropped: u64,
    pub rx_errors: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub tx_dropped: u64,
    pub tx_errors: u64,
}

impl Link {
    pub fn names(&self) -> LinkNames {
        LinkNames {
            name: self.name.clone(),
            altnames: self.altnames.clone(),
        }
    }

    /// Its name, then its alternative names.
    pub fn each_name(&self) -> impl Iterator<Item = &str> {
        let altnames = self.altnames.iter();
        std::iter::once(&self.name)
            .chain(altnames)
            .map(String::as_str)
    }

    pub fn is_called(&self, name: &str) -> bool {
        self.each_name().any(|one| one == name)
    }

    /// Whether the pattern matches one of its names.
    pub fn is_meant(&self, pattern: &Pattern) -> bool {
        self.each_name().any(|name| pattern.matches(name))
    }

    /// Whether it is a VRF device. Packets of its members pass its hooks only if this host itself sends or receives
    /// them.
    #[must_use]
    pub fn is_vrf(&self) -> bool {
        self.kind == "vrf"
    }

    /// Whether it is an end of a virtual cable.
    pub fn is_cable(&self) -> bool {
        matches!(self.kind.as_str(), "veth" | "netkit")
    }

    /// The header that frames of this link begin with; `None` if the agent cannot parse it.
    pub fn link_type(&self) -> Option<LinkType> {
        match self.hardware_type {
            ARPHRD_ETHER | ARPHRD_LOOPBACK => Some(LinkType::Ethernet),
            ARPHRD_NONE | ARPHRD_RAWIP | ARPHRD_TUNNEL | ARPHRD_TUNNEL6 | ARPHRD_SIT
            | ARPHRD_IPGRE | ARPHRD_IP6GRE | ARPHRD_PPP => Some(LinkType::Ip),
            _ => None,
        }
    }
}

/// Every link of this namespace, by ifindex.
pub fn links() -> Result<Vec<Link>> {
    LinkSocket::open()?.links()
}

/// The counters of one link. Use a [`LinkSocket`] to ask often.
pub fn link_counters(ifindex: u32) -> Result<Counters> {
    LinkSocket::open()?.counters(ifindex)
}

/// The links that carry an IPv4 or IPv6 default route, in any table, without `lo`.
pub fn default_route_ifindexes() -> Result<BTreeSet<u32>> {
    LinkSocket::open()?.default_route_ifindexes()
}

/// The inode number of the calling thread's network namespace.
pub fn netns_inode() -> Result<u32> {
    let path = "/proc/thread-self/ns/net";
    let metadata = fs::metadata(path).with_context(|| format!("read {path}"))?;
    // Namespace inodes are allocated as 32 bits (ns_common.inum).
    u32::try_from(metadata.st_ino()).context("a network namespace's inode exceeds 32 bits")
}

/// A socket that asks for the links of the namespace it was opened in.
pub struct LinkSocket {
    netlink: NetlinkSocket,
}

impl LinkSocket {
    pub fn open() -> Result<Self> {
        let netlink = NetlinkSocket::open(NETLINK_ROUTE).context("ask the kernel for links")?;
        Ok(Self { netlink })
    }

    /// Every link, by ifindex.
    pub fn links(&mut self) -> Result<Vec<Link>> {
        let answers = self.netlink.dump(&link_request(0)).context("list links")?;
        let links = answers
            .iter()
            .filter(|answer| answer.kind == libc::RTM_NEWLINK)
            .map(|answer| link(&answer.body).context("read a link"));
        let mut links: Vec<_> = links.collect::<Result<_>>()?;
        links.sort_by_key(|link| link.ifindex);
        let masters = masters(&links);
        for link in &mut links {
            link.has_lower = masters.contains(&link.ifindex);
        }
        Ok(links)
    }

    /// One link. Fails with ENODEV if it is gone.
    pub fn link(&mut self, ifindex: u32) -> Result<Link> {
        let what = || format!("ask for ifindex {ifindex}");
        let answer = self.netlink.get(link_request(ifindex)).with_context(what)?;
        let mut link = link(&answer.body).with_context(what)?;
        // Only links without a kind need `has_lower`, and listing takes longer the more links there are.
        if link.kind.is_empty() {
            link.has_lower = masters(&self.links()?).contains(&ifindex);
        }
        Ok(link)
    }

    /// This network namespace's id for another one, or `None` if it has none.
    pub fn netns_id(&mut self, netns: BorrowedFd<'_>) -> Result<Option<i32>> {
        let mut body = vec![0; RTGENMSG_LEN_BYTES];
        push_attribute(
            &mut body,
            NETNSA_FD,
            &netns.as_raw_fd().cast_unsigned().to_ne_bytes(),
        );
        let request = Message {
            kind: libc::RTM_GETNSID,
            body,
        };
        let what = "ask for the number of a network namespace";
        let answer = self.netlink.get(request).context(what)?;
        let all = answer.body.get(RTGENMSG_LEN_BYTES..).unwrap_or_default();
        let number = attributes(all).find(|(kind, _)| *kind == NETNSA_NSID);
        let number = number.map(|(_, number)| field(number, 0)).transpose();
        let number = number.context(what)?.map(i32::from_ne_bytes);
        Ok(number.filter(|number| *number >= 0))
    }

    /// The counters of one link. Fails with ENODEV if it is gone.
    pub fn counters(&mut self, ifindex: u32) -> Result<Counters> {
        let what = || format!("read the counters of ifindex {ifindex}");
        let answer = self.netlink.get(link_request(ifindex)).with_context(what)?;
        Ok(link(&answer.body).with_context(what)?.counters)
    }
}

/// The links that are the master of another link in the list.
fn masters(links: &[Link]) -> BTreeSet<u32> {
    links
        .iter()
        .filter_map(|link| link.master_ifindex)
        .collect()
}

/// A request for a link, as `struct ifinfomsg`. Index 0 asks for all links.
fn link_request(ifindex: u32) -> Message {
    let mut body = vec![0; IFINFOMSG_LEN_BYTES];
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    Message {
        kind: libc::RTM_GETLINK,
        body,
    }
}

/// Reads a link from `struct ifinfomsg` and its attributes.
fn link(body: &[u8]) -> Result<Link> {
    let flags = u32::from_ne_bytes(field(body, 8)?);
    let mut link = Link {
        ifindex: u32::from_ne_bytes(field(body, 4)?),
        name: String::new(),
        altnames: Vec::new(),
        hardware_type: u16::from_ne_bytes(field(body, 2)?),
        is_up: flags & libc::IFF_UP as u32 != 0,
        is_loopback: flags & libc::IFF_LOOPBACK as u32 != 0,
        mtu_bytes: 0,
        kind: String::new(),
        peer_ifindex: None,
        lower_ifindex: None,
        elsewhere: None,
        master_ifindex: None,
        has_lower: false,
        xdp: AttachedXdp::None,
        xdp_program_id: None,
        counters: Counters::default(),
    };
    let (mut linked_ifindex, mut vxlan_ifindex, mut linked_netns) = (0, None, None);
    for (kind, value) in attributes(&body[IFINFOMSG_LEN_BYTES.min(body.len())..]) {
        match kind {
            IFLA_IFNAME => link.name = text(value),
            IFLA_PROP_LIST => link.altnames = altnames(value),
            IFLA_MTU => link.mtu_bytes = u32::from_ne_bytes(field(value, 0)?),
            IFLA_LINK => linked_ifindex = u32::from_ne_bytes(field(value, 0)?),
            IFLA_LINK_NETNSID => linked_netns = Some(i32::from_ne_bytes(field(value, 0)?)),
            IFLA_MASTER => link.master_ifindex = Some(u32::from_ne_bytes(field(value, 0)?)),
            IFLA_LINKINFO => {
                link.kind = info_kind(value);
                vxlan_ifindex = vxlan_link(value, &link.kind)?;
            }
            IFLA_XDP => (link.xdp, link.xdp_program_id) = attached_xdp(value)?,
            IFLA_STATS64 => link.counters = counters(value)?,
            _ => {}
        }
    }
    // A tunnel that is bound to no link has index 0, and a link that stands on no other may name itself.
    let linked_ifindex = vxlan_ifindex.unwrap_or(linked_ifindex);
    if let Some(netns) = linked_netns {
        link.elsewhere = (linked_ifindex != 0).then_some((netns, linked_ifindex));
    } else if linked_ifindex != 0 && linked_ifindex != link.ifindex {
        let role = if link.is_cable() {
            &mut link.peer_ifindex
        } else {
            &mut link.lower_ifindex
        };
        *role = Some(linked_ifindex);
    }
    Ok(link)
}

/// A text that ends at the first zero.
fn text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// The alternative names in a list of properties.
fn altnames(properties: &[u8]) -> Vec<String> {
    let all = attributes(properties);
    let altnames = all.filter(|(kind, _)| *kind == IFLA_ALT_IFNAME);
    altnames.map(|(_, name)| text(name)).collect()
}

fn info_kind(info: &[u8]) -> String {
    let kind = attributes(info).find(|(kind, _)| *kind == IFLA_INFO_KIND);
    kind.map_or_else(String::new, |(_, value)| text(value))
}

/// The link that a VXLAN device sends over. Up to 6.18 the kernel reports it only here (`vxlan_fill_info`).
fn vxlan_link(info: &[u8], kind: &str) -> Result<Option<u32>> {
    if kind != "vxlan" {
        return Ok(None);
    }
    let Some((_, data)) = attributes(info).find(|(kind, _)| *kind == IFLA_INFO_DATA) else {
        return Ok(None);
    };
    let link = attributes(data).find(|(kind, _)| *kind == IFLA_VXLAN_LINK);
    link.map(|(_, value)| field(value, 0).map(u32::from_ne_bytes))
        .transpose()
}

/// How a program is attached, and its id. The kernel gives no id if several are attached (`rtnl_xdp_fill`).
fn attached_xdp(xdp: &[u8]) -> Result<(AttachedXdp, Option<u32>)> {
    let find = |wanted: u16| attributes(xdp).find(|(kind, _)| *kind == wanted);
    let attached = match find(IFLA_XDP_ATTACHED) {
        None | Some((_, [XDP_ATTACHED_NONE])) => AttachedXdp::None,
        Some((_, [XDP_ATTACHED_SKB])) => AttachedXdp::Generic,
        Some(_) => AttachedXdp::Native,
    };
    let id = find(IFLA_XDP_PROG_ID).map(|(_, id)| field(id, 0).map(u32::from_ne_bytes));
    Ok((attached, id.transpose()?))
}

/// The field's index in `struct rtnl_link_stats64`.
const RX_MISSED_ERRORS: usize = 15;

/// Reads the start of `struct rtnl_link_stats64`, which later kernels extend.
fn counters(stats: &[u8]) -> Result<Counters> {
    let nth = |index: usize| field(stats, index * 8).map(u64::from_ne_bytes);
    Ok(Counters {
        rx_packets: nth(0)?,
        tx_packets: nth(1)?,
        rx_bytes: nth(2)?,
        tx_bytes: nth(3)?,
        rx_errors: nth(4)?,
        tx_errors: nth(5)?,
        rx_dropped: nth(6)? + nth(RX_MISSED_ERRORS)?,
        tx_dropped: nth(7)?,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use lab::{Namespace, privilege::is_root_or_skip};

    use super::{netlink::errno, *};

    pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn loopback_is_among_the_links_of_this_namespace() {
        let links = links().unwrap();
        let lo = links.iter().find(|link| link.is_loopback).unwrap();
        assert_eq!((lo.ifindex, lo.name.as_str()), (LOOPBACK_IFINDEX, "lo"));
        assert_eq!(lo.link_type(), Some(LinkType::Ethernet));
        assert!(lo.mtu_bytes > 0);
        let counters = link_counters(lo.ifindex).unwrap();
        assert!(counters.rx_packets >= lo.counters.rx_packets);
    }

    #[test]
    fn one_link_is_what_it_is_among_all() {
        let mut socket = LinkSocket::open().unwrap();
        let without_counters = |link: Link| Link {
            counters: Counters::default(),
            ..link
        };
        let lo = socket.links().unwrap().swap_remove(0);
        let same = socket.link(lo.ifindex).unwrap();
        assert_eq!(without_counters(same), without_counters(lo));
        assert_eq!(
            errno(&socket.link(0x7fff_fff0).unwrap_err()),
            Some(libc::ENODEV)
        );
    }

    /// A bridge with a port stands for a device with a virtual function.
    #[test]
    fn a_link_with_a_port_has_a_lower_one() {
        if !is_root_or_skip("links::a_link_with_a_port_has_a_lower_one") {
            return;
        }
        let namespace = Namespace::new("lower").unwrap();
        namespace.add_wire(["port0", "far0"]).unwrap();
        namespace
            .ip(&["link", "add", "br0", "type", "bridge"])
            .unwrap();
        namespace
            .ip(&["link", "set", "port0", "master", "br0"])
            .unwrap();
        let links = namespace.enter(links).unwrap();
        let with_lower = links.iter().filter(|link| link.has_lower);
        let with_lower: Vec<&str> = with_lower.map(|link| link.name.as_str()).collect();
        assert_eq!(with_lower, ["br0"]);
    }

    #[test]
    fn a_socket_answers_again_after_an_unknown_link() {
        let mut socket = LinkSocket::open().unwrap();
        let error = socket.counters(0x7fff_fff0).unwrap_err();
        let kernel = error.chain().find_map(|cause| cause.downcast_ref());
        let kernel: &std::io::Error = kernel.unwrap();
        assert_eq!(kernel.raw_os_error(), Some(libc::ENODEV));
        assert!(socket.counters(LOOPBACK_IFINDEX).is_ok());
    }

    fn link_of(kind: &str, attributes: &[Vec<u8>]) -> Link {
        let mut body = vec![0; IFINFOMSG_LEN_BYTES];
        body[4..8].copy_from_slice(&7_u32.to_ne_bytes());
        let data = attribute(IFLA_VXLAN_LINK, &4_u32.to_ne_bytes());
        let info = [
            attribute(IFLA_INFO_KIND, kind.as_bytes()),
            attribute(IFLA_INFO_DATA, &data),
        ];
        body.extend(attribute(IFLA_LINKINFO, &info.concat()));
        body.extend(attributes.concat());
        link(&body).unwrap()
    }

    #[test]
    fn a_linked_one_is_the_other_end_or_the_one_underneath_or_elsewhere() {
        let linked = |ifindex: u32| attribute(IFLA_LINK, &ifindex.to_ne_bytes());
        let both = |kind: &str, attributes: &[Vec<u8>]| {
            let link = link_of(kind, attributes);
            (link.peer_ifindex, link.lower_ifindex)
        };
        assert_eq!(both("veth", &[linked(3)]), (Some(3), None));
        assert_eq!(both("netkit", &[linked(3)]), (Some(3), None));
        assert_eq!(both("vlan", &[linked(3)]), (None, Some(3)));
        assert_eq!(both("vxlan", &[]), (None, Some(4)));
        assert_eq!(both("gre", &[linked(0)]), (None, None));
        assert_eq!(both("", &[linked(7)]), (None, None));
        let elsewhere = attribute(IFLA_LINK_NETNSID, &6_i32.to_ne_bytes());
        for kind in ["veth", "macvlan", "vxlan"] {
            let attributes = [linked(3), elsewhere.clone()];
            let ifindex = if kind == "vxlan" { 4 } else { 3 };
            assert_eq!(link_of(kind, &attributes).elsewhere, Some((6, ifindex)));
            assert_eq!(both(kind, &attributes), (None, None), "{kind}");
        }
    }

    #[test]
    fn a_link_has_the_names_that_it_was_given_besides() {
        if !is_root_or_skip("links::a_link_has_the_names_that_it_was_given_besides") {
            return;
        }
        let namespace = Namespace::new("altname").unwrap();
        namespace.add_wire(["near0", "far0"]).unwrap();
        let long = "l".repeat(127);
        for name in ["uplink", &long] {
            let add = ["link", "property", "add", "dev", "near0", "altname", name];
            namespace.ip(&add).unwrap();
        }
        let near = |links: Vec<Link>| links.into_iter().find(|link| link.name == "near0");
        let all = near(namespace.enter(links).unwrap()).unwrap();
        assert_eq!(all.altnames, ["uplink", &long]);
        let one = || LinkSocket::open()?.link(all.ifindex);
        assert_eq!(namespace.enter(one).unwrap().names(), all.names());
    }

    #[test]
    fn an_xdp_program_comes_with_its_id() {
        let xdp = [
            attribute(IFLA_XDP_ATTACHED, &[1]),
            attribute(IFLA_XDP_PROG_ID, &42_u32.to_ne_bytes()),
        ];
        let link = link_of("", &[attribute(IFLA_XDP, &xdp.concat())]);
        assert_eq!(link.xdp, AttachedXdp::Native);
        assert_eq!(link.xdp_program_id, Some(42));
    }

    #[test]
    fn a_truncated_message_is_an_error() {
        assert!(link(&[0; 8]).is_err());
    }

    #[test]
    fn the_namespace_has_an_inode() {
        assert!(netns_inode().unwrap() > 0);
    }
}
