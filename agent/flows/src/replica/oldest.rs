//! Finds the flow to evict: the one that would end first.

use std::{cmp::Reverse, collections::BinaryHeap, mem};

use super::{Lifetimes, slab::Slab};

/// A flow's [`rank_ns`](super::entry::Entry::rank_ns), and its slot.
pub type Age = (u64, u32);

/// Finds the flow that would end first. One pass over the slab serves many evictions.
pub struct Oldest {
    /// The age of every flow up to `bound`, along with outdated ages.
    candidates: BinaryHeap<Reverse<Age>>,
    bound: Option<Age>,
    /// How many flows a pass selects. The heap holds up to twice as many.
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

    /// Notes that a flow's age has changed.
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

    /// The slot of the oldest flow. Call this only when the table is full, so that every slot has a flow.
    pub fn pop(&mut self, slab: &Slab) -> u32 {
        loop {
            while let Some(Reverse((rank_ns, slot))) = self.candidates.pop() {
                let rank_now_ns = slab.get(slot).map(|entry| entry.rank_ns(self.lifetimes));
                if rank_now_ns == Some(rank_ns) {
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
        let mut from = 0;
        while let Some(slot) = slab.first_from(from) {
            from = slot + 1;
            let age = (slab[slot].rank_ns(self.lifetimes), slot);
            if age > bound {
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

#[cfg(test)]
mod tests {
    use agent_common::{FlowCounters, FlowKey};
    use sys::clock::ScanClock;

    use super::*;
    use crate::replica::entry::Entry;

    const LIFETIMES: Lifetimes = Lifetimes {
        idle_ns: 1,
        linger_ns: 1,
    };

    /// A slab with a flow last seen at each of these times.
    fn slab(seen_ns: impl IntoIterator<Item = u64>) -> Slab {
        let mut slab = Slab::default();
        for first_seen_ns in seen_ns {
            let counters = FlowCounters {
                first_seen_ns,
                ..FlowCounters::default()
            };
            let clock = ScanClock::default();
            slab.insert(Entry::new(&FlowKey::default(), &counters, clock, 1));
        }
        slab
    }

    #[test]
    fn as_many_are_selected_as_it_has_room_for_twice() {
        for selection in [1, 3] {
            let mut oldest = Oldest::new(selection * 64, LIFETIMES);
            let room = oldest.candidates.capacity();
            oldest.select(&slab((1..20).rev()));
            assert_eq!(oldest.candidates.len(), selection);
            assert_eq!(
                oldest.bound,
                Some((selection as u64, 19 - selection as u32))
            );
            assert_eq!(oldest.candidates.capacity(), room);
        }
    }

    #[test]
    fn ages_beyond_its_room_make_it_look_at_all_flows_again() {
        let mut oldest = Oldest::new(3 * 64, LIFETIMES);
        oldest.note((1, 0));
        assert!(oldest.candidates.is_empty(), "nothing is selected yet");
        oldest.bound = Some((100, 0));
        oldest.note((101, 0));
        assert!(oldest.candidates.is_empty(), "younger than those selected");
        for age in 1..=6 {
            oldest.note((age, 0));
            assert_eq!(oldest.candidates.len(), age as usize);
        }
        oldest.note((7, 0));
        assert_eq!((oldest.candidates.len(), oldest.bound), (0, None));
    }
}
