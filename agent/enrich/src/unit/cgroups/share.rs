//! Divides the room for names into shares, so that a user who makes thousands of cgroups takes no room from others.

use std::collections::{BTreeSet, HashMap};

use super::name;

/// The share that a cgroup belongs to. Everything below a delegated folder belongs to the user it was delegated to,
/// whoever owns it: that user may give it to other uids of its user namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Share {
    /// Slices and other folders above units.
    #[default]
    Host,
    /// A user to whom root has delegated a part of the tree.
    User(u32),
    /// The unit with this id, if only root owns it.
    Unit(u64),
}

impl Share {
    /// The share of a cgroup in a folder of `parent` that this user owns.
    pub fn below(parent: Self, id: u64, path: &str, uid: u32) -> Self {
        match parent {
            Self::User(_) | Self::Unit(_) => parent,
            Self::Host if uid != 0 => Self::User(uid),
            Self::Host if name::cgroup(id, path).unit.is_empty() => Self::Host,
            Self::Host => Self::Unit(id),
        }
    }
}

/// The ids of each share.
#[derive(Default)]
pub(super) struct Shares {
    ids: HashMap<Share, BTreeSet<u64>>,
    /// The size of each share, the largest last.
    sizes: BTreeSet<(usize, Share)>,
}

impl Shares {
    pub fn insert(&mut self, share: Share, id: u64) {
        self.change(share, |ids| {
            ids.insert(id);
        });
    }

    pub fn remove(&mut self, share: Share, id: u64) {
        self.change(share, |ids| {
            ids.remove(&id);
        });
    }

    /// Removes the last id of the largest share, if that share stays at least as large as `share` will be.
    pub fn give_up_for(&mut self, share: Share) -> Option<u64> {
        let (most, largest) = self.sizes.last().copied()?;
        let has = self.ids.get(&share).map_or(0, BTreeSet::len);
        if has + 1 >= most {
            return None;
        }
        let mut last = None;
        self.change(largest, |ids| last = ids.pop_last());
        last
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.sizes.is_empty()
    }

    fn change(&mut self, share: Share, change: impl FnOnce(&mut BTreeSet<u64>)) {
        let ids = self.ids.entry(share).or_default();
        self.sizes.remove(&(ids.len(), share));
        change(ids);
        if ids.is_empty() {
            self.ids.remove(&share);
        } else {
            self.sizes.insert((ids.len(), share));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_belongs_to_whom_the_top_was_given() {
        let below = |parent, path: &str, uid| Share::below(parent, 7, path, uid);
        let host = below(Share::Host, "/user.slice/user-1000.slice", 0);
        assert_eq!(host, Share::Host);
        let user = below(host, "/user.slice/user-1000.slice/user@1000.service", 1000);
        assert_eq!(user, Share::User(1000));
        // Uids of a user namespace.
        let path = "/user.slice/user-1000.slice/user@1000.service/a";
        assert_eq!(below(user, path, 100_000), user);
        assert_eq!(below(user, path, 0), user);
        let unit = below(Share::Host, "/system.slice/docker.service", 0);
        assert_eq!(unit, Share::Unit(7));
        assert_eq!(below(unit, "/system.slice/docker.service/b", 100_000), unit);
    }
}
