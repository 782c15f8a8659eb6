//! Checks whether a link's driver has native XDP, by generic netlink's family `netdev` (kernel 6.3).

use anyhow::{Context as _, Result};

use super::Check;
use crate::kernel::{
    attach::instead_of_native_xdp,
    links::{
        AttachedXdp, Link,
        generic::{GenericSocket, attribute},
        netlink::{field, push_attribute},
        tags,
    },
};

// linux/netdev.h.
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_XDP_ACT_BASIC: u64 = 1;

/// Asks for the features of links.
pub(super) struct Features {
    /// An error if the kernel does not know the family.
    netdev: Result<GenericSocket>,
    tags: tags::Features,
}

impl Features {
    pub(super) fn open() -> Self {
        Self {
            netdev: GenericSocket::open("netdev"),
            tags: tags::Features::open(),
        }
    }

    fn of(netdev: &mut GenericSocket, ifindex: u32) -> Result<u64> {
        let mut request = Vec::new();
        push_attribute(&mut request, NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes());
        let answer = netdev
            .get(NETDEV_CMD_DEV_GET, &request)
            .context("ask for the XDP features of a link")?;
        let features = attribute(&answer, NETDEV_A_DEV_XDP_FEATURES)?;
        Ok(u64::from_ne_bytes(field(features, 0)?))
    }
}

/// How `--ingress-hook xdp` would attach to `link`. Only asks the driver: attaching in native mode may reset
/// a NIC, and changes a veth peer's offloads.
pub(super) fn mode(features: &mut Features, link: &Link) -> Check {
    let name = format!("xdp {}", link.name);
    if link.xdp != AttachedXdp::None {
        return Check::warn(
            name,
            "taken: an XDP program is attached already",
            "stay with --ingress-hook tc, the default",
        );
    }
    let instead = instead_of_native_xdp(&mut features.tags, link);
    if let Some((_, why)) = instead {
        return Check::warn(
            name,
            format!("tc: {why}"),
            "stay with --ingress-hook tc, the default",
        );
    }
    let unknown = |reason: &dyn std::fmt::Display| {
        Check::ok(
            name.clone(),
            format!("unknown: --xdp-mode auto tries native, then counts at TC ({reason})"),
        )
    };
    let features = match &mut features.netdev {
        Ok(netdev) => Features::of(netdev, link.ifindex),
        Err(_) => return unknown(&"the kernel says it from 6.3"),
    };
    match features {
        Ok(features) if features & NETDEV_XDP_ACT_BASIC != 0 => Check::ok(name, "native"),
        Ok(_) => Check::warn(
            name,
            "tc: the driver has no native XDP",
            "stay with --ingress-hook tc, the default",
        ),
        Err(error) => unknown(&error.root_cause()),
    }
}
