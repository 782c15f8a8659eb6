//! Links for tests, also of other crates.

use crate::links::{AttachedXdp, Counters, Link};

/// A link that stands alone.
pub fn link(ifindex: u32, name: &str, kind: &str) -> Link {
    Link {
        ifindex,
        name: name.to_owned(),
        altnames: Vec::new(),
        hardware_type: 1,
        is_up: true,
        is_loopback: false,
        mtu_bytes: 1500,
        kind: kind.to_owned(),
        peer_ifindex: None,
        lower_ifindex: None,
        elsewhere: None,
        master_ifindex: None,
        has_lower: false,
        xdp: AttachedXdp::None,
        xdp_program_id: None,
        counters: Counters::default(),
    }
}

pub fn over(lower: u32, link: Link) -> Link {
    Link {
        lower_ifindex: Some(lower),
        ..link
    }
}

pub fn port_of(master: u32, link: Link) -> Link {
    Link {
        master_ifindex: Some(master),
        ..link
    }
}

/// Two NICs in a bond, a VLAN device on it as the port of a bridge, a tunnel over the bridge, and a cable.
pub fn stack() -> Vec<Link> {
    let end = |ifindex, name, peer| Link {
        peer_ifindex: Some(peer),
        ..link(ifindex, name, "veth")
    };
    vec![
        port_of(4, link(2, "eth0", "")),
        port_of(4, link(3, "eth1", "")),
        link(4, "bond0", "bond"),
        port_of(6, over(4, link(5, "bond0.10", "vlan"))),
        link(6, "br0", "bridge"),
        over(6, link(7, "vxlan0", "vxlan")),
        end(8, "veth0", 9),
        end(9, "veth1", 8),
    ]
}
