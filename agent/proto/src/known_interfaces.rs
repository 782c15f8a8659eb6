//! The interfaces that a stream of batches has named. Flows of one that is gone keep its name.

use std::collections::HashMap;

use crate::{FlowBatch, FlowRecord, Interface};

/// How many interfaces that have gone are kept at least. Flows of one end soon, so none is kept for ever.
const MAX_GONE: usize = 4096;

/// By network namespace and index.
#[derive(Default)]
pub struct KnownInterfaces(HashMap<(u32, u32), Interface>);

impl KnownInterfaces {
    /// Takes in those that a batch names.
    pub fn note_all(&mut self, batch: &FlowBatch) {
        if self.0.len() > 2 * batch.interfaces.len() + MAX_GONE {
            self.0.clear();
        }
        for interface in &batch.interfaces {
            self.note(interface);
        }
    }

    pub fn note(&mut self, interface: &Interface) {
        let known = self.0.entry((interface.netns, interface.ifindex));
        known.or_default().clone_from(interface);
    }

    /// The one at which the flow was seen.
    pub fn of(&self, record: &FlowRecord) -> Option<&Interface> {
        self.0.get(&(record.netns, record.ifindex))
    }

    /// Its name. Empty if no batch has named it.
    pub fn name(&self, record: &FlowRecord) -> &str {
        self.of(record).map_or("", |one| one.name.as_str())
    }
}
