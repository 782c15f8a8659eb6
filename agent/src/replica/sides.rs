//! The two sides of an interface: what one flow counted at either side comes in, one record or two of
//! it go out.
//!
//! A plain flow has its two directions at opposite sides, under one key. Where the keys of both sides
//! come, these are either halves (both directions arrive, as at a mirror port and on loopback, or both
//! leave): then they are joined to one flow. Or one direction was seen at both sides, as at a router
//! with one interface: then each side is a flow of its own, as at two interfaces.

use agent_common::{FlowCounters, FlowKey};

use super::{
    Replica,
    entry::{Entry, Sides},
    waiting::{self, merged, only_direction},
};
use crate::record::{EndReason, Record};

impl Replica {
    /// A flow that is known at one side comes at the other one, for the first time.
    pub(super) fn meet(
        &mut self,
        hash: u64,
        known: u32,
        key: &FlowKey,
        counters: &FlowCounters,
        sink: &mut impl FnMut(&Record),
    ) {
        let entry = &mut self.slab[known];
        let direction = entry.only_direction();
        let is_half = entry.sides == Sides::One
            && direction
                .is_some_and(|direction| only_direction(counters.packets) == Some(1 - direction));
        if !is_half {
            entry.sides = Sides::Apart;
            let initiator = entry.initiator;
            let other = self.entry(key, counters).apart(initiator);
            self.insert(hash, other, sink);
            return;
        }
        if !entry.is_told {
            entry.join(counters, self.clock);
            let rank_ns = entry.rank_ns(self.lifetimes);
            self.oldest.note((rank_ns, known));
        } else if direction != Some(entry.initiator) {
            // What was told took the answers for those of a plain flow: its side was the wrong one.
            self.replace(known, EndReason::ForcedEnd, self.entry(key, counters), sink);
        } else {
            entry.sides = Sides::Joined;
            self.update_joined(hash, known, key, counters, sink);
        }
    }

    pub(super) fn update_joined(
        &mut self,
        hash: u64,
        slot: u32,
        key: &FlowKey,
        counters: &FlowCounters,
        sink: &mut impl FnMut(&Record),
    ) {
        let entry = &self.slab[slot];
        let direction = key.side() ^ entry.hook();
        if counters.packets[usize::from(1 - direction)] != 0 {
            self.divide(hash, slot, key, counters, sink);
            return;
        }
        match self.take_waiting(slot) {
            Some(half) if only_direction(half.packets) == Some(direction) => {
                self.add(slot, &half, sink);
                self.add(slot, counters, sink);
            }
            Some(half) => self.add(slot, &merged(&half, counters), sink),
            None => self.slab[slot].waiting = self.waiting.put(counters),
        }
    }

    /// A joined flow has a direction at both sides after all.
    fn divide(
        &mut self,
        hash: u64,
        slot: u32,
        key: &FlowKey,
        counters: &FlowCounters,
        sink: &mut impl FnMut(&Record),
    ) {
        let half = self.take_waiting(slot);
        let entry = &mut self.slab[slot];
        let (initiator, hook) = (entry.initiator, entry.hook());
        if entry.is_told && entry.only_direction() == Some(initiator) {
            // No record has told of the other half.
            entry.sides = Sides::Apart;
            self.update_flow(hash, self.find(hash, key), key, counters, sink);
        } else {
            let first = self.entry(key, counters).apart(initiator);
            self.replace(slot, EndReason::ForcedEnd, first, sink);
        }
        if let Some(half) = half {
            let direction = only_direction(half.packets).unwrap_or(initiator);
            let key = key.with_side(direction ^ hook);
            self.update_flow(hash, self.find(hash, &key), &key, &half, sink);
        }
    }

    /// A flow ends, and one with its endpoints begins.
    fn replace(
        &mut self,
        slot: u32,
        reason: EndReason,
        next: Entry,
        sink: &mut impl FnMut(&Record),
    ) {
        self.tell_end(slot, reason, sink);
        let hash = self.remove(slot);
        self.insert(hash, next, sink);
    }

    pub(super) fn take_waiting(&mut self, slot: u32) -> Option<FlowCounters> {
        let number = std::mem::replace(&mut self.slab[slot].waiting, waiting::NONE);
        (number != waiting::NONE).then(|| self.waiting.take(number))
    }
}
