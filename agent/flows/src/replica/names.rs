//! The host names of the flows' ends at the time the flows began.

use std::{mem, sync::Arc};

use agent_common::FlowKey;
use proto::record::Record;

use crate::names::{EndName, Hosts};

/// Names by slot. Takes no memory until a flow has a name.
#[derive(Default)]
pub struct FlowNames {
    hosts: Option<Arc<dyn Hosts>>,
    by_slot: Vec<Ends>,
    /// Names of flows that ended in this scan. Its batches may still have to send them.
    ended: Vec<EndName>,
}

/// The names of a and b.
type Ends = [Option<EndName>; 2];

impl FlowNames {
    pub fn follow(&mut self, hosts: Arc<dyn Hosts>) {
        self.hosts = Some(hosts);
    }

    /// A flow begins in this slot.
    pub fn begin(&mut self, slot: u32, key: &FlowKey, began_ns: u64) {
        let Some(hosts) = &self.hosts else {
            return;
        };
        let ends = hosts.ends(key, began_ns);
        let slot = slot as usize;
        if slot >= self.by_slot.len() {
            if ends.iter().all(Option::is_none) {
                return;
            }
            self.by_slot.resize(slot + 1, [None, None]);
        }
        let before = mem::replace(&mut self.by_slot[slot], ends);
        self.ended.extend(before.into_iter().flatten());
    }

    /// The flow in this slot has ended.
    pub fn end(&mut self, slot: u32) {
        if let Some(ends) = self.by_slot.get_mut(slot as usize) {
            let ends = mem::take(ends);
            self.ended.extend(ends.into_iter().flatten());
        }
    }

    /// The batches of the last scan are complete.
    pub fn begin_scan(&mut self) {
        self.ended = Vec::new();
    }

    /// Adds the names of both ends to the record.
    pub fn fill(&self, slot: u32, record: &mut Record) {
        let Some([a, b]) = self.by_slot.get(slot as usize) else {
            return;
        };
        let names = if record.initiator == 0 {
            [a, b]
        } else {
            [b, a]
        };
        let fields = &mut record.fields;
        for (end, name) in [&mut fields.src, &mut fields.dst].into_iter().zip(names) {
            if let Some(name) = name {
                end.host_id = Some(name.id());
                end.host_source = name.source();
            }
        }
    }

    /// Releases the memory for slots from this one on. None of them has a flow.
    pub fn shrink(&mut self, slots: u32) {
        if self.by_slot.len() > slots as usize {
            let gone = self.by_slot.drain(slots as usize..);
            self.ended.extend(gone.flatten().flatten());
            self.by_slot.shrink_to_fit();
        }
    }
}
