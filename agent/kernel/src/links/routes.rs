//! The links that default routes lead over: links that a route names, and links of the nexthop objects that it names
//! instead (`ip nexthop`).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use libc::{RTA_MULTIPATH, RTA_OIF};

use super::{
    LOOPBACK_IFINDEX, LinkSocket,
    netlink::{Message, attributes, field},
};

// linux/rtnetlink.h, linux/nexthop.h.
const RTMSG_LEN_BYTES: usize = 12;
const RTNEXTHOP_LEN_BYTES: usize = 8;
const RTA_NH_ID: u16 = 30;
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_GETNEXTHOP: u16 = 106;
const NHMSG_LEN_BYTES: usize = 8;
const NEXTHOP_GRP_LEN_BYTES: usize = 8;
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_OIF: u16 = 5;

/// Where default routes lead.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DefaultRoutes {
    pub ifindexes: BTreeSet<u32>,
    /// Nexthop objects of routes that name no interface. The kernel also names the interfaces, unless
    /// `net.ipv4.nexthop_compat_mode` is 0.
    pub nexthops: BTreeSet<u32>,
}

impl LinkSocket {
    /// The links that carry an IPv4 or IPv6 default route, in any table, without `lo`.
    pub fn default_route_ifindexes(&mut self) -> Result<BTreeSet<u32>> {
        let mut all = DefaultRoutes::default();
        for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
            let mut body = vec![0; RTMSG_LEN_BYTES];
            body[0] = family;
            let request = Message {
                kind: libc::RTM_GETROUTE,
                body,
            };
            // A kernel without IPv6 answers with the routes of its other families. There may be a million routes.
            let of_family = self
                .netlink
                .fold(&request, |routes: &mut DefaultRoutes, route| {
                    if route.kind == libc::RTM_NEWROUTE {
                        routes.add(&route.body).context("read a route")?;
                    }
                    Ok(())
                });
            let of_family = of_family.context("list routes")?;
            all.ifindexes.extend(of_family.ifindexes);
            all.nexthops.extend(of_family.nexthops);
        }
        if !all.nexthops.is_empty() {
            let known = self.nexthops()?;
            all.ifindexes.extend(links_of(&all.nexthops, &known));
        }
        all.ifindexes.remove(&LOOPBACK_IFINDEX);
        Ok(all.ifindexes)
    }

    /// All nexthop objects, by their ids.
    fn nexthops(&mut self) -> Result<BTreeMap<u32, Nexthop>> {
        let request = Message {
            kind: RTM_GETNEXTHOP,
            body: vec![0; NHMSG_LEN_BYTES],
        };
        let nexthops = self
            .netlink
            .fold(&request, |known: &mut BTreeMap<_, _>, answer| {
                if answer.kind == RTM_NEWNEXTHOP {
                    known.extend(nexthop(&answer.body).context("read a nexthop")?);
                }
                Ok(())
            });
        nexthops.context("list nexthops")
    }
}

impl DefaultRoutes {
    /// Adds a route (`struct rtmsg` and its attributes), if it is a default route.
    pub(super) fn add(&mut self, body: &[u8]) -> Result<()> {
        let [_family, destination_prefix_len] = field(body, 0)?;
        let [route_type] = field(body, 7)?;
        let route_flags = u32::from_ne_bytes(field(body, 8)?);
        let is_default = destination_prefix_len == 0
            && route_type == libc::RTN_UNICAST
            && route_flags & libc::RTM_F_CLONED == 0;
        if !is_default {
            return Ok(());
        }
        let (mut ifindexes, mut nexthop_id) = (Vec::new(), None);
        for (kind, value) in attributes(&body[RTMSG_LEN_BYTES..]) {
            match kind {
                RTA_OIF => ifindexes.push(u32::from_ne_bytes(field(value, 0)?)),
                RTA_MULTIPATH => ifindexes.extend(next_hops(value)?),
                RTA_NH_ID => nexthop_id = Some(u32::from_ne_bytes(field(value, 0)?)),
                _ => {}
            }
        }
        if ifindexes.is_empty() {
            self.nexthops.extend(nexthop_id);
        }
        self.ifindexes.extend(ifindexes);
        Ok(())
    }
}

/// The interfaces in a sequence of `struct rtnexthop`, each followed by its attributes.
fn next_hops(mut bytes: &[u8]) -> Result<Vec<u32>> {
    let mut ifindexes = Vec::new();
    while bytes.len() >= RTNEXTHOP_LEN_BYTES {
        let len = usize::from(u16::from_ne_bytes(field(bytes, 0)?));
        ifindexes.push(u32::from_ne_bytes(field(bytes, 4)?));
        let aligned_len = len.max(RTNEXTHOP_LEN_BYTES).next_multiple_of(4);
        bytes = bytes.get(aligned_len..).unwrap_or_default();
    }
    Ok(ifindexes)
}

/// A nexthop object: either an interface, or a group of other nexthop objects.
#[derive(Debug, Default, PartialEq, Eq)]
struct Nexthop {
    ifindex: Option<u32>,
    group: Vec<u32>,
}

/// Reads `struct nhmsg` and its attributes. A group's attribute is a sequence of `struct nexthop_grp`.
fn nexthop(body: &[u8]) -> Result<Option<(u32, Nexthop)>> {
    let (mut id, mut nexthop) = (None, Nexthop::default());
    for (kind, value) in attributes(body.get(NHMSG_LEN_BYTES..).unwrap_or_default()) {
        match kind {
            NHA_ID => id = Some(u32::from_ne_bytes(field(value, 0)?)),
            NHA_OIF => nexthop.ifindex = Some(u32::from_ne_bytes(field(value, 0)?)),
            NHA_GROUP => {
                let ids = value.chunks_exact(NEXTHOP_GRP_LEN_BYTES);
                let ids = ids.map(|one| field(one, 0).map(u32::from_ne_bytes));
                nexthop.group = ids.collect::<Result<_>>()?;
            }
            _ => {}
        }
    }
    Ok(id.map(|id| (id, nexthop)))
}

/// The links of these nexthops and of the members of their groups. Groups do not nest.
fn links_of(ids: &BTreeSet<u32>, known: &BTreeMap<u32, Nexthop>) -> BTreeSet<u32> {
    let named = ids.iter().filter_map(|id| known.get(id));
    let members = named.clone().flat_map(|nexthop| &nexthop.group);
    let members = members.filter_map(|id| known.get(id));
    named
        .chain(members)
        .filter_map(|nexthop| nexthop.ifindex)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{default_route_ifindexes, links, tests::attribute},
        *,
    };

    fn route(prefix_len: u8, route_type: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![0; RTMSG_LEN_BYTES];
        bytes[1] = prefix_len;
        bytes[7] = route_type;
        bytes.extend(attributes.concat());
        bytes
    }

    fn default_route(body: &[u8]) -> Result<DefaultRoutes> {
        let mut routes = DefaultRoutes::default();
        routes.add(body)?;
        Ok(routes)
    }

    #[test]
    fn default_routes_are_links_of_this_namespace() {
        let ifindexes = default_route_ifindexes().unwrap();
        let links = links().unwrap();
        for ifindex in ifindexes {
            assert!(links.iter().any(|link| link.ifindex == ifindex));
        }
    }

    #[test]
    fn every_next_hop_of_a_multipath_default_route_counts() {
        let mut hops = Vec::new();
        for ifindex in [7_u32, 9] {
            let gateway = attribute(5, &[10, 0, 0, 1]);
            hops.extend(((8 + gateway.len()) as u16).to_ne_bytes());
            hops.extend([0, 0]);
            hops.extend(ifindex.to_ne_bytes());
            hops.extend(gateway);
        }
        let body = route(0, libc::RTN_UNICAST, &[attribute(RTA_MULTIPATH, &hops)]);
        assert_eq!(
            default_route(&body).unwrap().ifindexes,
            BTreeSet::from([7, 9])
        );
    }

    #[test]
    fn a_prefix_and_an_unreachable_route_are_no_default_routes() {
        let oif = [attribute(RTA_OIF, &3_u32.to_ne_bytes())];
        assert_eq!(
            default_route(&route(0, libc::RTN_UNICAST, &oif))
                .unwrap()
                .ifindexes,
            BTreeSet::from([3])
        );
        for (prefix_len, route_type) in [(1, libc::RTN_UNICAST), (0, libc::RTN_UNREACHABLE)] {
            let body = route(prefix_len, route_type, &oif);
            assert_eq!(default_route(&body).unwrap(), DefaultRoutes::default());
        }
    }

    #[test]
    fn a_route_that_names_a_nexthop_leads_over_the_links_of_its_group() {
        let number = |kind, number: u32| attribute(kind, &number.to_ne_bytes());
        let only_id = route(0, libc::RTN_UNICAST, &[number(RTA_NH_ID, 5)]);
        let routes = default_route(&only_id).unwrap();
        assert_eq!(routes.nexthops, BTreeSet::from([5]));
        let both = [number(RTA_NH_ID, 5), number(RTA_OIF, 3)];
        let routes = default_route(&route(0, libc::RTN_UNICAST, &both)).unwrap();
        assert!(routes.nexthops.is_empty() && routes.ifindexes == BTreeSet::from([3]));

        let group: Vec<u8> = [7_u32, 0, 8, 0]
            .into_iter()
            .flat_map(u32::to_ne_bytes)
            .collect();
        let message = |attributes: [Vec<u8>; 2]| [vec![0; NHMSG_LEN_BYTES], attributes.concat()];
        let all = [
            message([number(NHA_ID, 5), attribute(NHA_GROUP, &group)]),
            message([number(NHA_ID, 6), number(NHA_OIF, 60)]),
            message([number(NHA_ID, 7), number(NHA_OIF, 70)]),
            message([number(NHA_ID, 8), number(NHA_OIF, 80)]),
        ];
        let known = all.map(|message| nexthop(&message.concat()).unwrap().unwrap());
        let known = BTreeMap::from(known);
        let links = |ids: &[u32]| links_of(&ids.iter().copied().collect(), &known);
        assert_eq!(links(&[5]), BTreeSet::from([70, 80]));
        assert_eq!(links(&[6, 9]), BTreeSet::from([60]));
    }

    #[test]
    fn a_truncated_route_is_an_error() {
        assert!(default_route(&[0; 4]).is_err());
    }
}
