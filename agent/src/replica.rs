//! The replica, the flow table in user space: what each scan drained from the kernel comes in, a
//! record for each update and exactly one end record for each flow go out.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    hash::{BuildHasher as _, Hasher as _},
    mem,
    ops::{Index, IndexMut},
    time::Duration,
};

use agent_common::{FlowCounters, FlowKey, Pair, flow::tcp_flags};
use foldhash::{SharedSeed, fast::SeedableRandomState};
use hashbrown::HashTable;

use crate::{
    community_id::community_id,
    record::{EndReason, Record},
};

#[cfg(test)]
mod tests;

#[derive(Clone, Copy, Debug)]
pub struct ReplicaSettings {
    pub max_flows: usize,
    pub idle_timeout: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ScanClock {
    /// `CLOCK_BOOTTIME` at the scan.
    pub boot_ns: u64,
    /// The kernel's tick counter at the same moment.
    pub jiffies: u64,
    pub tick_ns: u64,
    /// What to add to boot time to get Unix time.
    pub boot_to_unix_ns: i64,
}

impl ScanClock {
    fn unix_ns(self, boot_ns: u64) -> u64 {
        boot_ns.saturating_add_signed(self.boot_to_unix_ns)
    }

    /// To the tick, which is 1 to 10 ms, and not before the first packet.
    fn last_seen_boot_ns(self, counters: &FlowCounters) -> u64 {
        let ticks = self
            .jiffies
            .wrapping_sub(counters.last_seen_jiffies)
            .cast_signed();
        let tick_ns = self.tick_ns.cast_signed();
        self.boot_ns
            .saturating_add_signed(ticks.saturating_mul(tick_ns).saturating_neg())
            .max(counters.first_seen_ns)
    }
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
        }
    }

    pub fn begin_scan(&mut self, clock: ScanClock) {
        self.clock = clock;
        self.scan = self.scan.wrapping_add(1);
    }

    /// Takes in drained entries, a key for each of the counters.
    pub fn update(
        &mut self,
        keys: &[FlowKey],
        counters: &[FlowCounters],
        sink: &mut impl FnMut(&Record),
    ) {
        assert_eq!(keys.len(), counters.len(), "a key for each of the counters");
        for (keys, counters) in keys.chunks(GROUP).zip(counters.chunks(GROUP)) {
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
                self.end(slot, EndReason::EndOfFlow, sink);
                self.insert(hash, key, counters, sink)
            }
            Some(slot) => slot,
            None => self.insert(hash, key, counters, sink),
        };
        let entry = &mut self.slab[slot];
        let delta = entry.add(counters, self.clock, self.scan);
        self.oldest.note((entry.last_seen_boot_ns, slot));
        sink(&entry.record(self.clock, delta, None));
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

    fn end(&mut self, slot: u32, reason: EndReason, sink: &mut impl FnMut(&Record)) {
        let entry = &self.slab[slot];
        sink(&entry.record(self.clock, [Pair::default(); 2], Some(reason)));
        let hash = hash_of(&self.seed, &entry.key);
        if let Ok(indexed) = self.index.find_entry(hash, |&other| other == slot) {
            indexed.remove();
        }
        self.slab.remove(slot);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Living,
    /// FIN or RST was seen: lingers so that the last ACK opens no new flow.
    Closing,
}

/// Arrays are by direction of the key, as the kernel counts.
struct Entry {
    key: FlowKey,
    total: [Pair; 2],
    first_seen_unix_ns: u64,
    last_seen_boot_ns: u64,
    community_id: [u8; 20],
    /// When the flow became closing.
    closing_scan: u32,
    tcp_flags: [u8; 2],
    initiator: u8,
    dscp: u8,
    state: State,
}

const _: () = assert!(size_of::<Entry>() <= 144);

impl Entry {
    fn new(key: &FlowKey, counters: &FlowCounters, clock: ScanClock) -> Self {
        let initiator = initiator(counters);
        Self {
            key: *key,
            total: [Pair::default(); 2],
            first_seen_unix_ns: clock.unix_ns(counters.first_seen_ns),
            last_seen_boot_ns: counters.first_seen_ns,
            community_id: community_id(key, initiator),
            closing_scan: 0,
            tcp_flags: [0; 2],
            initiator,
            dscp: counters.dscp,
            state: State::Living,
        }
    }

    fn is(&self, key: &FlowKey) -> bool {
        self.state != State::Free && self.key == *key
    }

    /// Returns what was added.
    fn add(&mut self, counters: &FlowCounters, clock: ScanClock, scan: u32) -> [Pair; 2] {
        let delta = [0, 1].map(|direction| Pair {
            packets: counters.packets[direction],
            bytes: counters.bytes[direction],
        });
        for (direction, &added) in delta.iter().enumerate() {
            self.total[direction] += added;
            self.tcp_flags[direction] |= counters.tcp_flags[direction].union();
        }
        self.last_seen_boot_ns = self
            .last_seen_boot_ns
            .max(clock.last_seen_boot_ns(counters));
        if self.state == State::Living && self.is_over() {
            self.state = State::Closing;
            self.closing_scan = scan;
        }
        delta
    }

    fn is_over(&self) -> bool {
        let [flags_a, flags_b] = self.tcp_flags;
        let done = |direction: usize| {
            self.tcp_flags[direction] & tcp_flags::FIN != 0 || self.total[direction].packets == 0
        };
        (flags_a | flags_b) & tcp_flags::RST != 0
            || (flags_a | flags_b) & tcp_flags::FIN != 0 && done(0) && done(1)
    }

    fn closed_before(&self, scan: u32) -> bool {
        self.state == State::Closing && self.closing_scan != scan
    }

    fn record(&self, clock: ScanClock, delta: [Pair; 2], end_reason: Option<EndReason>) -> Record {
        let forward = usize::from(self.initiator);
        let reverse = 1 - forward;
        Record {
            key: self.key,
            initiator: self.initiator,
            delta: [delta[forward], delta[reverse]],
            total: [self.total[forward], self.total[reverse]],
            first_seen_unix_ns: self.first_seen_unix_ns,
            last_seen_unix_ns: clock.unix_ns(self.last_seen_boot_ns),
            tcp_flags: [self.tcp_flags[forward], self.tcp_flags[reverse]],
            dscp: self.dscp,
            end_reason,
            community_id: self.community_id,
        }
    }
}

/// The direction that opened the flow: the handshake tells, else the first packet that was seen.
fn initiator(counters: &FlowCounters) -> u8 {
    let [a, b] = &counters.tcp_flags;
    match (a.has_syn_without_ack(), b.has_syn_without_ack()) {
        (true, false) => return 0,
        (false, true) => return 1,
        _ => {}
    }
    match (a.has_syn_with_ack(), b.has_syn_with_ack()) {
        (true, false) => 1,
        (false, true) => 0,
        _ => u8::from(counters.first_direction != 0),
    }
}

fn opens(counters: &FlowCounters) -> bool {
    let [a, b] = &counters.tcp_flags;
    a.has_syn_without_ack() || b.has_syn_without_ack()
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
    let kinds = [key.ip_version, key.protocol, key.l4_kind, 0];
    hasher.write_u64(wide(0, u32::from_ne_bytes(kinds)));
    hasher.finish()
}

/// Entries by slot number. Grows by chunks, so that nothing is ever copied.
#[derive(Default)]
struct Slab {
    /// Each is allocated at its full size.
    chunks: Vec<Vec<Entry>>,
    free: Vec<u32>,
}

impl Slab {
    const CHUNK: usize = 4096;

    fn insert(&mut self, entry: Entry) -> u32 {
        if let Some(slot) = self.free.pop() {
            self[slot] = entry;
            return slot;
        }
        let slot = self.slots().end;
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < Self::CHUNK => chunk.push(entry),
            _ => {
                let mut chunk = Vec::with_capacity(Self::CHUNK);
                chunk.push(entry);
                self.chunks.push(chunk);
            }
        }
        slot
    }

    fn remove(&mut self, slot: u32) {
        self[slot].state = State::Free;
        self.free.push(slot);
    }

    /// All slots, the free ones too.
    fn slots(&self) -> std::ops::Range<u32> {
        let last = self.chunks.last().map_or(0, Vec::len);
        0..(self.chunks.len().saturating_sub(1) * Self::CHUNK + last) as u32
    }

    fn memory_bytes(&self) -> usize {
        self.chunks.len() * Self::CHUNK * size_of::<Entry>()
            + self.chunks.capacity() * size_of::<Vec<Entry>>()
            + self.free.capacity() * size_of::<u32>()
    }
}

impl Index<u32> for Slab {
    type Output = Entry;

    fn index(&self, slot: u32) -> &Entry {
        &self.chunks[slot as usize / Self::CHUNK][slot as usize % Self::CHUNK]
    }
}

impl IndexMut<u32> for Slab {
    fn index_mut(&mut self, slot: u32) -> &mut Entry {
        &mut self.chunks[slot as usize / Self::CHUNK][slot as usize % Self::CHUNK]
    }
}

/// When a flow was last seen, and its slot.
type Age = (u64, u32);

/// Finds the flow that was quiet the longest, with a pass over the slab only once for many of them.
struct Oldest {
    /// Holds the age of every flow up to `bound`, and ages that are no flow's any more.
    candidates: BinaryHeap<Reverse<Age>>,
    bound: Option<Age>,
    /// How many a pass selects; twice as many have room.
    selection: usize,
}

impl Oldest {
    fn new(max_flows: usize) -> Self {
        let selection = (max_flows / 64).max(1);
        Self {
            candidates: BinaryHeap::with_capacity(2 * selection),
            bound: None,
            selection,
        }
    }

    /// A flow has a new age.
    fn note(&mut self, age: Age) {
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
    fn take(&mut self, slab: &Slab) -> u32 {
        loop {
            while let Some(Reverse((last_seen, slot))) = self.candidates.pop() {
                let entry = &slab[slot];
                if entry.state != State::Free && entry.last_seen_boot_ns == last_seen {
                    return slot;
                }
            }
            self.select(slab);
        }
    }

    fn select(&mut self, slab: &Slab) {
        let mut ages = mem::take(&mut self.candidates).into_vec();
        let mut bound = (u64::MAX, u32::MAX);
        let keep_oldest = |ages: &mut Vec<Reverse<Age>>| {
            ages.select_nth_unstable_by_key(self.selection - 1, |&Reverse(age)| age);
            ages.truncate(self.selection);
            ages[self.selection - 1].0
        };
        for slot in slab.slots() {
            let age = (slab[slot].last_seen_boot_ns, slot);
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

    fn memory_bytes(&self) -> usize {
        self.candidates.capacity() * size_of::<Age>()
    }
}
