//! The names of interfaces, units, processes and hosts for tables: harmless and short.

use std::{collections::HashMap, net::IpAddr};

use proto::{FlowBatch, FlowRecord, NameSource, known_interfaces::MAX_GONE};

use super::{cells, harmless::harmless, human};

#[derive(Clone, Default)]
pub struct Names {
    /// By network namespace and index.
    interfaces: HashMap<(u32, u32), String>,
    /// By cgroup id.
    units: HashMap<u64, String>,
    /// By process key.
    processes: HashMap<u64, String>,
    /// By host id.
    hosts: HashMap<u64, String>,
}

impl Names {
    /// Forgets the names of units, processes and hosts, since each batch brings the names for its own records.
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
            // A host name that parses as an address would be mistaken for one.
            if host.name.parse::<IpAddr>().is_err() {
                self.hosts
                    .insert(host.id, harmless(&host.name).into_owned());
            }
        }
    }

    pub fn interface(&self, record: &FlowRecord) -> Option<&String> {
        self.interfaces.get(&(record.netns, record.ifindex))
    }

    /// The units of the source's and of the destination's end.
    pub fn units(&self, record: &FlowRecord) -> [Option<&str>; 2] {
        of_ends(record.ends().map(|end| end.cgroup_id), &self.units)
    }

    /// The names of the ends.
    ///
    /// A tilde marks a name that the other end did not learn from the DNS itself, so it is less certain.
    pub fn hosts(&self, record: &FlowRecord) -> [Option<String>; 2] {
        let [source, destination] = of_ends(record.ends().map(|end| end.host_id), &self.hosts);
        let shown = |name: Option<&str>, learned: NameSource| {
            Some(match learned {
                NameSource::Dns => name?.to_owned(),
                NameSource::Unspecified | NameSource::DnsOfAnother | NameSource::HostsFile => {
                    format!("~{}", name?)
                }
            })
        };
        [
            shown(source, record.src().host_source()),
            shown(destination, record.dst().host_source()),
        ]
    }

    pub fn processes(&self, record: &FlowRecord) -> [Option<&str>; 2] {
        of_ends(record.ends().map(|end| end.process_key), &self.processes)
    }
}

fn of_ends(ends: [Option<u64>; 2], names: &HashMap<u64, String>) -> [Option<&str>; 2] {
    ends.map(|end| Some(names.get(&end?)?.as_str()))
}
