//! Sums what scans drain by interface, direction and protocol.
//!
//! Entries of the flow table are counted when they are drained, not when records report them: a record may wait for the
//! report interval, and the sum has to match the account after each scan.

use std::collections::{BTreeMap, HashMap};

use agent_common::{Direction, FlowCounters, FlowKey, InterfaceId, Pair};
use foldhash::fast::RandomState;
use proto::protocols::Class;

use super::HookState;

/// Packets and bytes of flows, by protocol.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct ByProtocol([Pair; Class::COUNT]);

impl ByProtocol {
    pub fn iter(&self) -> impl Iterator<Item = (Class, Pair)> {
        Class::all().zip(self.0)
    }

    fn merge(&mut self, other: &Self) {
        for (sum, &more) in self.0.iter_mut().zip(&other.0) {
            *sum += more;
        }
    }
}

/// What one scan drained, by interface and direction; index 0 is ingress.
#[derive(Default)]
pub(super) struct Drained {
    interfaces: HashMap<InterfaceId, usize, RandomState>,
    counts: Vec<[ByProtocol; 2]>,
    /// The interface of the previous entry: most hosts have few, so the next entry probably has the same.
    last: Option<(InterfaceId, usize)>,
}

impl Drained {
    /// Adds entries. Returns their sum.
    pub(super) fn add(&mut self, keys: &[FlowKey], counters: &[FlowCounters]) -> Pair {
        let mut sum = Pair::default();
        for (key, counters) in keys.iter().zip(counters) {
            let place = self.place(InterfaceId::of(key));
            let (counts, class) = (&mut self.counts[place], Class::of(key.protocol).index());
            for from in 0..2 {
                let pair = Pair {
                    packets: counters.packets[from],
                    bytes: counters.bytes[from],
                };
                let direction = from ^ usize::from(key.side());
                counts[direction].0[class] += pair;
                sum += pair;
            }
        }
        sum
    }

    fn place(&mut self, id: InterfaceId) -> usize {
        match self.last {
            Some((last, place)) if last == id => place,
            _ => {
                let place = *self.interfaces.entry(id).or_insert_with(|| {
                    self.counts.push([ByProtocol::default(); 2]);
                    self.counts.len() - 1
                });
                self.last = Some((id, place));
                place
            }
        }
    }

    /// Adds the sums to those of all interfaces and of the hooks, then resets them. While an index moves from one
    /// interface to another, both have hooks, and the later one gets everything.
    pub(super) fn merge_into(&mut self, all: &mut [ByProtocol; 2], hooks: &mut [HookState]) {
        let by_hook = hooks.iter_mut();
        let by_hook = by_hook.map(|state| ((state.hook.id, state.hook.direction), state));
        let mut by_hook: BTreeMap<_, _> = by_hook.collect();
        for (id, place) in self.interfaces.drain() {
            for direction in Direction::BOTH {
                let counts = &self.counts[place][direction as usize];
                all[direction as usize].merge(counts);
                if let Some(state) = by_hook.get_mut(&(id, direction)) {
                    state.traffic.merge(counts);
                }
            }
        }
        self.counts.clear();
        self.last = None;
    }
}
