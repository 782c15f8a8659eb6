//! The links that attach our programs, by interface. When an interface leaves, its links are given up; at the
//! end, all are.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Detaches when it is dropped, which waits for a grace period under RTNL.
pub(super) struct HeldLink {
    pub fd: OwnedFd,
    /// Whether nobody else can attach at the same place while it exists, as with XDP.
    pub is_exclusive: bool,
}

/// Clones share the same links.
#[derive(Clone, Default)]
pub(super) struct HeldLinks {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    links: BTreeMap<u32, Vec<HeldLink>>,
    left: BTreeSet<u32>,
}

impl HeldLinks {
    /// Keeps the link, or returns it if its interface has left meanwhile.
    pub(super) fn hold(&self, ifindex: u32, link: HeldLink) -> Option<HeldLink> {
        let mut state = self.state();
        if state.left.contains(&ifindex) {
            return Some(link);
        }
        state.links.entry(ifindex).or_default().push(link);
        None
    }

    /// Takes an interface's links. It has left for good: an index that comes back belongs to another
    /// interface.
    pub(super) fn leave(&self, ifindex: u32) -> Vec<HeldLink> {
        let mut state = self.state();
        state.left.insert(ifindex);
        state.links.remove(&ifindex).unwrap_or_default()
    }

    pub(super) fn left(&self) -> BTreeSet<u32> {
        self.state().left.clone()
    }

    pub(super) fn len(&self) -> usize {
        self.state().links.values().map(Vec::len).sum()
    }

    pub(super) fn take(&self) -> Vec<HeldLink> {
        let links = std::mem::take(&mut self.state().links);
        links.into_values().flatten().collect()
    }

    /// Locked only for a few moves in memory, never while a link is dropped.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
