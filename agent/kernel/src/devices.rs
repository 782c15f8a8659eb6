//! Which devices stand on which. A packet that passes a VLAN device also passes the interface under it, and is counted
//! twice if both are watched.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use libc::ARPHRD_NONE;
use tracing::warn;

use crate::links::Link;

pub mod across;
#[doc(hidden)]
pub mod samples;

/// The links of a network namespace, and how they stand on each other.
pub struct Devices<'a> {
    by_ifindex: BTreeMap<u32, &'a Link>,
    /// The ports, slaves and virtual functions of each master.
    ports: BTreeMap<u32, Vec<u32>>,
}

/// Two links that the same packet passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Twice<'a> {
    pub upper: &'a Link,
    pub lower: &'a Link,
    why: Why,
}

/// A tunnel that names no link for its packets. They may pass another counted link; only the routes tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MayBeTwice<'a> {
    pub tunnel: &'a Link,
    /// The other counted links; at least one.
    others: Vec<&'a Link>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Stacked,
    /// The packets of the upper link travel inside packets of the lower one.
    Tunnel,
    /// A bridge, and one of its ports.
    Port,
    /// The two ends of a virtual cable.
    Ends,
}

impl<'a> Devices<'a> {
    /// `links` must be all links of a namespace, listed together.
    pub fn new(links: &'a [Link]) -> Self {
        let mut ports = BTreeMap::<_, Vec<_>>::new();
        for link in links {
            if let Some(master) = link.master_ifindex {
                ports.entry(master).or_default().push(link.ifindex);
            }
        }
        let by_ifindex = links.iter().map(|link| (link.ifindex, link)).collect();
        Self { by_ifindex, ports }
    }

    /// The links directly under a link, by ifindex, without links in other namespaces.
    pub fn under(&self, link: &Link) -> Vec<&'a Link> {
        let ports = self.ports.get(&link.ifindex).into_iter().flatten();
        // No packets pass the master of Open vSwitch's ports, which only groups them. Forwarded packets that pass a VRF
        // device's members do not pass the VRF device.
        let ports = ports.filter(|_| link.kind != "openvswitch" && !link.is_vrf());
        let mut under: BTreeSet<u32> = ports.copied().collect();
        under.extend(link.lower_ifindex);
        under.remove(&link.ifindex);
        let known = under
            .iter()
            .filter_map(|ifindex| self.by_ifindex.get(ifindex));
        known.copied().collect()
    }

    /// The other end of a virtual cable, if it is in this namespace.
    pub fn other_end(&self, link: &Link) -> Option<&'a Link> {
        let peer = link.peer_ifindex?;
        self.by_ifindex.get(&peer).copied()
    }

    /// The links that no other one stands on, by ifindex.
    pub fn tops(&self) -> Vec<&'a Link> {
        let links = self.by_ifindex.values();
        let below: BTreeSet<u32> = links
            .clone()
            .flat_map(|link| self.under(link))
            .map(|link| link.ifindex)
            .collect();
        let tops = links.filter(|link| !below.contains(&link.ifindex));
        tops.copied().collect()
    }

    /// The nearest `watched` links under a link, at any depth. Links under one of these are left out.
    pub fn nearest_under(&self, link: &Link, watched: &BTreeSet<u32>) -> Vec<&'a Link> {
        let mut found = Vec::new();
        // Tunnels may stand on each other in a circle.
        let mut seen = BTreeSet::from([link.ifindex]);
        let mut to_see = self.under(link);
        while let Some(lower) = to_see.pop() {
            if !seen.insert(lower.ifindex) {
                continue;
            }
            if watched.contains(&lower.ifindex) {
                found.push(lower);
            } else {
                to_see.extend(self.under(lower));
            }
        }
        found.sort_by_key(|lower| lower.ifindex);
        found
    }

    /// Whether `link` stands on `lower`, at any depth.
    pub fn stands_on(&self, link: &Link, lower: &Link) -> bool {
        let watched = BTreeSet::from([lower.ifindex]);
        !self.nearest_under(link, &watched).is_empty()
    }

    /// The pairs of `watched` links that count the same packets, by ifindex of the upper link.
    pub fn twice(&self, watched: &BTreeSet<u32>) -> Vec<Twice<'a>> {
        let links = watched
            .iter()
            .filter_map(|ifindex| self.by_ifindex.get(ifindex).copied());
        links
            .flat_map(|link| self.twice_at(link, watched))
            .collect()
    }

    /// The pairs whose upper link, or first end, is `link`.
    fn twice_at(&self, link: &'a Link, watched: &BTreeSet<u32>) -> Vec<Twice<'a>> {
        let why = match link.kind.as_str() {
            "bridge" => Why::Port,
            _ if is_tunnel(link) => Why::Tunnel,
            _ => Why::Stacked,
        };
        let under = self.nearest_under(link, watched).into_iter();
        let mut twice: Vec<_> = under
            .map(|lower| Twice {
                upper: link,
                lower,
                why,
            })
            .collect();
        if let Some(peer) = self.other_end(link)
            && link.ifindex < peer.ifindex
            && watched.contains(&peer.ifindex)
        {
            twice.push(Twice {
                upper: link,
                lower: peer,
                why: Why::Ends,
            });
        }
        twice
    }
}

impl<'a> Devices<'a> {
    /// The `watched` tunnels whose packets may also pass another watched link, by ifindex.
    pub fn may_be_twice(&self, watched: &BTreeSet<u32>) -> Vec<MayBeTwice<'a>> {
        let links = watched
            .iter()
            .filter_map(|ifindex| self.by_ifindex.get(ifindex).copied());
        let (tunnels, others): (Vec<_>, Vec<_>) = links
            .filter(|link| !link.is_loopback && !is_idle_fallback(link))
            .partition(|link| is_tunnel(link) && self.under(link).is_empty());
        let may_be_twice = tunnels.into_iter().map(|tunnel| {
            let others = others.iter().copied();
            let others = others.filter(|other| !self.stands_on(other, tunnel));
            MayBeTwice {
                tunnel,
                others: others.collect(),
            }
        });
        may_be_twice.filter(|it| !it.others.is_empty()).collect()
    }
}

impl MayBeTwice<'_> {
    /// Advice for the user.
    pub fn remedy(&self) -> String {
        let tunnel = &self.tunnel.name;
        match &self.others[..] {
            [other] => format!(
                "if they do, leave one of them out, with --exclude-interface {tunnel} or --exclude-interface {}, or \
                 do not name both",
                other.name
            ),
            _ => format!(
                "if they do, leave the tunnel out, with --exclude-interface {tunnel}, or the other one"
            ),
        }
    }
}

/// How the same packets may pass both.
impl fmt::Display for MayBeTwice<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMED: usize = 3;
        let mut others: Vec<String> = self
            .others
            .iter()
            .take(NAMED)
            .map(|other| other.name.clone())
            .collect();
        if self.others.len() > NAMED {
            others.push(format!("one of {} others", self.others.len() - NAMED));
        }
        write!(
            formatter,
            "the packets of the tunnel {}, which names no interface for them, may pass {}",
            self.tunnel.name,
            others.join(" or ")
        )
    }
}

impl Twice<'_> {
    /// Advice for the user.
    pub fn remedy(&self) -> String {
        leave_one_out(self.upper, self.lower)
    }
}

/// How the same packets pass both.
impl fmt::Display for Twice<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.why.told(&self.upper.name, &self.lower.name))
    }
}

impl Why {
    /// How the same packets pass both.
    fn told(self, upper: &str, lower: &str) -> String {
        match self {
            Self::Stacked => format!("what passes {upper} passes {lower}, too"),
            Self::Tunnel => {
                format!("what passes {upper} passes {lower}, too, inside the tunnel's packets")
            }
            Self::Port => format!(
                "what this host sends and receives over the bridge {upper} passes its port {lower}, too"
            ),
            Self::Ends => format!(
                "{upper} and {lower} are the ends of one cable: what one sends the other receives"
            ),
        }
    }
}

/// Advice about two links that count the same packets.
fn leave_one_out(one: &Link, other: &Link) -> String {
    format!(
        "leave one of them out, with --exclude-interface {} or --exclude-interface {}, or do not name both",
        one.name, other.name
    )
}

/// Warns of links that count the same packets. The log names a few of them; `flow-agent check` names all.
pub fn warn_of_twice(links: &[Link], watched: &[Link]) {
    let watched = watched.iter().map(|link| link.ifindex).collect();
    let devices = Devices::new(links);
    let twice = devices.twice(&watched);
    let tell_of_pair = |pair: &Twice<'_>| {
        warn!(
            interface = pair.upper.name,
            lower = pair.lower.name,
            "packets are counted twice: {pair}; {}",
            pair.remedy()
        );
    };
    tell_of_some(
        &twice,
        tell_of_pair,
        "further pairs of interfaces count packets twice",
    );
    let tunnels = devices.may_be_twice(&watched);
    let tell_of_tunnel = |it: &MayBeTwice<'_>| {
        warn!(
            interface = it.tunnel.name,
            "packets may be counted twice: {it}; {}",
            it.remedy()
        );
    };
    tell_of_some(
        &tunnels,
        tell_of_tunnel,
        "further tunnels may count packets twice",
    );
}

/// Reports the first few, and how many more there are.
fn tell_of_some<T>(all: &[T], tell: impl Fn(&T), further: &str) {
    const TOLD: usize = 5;
    all.iter().take(TOLD).for_each(tell);
    if let Some(more) = all.len().checked_sub(TOLD).filter(|more| *more > 0) {
        warn!(more, "{further}: `flow-agent check` lists them");
    }
}

/// Whether a device puts packets into packets of its own, or passes them to a process that does, as most VPNs do.
pub fn is_tunnel(link: &Link) -> bool {
    let is_tun = link.kind == "tun" && link.hardware_type == ARPHRD_NONE;
    is_tun || is_tunnel_kind(&link.kind)
}

fn is_tunnel_kind(kind: &str) -> bool {
    matches!(
        kind,
        "vxlan"
            | "geneve"
            | "gre"
            | "gretap"
            | "erspan"
            | "ip6gre"
            | "ip6gretap"
            | "ip6erspan"
            | "ipip"
            | "sit"
            | "ip6tnl"
            | "vti"
            | "vti6"
            | "xfrm"
            | "wireguard"
            | "gtp"
            | "bareudp"
            | "amt"
            | "ovpn"
    )
}

/// Whether it is one of the tunnels that the kernel creates in every network namespace, and is not in use.
fn is_idle_fallback(link: &Link) -> bool {
    let name = link.name.as_str();
    !link.is_up
        && matches!(
            name,
            "tunl0"
                | "gre0"
                | "gretap0"
                | "erspan0"
                | "ip_vti0"
                | "sit0"
                | "ip6tnl0"
                | "ip6gre0"
                | "ip6_vti0"
        )
}

#[cfg(test)]
mod tests {
    use super::{samples::*, *};

    fn twice(links: &[Link], watched: &[u32]) -> Vec<String> {
        let watched = watched.iter().copied().collect();
        let twice = Devices::new(links).twice(&watched);
        let pair = |it: &Twice| format!("{} {}", it.upper.name, it.lower.name);
        twice.iter().map(pair).collect()
    }

    #[test]
    fn a_packet_is_counted_twice_at_a_device_and_at_the_next_watched_one_under_it() {
        let links = stack();
        for (watched, expected) in [
            (&[4, 5][..], &["bond0.10 bond0"][..]),
            (&[2, 4], &["bond0 eth0"]),
            (&[2, 3, 5], &["bond0.10 eth0", "bond0.10 eth1"]),
            (&[5, 6], &["br0 bond0.10"]),
            (&[7, 2, 4], &["bond0 eth0", "vxlan0 bond0"]),
            (&[8, 9], &["veth0 veth1"]),
            (&[2, 3, 8], &[]),
            (&[7], &[]),
        ] {
            assert_eq!(twice(&links, watched), expected, "{watched:?}");
        }
    }

    #[test]
    fn it_is_said_how_the_packets_come_to_both_and_what_to_do() {
        let links = stack();
        let all = links.iter().map(|link| link.ifindex).collect();
        let said: Vec<_> = Devices::new(&links)
            .twice(&all)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            said,
            [
                "what passes bond0 passes eth0, too",
                "what passes bond0 passes eth1, too",
                "what passes bond0.10 passes bond0, too",
                "what this host sends and receives over the bridge br0 passes its port bond0.10, too",
                "what passes vxlan0 passes br0, too, inside the tunnel's packets",
                "veth0 and veth1 are the ends of one cable: what one sends the other receives",
            ]
        );
        let first = Devices::new(&links).twice(&all)[0];
        assert_eq!(
            first.remedy(),
            "leave one of them out, with --exclude-interface bond0 or --exclude-interface eth0, or \
             do not name both"
        );
    }

    #[test]
    fn a_tunnel_that_names_no_link_may_count_what_another_link_counts() {
        let mut links = stack();
        let fallback = Link {
            is_up: false,
            ..link(12, "sit0", "sit")
        };
        links.extend([
            link(10, "wg0", "wireguard"),
            over(10, link(11, "mac0", "macvlan")),
            Link {
                hardware_type: ARPHRD_NONE,
                ..link(13, "tun0", "tun")
            },
            link(14, "tap0", "tun"),
            fallback,
        ]);
        let found = |watched: &[u32]| {
            let watched = watched.iter().copied().collect();
            let found = Devices::new(&links).may_be_twice(&watched).into_iter();
            found.map(|it| it.to_string()).collect::<Vec<_>>()
        };
        let told = "the packets of the tunnel wg0, which names no interface for them, may pass ";
        assert_eq!(found(&[2, 10]), [format!("{told}eth0")]);
        assert_eq!(
            found(&[2, 13]),
            [format!("{told}eth0").replace("wg0", "tun0")]
        );
        assert!(found(&[2, 14]).is_empty());
        assert_eq!(
            found(&[2, 3, 4, 5, 6, 10]),
            [format!("{told}eth0 or eth1 or bond0 or one of 2 others")]
        );
        // A link above the tunnel is no other link, and a tunnel that names its link is reported by `twice`.
        assert!(found(&[10, 11]).is_empty());
        assert!(found(&[2, 7, 12]).is_empty());
        let watched = BTreeSet::from([2, 10]);
        assert_eq!(
            Devices::new(&links).may_be_twice(&watched)[0].remedy(),
            "if they do, leave one of them out, with --exclude-interface wg0 or --exclude-interface eth0, or \
             do not name both"
        );
    }

    #[test]
    fn nothing_passes_the_master_of_open_vswitch() {
        let links = [
            link(2, "ovs-system", "openvswitch"),
            port_of(2, link(3, "eth0", "")),
        ];
        assert!(twice(&links, &[2, 3]).is_empty());
    }

    #[test]
    fn tunnels_in_a_circle_end() {
        let links = [over(3, link(2, "a", "gre")), over(2, link(3, "b", "gre"))];
        assert_eq!(twice(&links, &[2, 3]), ["a b", "b a"]);
        assert!(twice(&links, &[2]).is_empty());
        assert!(Devices::new(&links).tops().is_empty());
    }
}
