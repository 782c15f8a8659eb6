//! Fields of a record that only conversations need: the sockets and names of the ends, failures and drops.

use std::{collections::HashMap, sync::Arc};

use proto::{EndReason, Endpoint, Failure, FlowBatch, FlowRecord};

/// Longer names are left out, since a flow keeps them. Agents send no longer ones.
const MOST_UNIT_BYTES: usize = 255;
const MOST_HOST_BYTES: usize = 255;
const MOST_PROCESS_BYTES: usize = 15;
const MOST_CONTAINER_BYTES: usize = 64;

/// The names that the records of a batch refer to.
pub(super) struct Names {
    units: HashMap<u64, Arc<Unit>>,
    processes: HashMap<u64, Arc<str>>,
    hosts: HashMap<u64, Arc<str>>,
}

/// The unit and the container of a socket. Empty if it is in none.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub name: Box<str>,
    pub container_id: Box<str>,
}

/// The details of one record, then of all that an agent has told of a flow since it was last quiet.
#[derive(Clone, Debug)]
pub(super) struct Details {
    /// Which end opened the flow, by the order of `FlowId`.
    pub initiator: usize,
    pub is_assumed: bool,
    /// When the flow of the last record began: a later flow with the same ports has another time.
    pub began: u64,
    /// Where flows are counted.
    pub interface: (u32, u32),
    /// Flows that began since the conversation was last quiet.
    pub new_flows: u32,
    /// FIN or RST has closed the connection.
    pub has_closed: bool,
    pub failure: Option<Failure>,
    /// The Community ID on the other side of the agent's address translation.
    pub nat_community_id: Option<[u8; 20]>,
    pub ends: [EndDetails; 2],
}

#[derive(Clone, Debug, Default)]
pub(super) struct EndDetails {
    pub unit: Option<Arc<Unit>>,
    pub process: Option<Arc<str>>,
    /// The name of the address.
    pub host: Option<Arc<str>>,
    /// A socket of the agent's host has sent this end's packets.
    pub has_socket: bool,
    /// So have sockets of other units or processes.
    pub has_several: bool,
    pub handshake_rtt_us: Option<u32>,
    /// In a record, the total since the flow began; in a sum, the packets dropped since it was last quiet.
    pub dropped: u64,
}

impl Names {
    pub(super) fn of(batch: &FlowBatch) -> Self {
        let short = |name: &str, most: usize| (name.len() <= most).then(|| Box::from(name));
        let units = batch.cgroups.iter().map(|cgroup| {
            let container_id = short(&cgroup.container_id, MOST_CONTAINER_BYTES);
            let unit = Unit {
                name: short(&cgroup.unit, MOST_UNIT_BYTES).unwrap_or_default(),
                container_id: container_id.unwrap_or_default(),
            };
            (cgroup.id, Arc::new(unit))
        });
        let processes = batch.processes.iter().filter_map(|process| {
            let name = short(&process.name, MOST_PROCESS_BYTES)?;
            Some((process.key, Arc::from(name)))
        });
        let hosts = batch.hosts.iter().filter_map(|host| {
            let name = short(&host.name, MOST_HOST_BYTES)?;
            Some((host.id, Arc::from(name)))
        });
        Self {
            units: units.collect(),
            processes: processes.collect(),
            hosts: hosts.collect(),
        }
    }

    /// The memory that the names take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let units = self.units.values();
        let units = units.map(|unit| unit.name.len() + unit.container_id.len());
        let names = self.processes.values().chain(self.hosts.values());
        units.chain(names.map(|name| name.len())).sum()
    }

    fn end(&self, end: &Endpoint) -> EndDetails {
        let process = end.process_key.and_then(|key| self.processes.get(&key));
        EndDetails {
            unit: end.cgroup_id.and_then(|id| self.units.get(&id)).cloned(),
            process: process.filter(|name| !name.is_empty()).cloned(),
            host: end.host_id.and_then(|id| self.hosts.get(&id)).cloned(),
            has_socket: end.cgroup_id.is_some() || end.process_key.is_some(),
            has_several: end.sender_shared,
            handshake_rtt_us: end.handshake_rtt_us,
            dropped: end.total_dropped_packets,
        }
    }
}

impl Details {
    /// Whether the record of a flow without new packets may say something that a conversation needs: failures and
    /// drops may be known later than the packets.
    pub(super) fn are_news(record: &FlowRecord) -> bool {
        let has_drops = |end: &Endpoint| end.total_dropped_packets > 0;
        record.failure.is_some() || record.ends().into_iter().any(has_drops)
    }

    /// `is_swapped`: the source is the second end of the `FlowId`.
    pub(super) fn of(record: &FlowRecord, names: &Names, is_swapped: bool) -> Self {
        let mut ends = record.ends().map(|end| names.end(end));
        if is_swapped {
            ends.swap(0, 1);
        }
        Self {
            initiator: usize::from(is_swapped),
            is_assumed: record.initiator_assumed,
            began: record.first_seen_unix_ns,
            interface: (record.netns, record.ifindex),
            new_flows: 0,
            has_closed: record.closing || record.end_reason == Some(EndReason::EndOfFlow as i32),
            failure: Some(record.failure()).filter(|failure| *failure != Failure::Unspecified),
            nat_community_id: record.nat_community_id[..].try_into().ok(),
            ends,
        }
    }

    /// Adds a later record's details. Its drops are those since the record before.
    pub(super) fn add(&mut self, later: &Self) {
        if later.is_assumed <= self.is_assumed {
            (self.initiator, self.is_assumed) = (later.initiator, later.is_assumed);
        }
        if self.nat_community_id.is_none() {
            self.nat_community_id = later.nat_community_id;
        }
        let is_another = self.began != later.began;
        self.began = later.began;
        self.new_flows = self.new_flows.saturating_add(later.new_flows);
        self.has_closed = later.has_closed || is_another && self.has_closed;
        self.failure = later.failure.or(self.failure.filter(|_| is_another));
        for (end, later) in self.ends.iter_mut().zip(&later.ends) {
            end.add(later, is_another);
        }
    }
}

impl EndDetails {
    fn add(&mut self, later: &Self, is_another_flow: bool) {
        // Nobody knows whose socket a later flow has.
        let is_lost = is_another_flow
            && (self.unit.is_some() && later.unit.is_none()
                || self.process.is_some() && later.process.is_none());
        let has_another_unit = replace(&mut self.unit, later.unit.as_ref());
        let has_another_process = replace(&mut self.process, later.process.as_ref());
        let is_another = has_another_unit || has_another_process || (is_lost && self.has_socket);
        replace(&mut self.host, later.host.as_ref());
        self.has_socket |= later.has_socket;
        self.has_several |= later.has_several || is_another;
        self.handshake_rtt_us = later.handshake_rtt_us.or(self.handshake_rtt_us);
        self.dropped = self.dropped.saturating_add(later.dropped);
    }
}

/// Replaces a name by a later one, unless they are equal, so that flows of many batches share one. Returns whether
/// there was another one before.
fn replace<T: ?Sized + PartialEq>(name: &mut Option<Arc<T>>, later: Option<&Arc<T>>) -> bool {
    let Some(later) = later else { return false };
    if name.as_ref() == Some(later) {
        return false;
    }
    name.replace(Arc::clone(later)).is_some()
}
