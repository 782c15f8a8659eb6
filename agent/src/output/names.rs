//! What interfaces, units and processes are called in tables: harmless and short.

use std::collections::HashMap;

use super::{cells, harmless::harmless, human};
use crate::proto::{FlowBatch, FlowRecord};

/// How many interfaces that have gone are kept at least, for flows of theirs that end.
const MAX_GONE: usize = 4096;

#[derive(Clone, Default)]
pub struct Names {
    /// By network namespace and index.
    interfaces: HashMap<(u32, u32), String>,
    /// By the ids of cgroups.
    units: HashMap<u64, String>,
    /// By their keys.
    processes: HashMap<u64, String>,
}

impl Names {
    /// Each batch names the units and processes of its own records, so those of earlier ones can go.
    pub fn forget_senders(&mut self) {
        self.units.clear();
        self.processes.clear();
    }

    pub fn note(&mut self, batch: &FlowBatch) {
        if self.interfaces.len() > 2 * batch.interfaces.len() + MAX_GONE {
            self.interfaces.clear();
        }
        for interface in &batch.interfaces {
            let name = human::interface(&interface.netns_name, &interface.name);
            let name = harmless(&name).into_owned();
            self.interfaces
                .insert((interface.netns, interface.ifindex), name);
        }
        for cgroup in &batch.cgroups {
            if let Some(name) = cells::sender(cgroup) {
                self.units.insert(cgroup.id, name);
            }
        }
        for process in &batch.processes {
            self.processes.insert(process.key, cells::process(process));
        }
    }

    pub fn interface(&self, record: &FlowRecord) -> Option<&String> {
        self.interfaces.get(&(record.netns, record.ifindex))
    }

    /// Of the source's end, and of the destination's.
    pub fn units(&self, record: &FlowRecord) -> [Option<&str>; 2] {
        of_ends(record.cgroup_ids(), &self.units)
    }

    pub fn processes(&self, record: &FlowRecord) -> [Option<&str>; 2] {
        of_ends(record.process_keys(), &self.processes)
    }
}

fn of_ends(ends: [Option<u64>; 2], names: &HashMap<u64, String>) -> [Option<&str>; 2] {
    ends.map(|end| Some(names.get(&end?)?.as_str()))
}
