//! ICMP errors, matched to the flows whose packets they quote.

use std::collections::HashMap;

use agent_common::FlowKey;

use super::senders::BySlot;
use crate::icmp_error::IcmpError;

/// Errors that may wait for their flows. They wait for two scans, and a scan brings about 3,700 at most.
const MOST: usize = 8192;

/// Errors by slot, and errors that wait for their flow. Takes no memory while there are no errors.
#[derive(Default)]
pub struct Errors {
    by_slot: BySlot<ByDirection>,
    waiting: HashMap<FlowKey, Waiting>,
    unmatched: u64,
}

/// By the direction of the quoted packet.
type ByDirection = [Option<IcmpError>; 2];

#[derive(Clone, Copy, Default)]
struct Waiting {
    errors: ByDirection,
    /// When the last error came, since boot.
    seen_ns: u64,
    count: u64,
    /// Has waited for a whole scan.
    has_waited: bool,
    /// Was matched to a flow.
    is_met: bool,
}

/// The flow that [`Errors::settle`] matches an error to.
pub struct Place {
    pub slot: u32,
    /// When the flow began, since boot.
    pub began_ns: u64,
    /// Matches only errors that quote a packet of this direction; `None` matches both.
    pub only: Option<u8>,
}

impl Errors {
    /// Adds an error for a flow that this scan or the next one brings, or that is already known.
    pub fn add_waiting(&mut self, key: &FlowKey, direction: u8, error: IcmpError, seen_ns: u64) {
        if self.waiting.len() == MOST && !self.waiting.contains_key(key) {
            self.unmatched += 1;
            return;
        }
        let waiting = self.waiting.entry(*key).or_default();
        waiting.errors[usize::from(direction & 1)] = Some(error);
        waiting.seen_ns = waiting.seen_ns.max(seen_ns);
        waiting.count += 1;
        waiting.has_waited = false;
    }

    /// How many errors matched no flow.
    pub fn unmatched(&self) -> u64 {
        self.unmatched
    }

    /// A flow begins in this slot.
    pub fn begin(&mut self, slot: u32, key: &FlowKey, began_ns: u64) {
        self.by_slot.begin(slot, ByDirection::default());
        self.note(slot, key, began_ns);
    }

    /// The flow in this slot has more packets.
    #[inline]
    pub fn note(&mut self, slot: u32, key: &FlowKey, began_ns: u64) {
        if !self.waiting.is_empty()
            && let Some(waiting) = self.waiting.get_mut(key)
        {
            let place = Place {
                slot,
                began_ns,
                only: None,
            };
            waiting.settle_at(&place, &mut self.by_slot);
        }
    }

    /// Matches the waiting errors to the flows that `place_of` finds. Errors of this scan stay for the next one, which
    /// may bring the flow.
    pub fn settle(&mut self, place_of: impl Fn(&FlowKey) -> Option<Place>) {
        let (by_slot, unmatched) = (&mut self.by_slot, &mut self.unmatched);
        self.waiting.retain(|key, waiting| {
            if let Some(place) = place_of(key) {
                waiting.settle_at(&place, by_slot);
            }
            let stays = !std::mem::replace(&mut waiting.has_waited, true);
            if !stays && !waiting.is_met {
                *unmatched += waiting.count;
            }
            stays
        });
        if self.waiting.is_empty() && self.waiting.capacity() > MOST / 4 {
            self.waiting = HashMap::new();
        }
    }

    /// The error that quotes a packet of this direction.
    pub fn get(&self, slot: u32, direction: u8) -> Option<IcmpError> {
        self.by_slot.get(slot)[usize::from(direction & 1)]
    }

    /// Releases the memory for slots from this one on. None of them has a flow.
    pub fn shrink(&mut self, slots: u32) {
        self.by_slot.shrink(slots);
    }
}

impl Waiting {
    /// An error that came before the flow began belongs to an earlier flow.
    fn settle_at(&mut self, place: &Place, by_slot: &mut BySlot<ByDirection>) {
        if self.seen_ns < place.began_ns {
            return;
        }
        let mut known = by_slot.get(place.slot);
        for (direction, error) in (0..).zip(self.errors) {
            if error.is_some() && place.only.is_none_or(|only| only == direction) {
                known[usize::from(direction)] = error;
                self.is_met = true;
            }
        }
        by_slot.begin(place.slot, known);
    }
}
