//! Asks what a link's driver supports for XDP, through the generic netlink family `netdev` (kernel 6.3).

use anyhow::{Context as _, Error, Result, anyhow};

use super::{
    generic::{GenericSocket, attribute},
    netlink::{errno, field, push_attribute},
};

// linux/netdev.h.
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
const NETDEV_XDP_ACT_BASIC: u64 = 1;
const NETDEV_XDP_RX_METADATA_VLAN_TAG: u64 = 4;

/// Asks drivers.
#[derive(Default)]
pub struct Drivers {
    /// Opened for the first question.
    netdev: Option<GenericSocket>,
}

/// A driver's answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Driver {
    /// It takes native XDP programs.
    pub has_native_xdp: bool,
    /// It passes them the VLAN tag that it took out of a frame (from kernel 6.8).
    pub tells_vlan_tags: bool,
}

impl Drivers {
    /// Asks in the network namespace of the calling thread. The error is worded for the user.
    pub fn of(&mut self, ifindex: u32) -> Result<Driver> {
        let netdev = match &mut self.netdev {
            Some(netdev) => netdev,
            none => none.insert(GenericSocket::open("netdev").map_err(explain)?),
        };
        let mut request = Vec::new();
        push_attribute(&mut request, NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes());
        let answer = netdev
            .get(NETDEV_CMD_DEV_GET, &request)
            .context("ask for the XDP features of a link")?;
        let bits = |wanted| {
            let bits = attribute(&answer, wanted)?;
            anyhow::Ok(u64::from_ne_bytes(field(bits, 0)?))
        };
        Ok(Driver {
            has_native_xdp: bits(NETDEV_A_DEV_XDP_FEATURES)? & NETDEV_XDP_ACT_BASIC != 0,
            // Older kernels lack this attribute.
            tells_vlan_tags: bits(NETDEV_A_DEV_XDP_RX_METADATA_FEATURES)
                .is_ok_and(|told| told & NETDEV_XDP_RX_METADATA_VLAN_TAG != 0),
        })
    }
}

fn explain(error: Error) -> Error {
    if errno(&error) == Some(libc::ENOENT) {
        anyhow!("drivers can be asked from kernel 6.3 on, and tell VLAN tags from 6.8 on")
    } else {
        error
    }
}
