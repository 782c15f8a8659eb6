//! The other form of flows that the host translates (NAT).
//!
//! The kernel's news about a connection come some time before or after its packets are taken in. So a flow gets a
//! translation only if the connection began no later than a scan after the flow, and if nothing else was known about these
//! addresses and ports meanwhile. Otherwise it stays without: a wrong address is worse than none.

use std::collections::{HashMap, VecDeque, hash_map::Entry as MapEntry};

use agent_common::{
    FlowKey, L4Kind,
    translation::{End, Translation},
};
use proto::{
    NatSide,
    community_id::community_id,
    record::{Address, Record},
};

use super::senders::BySlot;

/// Translations by the addresses and ports of both their forms, and those of the flows by slot. Takes no memory unless it is
/// wanted.
#[derive(Default)]
pub struct Translations {
    is_wanted: bool,
    most_connections: usize,
    known: HashMap<Tuple, Known>,
    /// Connections that have ended, with the scan in which they did, the oldest first.
    ended: VecDeque<(u32, Tuple)>,
    by_slot: BySlot<OfFlow>,
    /// Flows that began in this scan, and in the one before: their connection may have news yet.
    fresh: [Vec<u32>; 2],
    scan: u32,
    last_generation: u32,
    /// The scan in which news were missed.
    missed_at: Option<u32>,
    connections: u64,
    not_kept: u64,
    ambiguous: u64,
}

/// Both ends of a flow in a network namespace, the lower one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tuple {
    netns: u32,
    ip_version: u8,
    protocol: u8,
    ends: [End; 2],
}

impl Tuple {
    /// Also whether they were in the opposite order.
    fn of(netns: u32, ip_version: u8, protocol: u8, ends: [End; 2]) -> (Self, bool) {
        let is_swapped = ends[0] > ends[1];
        let ends = if is_swapped { [ends[1], ends[0]] } else { ends };
        let ends = Self {
            netns,
            ip_version,
            protocol,
            ends,
        };
        (ends, is_swapped)
    }

    /// `None` for flows that connections are not looked up for: inside a tunnel, without ports.
    fn of_flow(key: &FlowKey) -> Option<(Self, bool)> {
        if key.encapsulation != 0 {
            return None;
        }
        let ports = match key.kind()? {
            L4Kind::Ports => [key.port_a, key.port_b],
            L4Kind::IcmpQuery => [key.port_b; 2],
            L4Kind::None | L4Kind::Icmp | L4Kind::Fragment => return None,
        };
        let [a, b] = [(key.addr_a, ports[0]), (key.addr_b, ports[1])];
        let ends = [a, b].map(|(addr, port)| End { addr, port });
        Some(Self::of(key.netns, key.ip_version, key.protocol, ends))
    }
}

/// The other form of two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// In the order of these ends.
    other: [End; 2],
    /// Which of the ends opened the connection.
    initiator: u8,
    side: NatSide,
    /// No other translation has it.
    generation: u32,
    /// The scan before which the connection began.
    since: u32,
    /// Up to flows that began in this scan, it is not sure which connection they belong to.
    unsure_until: u32,
    /// The scan before which the last connection ended; 0 while there is one.
    ended_at: u32,
    connections: u32,
}

#[derive(Clone, Copy, Default, PartialEq)]
struct OfFlow {
    began: u32,
    state: State,
    side: Option<NatSide>,
    /// In the order of the flow's key.
    other: [End; 2],
    community_id: [u8; 20],
}

#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    /// There is no flow, or it has no translation so far.
    #[default]
    Unknown,
    /// It has the translation of this generation.
    Known(u32),
    /// It stays without.
    Ambiguous,
}

/// The figures for the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TranslationCounts {
    /// Connections that are known now.
    pub connections: u64,
    /// Connections for which there was no room.
    pub not_kept: u64,
    /// Flows whose translation is not sure.
    pub ambiguous: u64,
}

impl Translations {
    /// Makes it keep up to so many connections.
    pub fn want(&mut self, most_connections: usize) {
        self.is_wanted = true;
        self.most_connections = most_connections;
    }

    pub fn counts(&self) -> TranslationCounts {
        TranslationCounts {
            connections: self.connections,
            not_kept: self.not_kept,
            ambiguous: self.ambiguous,
        }
    }

    pub fn begin_scan(&mut self, scan: u32) {
        self.scan = scan;
    }

    /// A connection has begun before this scan. With `always`, it began before the agent did.
    pub fn add(&mut self, netns: u32, connection: &Translation, always: bool) {
        let since = if always { 0 } else { self.scan };
        let forms = forms(netns, connection);
        // It may be both in the list and in the news.
        let is_there = |form: &Form| {
            let known = self.known.get(&form.ends);
            known.is_some_and(|known| known.connections > 0 && known.is(form))
        };
        if forms.iter().all(is_there) {
            return;
        }
        if self.known.len() + 2 > 2 * self.most_connections
            && !forms.iter().all(|form| self.known.contains_key(&form.ends))
        {
            self.not_kept += 1;
            // Flows of these addresses and ports must not get what was known before.
            for form in &forms {
                if let Some(known) = self.known.get_mut(&form.ends) {
                    known.unsure_until = u32::MAX;
                }
            }
            return;
        }
        self.connections += 1;
        self.last_generation = self.last_generation.wrapping_add(1);
        for form in forms {
            let Form {
                ends,
                other,
                initiator,
                side,
            } = form;
            let fresh = Known {
                other,
                initiator,
                side,
                generation: self.last_generation,
                since,
                unsure_until: 0,
                ended_at: 0,
                connections: 1,
            };
            match self.known.entry(ends) {
                MapEntry::Vacant(place) => {
                    place.insert(fresh);
                }
                MapEntry::Occupied(mut place) => place.get_mut().follow(fresh, self.scan),
            }
        }
    }

    /// A connection has ended before this scan.
    pub fn remove(&mut self, netns: u32, connection: &Translation) {
        let mut was_known = false;
        for Form { ends, .. } in forms(netns, connection) {
            if let Some(known) = self.known.get_mut(&ends)
                && known.connections > 0
            {
                was_known = true;
                known.connections -= 1;
                if known.connections == 0 {
                    known.ended_at = self.scan;
                    self.ended.push_back((self.scan, ends));
                }
            }
        }
        self.connections -= u64::from(was_known && self.connections > 0);
    }

    /// Some news were missed. These are all connections of a network namespace now.
    pub fn replace(&mut self, netns: u32, connections: &[Translation]) {
        self.missed_at = Some(self.scan);
        for known in self
            .known
            .iter_mut()
            .filter(|(ends, _)| ends.netns == netns)
        {
            let (ends, known) = known;
            self.connections = self.connections.saturating_sub(known.connections.into());
            if known.connections > 0 {
                known.connections = 0;
                known.ended_at = self.scan;
                self.ended.push_back((self.scan, *ends));
            }
        }
        self.connections = self
            .known
            .values()
            .filter(|known| known.side == NatSide::Original)
            .map(|known| u64::from(known.connections))
            .sum();
        for connection in connections {
            self.add(netns, connection, false);
        }
    }

    /// A flow begins in this slot.
    #[inline]
    pub fn begin(&mut self, slot: u32, key: &FlowKey) {
        if !self.is_wanted {
            return;
        }
        let flow = OfFlow {
            began: self.scan,
            ..OfFlow::default()
        };
        self.by_slot.begin(slot, flow);
        self.fresh[0].push(slot);
        self.note(slot, key);
    }

    /// The flow in this slot has more packets, or is about to be reported.
    #[inline]
    pub fn note(&mut self, slot: u32, key: &FlowKey) {
        if self.is_wanted && !self.known.is_empty() {
            self.look_up(slot, key);
        }
    }

    fn look_up(&mut self, slot: u32, key: &FlowKey) {
        let mut flow = self.by_slot.get(slot);
        // Later, no connection can have begun with the flow.
        let is_too_late = flow.state == State::Unknown && self.scan.wrapping_sub(flow.began) > 1;
        if flow.state == State::Ambiguous || is_too_late {
            return;
        }
        let Some((ends, is_swapped)) = Tuple::of_flow(key) else {
            return;
        };
        let Some(known) = self.known.get(&ends) else {
            return;
        };
        let was_missed = self
            .missed_at
            .is_some_and(|at| flow.began == at || flow.began == at.wrapping_add(1));
        let is_sure = match flow.state {
            State::Known(generation) => known.generation == generation,
            // It ended before the flow began.
            State::Unknown | State::Ambiguous
                if known.ended_at != 0 && known.ended_at < flow.began =>
            {
                return;
            }
            State::Unknown | State::Ambiguous => {
                flow.began > known.unsure_until
                    && known.since <= flow.began.saturating_add(1)
                    && !was_missed
            }
        };
        if !is_sure {
            flow.state = State::Ambiguous;
            self.ambiguous += 1;
        } else if flow.state == State::Unknown {
            let [a, b] = known.other;
            flow.other = if is_swapped { [b, a] } else { [a, b] };
            flow.side = Some(known.side);
            flow.state = State::Known(known.generation);
            let initiator = known.initiator ^ u8::from(is_swapped);
            flow.community_id = community_id_of(key, flow.other, initiator);
        } else {
            return;
        }
        self.by_slot.begin(slot, flow);
    }

    /// Looks up the flows that began in the scan before, without the ones that ended. `key_of` returns the key of the flow in
    /// a slot. Then forgets the connections that ended before the last scan.
    pub fn end_scan(&mut self, key_of: impl Fn(u32) -> Option<FlowKey>) {
        if !self.is_wanted {
            return;
        }
        let [this, before] = &mut self.fresh;
        let before = std::mem::replace(before, std::mem::take(this));
        for slot in before {
            let is_waiting = self.by_slot.get(slot).state == State::Unknown;
            if is_waiting && let Some(key) = key_of(slot) {
                self.note(slot, &key);
            }
        }
        while let Some(&(scan, ends)) = self.ended.front()
            && self.scan.wrapping_sub(scan) > 1
        {
            self.ended.pop_front();
            if let MapEntry::Occupied(place) = self.known.entry(ends)
                && place.get().ended_at == scan
            {
                place.remove();
            }
        }
    }

    /// Adds the other form of both ends to the record.
    pub fn fill(&self, slot: u32, record: &mut Record) {
        if !self.is_wanted {
            return;
        }
        let flow = self.by_slot.get(slot);
        let State::Known(_) = flow.state else { return };
        let has_ports = record.src.port.is_some();
        let [a, b] = flow.other;
        let ends = if record.initiator == 0 {
            [a, b]
        } else {
            [b, a]
        };
        let ip_version = record.key.ip_version;
        let Record { fields, .. } = record;
        for (end, other) in [&mut fields.src, &mut fields.dst].into_iter().zip(ends) {
            end.nat_addr = Address::new(ip_version, other.addr);
            end.nat_port = has_ports.then_some(other.port.into());
        }
        fields.nat_side = flow.side;
        fields.nat_community_id = flow.community_id;
    }

    /// Releases the memory for slots from this one on. None of them has a flow.
    pub fn shrink(&mut self, slots: u32) {
        self.by_slot.shrink(slots);
        if self.known.len() < self.known.capacity() / 4 {
            self.known.shrink_to_fit();
        }
    }
}

impl Known {
    fn is(&self, form: &Form) -> bool {
        self.other == form.other && self.side == form.side
    }

    /// Another connection of the same ends begins in this scan.
    fn follow(&mut self, next: Self, scan: u32) {
        let is_same = self.other == next.other && self.side == next.side;
        if is_same && self.unsure_until == 0 {
            self.connections += 1;
            self.ended_at = 0;
        } else if self.connections == 0 {
            // Flows that began by the next scan may belong to either of them.
            *self = Self {
                unsure_until: scan.saturating_add(1),
                ..next
            };
        } else {
            // Two at once, in different zones: nothing about a packet tells which it belongs to.
            self.connections += 1;
            self.unsure_until = u32::MAX;
            self.generation = next.generation;
        }
    }
}

/// One form of a connection.
struct Form {
    ends: Tuple,
    /// The other form, in the order of these ends.
    other: [End; 2],
    initiator: u8,
    side: NatSide,
}

fn forms(netns: u32, connection: &Translation) -> [Form; 2] {
    let Translation {
        ip_version,
        protocol,
        original,
        translated,
    } = *connection;
    [
        (original, translated, NatSide::Original),
        (translated, original, NatSide::Translated),
    ]
    .map(|(one, [first, second], side)| {
        let (ends, is_swapped) = Tuple::of(netns, ip_version, protocol, one);
        let other = if is_swapped {
            [second, first]
        } else {
            [first, second]
        };
        Form {
            ends,
            other,
            initiator: is_swapped.into(),
            side,
        }
    })
}

fn community_id_of(key: &FlowKey, [a, b]: [End; 2], initiator: u8) -> [u8; 20] {
    let mut other = FlowKey {
        addr_a: a.addr,
        addr_b: b.addr,
        ..*key
    };
    if key.kind() == Some(L4Kind::Ports) {
        [other.port_a, other.port_b] = [a.port, b.port];
    }
    community_id(&other, initiator)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETNS: u32 = 9;

    fn end(number: u8, port: u16) -> End {
        let mut addr = [0; 16];
        addr[..4].copy_from_slice(&[10, 0, 0, number]);
        End { addr, port }
    }

    /// From host 5 to host 8, through the address 7 of the router.
    fn connection(port: u16, translated_port: u16) -> Translation {
        Translation {
            ip_version: 4,
            protocol: 17,
            original: [end(5, port), end(8, 53)],
            translated: [end(7, translated_port), end(8, 53)],
        }
    }

    fn key(source: End) -> FlowKey {
        FlowKey {
            addr_a: source.addr,
            port_a: source.port,
            addr_b: end(8, 53).addr,
            port_b: 53,
            netns: NETNS,
            ip_version: 4,
            protocol: 17,
            l4_kind: L4Kind::Ports as u8,
            ..FlowKey::default()
        }
    }

    fn wanted(most: usize) -> Translations {
        let mut translations = Translations::default();
        translations.want(most);
        translations
    }

    fn scan(translations: &mut Translations, number: u32) {
        translations.end_scan(|_| None);
        translations.begin_scan(number);
    }

    /// The source on the other side, and the side.
    fn other(translations: &Translations, slot: u32, source: End) -> Option<(u32, NatSide)> {
        let mut record = Record::new(key(source), 0);
        translations.fill(slot, &mut record);
        assert_eq!(record.src.nat_addr.is_empty(), record.nat_side.is_none());
        assert_eq!(record.src.nat_port.is_none(), record.nat_side.is_none());
        Some((record.src.nat_port?, record.nat_side?))
    }

    const SLOT: u32 = 3;

    #[test]
    fn both_forms_of_a_connection_have_the_other_one() {
        let mut all = wanted(10);
        all.begin_scan(1);
        all.add(NETNS, &connection(4000, 9000), false);
        let (inside, outside) = (end(5, 4000), end(7, 9000));
        all.begin(SLOT, &key(inside));
        all.begin(SLOT + 1, &key(outside));
        assert_eq!(other(&all, SLOT, inside), Some((9000, NatSide::Original)));
        assert_eq!(
            other(&all, SLOT + 1, outside),
            Some((4000, NatSide::Translated))
        );
        // Neither the same flow in another namespace, nor one inside a tunnel.
        let elsewhere = FlowKey {
            netns: NETNS + 1,
            ..key(inside)
        };
        let in_tunnel = FlowKey {
            encapsulation: 1,
            ..key(inside)
        };
        for (slot, key) in [(5, elsewhere), (6, in_tunnel)] {
            all.begin(slot, &key);
            assert_eq!(other(&all, slot, inside), None);
        }
        assert_eq!(all.counts().connections, 1);
        all.remove(NETNS, &connection(4000, 9000));
        assert_eq!(all.counts(), TranslationCounts::default());
    }

    #[test]
    fn news_may_come_a_scan_after_the_flow_and_no_later() {
        for (late, expected) in [(1, true), (2, false)] {
            let mut all = wanted(10);
            all.begin_scan(1);
            let inside = end(5, 4000);
            all.begin(SLOT, &key(inside));
            all.begin_scan(1 + late);
            all.add(NETNS, &connection(4000, 9000), false);
            all.note(SLOT, &key(inside));
            assert_eq!(other(&all, SLOT, inside).is_some(), expected, "{late}");
        }
    }

    #[test]
    fn a_flow_without_more_packets_is_looked_up_a_scan_later() {
        let mut all = wanted(10);
        all.begin_scan(1);
        let inside = end(5, 4000);
        all.begin(SLOT, &key(inside));
        scan(&mut all, 2);
        all.add(NETNS, &connection(4000, 9000), false);
        assert_eq!(other(&all, SLOT, inside), None);
        all.end_scan(|slot| (slot == SLOT).then(|| key(inside)));
        assert!(other(&all, SLOT, inside).is_some());
    }

    #[test]
    fn a_flow_of_reused_ports_is_not_given_to_either_connection() {
        let inside = end(5, 4000);
        let mut all = wanted(10);
        all.begin_scan(1);
        all.add(NETNS, &connection(4000, 9000), false);
        all.begin(SLOT, &key(inside));
        scan(&mut all, 2);
        all.remove(NETNS, &connection(4000, 9000));
        all.add(NETNS, &connection(4000, 9001), false);
        // The flow goes on with the other connection.
        all.note(SLOT, &key(inside));
        assert_eq!(other(&all, SLOT, inside), None);
        // These may have packets of either.
        for slot in [4, 5] {
            all.begin(slot, &key(inside));
            assert_eq!(other(&all, slot, inside), None);
            scan(&mut all, slot - 1);
        }
        all.begin(6, &key(inside));
        assert_eq!(
            other(&all, 6, inside),
            Some((9001, NatSide::Original)),
            "long after the first one"
        );
        assert_eq!(all.counts().ambiguous, 3);
        // The old form belongs to no connection.
        all.begin(7, &key(end(7, 9000)));
        assert_eq!(other(&all, 7, end(7, 9000)), None);
    }

    #[test]
    fn an_ended_connection_is_kept_for_its_last_packets_and_not_for_later_flows() {
        let inside = end(5, 4000);
        for (later, expected) in [(0, true), (1, false), (5, false)] {
            let mut all = wanted(10);
            all.begin_scan(1);
            all.add(NETNS, &connection(4000, 9000), false);
            all.remove(NETNS, &connection(4000, 9000));
            for number in 2..2 + later {
                scan(&mut all, number);
            }
            all.begin(SLOT, &key(inside));
            assert_eq!(other(&all, SLOT, inside).is_some(), expected, "{later}");
            assert_eq!(all.known.is_empty(), later == 5);
        }
    }

    #[test]
    fn zones_with_the_same_addresses_are_not_told_apart() {
        let inside = end(5, 4000);
        let mut all = wanted(10);
        all.begin_scan(1);
        all.add(NETNS, &connection(4000, 9000), false);
        all.add(NETNS, &connection(4000, 9001), false);
        all.begin(SLOT, &key(inside));
        assert_eq!(other(&all, SLOT, inside), None);
        all.remove(NETNS, &connection(4000, 9001));
        scan(&mut all, 9);
        all.begin(SLOT, &key(inside));
        assert_eq!(other(&all, SLOT, inside), None);
    }

    #[test]
    fn what_is_listed_twice_is_one_connection_and_what_has_no_room_is_counted() {
        let mut all = wanted(2);
        all.begin_scan(1);
        for _ in 0..2 {
            all.add(NETNS, &connection(4000, 9000), true);
        }
        assert_eq!(all.counts().connections, 1);
        all.add(NETNS, &connection(4001, 9001), false);
        all.add(NETNS, &connection(4002, 9002), false);
        let counts = all.counts();
        assert_eq!((counts.connections, counts.not_kept), (2, 1));
        all.begin(SLOT, &key(end(5, 4002)));
        assert_eq!(other(&all, SLOT, end(5, 4002)), None);
        // One that is known has ended, and the next one with its ports has no room on the other side.
        all.remove(NETNS, &connection(4001, 9001));
        all.add(NETNS, &connection(4001, 9003), false);
        all.begin(SLOT, &key(end(5, 4001)));
        assert_eq!(other(&all, SLOT, end(5, 4001)), None);
    }

    #[test]
    fn after_missed_news_flows_of_that_time_have_no_translation() {
        let mut all = wanted(10);
        all.begin_scan(1);
        all.add(NETNS, &connection(4000, 9000), false);
        all.add(NETNS, &connection(4001, 9001), false);
        let inside = end(5, 4000);
        all.begin(SLOT, &key(inside));
        scan(&mut all, 2);
        let listed = [connection(4000, 9000), connection(4002, 9002)];
        all.replace(NETNS, &listed);
        assert_eq!(all.counts().connections, 2);
        all.note(SLOT, &key(inside));
        assert!(other(&all, SLOT, inside).is_some());
        let later = end(5, 4002);
        for (number, expected) in [(2, false), (3, false), (4, true)] {
            all.begin_scan(number);
            all.begin(SLOT, &key(later));
            assert_eq!(other(&all, SLOT, later).is_some(), expected, "{number}");
        }
        // It has ended meanwhile.
        all.begin(SLOT, &key(end(5, 4001)));
        assert_eq!(other(&all, SLOT, end(5, 4001)), None);
    }
}
