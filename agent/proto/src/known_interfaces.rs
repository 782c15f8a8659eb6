//! The interfaces that a stream of batches has named. The flows of an interface that is gone keep its name.

use std::collections::HashMap;

use crate::{FlowBatch, FlowRecord, Interface};

/// At least this many interfaces that are gone are kept. Their flows end soon, so no interface is kept for
/// good.
pub const MAX_GONE: usize = 4096;

/// By network namespace (inode number) and interface index.
#[derive(Default)]
pub struct KnownInterfaces(HashMap<(u32, u32), Interface>);

impl KnownInterfaces {
    /// Adds the interfaces that a batch names.
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

    /// The interface at which the flow was seen. `None` if no batch has named it.
    pub fn of(&self, record: &FlowRecord) -> Option<&Interface> {
        self.0.get(&(record.netns, record.ifindex))
    }

    /// The name of the interface at which the flow was seen. Empty if no batch has named it.
    pub fn name(&self, record: &FlowRecord) -> &str {
        self.of(record).map_or("", |one| one.name.as_str())
    }
}
