//! The senders of the flows' packets, and the TCP state of their connections, as scans saw them.

use std::collections::HashMap;

use agent_common::{
    FlowKey, Sample, Senders, TcpInfo,
    tcp::{EndedConnection, Role},
};
use proto::record::Record;

use super::round_trip::RoundTrip;

/// Senders, TCP state and round trips by slot. Takes no memory until a scan brings some.
#[derive(Default)]
pub struct KnownSenders {
    names: BySlot<Names>,
    connections: BySlot<Connection>,
    /// By the direction of the acknowledged segments.
    round_trips: BySlot<[RoundTrip; 2]>,
    /// TCP has reported a connection at least once. Until then no TCP state is kept.
    has_tcp: bool,
    /// The data that came with the entry being taken in. Valid only if `has_pending`.
    pending: PendingSenders,
    has_pending: bool,
    ends: Ends,
}

#[derive(Clone, Copy, Default, PartialEq)]
struct Names {
    cgroup_ids: [u64; 2],
    process_keys: [u64; 2],
}

/// A mark on the id of a cgroup: in the last scan that saw any sockets, more than one cgroup sent.
const SHARED_NOW: u64 = Senders::SHARED >> 1;
const MARKS: u64 = Senders::SHARED | SHARED_NOW;

impl Names {
    fn of(senders: &Senders) -> Self {
        Self {
            cgroup_ids: senders.cgroup_ids.map(with_now),
            process_keys: senders.process_keys,
        }
    }

    fn merge(&mut self, newer: &Self) {
        for (known, &newer) in self.cgroup_ids.iter_mut().zip(&newer.cgroup_ids) {
            if newer != 0 {
                let now = newer & SHARED_NOW;
                let [one, other] = [*known, newer].map(|id| id & !SHARED_NOW);
                *known = latest(one, other, Senders::ROOT) | now;
            }
        }
        for (known, &newer) in self.process_keys.iter_mut().zip(&newer.process_keys) {
            *known = latest(*known, newer, 0);
        }
    }

    /// Whether sockets of more than one cgroup or process have sent, by direction.
    fn are_shared(self) -> [bool; 2] {
        [0, 1].map(|at| (self.cgroup_ids[at] | self.process_keys[at]) & Senders::SHARED != 0)
    }
}

fn with_now(cgroup_id: u64) -> u64 {
    if cgroup_id & Senders::SHARED == 0 {
        cgroup_id
    } else {
        cgroup_id | SHARED_NOW
    }
}

/// The sender that was seen last, marked if there were others.
fn latest(known: u64, newer: u64, other: u64) -> u64 {
    let both = Senders::after(known, newer, other);
    let [shared, last] = [both & Senders::SHARED, newer & !Senders::SHARED];
    if last == 0 || last == other {
        both
    } else {
        last | shared
    }
}

#[derive(Clone, Copy, Default, PartialEq)]
struct Connection {
    /// When its flow began, since boot.
    first_ns: u64,
    tcp: [TcpInfo; 2],
}

impl Connection {
    /// Takes in the TCP state noted at the end, unless it is older than this flow. Then it belongs to an earlier
    /// connection with the same endpoints.
    fn end(&mut self, end: &End) {
        for ((known, at_end), asked_ns) in self.tcp.iter_mut().zip(&end.tcp).zip(end.asked_ns) {
            if asked_ns >= self.first_ns {
                known.unite(at_end);
            }
        }
    }
}

/// The data that comes with the counters of a flow or of half a flow.
#[derive(Clone, Copy, Default, PartialEq)]
pub struct PendingSenders {
    senders: Senders,
    /// When the flow began on its page, since boot.
    first_ns: u64,
    /// The end of its connection, if one was noted.
    end: Option<End>,
    /// The role of this host's socket that sends in this direction.
    roles: [Role; 2],
    /// By direction: the end of the socket cannot be reported.
    are_without_end: [bool; 2],
}

/// The sockets of this host that have sent some packets.
#[derive(Clone, Copy, Default)]
pub struct Sockets {
    /// By direction: there is a socket whose end will be reported.
    pub with_end: [bool; 2],
    /// There is a socket whose end cannot be reported, since the kernel programs have no room left to track sockets.
    pub is_one_without_end: bool,
}

impl PendingSenders {
    /// The sockets of this host that sent these packets.
    pub fn sockets(&self) -> Sockets {
        Sockets {
            with_end: [0, 1].map(|at| self.senders.tcp[at].is_known() && !self.are_without_end[at]),
            is_one_without_end: self.are_without_end.contains(&true),
        }
    }

    /// The direction of the end that opened the connection, if a socket of this host shows it.
    pub fn opener(&self) -> Option<u8> {
        (0..2).find_map(|direction| match self.roles[usize::from(direction)] {
            Role::Unknown => None,
            Role::Opened => Some(direction),
            Role::Accepted => Some(1 - direction),
        })
    }

    /// Fills in what `other` knows of the same packets and this does not.
    pub fn unite(&mut self, other: &Self) {
        self.senders.unite(&other.senders);
        self.first_ns = self.first_ns.min(other.first_ns);
        self.end = self.end.or(other.end);
        for (ours, theirs) in self.roles.iter_mut().zip(other.roles) {
            if *ours == Role::Unknown {
                *ours = theirs;
            }
        }
        for (ours, theirs) in self.are_without_end.iter_mut().zip(other.are_without_end) {
            *ours |= theirs;
        }
    }
}

impl KnownSenders {
    /// Sets the data for the next call of `begin` or `note`.
    pub fn set_pending(&mut self, pending: PendingSenders) {
        self.has_pending = pending != PendingSenders::default();
        self.pending = pending;
    }

    /// Sets the senders for the flow with this key, and adds the end of its connection if one was noted.
    pub fn set_pending_of(&mut self, key: &FlowKey, mut senders: Senders, first_ns: u64) {
        self.has_tcp |= senders.tcp.iter().any(TcpInfo::is_known);
        self.has_pending = true;
        self.pending = PendingSenders {
            are_without_end: senders.tcp.each_mut().map(TcpInfo::take_without_end),
            roles: senders.tcp.each_mut().map(TcpInfo::take_role),
            senders,
            first_ns,
            end: self.ends.get(key),
        };
    }

    /// The sockets of this host that sent the pending packets.
    #[inline]
    pub fn pending_sockets(&self) -> Sockets {
        if !self.has_pending {
            return Sockets::default();
        }
        self.pending.sockets()
    }

    /// The end that opened the connection of the pending packets, if a socket shows it.
    #[inline]
    pub fn pending_opener(&self) -> Option<u8> {
        if self.has_pending {
            self.pending.opener()
        } else {
            None
        }
    }

    /// Takes back the data that was set last, if no flow has used it.
    pub fn take_pending(&mut self) -> PendingSenders {
        if !self.has_pending {
            return PendingSenders::default();
        }
        self.has_pending = false;
        std::mem::take(&mut self.pending)
    }

    /// Another connection follows in this slot. The connection before gets the pending end, as far as it was noted
    /// before the other one began.
    pub fn follow(&mut self, slot: u32, pending: &PendingSenders) {
        if let Some(mut end) = pending.end {
            for side in [0, 1] {
                if end.asked_ns[side] >= pending.first_ns {
                    end.tcp[side] = TcpInfo::default();
                }
            }
            self.connections.at(slot).end(&end);
        }
    }

    fn end(&mut self, slot: u32, end: Option<End>) {
        if let Some(end) = end {
            self.connections.at(slot).end(&end);
        }
    }

    /// A flow begins in this slot.
    pub fn begin(&mut self, slot: u32, pending: PendingSenders) {
        self.names.begin(slot, Names::of(&pending.senders));
        if self.has_tcp {
            let connection = Connection {
                first_ns: pending.first_ns,
                tcp: pending.senders.tcp,
            };
            self.connections.begin(slot, connection);
            self.end(slot, pending.end);
        }
        let mut round_trips = <[RoundTrip; 2]>::default();
        note(&mut round_trips, pending.senders.round_trips);
        self.round_trips.begin(slot, round_trips);
    }

    /// Adds the pending data to the flow in this slot.
    pub fn note(&mut self, slot: u32) {
        self.note_after(slot, [false; 2]);
    }

    /// Like [`note`](Self::note). `syns_before` says by direction whether a SYN was seen before. Then a repeated SYN
    /// gives no sample, since the answer may be to the first one.
    pub fn note_after(&mut self, slot: u32, syns_before: [bool; 2]) {
        if !self.has_pending {
            return;
        }
        let mut pending = self.take_pending();
        for (sample, had_syn) in pending.senders.round_trips.iter_mut().zip(syns_before) {
            if had_syn && sample.handshake_us().is_some() {
                *sample = Sample::NONE;
            }
        }
        if pending.senders != Senders::default() {
            self.merge(slot, &pending.senders);
        }
        self.end(slot, pending.end);
    }

    fn merge(&mut self, slot: u32, newer: &Senders) {
        let names = Names::of(newer);
        if names != Names::default() {
            self.names.at(slot).merge(&names);
        }
        if newer.tcp.iter().any(TcpInfo::is_known) {
            let known = self.connections.at(slot);
            for (known, newer) in known.tcp.iter_mut().zip(newer.tcp) {
                if newer.is_known() {
                    *known = newer;
                }
            }
        }
        if newer.round_trips != [Sample::NONE; 2] {
            note(self.round_trips.at(slot), newer.round_trips);
        }
    }

    /// Adds the facts about both ends to the record.
    pub fn fill(&self, slot: u32, record: &mut Record) {
        if self.names.0.is_empty() && self.connections.0.is_empty() && self.round_trips.0.is_empty()
        {
            return;
        }
        let names = self.names.get(slot);
        let are_shared = names.are_shared();
        let tcp = self.connections.get(slot).tcp;
        let round_trips = self.round_trips.get(slot);
        let forward = usize::from(record.initiator & 1);
        let fields = &mut record.fields;
        for (end, at) in [(&mut fields.src, forward), (&mut fields.dst, 1 - forward)] {
            let (id, key) = (
                names.cgroup_ids[at] & !MARKS,
                names.process_keys[at] & !Senders::SHARED,
            );
            end.cgroup_id = (id != 0).then_some(id);
            end.process_key = (key != 0).then_some(key);
            end.sender_shared = are_shared[at];
            end.set_tcp(tcp[at]);
            // This end acknowledges the packets of the other one.
            let RoundTrip {
                handshake_us,
                ack_us,
            } = round_trips[1 - at];
            end.handshake_rtt_us = (handshake_us != 0).then_some(handshake_us);
            end.ack_rtt_us = (ack_us != 0).then_some(ack_us);
        }
    }

    /// The cgroups that the counts of the last scan belong to. 0 if unknown, or if there are several.
    pub fn cgroup_ids(&self, slot: u32) -> [u64; 2] {
        let ids = self.names.get(slot).cgroup_ids;
        ids.map(|id| if id & SHARED_NOW == 0 { id & !MARKS } else { 0 })
    }

    /// Releases the memory for slots from this one on. None of them has a flow.
    pub fn shrink(&mut self, slots: u32) {
        self.names.shrink(slots);
        self.connections.shrink(slots);
        self.round_trips.shrink(slots);
    }

    /// Notes that a connection has ended. Its flow is already known, or comes with this scan or the next one.
    pub fn note_end(&mut self, ended: &EndedConnection) {
        self.has_tcp = true;
        self.ends.note(ended);
    }

    /// Adds the noted ends to the flows that `slot_of` finds, and passes the direction of each closed socket to
    /// `is_gone`. An end stays for one more scan, which may bring packets from before it.
    pub fn settle_ends(
        &mut self,
        slot_of: impl Fn(&FlowKey) -> Option<u32>,
        mut is_gone: impl FnMut(u32, usize),
    ) {
        let connections = &mut self.connections;
        self.ends.by_flow.retain(|key, end| {
            if let Some(slot) = slot_of(key) {
                let connection = connections.at(slot);
                connection.end(end);
                for (direction, &asked_ns) in end.asked_ns.iter().enumerate() {
                    if asked_ns != 0 && asked_ns >= connection.first_ns {
                        is_gone(slot, direction);
                    }
                }
            }
            !std::mem::replace(&mut end.has_waited, true)
        });
        self.ends.give_back();
    }

    /// How many slots there is memory for.
    #[cfg(test)]
    pub fn room(&self) -> usize {
        self.names.0.len()
    }
}

fn note(known: &mut [RoundTrip; 2], newer: [Sample; 2]) {
    for (known, newer) in known.iter_mut().zip(newer) {
        known.note(newer);
    }
}

/// Values by slot. Slots after the last one that was set have the default.
#[derive(Default)]
pub struct BySlot<T>(Vec<T>);

impl<T: Clone + Copy + Default + PartialEq> BySlot<T> {
    pub fn begin(&mut self, slot: u32, value: T) {
        if value != T::default() || self.0.len() > slot as usize {
            *self.at(slot) = value;
        }
    }

    fn at(&mut self, slot: u32) -> &mut T {
        let slot = slot as usize;
        if slot >= self.0.len() {
            self.0.resize(slot + 1, T::default());
        }
        &mut self.0[slot]
    }

    pub fn get(&self, slot: u32) -> T {
        self.0.get(slot as usize).copied().unwrap_or_default()
    }

    pub fn shrink(&mut self, slots: u32) {
        if self.0.len() > slots as usize {
            self.0.truncate(slots as usize);
            self.0.shrink_to_fit();
        }
    }
}

/// The TCP state of connections at their end, kept for two scans.
#[derive(Default)]
struct Ends {
    by_flow: HashMap<FlowKey, End>,
}

/// Arrays are indexed by direction.
#[derive(Clone, Copy, Default, PartialEq)]
struct End {
    tcp: [TcpInfo; 2],
    asked_ns: [u64; 2],
    /// Has waited for a whole scan.
    has_waited: bool,
}

impl Ends {
    /// Of two connections with the same endpoints, the later one stays.
    fn note(&mut self, ended: &EndedConnection) {
        let end = self.by_flow.entry(ended.key).or_default();
        let side = usize::from(ended.direction != 0);
        if ended.asked_ns >= end.asked_ns[side] {
            (end.tcp[side], end.asked_ns[side]) = (ended.info, ended.asked_ns);
        }
        end.has_waited = false;
    }

    fn get(&self, key: &FlowKey) -> Option<End> {
        if self.by_flow.is_empty() {
            return None;
        }
        self.by_flow.get(key).copied()
    }

    /// Releases the memory after many connections ended at once.
    fn give_back(&mut self) {
        if self.by_flow.is_empty() && self.by_flow.capacity() > 1 << 12 {
            self.by_flow = HashMap::new();
        }
    }
}
