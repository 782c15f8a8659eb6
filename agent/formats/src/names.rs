//! What interfaces, units, processes and hosts are called in tables: harmless and short.

use std::{collections::HashMap, net::IpAddr};

use proto::{FlowBatch, FlowRecord, NameSource};

use super::{cells, harmless::harmless, human};

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
    /// By their ids.
    hosts: HashMap<u64, String>,
}

impl Names {
    /// Each batch names the units, processes and hosts of its own records, so those of earlier ones can go.
    pub fn forget_senders(&mut self) {
        self.units.clear();
        self.processes.clear();
        self.hosts.clear();
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
        for host in &batch.hosts {
            // A name that looks like an address would be taken for one.
            if host.name.parse::<IpAddr>().is_err() {
                self.hosts
                    .insert(host.id, harmless(&host.name).into_owned());
            }
        }
    }

    pub fn interface(&self, record: &FlowRecord) -> Option<&String> {
        self.interfaces.get(&(record.netns, record.ifindex))
    }

    /// Of the source's end, and of the destination's.
    pub fn units(&self, record: &FlowRecord) -> [Option<&str>; 2] {
        of_ends(record.cgroup_ids(), &self.units)
    }

    /// What the ends are called.
    ///
    /// With a tilde before it if the other end has not asked the DNS for it, so that it is less sure.
    pub fn hosts(&self, record: &FlowRecord) -> [Option<String>; 2] {
        let [source, destination] = of_ends(record.host_ids(), &self.hosts);
        let shown = |name: Option<&str>, learned: NameSource| {
            Some(match learned {
                NameSource::Dns => name?.to_owned(),
                NameSource::Unspecified | NameSource::DnsOfAnother | NameSource::HostsFile => {
                    format!("~{}", name?)
                }
            })
        };
        [
            shown(source, record.src_host_source()),
            shown(destination, record.dst_host_source()),
        ]
    }

    pub fn processes(&self, record: &FlowRecord) -> [Option<&str>; 2] {
        of_ends(record.process_keys(), &self.processes)
    }
}

fn of_ends(ends: [Option<u64>; 2], names: &HashMap<u64, String>) -> [Option<&str>; 2] {
    ends.map(|end| Some(names.get(&end?)?.as_str()))
}
