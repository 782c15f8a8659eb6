//! Looks up the names in batches: of hosts, and of the cgroups and processes that send flows' packets.
//!
//! A record has ids. The batch that it is in says what these stand for.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use agent_common::FlowKey;
use proto::{Cgroup, NameSource, Process};

/// Knows what ids stand for.
pub trait Directory<T>: Send + Sync {
    /// Calls `each` with what these ids stand for, in the same order.
    fn lookup(&self, ids: &[u64], each: &mut dyn FnMut(&T));
}

/// Knows the names of hosts. All ids that are looked up must be in use.
pub trait Hosts: Directory<proto::HostName> {
    /// The names of a flow's ends a and b at the time it began.
    fn ends(&self, key: &FlowKey, began_ns: u64) -> [Option<EndName>; 2];
}

/// The names of a kind that is `None` are not sent.
#[derive(Clone, Default)]
pub struct Names {
    pub cgroups: Option<Arc<dyn Directory<Cgroup>>>,
    pub processes: Option<Arc<dyn Directory<Process>>>,
    pub hosts: Option<Arc<dyn Hosts>>,
}

/// A name of an address. All flows with this name share it.
#[derive(Debug)]
pub struct HostName {
    /// The id of the name in records. It is unique during the life of this agent.
    pub id: u64,
    pub text: Box<str>,
    in_use: Arc<AtomicUsize>,
}

impl HostName {
    /// `in_use` counts the names that exist.
    pub fn new(id: u64, text: &str, in_use: &Arc<AtomicUsize>) -> Self {
        in_use.fetch_add(1, Relaxed);
        Self {
            id,
            text: text.into(),
            in_use: Arc::clone(in_use),
        }
    }
}

impl Drop for HostName {
    fn drop(&mut self) {
        self.in_use.fetch_sub(1, Relaxed);
    }
}

/// The name of one end of a flow. It is in use as long as the flow holds it.
#[derive(Clone, Debug)]
pub struct EndName {
    name: Arc<HostName>,
    /// The name's number, and the source in the lowest bits. Each record needs both, and this saves a read of the name
    /// itself.
    number_and_source: u64,
}

const _: () = assert!((NameSource::HostsFile as u64) < 1 << EndName::SOURCE_BITS);

impl EndName {
    const SOURCE_BITS: u32 = 2;

    pub fn new(name: &Arc<HostName>, source: NameSource) -> Self {
        Self {
            name: Arc::clone(name),
            number_and_source: name.id << Self::SOURCE_BITS | source as u64,
        }
    }

    pub fn id(&self) -> u64 {
        self.number_and_source >> Self::SOURCE_BITS
    }

    pub fn source(&self) -> NameSource {
        match self.number_and_source & ((1 << Self::SOURCE_BITS) - 1) {
            1 => NameSource::Dns,
            2 => NameSource::DnsOfAnother,
            _ => NameSource::HostsFile,
        }
    }

    pub fn text(&self) -> &str {
        &self.name.text
    }
}
