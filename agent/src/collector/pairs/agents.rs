//! What is known of each agent: up to when it has reported, and since when nothing of it is missing.

use std::collections::HashMap;

use serde::Serialize;

use super::sighting::{Gaps, Sightings};
use crate::proto::AgentIdentity;

/// Starts of agents. More than that are not compared.
const MOST: usize = 10_000;

/// Why what two agents counted cannot be held against each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Doubt {
    /// The flow may have begun before both agents had reported to this collector.
    Began,
    /// Batches of an agent are missing.
    Lost,
    /// An agent's flow table has refused packets.
    TableFull,
    /// An agent's filter has left out packets.
    Filtered,
    /// An agent has counted super-frames of which it did not know how many packets they were.
    InexactSize,
    /// An agent has ended, or reports nothing any more.
    Silent,
    /// The flow goes on: packets are on their way.
    GoesOn,
}

/// An agent's place in the table.
pub(super) type Index = u32;

#[derive(Default)]
pub(super) struct Agents {
    all: Vec<Agent>,
    /// By machine, boot and start.
    by_name: HashMap<[String; 3], Index>,
}

/// What became of a batch.
pub(super) enum Noted {
    At(Index),
    /// It has come on another stream of the agent.
    Elsewhere,
    /// There are too many agents.
    Nowhere,
}

pub(super) struct Agent {
    pub name: AgentIdentity,
    /// The stream that is read. An agent may have two outputs to this collector.
    stream_id: u64,
    seq: u64,
    /// When the last scan ended that has come whole.
    pub seen_to: u64,
    /// When the first scan began of which, and of those after it, nothing is missing.
    pub whole_since: u64,
    /// Why what was before is not whole.
    pub why: Doubt,
    pub has_ended: bool,
    pub report_interval_ns: u64,
    gaps: Gaps,
}

impl Agents {
    pub(super) fn get(&self, index: Index) -> &Agent {
        &self.all[index as usize]
    }

    pub(super) fn note(&mut self, batch: &Sightings) -> Noted {
        let AgentIdentity {
            agent_id,
            boot_id,
            instance_id,
            ..
        } = &batch.agent;
        let name = [agent_id, boot_id, instance_id].map(Clone::clone);
        let index = match self.by_name.get(&name) {
            Some(&index) => index,
            None if self.all.len() == MOST => return Noted::Nowhere,
            None => {
                let index = self.all.len() as Index;
                self.all.push(Agent::first(batch));
                self.by_name.insert(name, index);
                return Noted::At(index);
            }
        };
        if self.all[index as usize].note(batch) {
            Noted::At(index)
        } else {
            Noted::Elsewhere
        }
    }
}

impl Agent {
    fn first(batch: &Sightings) -> Self {
        Self {
            name: batch.agent.clone(),
            stream_id: batch.stream_id,
            seq: batch.seq,
            seen_to: 0,
            whole_since: batch.window[0],
            why: Doubt::Began,
            has_ended: batch.is_final,
            report_interval_ns: batch.report_interval_ns,
            gaps: batch.gaps,
        }
        .up_to(batch)
    }

    fn up_to(mut self, batch: &Sightings) -> Self {
        if batch.is_last_of_scan {
            self.seen_to = batch.window[1];
        }
        self
    }

    /// Whether the batch counts.
    fn note(&mut self, batch: &Sightings) -> bool {
        let [_, window_end] = batch.window;
        if batch.stream_id != self.stream_id {
            // Another output has brought the same scan.
            if window_end <= self.seen_to {
                return false;
            }
            self.stream_id = batch.stream_id;
            self.gaps.lost_batches = batch.gaps.lost_batches;
            self.is_not_whole(batch, Doubt::Lost);
        } else if batch.seq != self.seq + 1 || batch.gaps.lost_batches > self.gaps.lost_batches {
            self.gaps.lost_batches = batch.gaps.lost_batches;
            self.is_not_whole(batch, Doubt::Lost);
        }
        self.seq = batch.seq;
        if batch.has_refused {
            self.is_not_whole(batch, Doubt::TableFull);
        }
        if let Some(account) = batch.gaps.account {
            let before = self.gaps.account.unwrap_or_default();
            let reasons = [Doubt::TableFull, Doubt::Filtered, Doubt::InexactSize];
            for (reason, (after, before)) in
                reasons.into_iter().zip(account.into_iter().zip(before))
            {
                if after != before && self.gaps.account.is_some() {
                    self.is_not_whole(batch, reason);
                }
            }
            self.gaps.account = Some(account);
        }
        self.has_ended |= batch.is_final;
        self.report_interval_ns = batch.report_interval_ns;
        if batch.is_last_of_scan {
            self.seen_to = self.seen_to.max(window_end);
        }
        true
    }

    /// What passed until the end of this batch's window is not known to be whole.
    fn is_not_whole(&mut self, batch: &Sightings, why: Doubt) {
        self.whole_since = self.whole_since.max(batch.window[1]).max(self.seen_to);
        self.why = why;
    }
}
