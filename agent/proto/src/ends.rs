//! The cgroup, process and host name that a batch has for each end of its records.

use crate::{Cgroup, FlowBatch, FlowRecord, NameSource, Process};

/// The longest cgroup path that is kept. The owner of a cgroup can nest directories in it without limit.
pub const MAX_CGROUP_PATH_BYTES: usize = 1024;
/// The longest process name. The kernel's has at most 15 bytes (`TASK_COMM_LEN` with the final zero); each
/// byte that is not UTF-8 takes three bytes.
pub const MAX_PROCESS_NAME_BYTES: usize = 45;
/// The longest host name. DNS names have at most 253 bytes; a name with escaped bytes may be longer.
pub const MAX_HOST_NAME_BYTES: usize = 255;
/// The most addresses that are read from one DNS message. A datagram of 1,472 bytes has room for 90.
pub const MAX_DNS_ANSWERS: usize = 128;

/// The cgroup that sent the packets of one direction of a record, with its names in the batch. Empty names
/// are `None`.
#[derive(Clone, Copy)]
pub struct EndCgroup<'a> {
    pub cgroup_id: u64,
    cgroup: Option<&'a Cgroup>,
}

impl<'a> EndCgroup<'a> {
    /// Returns the cgroups that sent the source's and the destination's packets.
    pub fn both(batch: &'a FlowBatch, record: &FlowRecord) -> [Option<Self>; 2] {
        record
            .cgroup_ids()
            .map(|id| id.map(|id| Self::of(batch, id)))
    }

    fn of(batch: &'a FlowBatch, cgroup_id: u64) -> Self {
        let place = batch
            .cgroups
            .binary_search_by_key(&cgroup_id, |cgroup| cgroup.id);
        Self {
            cgroup_id,
            cgroup: place.ok().map(|place| &batch.cgroups[place]),
        }
    }

    pub fn path(self) -> Option<&'a str> {
        self.text(|cgroup| &cgroup.path)
    }

    pub fn unit(self) -> Option<&'a str> {
        self.text(|cgroup| &cgroup.unit)
    }

    pub fn slice(self) -> Option<&'a str> {
        self.text(|cgroup| &cgroup.slice)
    }

    pub fn container_id(self) -> Option<&'a str> {
        self.text(|cgroup| &cgroup.container_id)
    }

    pub fn container_runtime(self) -> Option<&'a str> {
        self.text(|cgroup| &cgroup.container_runtime)
    }

    fn text(self, of: impl FnOnce(&'a Cgroup) -> &'a str) -> Option<&'a str> {
        self.cgroup.map(of).filter(|text| !text.is_empty())
    }
}

/// The process that made the socket that sent the packets of one direction of a record, with its name in the
/// batch.
#[derive(Clone, Copy)]
pub struct EndProcess<'a> {
    pub key: u64,
    process: Option<&'a Process>,
}

impl<'a> EndProcess<'a> {
    /// Returns the processes for the source's and the destination's packets.
    pub fn both(batch: &'a FlowBatch, record: &FlowRecord) -> [Option<Self>; 2] {
        let of = |key| Self {
            key,
            process: batch
                .processes
                .binary_search_by_key(&key, |process| process.key)
                .ok()
                .map(|place| &batch.processes[place]),
        };
        record.process_keys().map(|key| key.map(of))
    }

    /// The pid, which is part of the key.
    pub fn pid(self) -> u32 {
        agent_common::Process::pid_of(self.key)
    }

    pub fn name(self) -> Option<&'a str> {
        let name = self.process.map(|process| process.name.as_str());
        name.filter(|name| !name.is_empty())
    }

    pub fn uid(self) -> Option<u32> {
        self.process.and_then(|process| process.uid)
    }
}

/// The host name of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndHost<'a> {
    pub name: &'a str,
    source: NameSource,
}

impl<'a> EndHost<'a> {
    /// Returns the names of the source and the destination.
    pub fn both(batch: &'a FlowBatch, record: &FlowRecord) -> [Option<Self>; 2] {
        let [source, destination] = record.host_ids();
        let of = |id: Option<u64>, learned: NameSource| {
            let id = id?;
            let place = batch.hosts.binary_search_by_key(&id, |host| host.id).ok()?;
            Some(Self {
                name: &batch.hosts[place].name,
                source: learned,
            })
        };
        [
            of(source, record.src_host_source()),
            of(destination, record.dst_host_source()),
        ]
    }

    /// How the name was learned.
    pub fn source(self) -> &'static str {
        match self.source {
            NameSource::Unspecified => "unknown",
            NameSource::Dns => "dns",
            NameSource::DnsOfAnother => "dns_of_another",
            NameSource::HostsFile => "hosts_file",
        }
    }
}
