//! Packets that the sockets of each cgroup have sent and received, as counted in flows.

use std::collections::HashMap;

use agent_common::{Counts, Pair};
use foldhash::fast::RandomState;

/// Packets in flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchanged {
    pub sent: Pair,
    pub received: Pair,
}

impl core::ops::AddAssign for Exchanged {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
    }
}

/// Counts by cgroup id. Id 0 stands for ends whose socket was not seen, so what all ids have sent adds up to all
/// flows.
#[derive(Default)]
pub struct ByCgroup {
    is_wanted: bool,
    counts: HashMap<u64, Exchanged, RandomState>,
}

impl ByCgroup {
    pub fn want(&mut self) {
        self.is_wanted = true;
    }

    pub fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Adds the counts that each end has sent, in the order of `cgroup_ids`.
    pub fn note(&mut self, cgroup_ids: [u64; 2], sent: [Counts; 2]) {
        let [one, other] = cgroup_ids;
        let [from_one, from_other] = sent.map(Counts::pair);
        let counts = &mut self.counts;
        let mut add = |id, sent, received| {
            *counts.entry(id).or_default() += Exchanged { sent, received };
        };
        add(one, from_one, from_other);
        add(other, from_other, from_one);
    }

    pub fn take(&mut self) -> impl Iterator<Item = (u64, Exchanged)> {
        self.counts.drain()
    }
}
