//! The cgroups, processes and host names that a set of records mentions, for callers that remove records from
//! a batch: names that no remaining record mentions are removed with them.

use std::collections::BTreeSet;

use bytes::Bytes;
use prost::{DecodeError, Message as _};

use crate::{
    Cgroup, FlowBatch, FlowRecord, HostName, Process,
    batch::fields::{CGROUPS, Field, HOSTS, PROCESSES},
};

#[derive(Clone, Copy, Default)]
pub struct OfRecord {
    cgroup_ids: [Option<u64>; 2],
    process_keys: [Option<u64>; 2],
    host_ids: [Option<u64>; 2],
}

impl OfRecord {
    pub fn new(record: &FlowRecord) -> Self {
        Self {
            cgroup_ids: record.ends().map(|end| end.cgroup_id),
            process_keys: record.ends().map(|end| end.process_key),
            host_ids: record.ends().map(|end| end.host_id),
        }
    }
}

#[derive(Default)]
pub struct Mentions {
    cgroup_ids: BTreeSet<u64>,
    process_keys: BTreeSet<u64>,
    host_ids: BTreeSet<u64>,
}

impl Mentions {
    pub fn of<'a>(records: impl IntoIterator<Item = &'a FlowRecord>) -> Self {
        let mut mentions = Self::default();
        for record in records {
            mentions.note(OfRecord::new(record));
        }
        mentions
    }

    pub fn note(&mut self, record: OfRecord) {
        self.cgroup_ids
            .extend(record.cgroup_ids.into_iter().flatten());
        self.process_keys
            .extend(record.process_keys.into_iter().flatten());
        self.host_ids.extend(record.host_ids.into_iter().flatten());
    }

    /// Whether this field of a batch is a cgroup, process or host name that no record mentions.
    pub fn lack(&self, field: &Field) -> Result<bool, DecodeError> {
        let message = || -> Bytes { field.message.clone() };
        Ok(match field.tag {
            CGROUPS => !self.cgroup_ids.contains(&Cgroup::decode(message())?.id),
            PROCESSES => !self.process_keys.contains(&Process::decode(message())?.key),
            HOSTS => !self.host_ids.contains(&HostName::decode(message())?.id),
            _ => false,
        })
    }

    /// In ascending order.
    pub fn cgroup_ids(&self) -> impl Iterator<Item = &u64> {
        self.cgroup_ids.iter()
    }

    /// In ascending order.
    pub fn process_keys(&self) -> impl Iterator<Item = &u64> {
        self.process_keys.iter()
    }

    pub fn hosts_len(&self) -> usize {
        self.host_ids.len()
    }

    /// In ascending order.
    pub fn host_ids(&self) -> impl Iterator<Item = &u64> {
        self.host_ids.iter()
    }

    pub fn cgroups<'a>(&self, all: &'a [Cgroup]) -> impl Iterator<Item = &'a Cgroup> {
        all.iter().filter(|one| self.cgroup_ids.contains(&one.id))
    }

    pub fn processes<'a>(&self, all: &'a [Process]) -> impl Iterator<Item = &'a Process> {
        all.iter()
            .filter(|one| self.process_keys.contains(&one.key))
    }

    pub fn hosts<'a>(&self, all: &'a [HostName]) -> impl Iterator<Item = &'a HostName> {
        all.iter().filter(|one| self.host_ids.contains(&one.id))
    }

    /// Removes the cgroups, processes and host names that no record mentions.
    pub fn retain_in(&self, batch: &mut FlowBatch) {
        batch
            .cgroups
            .retain(|one| self.cgroup_ids.contains(&one.id));
        batch
            .processes
            .retain(|one| self.process_keys.contains(&one.key));
        batch.hosts.retain(|one| self.host_ids.contains(&one.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Endpoint, batch::fields::each_field};

    fn batch() -> FlowBatch {
        let cgroup = |id| Cgroup {
            id,
            ..Cgroup::default()
        };
        let process = |key| Process {
            key,
            ..Process::default()
        };
        let host = |id| HostName {
            id,
            ..HostName::default()
        };
        FlowBatch {
            scan_id: 7,
            cgroups: [1, 2, 3].map(cgroup).to_vec(),
            processes: [4, 5, 6].map(process).to_vec(),
            hosts: [7, 8, 9].map(host).to_vec(),
            ..FlowBatch::default()
        }
    }

    #[test]
    fn what_records_mention_stays_and_what_is_no_name_does() {
        let record = FlowRecord {
            src: Some(Endpoint {
                cgroup_id: Some(2),
                host_id: Some(8),
                ..Endpoint::default()
            }),
            dst: Some(Endpoint {
                process_key: Some(6),
                ..Endpoint::default()
            }),
            ..FlowRecord::default()
        };
        let mentions = Mentions::of([&record, &FlowRecord::default()]);
        let mut left = batch();
        mentions.retain_in(&mut left);
        let expected = FlowBatch {
            cgroups: batch().cgroups[1..2].to_vec(),
            processes: batch().processes[2..].to_vec(),
            hosts: batch().hosts[1..2].to_vec(),
            ..batch()
        };
        assert_eq!(left, expected);
        // The same of its fields, and for those who copy.
        let body = Bytes::from(batch().encode_to_vec());
        let mut passed = Vec::new();
        each_field(&body, |field| {
            if !mentions.lack(&field)? {
                passed.extend_from_slice(&body[field.whole]);
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(FlowBatch::decode(&passed[..]).unwrap(), expected);
        let all = batch();
        assert!(mentions.cgroups(&all.cgroups).eq(&expected.cgroups));
        assert!(mentions.processes(&all.processes).eq(&expected.processes));
        assert!(mentions.hosts(&all.hosts).eq(&expected.hosts));
    }
}
