//! What the kernel has dropped of flows after it was counted.

use std::collections::HashMap;

use agent_common::FlowKey;

use super::senders::BySlot;

/// Drops of the flow in each slot, by direction, since it began, and those whose flows may come. Nothing is kept as long as there are none.
#[derive(Default)]
pub struct Dropped {
    by_slot: BySlot<[u64; 2]>,
    waiting: HashMap<FlowKey, Waiting>,
    of_flows: u64,
    unmatched: u64,
}

#[derive(Clone, Copy, Default)]
struct Waiting {
    packets: u64,
    /// It has been there for a scan.
    has_waited: bool,
}

impl Dropped {
    /// The flow comes with this scan or the next one, or has come before.
    pub fn come(&mut self, key: &FlowKey, packets: u64) {
        let waiting = self.waiting.entry(*key).or_default();
        waiting.packets += packets;
        waiting.has_waited = false;
    }

    /// Packets that are with their flows, and those of no flow that was seen.
    pub fn totals(&self) -> [u64; 2] {
        [self.of_flows, self.unmatched]
    }

    /// A flow begins in this slot.
    pub fn begin(&mut self, slot: u32, key: &FlowKey) {
        self.by_slot.begin(slot, [0; 2]);
        self.note(slot, key);
    }

    /// More of the flow in this slot has come.
    #[inline]
    pub fn note(&mut self, slot: u32, key: &FlowKey) {
        if !self.waiting.is_empty()
            && let Some(waiting) = self.waiting.remove(key)
        {
            self.add(slot, key, waiting.packets);
        }
    }

    /// They have arrived, so the side of the interface is their direction.
    fn add(&mut self, slot: u32, key: &FlowKey, packets: u64) {
        let mut dropped = self.by_slot.of(slot);
        dropped[usize::from(key.side())] += packets;
        self.by_slot.begin(slot, dropped);
        self.of_flows += packets;
    }

    /// Has the flows that `slot_of` finds take what waits. The rest stays for the next scan, which may bring the flow.
    pub fn settle(&mut self, slot_of: impl Fn(&FlowKey) -> Option<u32>) {
        if self.waiting.is_empty() {
            return;
        }
        for (key, mut waiting) in std::mem::take(&mut self.waiting) {
            if let Some(slot) = slot_of(&key) {
                self.add(slot, &key, waiting.packets);
            } else if waiting.has_waited {
                self.unmatched += waiting.packets;
            } else {
                waiting.has_waited = true;
                self.waiting.insert(key, waiting);
            }
        }
    }

    /// Of the source's packets, and of the destination's, if `initiator` is the direction of the source's.
    pub fn of(&self, slot: u32, initiator: u8) -> [u64; 2] {
        let by_direction = self.by_slot.of(slot);
        let forward = usize::from(initiator & 1);
        [by_direction[forward], by_direction[1 - forward]]
    }

    /// No slot from this one on has a flow.
    pub fn shrink(&mut self, slots: u32) {
        self.by_slot.shrink(slots);
    }
}
