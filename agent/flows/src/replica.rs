//! The replica: the flow table in user space, built from the entries that each scan drains from the kernel. It emits a
//! record for each flow that a scan counted, and exactly one end record for each flow.

mod by_cgroup;
mod dropped;
mod entry;
mod errors;
mod events;
mod failed;
mod find;
mod handshake;
mod in_sight;
mod names;
mod oldest;
mod order;
mod outers;
mod remembered;
mod reports;
mod round_trip;
mod scan_end;
mod segments;
mod senders;
mod sides;
mod slab;
#[cfg(test)]
mod tests;
mod translations;
mod waiting;

use std::{hash::BuildHasher as _, ops::Range, sync::Arc, time::Duration};

use agent_common::{Encapsulation, FlowCounters, FlowKey, InterfaceId, Pair, Senders};
use foldhash::{SharedSeed, fast::SeedableRandomState};
use hashbrown::HashTable;
use proto::{EndReason, record::Record};
use sys::clock::{self, ScanClock};

use self::{
    by_cgroup::ByCgroup,
    dropped::Dropped,
    entry::{Entry, Sides, State},
    errors::Errors,
    find::{Found, GROUP, Guess, hash_of},
    in_sight::InSight,
    names::FlowNames,
    oldest::Oldest,
    order::Order,
    outers::Outers,
    remembered::Remembered,
    reports::{Reports, Unreported},
    senders::KnownSenders,
    slab::Slab,
    translations::Translations,
    waiting::Waiting,
};
use crate::{icmp_error::IcmpError, names::Hosts};
pub use by_cgroup::Exchanged;
pub use entry::{Malformed, UNREPORTED_VERSION, UnreportedFlow, read_unreported};
pub use failed::Failed;
pub use translations::TranslationCounts;

#[derive(Clone, Copy, Debug)]
pub struct ReplicaSettings {
    pub max_flows: usize,
    pub idle_timeout: Duration,
    /// How long a closed flow waits for late packets after its last one.
    pub linger: Duration,
    /// The shortest time between two reports of a living flow. Zero reports it with every scan.
    pub report_interval: Duration,
}

/// How long a flow is kept after its last packet.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Lifetimes {
    idle_ns: u64,
    linger_ns: u64,
}

impl Lifetimes {
    fn new(idle_timeout: Duration, linger: Duration) -> Self {
        Self {
            idle_ns: clock::nanos(idle_timeout),
            linger_ns: clock::nanos(linger),
        }
    }
}

/// Call `update` with each part of a drained page, between `begin_scan` and `end_scan`.
pub struct Replica {
    max_flows: usize,
    lifetimes: Lifetimes,
    clock: ScanClock,
    scan: u32,
    slab: Slab,
    index: HashTable<u32>,
    seed: SeedableRandomState,
    order: Order,
    oldest: Oldest,
    waiting: Waiting,
    /// Slots of flows whose counters from this scan are reported at its end.
    deferred: Vec<u32>,
    begun: u64,
    evicted: u64,
    outers: Outers,
    reports: Reports,
    senders: KnownSenders,
    names: FlowNames,
    errors: Errors,
    dropped: Dropped,
    translations: Translations,
    failed: Failed,
    by_cgroup: ByCgroup,
    remembered: Remembered,
    in_sight: InSight,
    /// The filter rules may leave out one direction of a flow.
    rules_divide_flows: bool,
    sockets_without_end: u64,
}

impl Replica {
    /// The flow limit is at least 1 and at most `u32::MAX`.
    pub fn new(settings: ReplicaSettings) -> Self {
        let max_flows = settings.max_flows.clamp(1, u32::MAX as usize);
        let lifetimes = Lifetimes::new(settings.idle_timeout, settings.linger);
        // foldhash's own seed does not come from the system's entropy, so this uses the standard library's.
        let seed = std::hash::RandomState::new().hash_one(0);
        Self {
            max_flows,
            lifetimes,
            clock: ScanClock::default(),
            scan: 0,
            slab: Slab::default(),
            index: HashTable::new(),
            seed: SeedableRandomState::with_seed(seed, SharedSeed::global_random()),
            order: Order::default(),
            oldest: Oldest::new(max_flows, lifetimes),
            waiting: Waiting::default(),
            deferred: Vec::new(),
            begun: 0,
            evicted: 0,
            outers: Outers::default(),
            reports: Reports::every(settings.report_interval),
            senders: KnownSenders::default(),
            names: FlowNames::default(),
            errors: Errors::default(),
            dropped: Dropped::default(),
            translations: Translations::default(),
            failed: Failed::default(),
            by_cgroup: ByCgroup::default(),
            remembered: Remembered::default(),
            in_sight: InSight::default(),
            rules_divide_flows: false,
            sockets_without_end: 0,
        }
    }

    /// Adds the names of hosts to the flows that begin from here on.
    pub fn name_hosts(&mut self, hosts: Arc<dyn Hosts>) {
        self.names.follow(hosts);
    }

    /// Makes the replica add up the packets that each cgroup sends and receives.
    pub fn add_up_cgroups(&mut self) {
        self.by_cgroup.want();
    }

    /// The packets each cgroup has exchanged since the last call. Id 0 stands for unknown cgroups.
    pub fn take_by_cgroup(&mut self) -> impl Iterator<Item = (u64, Exchanged)> {
        self.by_cgroup.take()
    }

    /// Changes the report interval of living flows.
    pub fn report_every(&mut self, interval: Duration) {
        if self.reports.set_interval(interval) {
            self.slab.all_are_due();
        }
    }

    /// Makes the current scan, or else the next one, report everything that waits. Call this before the counting
    /// changes, so that no record mixes both kinds.
    pub fn report_all(&mut self) {
        self.reports.set_over(true);
        self.slab.all_are_due();
    }

    /// Changes the timeouts. Flows that have already been quiet for longer end with the next scan.
    pub fn keep_flows_for(&mut self, idle_timeout: Duration, linger: Duration) {
        let lifetimes = Lifetimes::new(idle_timeout, linger);
        if lifetimes != self.lifetimes {
            self.lifetimes = lifetimes;
            self.oldest = Oldest::new(self.max_flows, lifetimes);
            self.slab.all_are_due();
        }
    }

    /// From the next scan on, the agent sees all packets of this interface.
    pub fn watch(&mut self, interface: InterfaceId) {
        self.in_sight.watch(interface);
    }

    /// Packets may go uncounted until the next scan, so a flow first seen after it may be older than it looks.
    pub fn note_gap(&mut self) {
        self.in_sight.note_gap();
    }

    /// Notes that the filter rules have changed. With `divide_flows`, they may leave out one direction of a flow and
    /// count the other.
    pub fn follow_rules(&mut self, divide_flows: bool) {
        self.note_gap();
        if self.rules_divide_flows {
            let mut from = 0;
            while let Some(slot) = self.slab.first_from(from) {
                from = slot + 1;
                self.slab[slot].note_other_rules();
            }
        }
        self.rules_divide_flows = divide_flows;
    }

    /// How many connections were forgotten that may still go on. If one does, its initiator is assumed.
    pub fn forgotten_initiators(&self) -> u64 {
        self.remembered.forgotten()
    }

    /// How many flows had a socket whose end the kernel programs cannot report.
    pub fn sockets_without_end(&self) -> u64 {
        self.sockets_without_end
    }

    pub fn begin_scan(&mut self, clock: ScanClock) {
        self.clock = clock;
        self.scan = self.scan.wrapping_add(1);
        self.order.begin_scan();
        self.outers.begin_scan();
        self.names.begin_scan();
        self.in_sight.begin_scan(clock.boot_ns);
        self.translations.begin_scan(self.scan);
    }

    /// Unix time was set forward by this much: moves the start of every flow with it.
    pub fn follow_set_clock(&mut self, by_ns: i64) {
        let mut from = 0;
        while let Some(slot) = self.slab.first_from(from) {
            from = slot + 1;
            let entry = &mut self.slab[slot];
            entry.first_seen_unix_ns = entry.first_seen_unix_ns.saturating_add_signed(by_ns);
        }
    }

    /// Takes in drained entries: keys, and the counters of each.
    pub fn update(
        &mut self,
        keys: &[FlowKey],
        counters: &[FlowCounters],
        sink: &mut impl FnMut(&Record),
    ) {
        self.update_with(keys, counters, &[], sink);
    }

    /// Counts of the failed flows that have ended since the start.
    pub fn failed(&self) -> Failed {
        self.failed
    }

    /// Like [`update`](Self::update), with the senders of each flow. `senders` is empty if they are not tracked.
    pub fn update_with(
        &mut self,
        keys: &[FlowKey],
        counters: &[FlowCounters],
        senders: &[Senders],
        sink: &mut impl FnMut(&Record),
    ) {
        assert_eq!(keys.len(), counters.len(), "a key for each of the counters");
        assert!(senders.is_empty() || senders.len() == keys.len());
        let mut senders = senders.iter();
        for (keys, counters) in keys.chunks(GROUP).zip(counters.chunks(GROUP)) {
            let guesses = self.look_up(keys);
            for ((key, counters), guess) in keys.iter().zip(counters).zip(guesses) {
                if let Some(senders) = senders.next() {
                    self.senders
                        .set_pending_of(key, *senders, counters.first_seen_ns);
                }
                // Entries before this one may have ended its flow, or created it.
                let found = match guess {
                    Guess::Slot(slot) if self.slab[slot].is(key) => Found::Flow(slot),
                    Guess::Slot(_) => self.find(key),
                    Guess::Hash(hash) => self.find_by_hash(hash, key),
                };
                let slot = self.update_flow(found, key, counters, sink);
                self.order.push(slot);
            }
        }
        self.senders.take_pending();
        self.settle_outers();
    }

    /// Returns the slot where the flow most likely is afterwards.
    fn update_flow(
        &mut self,
        found: Found,
        key: &FlowKey,
        counters: &FlowCounters,
        sink: &mut impl FnMut(&Record),
    ) -> u32 {
        match found {
            Found::Flow(slot) if self.slab[slot].sides == Sides::Joined => {
                self.update_joined(slot, key, counters, sink);
                slot
            }
            Found::Flow(slot) => {
                self.add(slot, counters, sink);
                slot
            }
            Found::OtherSide(slot) => {
                self.meet(slot, key, counters, sink);
                slot
            }
            Found::Nothing { hash } => {
                let entry = self.entry(key, counters);
                self.insert(hash, entry, sink)
            }
        }
    }

    /// Adds to a known flow, or starts the next one with the same ports.
    fn add(&mut self, slot: u32, counters: &FlowCounters, sink: &mut impl FnMut(&Record)) {
        let entry = &mut self.slab[slot];
        if entry.is_followed_by(counters, self.scan) {
            let pending = self.senders.take_pending();
            self.senders.follow(slot, &pending);
            self.report_end(slot, EndReason::EndOfFlow, sink);
            let mut next = self.slab[slot].next(counters, self.clock, self.scan);
            self.sockets_without_end += u64::from(next.note_sockets(pending.sockets()));
            next.give_opener(pending.opener());
            self.slab[slot] = next;
            self.senders.begin(slot, pending);
            self.begin(slot, sink);
            return;
        }
        if let Some(opener) = self.senders.pending_opener()
            && self.give_by_socket(slot, opener, counters, sink)
        {
            return;
        }
        let entry = &mut self.slab[slot];
        self.sockets_without_end += u64::from(entry.note_sockets(self.senders.pending_sockets()));
        let syns_before = [0, 1].map(|direction| entry.handshake.has_any_syn(direction));
        let delta = entry.add(counters, self.clock, self.scan);
        let is_told = entry.is_told;
        let began_ns = entry.began_ns(self.clock);
        self.errors.note(slot, &entry.key, began_ns);
        let counted = entry.total.map(|total| total.packets);
        self.dropped.note(slot, &entry.key, counted);
        self.translations.note(slot, &entry.key);
        self.senders.note_after(slot, syns_before);
        self.note_age(slot);
        if is_told {
            let unreported = Unreported {
                counts: delta,
                began_boot_ns: counters.first_seen_ns,
            };
            self.report(slot, unreported, sink);
        }
    }

    /// Takes the opener of the connection from a socket of this host. If records have already named the other end,
    /// ends the flow, starts it again with these counters, and returns true.
    fn give_by_socket(
        &mut self,
        slot: u32,
        opener: u8,
        counters: &FlowCounters,
        sink: &mut impl FnMut(&Record),
    ) -> bool {
        let entry = &mut self.slab[slot];
        let known = entry.known_initiator();
        if !entry.is_tcp() || known.is_known {
            return false;
        }
        if !entry.is_told || known.direction == opener {
            entry.give_opener(Some(opener));
            return false;
        }
        if entry.sides != Sides::One || entry.shows_opener() {
            return false;
        }
        let mut next = Entry::new(&entry.key, counters, self.clock, self.scan);
        next.give_opener(Some(opener));
        self.replace(slot, EndReason::ForcedEnd, next, sink);
        true
    }

    /// Updates when the flow ends if no more packets come, and its rank for eviction.
    #[inline]
    fn note_age(&mut self, slot: u32) {
        let entry = &self.slab[slot];
        let (rank_ns, end_ns) = (entry.rank_ns(self.lifetimes), entry.end_ns(self.lifetimes));
        self.oldest.note((rank_ns, slot));
        self.slab.note_due(slot, end_ns);
    }

    /// Emits the flow's counts, or keeps them until its report interval is over.
    fn report(&mut self, slot: u32, unreported: Unreported, sink: &mut impl FnMut(&Record)) {
        if self.by_cgroup.is_wanted() {
            self.by_cgroup
                .note(self.senders.cgroup_ids(slot), unreported.counts);
        }
        if let Some(due) = self.reports.add(slot, unreported, self.clock.boot_ns) {
            sink(&self.record(slot, self.clock, due, None));
        } else if let Some(due_ns) = self.reports.due_ns(slot) {
            self.slab.note_due(slot, due_ns);
        }
    }

    /// Emits a record for each living flow in these slots. Its delta is the sum of all deltas emitted before. Returns
    /// whether there are slots after them. Call this between two scans.
    pub fn flows(
        &self,
        slots: Range<u32>,
        clock: ScanClock,
        sink: &mut impl FnMut(&Record),
    ) -> bool {
        let end = self.slab.end();
        for slot in slots.start..slots.end.min(end) {
            if let Some(entry) = self.slab.get(slot) {
                let held = self.reports.held(slot);
                let told = Unreported {
                    counts: [0, 1].map(|side| entry.total[side] - held[side]),
                    began_boot_ns: entry.began_ns(clock),
                };
                let told_until_ns = self.reports.told_until_ns(slot);
                let told_until_ns = told_until_ns.unwrap_or(entry.last_seen_boot_ns);
                let mut record = self.record(slot, clock, told, None);
                record.delta_duration_ns = told.duration_ns(told_until_ns);
                sink(&record);
            }
        }
        slots.end < end
    }

    /// Packets and bytes that were taken in and are in no record yet, since their report interval is not over.
    pub fn waiting(&self) -> Pair {
        self.reports.waiting()
    }

    /// How many flows have such packets.
    pub fn waiting_flows(&self) -> usize {
        self.reports.flows()
    }

    /// Writes the flows with such packets to `places`, for [`read_unreported`], and passes them to `written` a few at a
    /// time, while they are still in the CPU's cache. Call this between two scans.
    pub fn write_unreported(
        &self,
        places: &mut [UnreportedFlow],
        written: &mut dyn FnMut(&[UnreportedFlow]),
    ) {
        const A_FEW: usize = 64;
        let mut unreported = self.reports.all_unreported();
        for places in places.chunks_mut(A_FEW) {
            let mut count = 0;
            for (place, (slot, unreported)) in places.iter_mut().zip(&mut unreported) {
                self.slab[slot].write_unreported(unreported, place);
                count += 1;
            }
            written(&places[..count]);
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

    /// How many flows have begun, including flows that went on after their end.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// How many flows were evicted to make room for others.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// A flow that begins in this scan, or one that ended and goes on.
    fn entry(&mut self, key: &FlowKey, counters: &FlowCounters) -> Entry {
        let mut entry = Entry::new(key, counters, self.clock, self.scan);
        if entry.is_tcp() {
            // A handshake begins another connection, so the remembered initiator is used up either way.
            if let Some(initiator) = self.remembered.take(hash_of(&self.seed, key)) {
                entry.give(initiator);
            }
        } else if self
            .in_sight
            .begins(key, counters.first_seen_ns, self.lifetimes.idle_ns)
        {
            entry.begins_here(self.rules_divide_flows);
        }
        entry
    }

    /// Returns the slot of the flow.
    fn insert(&mut self, hash: u64, mut entry: Entry, sink: &mut impl FnMut(&Record)) -> u32 {
        // Making room may add a waiting half of another flow, which replaces the pending senders.
        let pending = self.senders.take_pending();
        self.sockets_without_end += u64::from(entry.note_sockets(pending.sockets()));
        entry.give_opener(pending.opener());
        while self.len() >= self.max_flows {
            self.make_room(sink);
        }
        let slot = self.slab.insert(entry);
        self.senders.begin(slot, pending);
        self.index.insert_unique(hash, slot, |&other| {
            hash_of(&self.seed, &self.slab[other].key)
        });
        self.begin(slot, sink);
        slot
    }

    /// Emits the first record of a flow, unless only one direction was counted. Such a flow may be half of one whose
    /// other half comes in this scan, so its record waits until the scan ends.
    fn begin(&mut self, slot: u32, sink: &mut impl FnMut(&Record)) {
        self.begun += 1;
        self.reports.begin(slot, self.clock.boot_ns);
        let entry = &self.slab[slot];
        self.outers.begin(&entry.key);
        let began_ns = entry.began_ns(self.clock);
        self.names.begin(slot, &entry.key, began_ns);
        self.errors.begin(slot, &entry.key, began_ns);
        let counted = entry.total.map(|total| total.packets);
        self.dropped.begin(slot, &entry.key, counted);
        self.translations.begin(slot, &entry.key);
        let is_whole = entry.sides != Sides::One || entry.only_direction().is_none();
        self.note_age(slot);
        if is_whole {
            self.report_deferred(slot, sink);
        } else {
            self.deferred.push(slot);
        }
    }

    /// Evicts the flow that would end first by itself. If a half of it still waits, adds that half instead, since it
    /// may keep the flow alive.
    fn make_room(&mut self, sink: &mut impl FnMut(&Record)) {
        let slot = self.oldest.pop(&self.slab);
        let entry = &self.slab[slot];
        if entry.waiting != waiting::NONE {
            self.report_deferred(slot, sink);
            return;
        }
        let reason = match entry.state {
            State::Closing => EndReason::EndOfFlow,
            State::Living | State::Free => EndReason::LackOfResources,
        };
        self.end(slot, reason, sink);
        self.evicted += 1;
        self.note_gap();
    }

    /// Emits the flow's counts of this scan, if they were put off.
    fn report_deferred(&mut self, slot: u32, sink: &mut impl FnMut(&Record)) {
        let entry = &mut self.slab[slot];
        if entry.state == State::Free {
            return;
        }
        if !entry.is_told {
            entry.is_told = true;
            let unreported = Unreported {
                counts: entry.total,
                began_boot_ns: entry.began_ns(self.clock),
            };
            self.report(slot, unreported, sink);
        }
        if let Some((half, pending)) = self.take_waiting(slot) {
            self.senders.set_pending(pending);
            self.add(slot, &half, sink);
        }
    }

    fn record(
        &self,
        slot: u32,
        clock: ScanClock,
        unreported: Unreported,
        end_reason: Option<EndReason>,
    ) -> Record {
        let entry = &self.slab[slot];
        let error = self.errors.get(slot, entry.initiator);
        let mut record = entry.record(clock, unreported, error, end_reason);
        let is_joined = entry.sides == Sides::Joined;
        if let Some(outer) = self.outers.get(&entry.key, is_joined) {
            record.set_outer(&outer);
        }
        self.senders.fill(slot, &mut record);
        self.names.fill(slot, &mut record);
        self.dropped.fill(slot, &mut record);
        self.translations.fill(slot, &mut record);
        record
    }

    fn report_end(&mut self, slot: u32, reason: EndReason, sink: &mut impl FnMut(&Record)) {
        self.report_deferred(slot, sink);
        let rest = self.reports.take(slot);
        let record = self.record(slot, self.clock, rest, Some(reason));
        if let Some(failure) = record.failure {
            self.failed.note(failure);
        }
        sink(&record);
        let entry = &self.slab[slot];
        if entry.may_resume() {
            let hash = hash_of(&self.seed, &entry.key);
            self.remembered
                .put(hash, entry.known_initiator(), self.clock.boot_ns);
        }
    }

    fn end(&mut self, slot: u32, reason: EndReason, sink: &mut impl FnMut(&Record)) {
        self.report_end(slot, reason, sink);
        self.outers.end(&self.slab[slot].key);
        self.remove(slot);
    }

    /// Removes a flow whose end record was emitted. Returns its hash.
    fn remove(&mut self, slot: u32) -> u64 {
        let hash = hash_of(&self.seed, &self.slab[slot].key);
        if let Ok(indexed) = self.index.find_entry(hash, |&other| other == slot) {
            indexed.remove();
        }
        self.slab.remove(slot);
        self.names.end(slot);
        hash
    }
}

/// Whether the flow's record has outer endpoints.
pub fn came_through_a_tunnel(key: &FlowKey) -> bool {
    Encapsulation::from_u8(key.encapsulation).is_some_and(Encapsulation::is_tunnel)
}
