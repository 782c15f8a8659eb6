//! A link that this process holds, and whether it is still on the interface that it was made for.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use super::link_store::StoredLink;
use crate::{
    bpf::{self, LinkPlace},
    links::{AttachedXdp, Link},
};

/// Detaches when dropped, which waits for a grace period under RTNL.
pub(super) struct HeldLink {
    fd: OwnedFd,
    place: LinkPlace,
    /// The program, if it was loaded for this link only.
    own_program: Option<Arc<OwnedFd>>,
    /// The copy in the service manager's store. While there is one, closing the descriptor does not detach.
    stored: Option<StoredLink>,
    /// Somebody else detaches it, or takes it over.
    is_left: AtomicBool,
}

impl HeldLink {
    pub(super) fn new(fd: OwnedFd, place: LinkPlace, stored: Option<StoredLink>) -> Self {
        Self {
            fd,
            place,
            own_program: None,
            stored,
            is_left: AtomicBool::new(false),
        }
    }

    /// Keeps a program for as long as the link.
    pub(super) fn keep(&mut self, program: Arc<OwnedFd>) {
        self.own_program = Some(program);
    }

    /// Whether nobody else can attach at the same place while it exists.
    pub(super) fn is_exclusive(&self) -> bool {
        self.place.is_exclusive()
    }

    /// Whether it is no longer on any interface: its interface has gone, or somebody has detached it.
    pub(super) fn is_detached(&self) -> bool {
        bpf::link(self.fd.as_fd()).is_ok_and(|link| link.ifindex == 0)
    }

    /// Whether its program is on this interface. If not, the link's own interface has left, and another one has its
    /// index.
    pub(super) fn is_on(&self, link: &Link) -> io::Result<bool> {
        is_on(self.fd.as_fd(), self.place, link)
    }

    /// Whether a successor would find it in the store.
    pub(super) fn is_stored(&self) -> bool {
        self.stored.is_some()
    }

    /// Leaves it attached for a successor. Without a copy in the store, dropping it detaches all the same.
    pub(super) fn leave(&self) {
        self.is_left.store(true, Relaxed);
    }

    /// Leaves the detaching to the kernel, which does it when the last descriptor is closed.
    pub(super) fn leave_to_kernel(&self) {
        self.is_left.store(true, Relaxed);
        if let Some(stored) = &self.stored {
            stored.remove();
        }
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for HeldLink {
    fn drop(&mut self) {
        // If it is not stored, closing the descriptor detaches.
        let Some(stored) = &self.stored else {
            return;
        };
        // After a panic, the next process takes over.
        if self.is_left.load(Relaxed) || std::thread::panicking() {
            return;
        }
        if let Err(error) = bpf::detach_link(self.fd.as_fd()) {
            tracing::warn!(
                %error,
                "cannot detach a program: it ends once the service manager has closed its descriptor"
            );
        }
        stored.remove();
    }
}

/// Whether a link is on this interface, at this place.
pub(super) fn is_on(fd: BorrowedFd<'_>, place: LinkPlace, link: &Link) -> io::Result<bool> {
    let ours = bpf::link(fd)?;
    match place {
        LinkPlace::TcxFirst(direction) | LinkPlace::TcxLast(direction) => {
            Ok(bpf::tcx_links(link.ifindex, direction)?.contains(&ours.id))
        }
        LinkPlace::XdpNative | LinkPlace::XdpGeneric => {
            Ok(ours.ifindex == link.ifindex && link.xdp != AttachedXdp::None)
        }
    }
}
