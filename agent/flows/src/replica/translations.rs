//! The other form of flows that the host translates (NAT).
//!
//! The kernel's events about a connection come some time before or after its packets are taken in, and the kernel may
//! tell nothing of a connection that began before anybody listened. So a flow gets a translation only if its connection is
//! known to have begun no later than a scan after the flow, to have gone on until then, and if nothing else was known
//! about these addresses and ports meanwhile. Otherwise it stays without: a wrong address is worse than none.

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

/// Flows that began in these scans before news were missed, and after, get no translation.
const UNSURE_SCANS: u32 = 1;

/// Both forms of each connection, and the translations of flows by slot. Takes no memory before [`Self::want`].
#[derive(Default)]
pub struct Translations {
    is_wanted: bool,
    most_connections: usize,
    known: HashMap<Tuple, Known>,
    /// Ended connections with the scan of their end, oldest first.
    ended: VecDeque<(u32, Tuple)>,
    by_slot: BySlot<OfFlow>,
    /// Flows that began in this scan, and in the one before: there may be events about their connection yet.
    fresh: [Vec<u32>; 2],
    scan: u32,
    /// The number of the last list.
    list: u32,
    /// Forms of connections that were listed and had no event.
    listed: usize,
    /// The last scan that missed events.
    missed_at: Option<u32>,
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
        let tuple = Self {
            netns,
            ip_version,
            protocol,
            ends,
        };
        (tuple, is_swapped)
    }

    /// The ends of a key are in the same order. `None` for flows that connections are not looked up for: inside a
    /// tunnel, without ports.
    fn of_flow(key: &FlowKey) -> Option<Self> {
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
        Some(Self::of(key.netns, key.ip_version, key.protocol, ends).0)
    }
}

/// The connection of two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    form: Form,
    /// The scan before which the connection began.
    since: u32,
    /// Flows that began in this scan or earlier may belong to another connection.
    unsure_until: u32,
    /// The scan before which the connection ended; 0 while it goes on.
    ended_at: u32,
    /// The number of the last list that had the connection, and the scan after that.
    listed: (u32, u32),
    /// There was no event that it began, so there may be none that it ends.
    is_only_listed: bool,
    /// The number of the last event.
    event: u64,
}

/// The other form of two ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Form {
    /// In the order of the ends.
    other: [End; 2],
    /// Which of the ends opened the connection.
    initiator: u8,
    side: NatSide,
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
    Known,
    /// It stays without.
    Ambiguous,
}

/// The figures for the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TranslationCounts {
    /// Connections that are known now.
    pub connections: u64,
    /// Connections that exceeded the limit.
    pub not_kept: u64,
    /// Flows whose translation is uncertain.
    pub ambiguous: u64,
}

impl Translations {
    /// Keeps up to `most_connections` from now on.
    pub fn want(&mut self, most_connections: usize) {
        self.is_wanted = true;
        self.most_connections = most_connections;
    }

    pub fn counts(&self) -> TranslationCounts {
        let is_one = |known: &&Known| known.ended_at == 0 && known.form.side == NatSide::Original;
        TranslationCounts {
            connections: self.known.values().filter(is_one).count() as u64,
            not_kept: self.not_kept,
            ambiguous: self.ambiguous,
        }
    }

    pub fn begin_scan(&mut self, scan: u32) {
        self.scan = scan;
    }

    /// Some events before this scan are unknown, or flows of this scan may be older than it.
    pub fn note_missed(&mut self) {
        self.missed_at = Some(self.scan);
    }

    /// A connection has begun before this scan.
    pub fn add(&mut self, netns: u32, connection: &Translation, event: u64) {
        for (tuple, form) in forms(netns, connection) {
            self.put(tuple, form, false, event);
        }
    }

    /// `event` is the number of the event or, of a list, that of the last one before it.
    fn put(&mut self, tuple: Tuple, form: Form, is_listed: bool, event: u64) {
        let (scan, list) = (self.scan, self.list);
        let has_room = self.known.len() < 2 * self.most_connections;
        let fresh = Known {
            form,
            since: scan,
            unsure_until: 0,
            ended_at: 0,
            listed: if is_listed { (list, scan) } else { (0, 0) },
            is_only_listed: is_listed,
            event,
        };
        match self.known.entry(tuple) {
            MapEntry::Vacant(place) if has_room => {
                place.insert(fresh);
                self.listed += usize::from(is_listed);
            }
            // The connection is forgotten, so flows of this time stay without.
            MapEntry::Vacant(_) => {
                self.not_kept += u64::from(form.side == NatSide::Original);
                self.missed_at = Some(scan);
            }
            MapEntry::Occupied(mut place) => {
                let known = place.get_mut();
                // The list is older.
                if is_listed && known.event > event {
                    return;
                }
                let was_listed = known.is_only_listed;
                known.follow(fresh, scan, is_listed);
                self.listed += usize::from(known.is_only_listed);
                self.listed -= usize::from(was_listed);
            }
        }
    }

    /// A connection has ended before this scan.
    pub fn remove(&mut self, netns: u32, connection: &Translation, event: u64) {
        for (tuple, form) in forms(netns, connection) {
            let Some(known) = self.known.get_mut(&tuple) else {
                continue;
            };
            known.event = event;
            if known.form == form {
                self.end(tuple);
            } else if known.ended_at == 0 {
                // There were two connections of these ends at once.
                known.unsure_until = u32::MAX;
            }
        }
    }

    fn end(&mut self, tuple: Tuple) {
        if let Some(known) = self.known.get_mut(&tuple)
            && known.ended_at == 0
        {
            known.ended_at = self.scan;
            self.ended.push_back((self.scan, tuple));
        }
    }

    /// These are all connections of a network namespace, as read before this scan and after `events` of its events.
    pub fn list(&mut self, netns: u32, connections: &[Translation], events: u64) {
        self.list = self.list.wrapping_add(1);
        for connection in connections {
            for (tuple, form) in forms(netns, connection) {
                self.put(tuple, form, true, events);
            }
        }
        let (list, mut over) = (self.list, Vec::new());
        for (tuple, known) in &self.known {
            let is_older = known.event <= events && known.ended_at == 0;
            if tuple.netns == netns && is_older && known.listed.0 != list {
                over.push(*tuple);
            }
        }
        for tuple in over {
            self.end(tuple);
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
        self.look_up(slot, key);
    }

    /// The flow in this slot has more packets.
    #[inline]
    pub fn note(&mut self, slot: u32, key: &FlowKey) {
        if !self.is_wanted {
            return;
        }
        match self.by_slot.get(slot).state {
            State::Ambiguous => {}
            State::Known => self.check(slot, key),
            State::Unknown => self.look_up(slot, key),
        }
    }

    /// Whether the connection of a flow that has more packets is still the same.
    fn check(&mut self, slot: u32, key: &FlowKey) {
        let mut flow = self.by_slot.get(slot);
        let known = Tuple::of_flow(key).and_then(|tuple| self.known.get(&tuple));
        let is_same = known.is_some_and(|known| {
            let goes_on = known.ended_at == 0 || known.ended_at >= self.scan;
            let is_sure = known.unsure_until < self.scan;
            goes_on
                && is_sure
                && known.form.other == flow.other
                && Some(known.form.side) == flow.side
        });
        if !is_same {
            flow.state = State::Ambiguous;
            self.ambiguous += 1;
            self.by_slot.begin(slot, flow);
        }
    }

    fn look_up(&mut self, slot: u32, key: &FlowKey) {
        if self.known.is_empty() {
            return;
        }
        let mut flow = self.by_slot.get(slot);
        // Later, there can be no event about its connection. A list may have it.
        if self.listed == 0 && self.scan.wrapping_sub(flow.began) > 1 {
            return;
        }
        let Some(tuple) = Tuple::of_flow(key) else {
            return;
        };
        let Some(known) = self.known.get(&tuple) else {
            return;
        };
        if known.ended_at != 0 && known.ended_at < flow.began {
            return;
        }
        if known.is_only_listed && known.listed.1 <= flow.began {
            // The next list may confirm it.
            return;
        }
        let was_missed = self.missed_at.is_some_and(|at| {
            let range = at.saturating_sub(UNSURE_SCANS)..=at.saturating_add(UNSURE_SCANS);
            range.contains(&flow.began)
        });
        // Otherwise an older connection ended while the flow began.
        let is_its_own = known.ended_at != flow.began || known.since == flow.began;
        let is_sure = flow.began > known.unsure_until
            && known.since <= flow.began.saturating_add(1)
            && is_its_own
            && !was_missed;
        if is_sure {
            flow.other = known.form.other;
            flow.side = Some(known.form.side);
            flow.state = State::Known;
            flow.community_id = community_id_of(key, flow.other, known.form.initiator);
        } else {
            flow.state = State::Ambiguous;
            self.ambiguous += 1;
        }
        self.by_slot.begin(slot, flow);
    }

    /// Looks up the flows that began in the scan before. `key_of` returns the key of the flow in a slot. Then forgets the
    /// connections that ended before the last scan.
    pub fn end_scan(&mut self, key_of: impl Fn(u32) -> Option<FlowKey>) {
        if !self.is_wanted {
            return;
        }
        let [this, before] = &mut self.fresh;
        let before = std::mem::replace(before, std::mem::take(this));
        for slot in before {
            let is_waiting = self.by_slot.get(slot).state == State::Unknown;
            if is_waiting && let Some(key) = key_of(slot) {
                self.look_up(slot, &key);
            }
        }
        while let Some(&(scan, tuple)) = self.ended.front()
            && self.scan.wrapping_sub(scan) > 1
        {
            self.ended.pop_front();
            if let MapEntry::Occupied(place) = self.known.entry(tuple)
                && place.get().ended_at == scan
            {
                self.listed -= usize::from(place.remove().is_only_listed);
            }
        }
    }

    /// Adds the other form of both ends to the record.
    pub fn fill(&self, slot: u32, record: &mut Record) {
        if !self.is_wanted {
            return;
        }
        let flow = self.by_slot.get(slot);
        if flow.state != State::Known {
            return;
        }
        let has_ports = record.src.port.is_some();
        let ends = in_order(flow.other, record.initiator != 0);
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
        if self.ended.len() < self.ended.capacity() / 4 {
            self.ended.shrink_to_fit();
        }
    }
}

impl Known {
    /// An event, or a list, has a connection of the same ends.
    fn follow(&mut self, next: Self, scan: u32, is_listed: bool) {
        if self.form == next.form {
            if is_listed {
                self.listed = next.listed;
                if self.ended_at == 0 {
                    return;
                }
                // It has begun again, and no event says when.
                self.unsure_until = self.unsure_until.max(scan.saturating_add(1));
                self.is_only_listed = true;
            } else {
                self.is_only_listed = false;
                self.event = next.event;
            }
            self.ended_at = 0;
        } else if self.ended_at != 0 {
            // Flows that began by the next scan may belong to either of them.
            *self = Self {
                unsure_until: scan.saturating_add(1),
                ..next
            };
        } else {
            // Two at once, perhaps in different zones: nothing about a packet tells which it belongs to.
            self.unsure_until = u32::MAX;
            self.event = self.event.max(next.event);
            if is_listed {
                self.listed = next.listed;
            }
        }
    }
}

/// Both forms of a connection.
fn forms(netns: u32, connection: &Translation) -> [(Tuple, Form); 2] {
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
    .map(|(one, other, side)| {
        let (tuple, is_swapped) = Tuple::of(netns, ip_version, protocol, one);
        let form = Form {
            other: in_order(other, is_swapped),
            initiator: is_swapped.into(),
            side,
        };
        (tuple, form)
    })
}

fn in_order([first, second]: [End; 2], is_swapped: bool) -> [End; 2] {
    if is_swapped {
        [second, first]
    } else {
        [first, second]
    }
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
        all.add(NETNS, &connection(4000, 9000), 1);
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
        all.remove(NETNS, &connection(4000, 9000), 1);
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
            all.add(NETNS, &connection(4000, 9000), 1);
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
        all.add(NETNS, &connection(4000, 9000), 1);
        assert_eq!(other(&all, SLOT, inside), None);
        all.end_scan(|slot| (slot == SLOT).then(|| key(inside)));
        assert!(other(&all, SLOT, inside).is_some());
    }

    #[test]
    fn a_flow_of_reused_ports_is_not_given_to_either_connection() {
        let inside = end(5, 4000);
        let mut all = wanted(10);
        all.begin_scan(1);
        all.add(NETNS, &connection(4000, 9000), 1);
        all.begin(SLOT, &key(inside));
        scan(&mut all, 2);
        all.remove(NETNS, &connection(4000, 9000), 1);
        all.add(NETNS, &connection(4000, 9001), 1);
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
            all.add(NETNS, &connection(4000, 9000), 1);
            all.remove(NETNS, &connection(4000, 9000), 1);
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
        all.add(NETNS, &connection(4000, 9000), 1);
        all.add(NETNS, &connection(4000, 9001), 1);
        all.begin(SLOT, &key(inside));
        assert_eq!(other(&all, SLOT, inside), None);
        all.remove(NETNS, &connection(4000, 9001), 1);
        scan(&mut all, 9);
        all.begin(SLOT, &key(inside));
        assert_eq!(other(&all, SLOT, inside), None);
    }

    #[test]
    fn what_comes_twice_is_one_connection_and_what_has_no_room_is_counted() {
        let mut all = wanted(2);
        all.begin_scan(1);
        for _ in 0..2 {
            all.add(NETNS, &connection(4000, 9000), 1);
        }
        assert_eq!(all.counts().connections, 1);
        all.begin(SLOT, &key(end(5, 4000)));
        scan(&mut all, 5);
        all.add(NETNS, &connection(4001, 9001), 1);
        all.add(NETNS, &connection(4002, 9002), 1);
        let counts = all.counts();
        assert_eq!((counts.connections, counts.not_kept), (2, 1));
        all.note(SLOT, &key(end(5, 4000)));
        assert!(other(&all, SLOT, end(5, 4000)).is_some());
        // Other connections of that time are not kept.
        for port in [4001, 4002] {
            all.begin(4, &key(end(5, port)));
            assert_eq!(other(&all, 4, end(5, port)), None);
        }
        // One has ended, and the next one with its ports has no room on the other side.
        all.remove(NETNS, &connection(4000, 9000), 1);
        all.add(NETNS, &connection(4000, 9003), 1);
        all.note(SLOT, &key(end(5, 4000)));
        assert_eq!(other(&all, SLOT, end(5, 4000)), None);
    }

    #[test]
    fn after_missed_events_flows_of_that_time_have_no_translation() {
        let mut all = wanted(10);
        all.begin_scan(1);
        all.add(NETNS, &connection(4000, 9000), 1);
        all.add(NETNS, &connection(4001, 9001), 1);
        let inside = end(5, 4000);
        all.begin(SLOT, &key(inside));
        scan(&mut all, 5);
        all.note_missed();
        all.list(NETNS, &[connection(4000, 9000)], 1);
        assert_eq!(all.counts().connections, 1);
        all.note(SLOT, &key(inside));
        assert!(other(&all, SLOT, inside).is_some());
        for (number, expected) in [(5, false), (6, false), (7, true)] {
            all.begin_scan(number);
            all.begin(4, &key(inside));
            assert_eq!(other(&all, 4, inside).is_some(), expected, "{number}");
        }
        // It has ended meanwhile.
        all.begin_scan(7);
        all.begin(4, &key(end(5, 4001)));
        assert_eq!(other(&all, 4, end(5, 4001)), None);
    }

    /// The kernel tells nothing about the end of a connection that began when nobody listened.
    #[test]
    fn a_connection_that_was_only_listed_needs_a_later_list_to_confirm_it() {
        let inside = end(5, 4000);
        let listed = [connection(4000, 9000)];
        let mut all = wanted(10);
        all.begin_scan(1);
        all.list(NETNS, &listed, 1);
        all.begin(SLOT, &key(inside));
        assert_eq!(other(&all, SLOT, inside), None);
        for number in 2..9 {
            scan(&mut all, number);
            all.note(SLOT, &key(inside));
            assert_eq!(other(&all, SLOT, inside), None);
        }
        all.list(NETNS, &listed, 1);
        all.note(SLOT, &key(inside));
        assert_eq!(other(&all, SLOT, inside), Some((9000, NatSide::Original)));
        // Another flow of the same ends comes, which the next list does not confirm.
        scan(&mut all, 9);
        all.begin(4, &key(inside));
        all.list(NETNS, &[], 1);
        all.note(4, &key(inside));
        assert_eq!(other(&all, 4, inside), None);
        scan(&mut all, 10);
        all.note(SLOT, &key(inside));
        assert_eq!(other(&all, SLOT, inside), None, "its connection is over");
        for number in 11..13 {
            scan(&mut all, number);
        }
        assert_eq!((all.known.len(), all.listed), (0, 0));
    }

    #[test]
    fn a_flow_that_goes_on_after_its_connection_has_no_translation_from_then_on() {
        let inside = end(5, 4000);
        for is_known in [false, true] {
            let mut all = wanted(10);
            all.begin_scan(1);
            all.add(NETNS, &connection(4000, 9000), 1);
            all.begin(SLOT, &key(inside));
            scan(&mut all, 2);
            all.remove(NETNS, &connection(4000, 9000), 1);
            all.note(SLOT, &key(inside));
            assert!(other(&all, SLOT, inside).is_some());
            scan(&mut all, 3);
            if is_known {
                // The next connection has the same addresses and ports on both sides.
                all.add(NETNS, &connection(4000, 9000), 1);
            }
            all.note(SLOT, &key(inside));
            assert_eq!(other(&all, SLOT, inside).is_some(), is_known);
        }
    }

    #[test]
    fn a_flow_that_begins_while_an_older_connection_ends_is_not_given_to_it() {
        let inside = end(5, 4000);
        for (since, expected) in [(4, false), (5, true)] {
            let mut all = wanted(10);
            all.begin_scan(since);
            all.add(NETNS, &connection(4000, 9000), 1);
            all.begin_scan(5);
            all.remove(NETNS, &connection(4000, 9000), 1);
            all.begin(SLOT, &key(inside));
            assert_eq!(other(&all, SLOT, inside).is_some(), expected, "{since}");
        }
    }

    #[test]
    fn a_list_changes_nothing_that_a_later_event_has_told() {
        let (inside, other_inside) = (end(5, 4000), end(5, 4001));
        let mut all = wanted(10);
        all.begin_scan(1);
        all.add(NETNS, &connection(4000, 9000), 1);
        // The list was read after one event. These came while it was read.
        all.add(NETNS, &connection(4001, 9001), 2);
        all.remove(NETNS, &connection(4000, 9000), 3);
        all.list(NETNS, &[connection(4000, 9000)], 1);
        scan(&mut all, 2);
        all.begin(SLOT, &key(inside));
        assert_eq!(other(&all, SLOT, inside), None);
        all.begin(4, &key(other_inside));
        assert!(other(&all, 4, other_inside).is_some());
        assert_eq!(all.counts().connections, 1);
    }
}
