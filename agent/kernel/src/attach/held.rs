//! A link that this process holds, and whether it is still on the interface that it was made for.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use crate::{
    bpf::{self, LinkPlace},
    links::{AttachedXdp, Link},
};

/// Detaches when dropped, which waits for a grace period under RTNL.
pub(super) struct HeldLink {
    pub fd: OwnedFd,
    pub place: LinkPlace,
    /// The program, if it was loaded for this link only.
    pub _program: Option<Arc<OwnedFd>>,
}

impl HeldLink {
    /// Whether nobody else can attach at the same place while it exists.
    pub(super) fn is_exclusive(&self) -> bool {
        matches!(self.place, LinkPlace::XdpNative | LinkPlace::XdpGeneric)
    }

    /// Whether it is no longer on any interface: its interface has gone, or somebody has detached it.
    pub(super) fn is_detached(&self) -> bool {
        bpf::link(self.fd.as_fd()).is_ok_and(|link| link.ifindex == 0)
    }

    /// Whether its program is on this interface. If not, the link's own interface has left, and another one has its
    /// index.
    pub(super) fn is_on(&self, link: &Link) -> io::Result<bool> {
        let ours = bpf::link(self.fd.as_fd())?;
        match self.place {
            LinkPlace::TcxFirst(direction) | LinkPlace::TcxLast(direction) => {
                Ok(bpf::tcx_links(link.ifindex, direction)?.contains(&ours.id))
            }
            LinkPlace::XdpNative | LinkPlace::XdpGeneric => {
                Ok(ours.ifindex == link.ifindex && link.xdp != AttachedXdp::None)
            }
        }
    }
}
