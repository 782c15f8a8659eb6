//! Decides whether the packets counted on the two sides of an interface are one flow or two.
//!
//! A plain flow has its two directions on opposite sides, under one key. If the keys of both sides come, there are two
//! cases. If both directions arrive (a mirror port, loopback) or both leave, the keys are halves and are joined to one
//! flow. If one direction was seen on both sides, as at a router with one interface, each side is a flow of its own,
//! as with two interfaces.

use agent_common::{FlowCounters, FlowKey};
use proto::{EndReason, record::Record};

use super::{
    Replica,
    entry::{Entry, Sides},
    find::hash_of,
    senders::PendingSenders,
    waiting::{self, merged, only_direction},
};

impl Replica {
    /// Handles a flow that is known on one side and comes on the other one for the first time.
    pub(super) fn meet(
        &mut self,
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
            let initiator = entry.known_initiator();
            let other = self.entry(key, counters).apart(initiator);
            self.insert(hash_of(&self.seed, key), other, sink);
            return;
        }
        if !entry.is_told {
            self.sockets_without_end +=
                u64::from(entry.note_sockets(self.senders.pending_sockets()));
            entry.give_opener(self.senders.pending_opener());
            entry.join(counters, self.clock);
            self.senders.note(known);
            self.note_age(known);
        } else if direction != Some(entry.initiator) {
            // The records so far took the answers for a plain flow's, so they name the wrong side.
            let initiator = entry.known_initiator();
            let mut next = self.entry(key, counters);
            next.give(initiator);
            self.replace(known, EndReason::ForcedEnd, next, sink);
        } else {
            entry.sides = Sides::Joined;
            self.update_joined(known, key, counters, sink);
        }
    }

    pub(super) fn update_joined(
        &mut self,
        slot: u32,
        key: &FlowKey,
        counters: &FlowCounters,
        sink: &mut impl FnMut(&Record),
    ) {
        let entry = &self.slab[slot];
        let direction = key.side() ^ entry.hook();
        if counters.packets[usize::from(1 - direction)] != 0 {
            self.divide(slot, key, counters, sink);
            return;
        }
        match self.take_waiting(slot) {
            Some((half, of_half)) if only_direction(half.packets) == Some(direction) => {
                let pending = self.senders.take_pending();
                self.senders.set_pending(of_half);
                self.add(slot, &half, sink);
                self.senders.set_pending(pending);
                self.add(slot, counters, sink);
            }
            Some((half, mut pending)) => {
                pending.unite(&self.senders.take_pending());
                self.senders.set_pending(pending);
                self.add(slot, &merged(&half, counters), sink);
            }
            None => {
                let pending = self.senders.take_pending();
                self.slab[slot].waiting = self.waiting.put(counters, pending);
                self.deferred.push(slot);
            }
        }
    }

    /// Divides a joined flow: one of its directions is seen on both sides after all.
    fn divide(
        &mut self,
        slot: u32,
        key: &FlowKey,
        counters: &FlowCounters,
        sink: &mut impl FnMut(&Record),
    ) {
        let half = self.take_waiting(slot);
        let entry = &mut self.slab[slot];
        let (known, hook) = (entry.known_initiator(), entry.hook());
        let initiator = known.direction;
        if entry.is_told && entry.only_direction() == Some(initiator) {
            // No record has reported the other half.
            entry.sides = Sides::Apart;
            self.update_flow(self.find(key), key, counters, sink);
        } else {
            let first = self.entry(key, counters).apart(known);
            self.replace(slot, EndReason::ForcedEnd, first, sink);
        }
        if let Some((half, pending)) = half {
            self.senders.set_pending(pending);
            let direction = only_direction(half.packets).unwrap_or(initiator);
            let key = key.with_side(direction ^ hook);
            self.update_flow(self.find(&key), &key, &half, sink);
        }
    }

    /// Ends a flow and begins another one with the same endpoints.
    pub(super) fn replace(
        &mut self,
        slot: u32,
        reason: EndReason,
        next: Entry,
        sink: &mut impl FnMut(&Record),
    ) {
        let pending = self.senders.take_pending();
        self.report_end(slot, reason, sink);
        let hash = self.remove(slot);
        self.senders.set_pending(pending);
        self.insert(hash, next, sink);
    }

    pub(super) fn take_waiting(&mut self, slot: u32) -> Option<(FlowCounters, PendingSenders)> {
        let number = std::mem::replace(&mut self.slab[slot].waiting, waiting::NONE);
        (number != waiting::NONE).then(|| self.waiting.take(number))
    }
}
