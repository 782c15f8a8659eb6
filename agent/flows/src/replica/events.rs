//! The kernel's reports about flows beside their counters: ends of TCP sockets, ICMP errors, drops and address translations.

use std::mem;

use agent_common::{FlowKey, tcp::EndedConnection, translation::Translation};

use super::{IcmpError, Replica, TranslationCounts, errors, find::Found};

impl Replica {
    /// Notes what TCP knew of a connection when it ended. Call this before `update` takes in the page.
    pub fn note_end(&mut self, ended: &EndedConnection) {
        self.senders.note_end(ended);
    }

    /// Notes an ICMP error that quotes a packet of this flow, seen at this time since boot. Call this before `update`
    /// takes in the page.
    pub fn note_error(&mut self, key: &FlowKey, direction: u8, error: IcmpError, seen_ns: u64) {
        self.errors.add_waiting(key, direction, error, seen_ns);
    }

    /// Notes that the kernel dropped packets of this flow after they were counted. Call this before `update` takes in
    /// the page.
    pub fn note_dropped(&mut self, key: &FlowKey, packets: u64) {
        self.dropped.add_waiting(key, packets);
    }

    /// Dropped packets that were matched to a flow, and dropped packets that were not.
    pub fn dropped(&self) -> [u64; 2] {
        self.dropped.totals()
    }

    /// How many ICMP errors matched no flow.
    pub fn unmatched_errors(&self) -> u64 {
        self.errors.unmatched()
    }

    /// Follows the address translations of up to `most_connections`.
    pub fn follow_translations(&mut self, most_connections: usize) {
        self.translations.want(most_connections);
    }

    /// A translated connection has begun, by the event of this number in its network namespace.
    pub fn note_translation(&mut self, netns: u32, connection: &Translation, event: u64) {
        self.translations.add(netns, connection, event);
    }

    /// A translated connection has ended.
    pub fn end_translation(&mut self, netns: u32, connection: &Translation, event: u64) {
        self.translations.remove(netns, connection, event);
    }

    /// The translated connections of a network namespace, as read after this many events.
    pub fn list_translations(&mut self, netns: u32, connections: &[Translation], events: u64) {
        self.translations.list(netns, connections, events);
    }

    /// Events about connections were missed, or flows of this scan may be older than it.
    pub fn note_missed_translations(&mut self) {
        self.translations.note_missed();
    }

    pub fn translation_counts(&self) -> TranslationCounts {
        self.translations.counts()
    }

    /// Looks up the flows whose connection may have had news after their first packets.
    pub(super) fn settle_translations(&mut self) {
        let slab = &self.slab;
        self.translations
            .end_scan(|slot| slab.get(slot).map(|entry| entry.key));
    }

    /// Matches the ended connections that are left to flows that this scan did not bring.
    pub(super) fn settle_ends(&mut self) {
        let mut senders = mem::take(&mut self.senders);
        let mut gone = Vec::new();
        senders.settle_ends(
            |key| match self.find(key) {
                Found::Flow(slot) => Some(slot),
                Found::OtherSide(_) | Found::Nothing { .. } => None,
            },
            |slot, direction| gone.push((slot, direction)),
        );
        self.senders = senders;
        for (slot, direction) in gone {
            self.slab[slot].note_socket_is_gone(direction);
            self.note_age(slot);
        }
    }

    /// Matches the errors of flows that this scan did not bring, and errors at a mirror port, where the error and the
    /// packet it quotes are seen on the same side.
    pub(super) fn settle_errors(&mut self) {
        let mut errors = mem::take(&mut self.errors);
        errors.settle(|key| {
            let (slot, only) = match self.find(key) {
                Found::Flow(slot) => (slot, None),
                Found::OtherSide(slot) => (slot, Some(self.slab[slot].only_direction()?)),
                Found::Nothing { .. } => return None,
            };
            let began_ns = self.slab[slot].began_ns(self.clock);
            Some(errors::Place {
                slot,
                began_ns,
                only,
            })
        });
        self.errors = errors;
    }

    /// Matches the drops of flows that this scan did not bring, and drops at a mirror port.
    pub(super) fn settle_dropped(&mut self) {
        let mut dropped = mem::take(&mut self.dropped);
        dropped.settle(|key| {
            let slot = match self.find(key) {
                Found::Flow(slot) => slot,
                // At a mirror port both directions arrive. A flow whose packets only leave is not dropped on arrival.
                Found::OtherSide(slot) => {
                    let only = self.slab[slot].only_direction()?;
                    (only != key.side()).then_some(slot)?
                }
                Found::Nothing { .. } => return None,
            };
            Some((slot, self.slab[slot].total.map(|total| total.packets)))
        });
        self.dropped = dropped;
    }
}
