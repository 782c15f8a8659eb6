//! Tracks since when the agent has seen every packet of a flow. A UDP or ICMP flow begins with the first packet after
//! a pause. That packet shows the initiator only if the agent watched during the pause.

use std::collections::{BTreeMap, BTreeSet};

use agent_common::{FlowKey, InterfaceId};

/// Times since boot.
#[derive(Default)]
pub struct InSight {
    since_ns: BTreeMap<InterfaceId, u64>,
    /// When packets of all interfaces were last left out, or flows were evicted.
    gap_ns: u64,
    /// A watch or a gap began since the scan began.
    is_new: bool,
}

impl InSight {
    /// Stands for the beginning of the next scan.
    const NEXT_SCAN: u64 = u64::MAX;

    pub fn begin_scan(&mut self, now_ns: u64) {
        if std::mem::take(&mut self.is_new) {
            let times = self.since_ns.values_mut().chain([&mut self.gap_ns]);
            for time_ns in times.filter(|time_ns| **time_ns == Self::NEXT_SCAN) {
                *time_ns = now_ns;
            }
        }
    }

    /// From the next scan on, the agent sees all packets of this interface. Does nothing if it already does.
    pub fn watch(&mut self, interface: InterfaceId) {
        self.since_ns.entry(interface).or_insert(Self::NEXT_SCAN);
        self.is_new = true;
    }

    pub fn forget(&mut self, left: &BTreeSet<InterfaceId>) {
        for interface in left {
            self.since_ns.remove(interface);
        }
    }

    /// Packets of any flow may go uncounted until the next scan.
    pub fn note_gap(&mut self) {
        self.gap_ns = Self::NEXT_SCAN;
        self.is_new = true;
    }

    /// Whether a flow that is first seen at this time had no packet for `pause_ns` before.
    pub fn begins(&self, key: &FlowKey, first_seen_ns: u64, pause_ns: u64) -> bool {
        let since_ns = self.since_ns.get(&InterfaceId::of(key));
        since_ns.is_some_and(|&since_ns| {
            let seen_ns = first_seen_ns.saturating_sub(since_ns.max(self.gap_ns));
            seen_ns >= pause_ns
        })
    }
}
