//! Which flow has to leave: ages come in, the slot of the flow that would end first goes out.

use std::{cmp::Reverse, collections::BinaryHeap, mem};

use super::{Lifetimes, entry::State, slab::Slab};

/// A flow's [`rank_ns`](super::entry::Entry::rank_ns), and its slot.
pub type Age = (u64, u32);

/// Finds the flow that would end first, with a pass over the slab only once for many of them.
pub struct Oldest {
    /// Holds the age of every flow up to `bound`, and ages that are no flow's any more.
    candidates: BinaryHeap<Reverse<Age>>,
    bound: Option<Age>,
    /// How many a pass selects; twice as many have room.
    selection: usize,
    lifetimes: Lifetimes,
}

impl Oldest {
    pub fn new(max_flows: usize, lifetimes: Lifetimes) -> Self {
        let selection = (max_flows / 64).max(1);
        Self {
            candidates: BinaryHeap::with_capacity(2 * selection),
            bound: None,
            selection,
            lifetimes,
        }
    }

    /// A flow has a new age.
    pub fn note(&mut self, age: Age) {
        if self.bound.is_none_or(|bound| age > bound) {
            return;
        }
        if self.candidates.len() < 2 * self.selection {
            self.candidates.push(Reverse(age));
        } else {
            self.candidates.clear();
            self.bound = None;
        }
    }

    /// The slot of the oldest flow. There must be a flow.
    pub fn take(&mut self, slab: &Slab) -> u32 {
        loop {
            while let Some(Reverse((rank_ns, slot))) = self.candidates.pop() {
                let entry = &slab[slot];
                if entry.state != State::Free && entry.rank_ns(self.lifetimes) == rank_ns {
                    return slot;
                }
            }
            self.select(slab);
        }
    }

    pub fn select(&mut self, slab: &Slab) {
        let mut ages = mem::take(&mut self.candidates).into_vec();
        let mut bound = (u64::MAX, u32::MAX);
        let keep_oldest = |ages: &mut Vec<Reverse<Age>>| {
            ages.select_nth_unstable_by_key(self.selection - 1, |&Reverse(age)| age);
            ages.truncate(self.selection);
            ages[self.selection - 1].0
        };
        for slot in slab.slots() {
            let age = (slab[slot].rank_ns(self.lifetimes), slot);
            if slab[slot].state == State::Free || age > bound {
                continue;
            }
            ages.push(Reverse(age));
            if ages.len() == 2 * self.selection {
                bound = keep_oldest(&mut ages);
            }
        }
        if ages.len() >= self.selection {
            bound = keep_oldest(&mut ages);
        }
        self.bound = Some(bound);
        self.candidates = BinaryHeap::from(ages);
    }
}
