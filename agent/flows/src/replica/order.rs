//! The order in which scans meet the flows.
//!
//! Pages list flows in the order of their hash, so a scan meets the flows that go on in nearly the same order as the
//! scan before. Most flows are found there without a look-up: each follows the flow that came before it.

use std::mem;

use agent_common::FlowKey;

use super::{find::Slots, slab::Slab};

/// How many places ahead to search for a flow by its key. Some flows of the last scan do not come again.
const AHEAD: usize = 8;
/// How many places ahead to search for a slot number, which costs less to compare than a key.
const FAR_AHEAD: usize = 512;
/// After this many misses in a row, the rest of the group is not searched: most of its flows are new, or most of the
/// earlier ones do not come again.
const MISSES: usize = 4;

/// The slots that scans met, one for each entry that they drained.
#[derive(Default)]
pub struct Order {
    last: Vec<u32>,
    this: Vec<u32>,
    /// The place in `last` after the flow that was found last.
    at: usize,
    /// Few flows of the last group came in order, so the next group skips the check that all of them do.
    is_lost: bool,
}

impl Order {
    pub fn begin_scan(&mut self) {
        mem::swap(&mut self.last, &mut self.this);
        self.this.clear();
        self.at = 0;
        self.is_lost = false;
    }

    /// The next entry of this scan is of the flow in this slot.
    #[inline]
    pub fn push(&mut self, slot: u32) {
        self.this.push(slot);
    }

    /// Finds the flows of a group that come in the order of the last scan.
    ///
    /// First assumes that the group is exactly the next entries and compares them independently, so the CPU waits for
    /// many memory reads at once. Searches one key after the other only if some do not match.
    pub fn find(&mut self, keys: &[FlowKey], slab: &Slab, slots: &mut Slots) {
        if !self.is_lost && self.all_are_next(keys, slab, slots) {
            self.at += keys.len();
            return;
        }
        *slots = Slots::default();
        let (mut found, mut misses) = (0, 0);
        for (slot, key) in slots.iter_mut().zip(keys) {
            let mut next = self.last[self.at..].iter().take(AHEAD);
            let is_it = |&guess: &u32| slab.get(guess).is_some_and(|entry| entry.is(key));
            let Some(after) = next.position(is_it) else {
                misses += 1;
                if misses == MISSES {
                    break;
                }
                continue;
            };
            (found, misses) = (found + 1, 0);
            self.at += after + 1;
            *slot = Some(self.last[self.at - 1]);
        }
        self.is_lost = found < keys.len() / 4;
    }

    /// Whether the flows of these keys are exactly the next ones.
    fn all_are_next(&self, keys: &[FlowKey], slab: &Slab, slots: &mut Slots) -> bool {
        let next = &self.last[self.at..];
        let mut found = 0;
        for ((slot, key), &guess) in slots.iter_mut().zip(keys).zip(next) {
            *slot = Some(guess);
            let is_it = slab.get(guess).is_some_and(|entry| entry.is(key));
            found += usize::from(is_it);
        }
        found == keys.len()
    }

    /// Continues after this slot, whose flow was found by its key. More flows may be missing before it than `find`
    /// searches.
    pub fn go_on_after(&mut self, slot: u32) {
        let next = self.last[self.at..].iter().take(FAR_AHEAD);
        if let Some(after) = next.copied().position(|next| next == slot) {
            self.at += after + 1;
        }
    }

    /// Releases the memory of earlier scans that met more flows.
    pub fn shrink(&mut self) {
        for slots in [&mut self.last, &mut self.this] {
            if slots.capacity() / 4 > slots.len() {
                slots.shrink_to(2 * slots.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use agent_common::FlowCounters;
    use sys::clock::ScanClock;

    use super::{
        super::{entry::Entry, find::GROUP},
        *,
    };

    fn key(number: u32) -> FlowKey {
        FlowKey {
            ifindex: number,
            ..FlowKey::default()
        }
    }

    /// A scan met `count` flows whose keys and slots have the same numbers.
    fn met(count: u32) -> (Slab, Order) {
        let (mut slab, mut order) = (Slab::default(), Order::default());
        for number in 0..count {
            let entry = Entry::new(
                &key(number),
                &FlowCounters::default(),
                ScanClock::default(),
                1,
            );
            order.push(slab.insert(entry));
        }
        order.begin_scan();
        (slab, order)
    }

    fn find(order: &mut Order, slab: &Slab, numbers: &[u32]) -> Vec<Option<u32>> {
        let keys: Vec<_> = numbers.iter().copied().map(key).collect();
        let mut slots = Slots::default();
        order.find(&keys, slab, &mut slots);
        slots[..keys.len()].to_vec()
    }

    fn all(numbers: impl IntoIterator<Item = u32>) -> Vec<Option<u32>> {
        numbers.into_iter().map(Some).collect()
    }

    #[test]
    fn flows_that_come_as_they_came_are_found() {
        let (slab, mut order) = met(100);
        let numbers: Vec<_> = (0..100).collect();
        for group in numbers.chunks(GROUP) {
            assert_eq!(find(&mut order, &slab, group), all(group.iter().copied()));
        }
        assert_eq!(
            find(&mut order, &slab, &[100, 0]),
            [None, None],
            "no more come"
        );
    }

    #[test]
    fn flows_are_found_where_some_are_new_and_others_are_left_out() {
        let (slab, mut order) = met(100);
        let numbers = [1, 200, 2, 3, 11, 201, 202, 18, 203, 204, 205];
        let mut expected = all(numbers);
        for place in [1, 5, 6, 8, 9, 10] {
            expected[place] = None;
        }
        assert_eq!(find(&mut order, &slab, &numbers), expected);
        assert_eq!(find(&mut order, &slab, &[19, 20]), all([19, 20]));
    }

    #[test]
    fn behind_some_that_are_new_the_rest_of_a_group_is_not_searched_and_the_next_group_is() {
        let (slab, mut order) = met(100);
        let mut group = vec![0, 1];
        group.extend(200..210);
        group.push(2);
        let mut expected = all([0, 1]);
        expected.resize(13, None);
        for again in 0..2 {
            assert_eq!(find(&mut order, &slab, &group), expected);
            assert!(order.is_lost);
            order.at = 0;
            assert_eq!(
                find(&mut order, &slab, &[0, 1, 2]),
                all([0, 1, 2]),
                "{again}"
            );
            assert!(!order.is_lost);
            order.at = 0;
        }
    }

    #[test]
    fn behind_many_that_are_left_out_it_goes_on_after_a_flow_that_was_found_otherwise() {
        let (slab, mut order) = met(2000);
        let next = [50, 51, 52];
        assert_eq!(find(&mut order, &slab, &next), [None; 3]);
        order.go_on_after(52);
        assert_eq!(find(&mut order, &slab, &[53, 54]), all([53, 54]));
        order.go_on_after(1990);
        assert_eq!(
            find(&mut order, &slab, &[55]),
            all([55]),
            "that was too far"
        );
    }

    #[test]
    fn a_slot_that_has_another_flow_by_now_or_none_is_no_find() {
        let (mut slab, mut order) = met(4);
        slab.remove(1);
        slab.remove(2);
        let other = Entry::new(&key(7), &FlowCounters::default(), ScanClock::default(), 1);
        assert_eq!(slab.insert(other), 2);
        let found = find(&mut order, &slab, &[0, 1, 2, 3]);
        assert_eq!(found, [Some(0), None, None, Some(3)]);
        for slot in [0, 2, 3] {
            slab.remove(slot);
        }
        assert_eq!(slab.shrink(), 1);
        order.at = 0;
        assert_eq!(find(&mut order, &slab, &[0]), [None]);
    }
}
