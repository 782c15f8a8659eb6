//! Since when every packet of a flow is seen. A flow of UDP or ICMP begins with the first packet after a pause, so that one shows who
//! began only if the pause was seen as well.

use std::collections::{BTreeMap, BTreeSet};

use agent_common::{FlowKey, InterfaceId};

/// Times since boot.
#[derive(Default)]
pub struct InSight {
    since_ns: BTreeMap<InterfaceId, u64>,
    /// When packets were last left out everywhere, or flows were given up.
    gap_ns: u64,
    /// Something began, or was left out, since the scan began.
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

    /// All packets of an interface are seen from the next scan on, if that is not known already.
    pub fn watch(&mut self, interface: InterfaceId) {
        self.since_ns.entry(interface).or_insert(Self::NEXT_SCAN);
        self.is_new = true;
    }

    pub fn forget(&mut self, left: &BTreeSet<InterfaceId>) {
        for interface in left {
            self.since_ns.remove(interface);
        }
    }

    /// Packets of any flow may be left out up to the next scan.
    pub fn note_gap(&mut self) {
        self.gap_ns = Self::NEXT_SCAN;
        self.is_new = true;
    }

    /// Whether a flow that is first seen at this time had no packet for so long before.
    pub fn begins(&self, key: &FlowKey, first_seen_ns: u64, pause_ns: u64) -> bool {
        let since_ns = self.since_ns.get(&InterfaceId::of(key));
        since_ns.is_some_and(|&since_ns| {
            let seen_ns = first_seen_ns.saturating_sub(since_ns.max(self.gap_ns));
            seen_ns >= pause_ns
        })
    }
}
