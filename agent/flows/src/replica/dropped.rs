//! Packets of flows that the kernel dropped after they were counted.

use std::collections::HashMap;

use agent_common::FlowKey;
use proto::record::Record;

use super::senders::BySlot;

/// Drops by slot and direction since the flow began, and drops that wait for their flow. Takes no memory while there
/// are no drops.
#[derive(Default)]
pub struct Dropped {
    by_slot: BySlot<[u64; 2]>,
    waiting: HashMap<FlowKey, Waiting>,
    of_flows: u64,
    unmatched: u64,
}

#[derive(Clone, Copy, Default)]
struct Waiting {
    /// From this scan.
    packets: u64,
    /// From the scan before.
    older: u64,
}

impl Dropped {
    /// Adds drops of a flow that this scan or the next one brings, or that is already known.
    pub fn add_waiting(&mut self, key: &FlowKey, packets: u64) {
        self.waiting.entry(*key).or_default().packets += packets;
    }

    /// Dropped packets that were matched to a flow, and dropped packets that were not.
    pub fn totals(&self) -> [u64; 2] {
        [self.of_flows, self.unmatched]
    }

    /// A flow begins in this slot with these counts by direction. Older drops of the same key belong to another flow.
    pub fn begin(&mut self, slot: u32, key: &FlowKey, counted: [u64; 2]) {
        self.by_slot.begin(slot, [0; 2]);
        if !self.waiting.is_empty()
            && let Some(waiting) = self.waiting.remove(key)
        {
            self.unmatched += waiting.older;
            self.add(slot, key, waiting.packets, counted);
        }
    }

    /// The flow in this slot has more packets.
    #[inline]
    pub fn note(&mut self, slot: u32, key: &FlowKey, counted: [u64; 2]) {
        if !self.waiting.is_empty()
            && let Some(waiting) = self.waiting.remove(key)
        {
            self.add(slot, key, waiting.packets + waiting.older, counted);
        }
    }

    /// Dropped packets have arrived, so the side of the interface is their direction. A flow cannot have more drops
    /// than packets: the excess are copies, or packets that were not counted.
    fn add(&mut self, slot: u32, key: &FlowKey, packets: u64, counted: [u64; 2]) {
        let direction = usize::from(key.side());
        let mut dropped = self.by_slot.get(slot);
        let of_flow = packets.min(counted[direction].saturating_sub(dropped[direction]));
        dropped[direction] += of_flow;
        self.by_slot.begin(slot, dropped);
        self.of_flows += of_flow;
        self.unmatched += packets - of_flow;
    }

    /// Adds the waiting drops to the flows that `flow_of` finds (slot and packets). Drops of this scan without a flow
    /// wait for the next scan, which may bring it.
    pub fn settle(&mut self, flow_of: impl Fn(&FlowKey) -> Option<(u32, [u64; 2])>) {
        if self.waiting.is_empty() {
            return;
        }
        for (key, waiting) in std::mem::take(&mut self.waiting) {
            if let Some((slot, counted)) = flow_of(&key) {
                self.add(slot, &key, waiting.packets + waiting.older, counted);
                continue;
            }
            self.unmatched += waiting.older;
            if waiting.packets != 0 {
                let older = waiting.packets;
                self.waiting.insert(key, Waiting { packets: 0, older });
            }
        }
    }

    /// Adds the dropped packets of both ends to the record.
    pub fn fill(&self, slot: u32, record: &mut Record) {
        let [source, destination] = self.get(slot, record.initiator);
        record.src.total_dropped_packets = source;
        record.dst.total_dropped_packets = destination;
    }

    /// Dropped packets from the source, and from the destination. `initiator` is the direction of the source's
    /// packets.
    fn get(&self, slot: u32, initiator: u8) -> [u64; 2] {
        let by_direction = self.by_slot.get(slot);
        let forward = usize::from(initiator & 1);
        [by_direction[forward], by_direction[1 - forward]]
    }

    /// Releases the memory for slots from this one on. None of them has a flow.
    pub fn shrink(&mut self, slots: u32) {
        self.by_slot.shrink(slots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> FlowKey {
        FlowKey {
            ifindex: 7,
            ..FlowKey::default()
        }
    }

    fn scan(dropped: &mut Dropped, packets: u64, flow: Option<(u32, [u64; 2])>) {
        dropped.add_waiting(&key(), packets);
        dropped.settle(|_| flow);
    }

    #[test]
    fn what_is_dropped_again_and_again_without_a_flow_is_told_and_not_kept_for_one() {
        let mut dropped = Dropped::default();
        for _ in 0..5 {
            scan(&mut dropped, 10, None);
        }
        assert_eq!(dropped.totals(), [0, 40]);
        // The flow begins with this scan.
        dropped.add_waiting(&key(), 3);
        dropped.begin(0, &key(), [100, 0]);
        assert_eq!(dropped.totals(), [3, 50]);
        assert_eq!(dropped.get(0, 0), [3, 0]);
        assert_eq!(dropped.get(0, 1), [0, 3]);
        dropped.settle(|_| None);
        assert_eq!(dropped.totals(), [3, 50]);
    }

    #[test]
    fn a_flow_takes_what_came_a_scan_before_or_after_it() {
        let mut dropped = Dropped::default();
        dropped.begin(4, &key(), [0, 0]);
        scan(&mut dropped, 5, None);
        dropped.add_waiting(&key(), 2);
        dropped.note(4, &key(), [10, 0]);
        scan(&mut dropped, 1, Some((4, [10, 0])));
        assert_eq!((dropped.get(4, 0), dropped.totals()), ([8, 0], [8, 0]));
        // The opposite side is the other direction.
        let answer = key().with_side(1);
        dropped.add_waiting(&answer, 1);
        dropped.settle(|_| Some((4, [10, 1])));
        assert_eq!((dropped.get(4, 0), dropped.totals()), ([8, 1], [9, 0]));
        // Another flow follows in the slot.
        dropped.begin(4, &key(), [1, 0]);
        assert_eq!(dropped.get(4, 0), [0, 0]);
    }

    #[test]
    fn no_more_of_a_flow_are_dropped_than_it_has() {
        let mut dropped = Dropped::default();
        dropped.add_waiting(&key(), 5);
        dropped.begin(0, &key(), [3, 9]);
        assert_eq!((dropped.get(0, 0), dropped.totals()), ([3, 0], [3, 2]));
        scan(&mut dropped, 5, Some((0, [4, 9])));
        assert_eq!((dropped.get(0, 0), dropped.totals()), ([4, 0], [4, 6]));
    }
}
