//! What a batch tells of the names of its records' ends.

use crate::proto::{FlowBatch, FlowRecord, NameSource};

/// The name of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host<'a> {
    pub name: &'a str,
    source: NameSource,
}

impl<'a> Host<'a> {
    /// Of the source, and of the destination.
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

    /// How it was learned.
    pub fn source(self) -> &'static str {
        match self.source {
            NameSource::Unspecified => "unknown",
            NameSource::Dns => "dns",
            NameSource::DnsOfAnother => "dns_of_another",
            NameSource::HostsFile => "hosts_file",
        }
    }
}
