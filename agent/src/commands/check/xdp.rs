//! A link comes in, whether its driver has native XDP goes out: generic netlink's family `netdev`
//! (kernel 6.3).

use anyhow::{Context as _, Result};
use netlink_sys::protocols::NETLINK_GENERIC;

use super::Check;
use crate::kernel::links::{
    AttachedXdp, Link,
    netlink::{Message, NetlinkSocket, attributes, field, push_attribute},
};

// linux/genetlink.h, linux/netdev.h.
const GENL_ID_CTRL: u16 = 0x10;
const GENL_HEADER_LEN_BYTES: usize = 4;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_XDP_ACT_BASIC: u64 = 1;

/// Asks for the XDP features of links.
pub(super) struct Features {
    netlink: NetlinkSocket,
    family: u16,
}

impl Features {
    /// Fails where the kernel does not know the family.
    pub(super) fn open() -> Result<Self> {
        let mut netlink = NetlinkSocket::open(NETLINK_GENERIC)?;
        let answer = netlink
            .get(request(
                GENL_ID_CTRL,
                CTRL_CMD_GETFAMILY,
                CTRL_ATTR_FAMILY_NAME,
                b"netdev\0",
            ))
            .context("ask for the generic netlink family netdev")?;
        let family = attribute(&answer, CTRL_ATTR_FAMILY_ID)?;
        let family = u16::from_ne_bytes(field(family, 0)?);
        Ok(Self { netlink, family })
    }

    fn of(&mut self, ifindex: u32) -> Result<u64> {
        let ifindex = ifindex.to_ne_bytes();
        let answer = self
            .netlink
            .get(request(
                self.family,
                NETDEV_CMD_DEV_GET,
                NETDEV_A_DEV_IFINDEX,
                &ifindex,
            ))
            .context("ask for the XDP features of a link")?;
        let features = attribute(&answer, NETDEV_A_DEV_XDP_FEATURES)?;
        Ok(u64::from_ne_bytes(field(features, 0)?))
    }
}

/// How `--ingress-hook xdp` would attach to `link`. The driver is asked and nothing is tried: attaching
/// in native mode may reset a NIC, and changes a veth peer's offloads.
pub(super) fn mode(features: &mut Result<Features>, link: &Link) -> Check {
    let name = format!("xdp {}", link.name);
    if link.xdp != AttachedXdp::None {
        return Check::warn(
            name,
            "taken: an XDP program is attached already",
            "stay with --ingress-hook tc, the default",
        );
    }
    let unknown = |reason: &dyn std::fmt::Display| {
        Check::ok(
            name.clone(),
            format!("unknown: --xdp-mode auto tries native, then counts at TC ({reason})"),
        )
    };
    let features = match features {
        Ok(features) => features.of(link.ifindex),
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

/// A generic netlink request with one attribute.
fn request(family: u16, command: u8, attribute: u16, value: &[u8]) -> Message {
    let mut body = vec![command, 1, 0, 0];
    push_attribute(&mut body, attribute, value);
    Message { kind: family, body }
}

fn attribute(answer: &Message, wanted: u16) -> Result<&[u8]> {
    let bytes = answer.body.get(GENL_HEADER_LEN_BYTES..).unwrap_or_default();
    let found = attributes(bytes).find(|(kind, _)| *kind == wanted);
    let (_, value) = found.with_context(|| format!("the answer has no attribute {wanted}"))?;
    Ok(value)
}
