//! The end of a scan, and of the agent: flows that are over get their end records, and their memory is released.

use std::collections::BTreeSet;

use agent_common::{FlowKey, InterfaceId};
use proto::{EndReason, record::Record};
use sys::process_memory;

use super::{Replica, entry::State, find::hash_of};

/// How often to release memory, in scans.
const SHRINKS_EVERY: u32 = 16;

/// Chunks that are worth returning to the system: a few megabytes.
const MANY_CHUNKS: usize = 16;

impl Replica {
    /// Ends closed flows whose linger is over, flows that were quiet for too long, and all flows of interfaces that
    /// have left.
    pub fn end_scan(&mut self, left: &BTreeSet<InterfaceId>, sink: &mut impl FnMut(&Record)) {
        self.settle_ends();
        self.settle_errors();
        self.settle_dropped();
        self.settle_translations();
        self.report_deferred_flows(sink);
        if !left.is_empty() {
            self.end_those(|key| left.contains(&InterfaceId::of(key)), sink);
            self.in_sight.forget(left);
        }
        let mut from = 0;
        while let Some(slots) = self.slab.take_due(from, self.clock.boot_ns) {
            from = slots.end;
            for slot in slots {
                self.look_at(slot, sink);
            }
        }
        self.reports.set_over(false);
        self.shrink();
    }

    /// Emits the records that were put off until the end of the scan.
    fn report_deferred_flows(&mut self, sink: &mut impl FnMut(&Record)) {
        while let Some(slot) = self.deferred.pop() {
            self.report_deferred(slot, sink);
        }
    }

    /// Ends the flows whose keys match. All of them must have been reported.
    fn end_those(&mut self, which: impl Fn(&FlowKey) -> bool, sink: &mut impl FnMut(&Record)) {
        let mut from = 0;
        while let Some(slot) = self.slab.first_from(from) {
            from = slot + 1;
            if which(&self.slab[slot].key) {
                self.end_by_force(slot, sink);
            }
        }
    }

    /// Ends the flow in this slot or reports its waiting counts, if either is due. Otherwise notes when the next is
    /// due.
    fn look_at(&mut self, slot: u32, sink: &mut impl FnMut(&Record)) {
        if self.slab.get(slot).is_none() {
            return;
        }
        if let Some(reason) = self.reason_to_end(slot) {
            self.end(slot, reason, sink);
            self.settle_outers();
            return;
        }
        if let Some(due) = self.reports.due(slot, self.clock.boot_ns) {
            sink(&self.record(slot, self.clock, due, None));
        }
        let end_ns = self.slab[slot].end_ns(self.lifetimes);
        let report_ns = self.reports.due_ns(slot).unwrap_or(u64::MAX);
        self.slab.note_due(slot, end_ns.min(report_ns));
    }

    /// Releases the memory of ended flows. Not with each scan, since the next one may bring as many flows.
    fn shrink(&mut self) {
        if !self.scan.is_multiple_of(SHRINKS_EVERY) {
            return;
        }
        self.order.shrink();
        self.deferred.shrink_to_fit();
        let chunks = self.slab.shrink();
        if chunks == 0 {
            return;
        }
        self.reports.shrink(self.slab.end());
        self.senders.shrink(self.slab.end());
        self.names.shrink(self.slab.end());
        self.errors.shrink(self.slab.end());
        self.dropped.shrink(self.slab.end());
        self.translations.shrink(self.slab.end());
        if self.index.capacity() / 4 > self.index.len() {
            self.index.shrink_to(2 * self.index.len(), |&slot| {
                hash_of(&self.seed, &self.slab[slot].key)
            });
        }
        if chunks >= MANY_CHUNKS {
            // The C library would keep the freed memory.
            process_memory::give_back();
        }
    }

    /// Why the flow ends with this scan, or `None` if it goes on.
    pub(super) fn reason_to_end(&self, slot: u32) -> Option<EndReason> {
        let entry = &self.slab[slot];
        // If the machine slept meanwhile, the time of the last packet is uncertain.
        if self.clock.slept_ns != 0 && entry.scan == self.scan {
            return None;
        }
        if self.clock.boot_ns < entry.end_ns(self.lifetimes) {
            return None;
        }
        match entry.state {
            State::Living => Some(EndReason::IdleTimeout),
            State::Closing => Some(EndReason::EndOfFlow),
            State::Free => None,
        }
    }

    /// Ends every flow, including lingering ones. Call this when the agent stops.
    pub fn finish(&mut self, sink: &mut impl FnMut(&Record)) {
        self.settle_ends();
        self.settle_errors();
        self.settle_dropped();
        self.report_deferred_flows(sink);
        self.end_those(|_| true, sink);
    }

    /// Ends a flow that might have gone on.
    fn end_by_force(&mut self, slot: u32, sink: &mut impl FnMut(&Record)) {
        if let Some(reason) = self.slab[slot].state.forced_end() {
            self.end(slot, reason, sink);
            self.settle_outers();
        }
    }
}
