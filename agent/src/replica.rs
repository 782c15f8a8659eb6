//! The replica, the flow table in user space: what each scan drained from the kernel comes in, a
//! record for each update and exactly one end record for each flow go out.

mod entry;
mod oldest;
mod slab;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hasher as _},
    time::Duration,
};

use agent_common::{Encapsulation, FlowCounters, FlowKey, Outer, Pair};
use foldhash::{SharedSeed, fast::SeedableRandomState};
use hashbrown::HashTable;

use self::{
    entry::{Entry, State, opens},
    oldest::Oldest,
    slab::Slab,
};
use crate::{
    clock::ScanClock,
    record::{EndReason, Record},
};

#[derive(Clone, Copy, Debug)]
pub struct ReplicaSettings {
    pub max_flows: usize,
    pub idle_timeout: Duration,
}

/// Entries that are looked up together.
const GROUP: usize = 32;

/// Between `begin_scan` and `end_scan` comes an `update` with each part of what the scan drained.
pub struct Replica {
    max_flows: usize,
    idle_timeout_ns: u64,
    clock: ScanClock,
    scan: u32,
    slab: Slab,
    index: HashTable<u32>,
    seed: SeedableRandomState,
    oldest: Oldest,
    evicted: u64,
    /// Of flows that came through tunnels, which are few or all: so not in every entry.
    outers: HashMap<FlowKey, Outer>,
}

impl Replica {
    /// Room for at least one flow and at most as many as 32 bits can number.
    pub fn new(settings: ReplicaSettings) -> Self {
        let max_flows = settings.max_flows.clamp(1, u32::MAX as usize);
        // The standard library's seed comes from the system's entropy, foldhash's own does not.
        let seed = std::hash::RandomState::new().hash_one(0);
        Self {
            max_flows,
            idle_timeout_ns: u64::try_from(settings.idle_timeout.as_nanos()).unwrap_or(u64::MAX),
            clock: ScanClock::default(),
            scan: 0,
            slab: Slab::default(),
            index: HashTable::new(),
            seed: SeedableRandomState::with_seed(seed, SharedSeed::global_random()),
            oldest: Oldest::new(max_flows),
            evicted: 0,
            outers: HashMap::new(),
        }
    }

    pub fn begin_scan(&mut self, clock: ScanClock) {
        self.clock = clock;
        self.scan = self.scan.wrapping_add(1);
    }

    /// Keeps the endpoints of the tunnel that a flow came through, which the next `update` brings;
    /// asks for them where they are not known.
    pub fn note_outer(&mut self, key: &FlowKey, ask: impl FnOnce() -> Option<Outer>) {
        let flow = key.with_side(0);
        if !self.outers.contains_key(&flow)
            && let Some(outer) = ask()
        {
            self.outers.insert(flow, outer);
        }
    }

    /// Takes in drained entries, a key for each of the counters.
    pub fn update(
        &mut self,
        keys: &[FlowKey],
        counters: &[FlowCounters],
        sink: &mut impl FnMut(&Record),
    ) {
        assert_eq!(keys.len(), counters.len(), "a key for each of the counters");
        let mut flows = [FlowKey::default(); GROUP];
        for (keys, counters) in keys.chunks(GROUP).zip(counters.chunks(GROUP)) {
            for (flow, key) in flows.iter_mut().zip(keys) {
                *flow = key.with_side(0);
            }
            let keys = &flows[..keys.len()];
            let found = self.look_up(keys);
            for ((key, counters), (hash, slot)) in keys.iter().zip(counters).zip(found) {
                // The entries before this one may have ended its flow, or have made it.
                let slot = slot
                    .filter(|&slot| self.slab[slot].is(key))
                    .or_else(|| self.find(hash, key));
                self.update_flow(hash, slot, key, counters, sink);
            }
        }
    }

    /// The hash and, where the flow is known, most likely the slot, for each of a group.
    ///
    /// A large table is in no cache. One step for all, then the next for all: so the CPU waits for
    /// many reads from memory at once, and the updates find their entries in the cache.
    fn look_up(&self, keys: &[FlowKey]) -> [(u64, Option<u32>); GROUP] {
        let mut found = [(0, None); GROUP];
        for (found, key) in found.iter_mut().zip(keys) {
            let hash = hash_of(&self.seed, key);
            *found = (hash, self.index.find(hash, |_| true).copied());
        }
        for ((_, slot), key) in found.iter_mut().zip(keys) {
            *slot = slot.filter(|&slot| self.slab[slot].is(key));
        }
        found
    }

    fn find(&self, hash: u64, key: &FlowKey) -> Option<u32> {
        self.index
            .find(hash, |&slot| self.slab[slot].is(key))
            .copied()
    }

    fn update_flow(
        &mut self,
        hash: u64,
        known: Option<u32>,
        key: &FlowKey,
        counters: &FlowCounters,
        sink: &mut impl FnMut(&Record),
    ) {
        let slot = match known {
            Some(slot) if self.slab[slot].closed_before(self.scan) && opens(counters) => {
                let outer = self.outers.get(key).copied();
                self.end(slot, EndReason::EndOfFlow, sink);
                if let Some(outer) = outer {
                    self.outers.insert(*key, outer);
                }
                self.insert(hash, key, counters, sink)
            }
            Some(slot) => slot,
            None => self.insert(hash, key, counters, sink),
        };
        let entry = &mut self.slab[slot];
        let delta = entry.add(counters, self.clock, self.scan);
        self.oldest.note((entry.last_seen_boot_ns, slot));
        sink(&self.record(slot, delta, None));
    }

    /// Ends the flows that were closed before this scan and those that were quiet for too long.
    pub fn end_scan(&mut self, sink: &mut impl FnMut(&Record)) {
        for slot in self.slab.slots() {
            let entry = &self.slab[slot];
            let quiet_ns = self.clock.boot_ns.saturating_sub(entry.last_seen_boot_ns);
            if entry.closed_before(self.scan) {
                self.end(slot, EndReason::EndOfFlow, sink);
            } else if entry.state == State::Living && quiet_ns >= self.idle_timeout_ns {
                self.end(slot, EndReason::IdleTimeout, sink);
            }
        }
    }

    /// The agent stops: ends every flow, also those that linger.
    pub fn finish(&mut self, sink: &mut impl FnMut(&Record)) {
        for slot in self.slab.slots() {
            match self.slab[slot].state {
                State::Free => {}
                State::Living => self.end(slot, EndReason::ForcedEnd, sink),
                State::Closing => self.end(slot, EndReason::EndOfFlow, sink),
            }
        }
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    pub fn capacity(&self) -> usize {
        self.max_flows
    }

    /// How many flows had to leave for others.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// What is allocated, whether or not it was touched yet.
    pub fn memory_bytes(&self) -> usize {
        self.slab.memory_bytes() + self.index.allocation_size() + self.oldest.memory_bytes()
    }

    /// Makes an entry that has counted nothing yet.
    fn insert(
        &mut self,
        hash: u64,
        key: &FlowKey,
        counters: &FlowCounters,
        sink: &mut impl FnMut(&Record),
    ) -> u32 {
        if self.len() >= self.max_flows {
            let slot = self.oldest.take(&self.slab);
            self.end(slot, EndReason::LackOfResources, sink);
            self.evicted += 1;
        }
        let slot = self.slab.insert(Entry::new(key, counters, self.clock));
        self.index.insert_unique(hash, slot, |&other| {
            hash_of(&self.seed, &self.slab[other].key)
        });
        slot
    }

    fn record(&self, slot: u32, delta: [Pair; 2], end_reason: Option<EndReason>) -> Record {
        let entry = &self.slab[slot];
        let mut record = entry.record(self.clock, delta, end_reason);
        if came_through_a_tunnel(&entry.key) {
            record.outer = self.outers.get(&entry.key).copied();
        }
        record
    }

    fn end(&mut self, slot: u32, reason: EndReason, sink: &mut impl FnMut(&Record)) {
        sink(&self.record(slot, [Pair::default(); 2], Some(reason)));
        let entry = &self.slab[slot];
        let hash = hash_of(&self.seed, &entry.key);
        if came_through_a_tunnel(&entry.key) {
            self.outers.remove(&entry.key);
        }
        if let Ok(indexed) = self.index.find_entry(hash, |&other| other == slot) {
            indexed.remove();
        }
        self.slab.remove(slot);
    }
}

/// Whether the flow's record has outer endpoints.
pub fn came_through_a_tunnel(key: &FlowKey) -> bool {
    key.encapsulation != 0
        && Encapsulation::from_u8(key.encapsulation).is_some_and(Encapsulation::is_tunnel)
}

fn hash_of(seed: &SeedableRandomState, key: &FlowKey) -> u64 {
    let wide = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let pair = |high: u16, low: u16| u32::from(high) << 16 | u32::from(low);
    let mut hasher = seed.build_hasher();
    hasher.write_u128(u128::from_ne_bytes(key.addr_a));
    hasher.write_u128(u128::from_ne_bytes(key.addr_b));
    hasher.write_u64(wide(key.netns, key.ifindex));
    let [outer, inner] = key.vlan_ids;
    hasher.write_u64(wide(pair(outer, inner), pair(key.port_a, key.port_b)));
    let kinds = [key.ip_version, key.protocol, key.l4_kind, key.encapsulation];
    hasher.write_u64(wide(key.tunnel_id, u32::from_ne_bytes(kinds)));
    hasher.finish()
}
