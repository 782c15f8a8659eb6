//! What is lost on the way between two agents: packets of a flow that one saw leave and another did not see arrive.
//!
//! Flows are followed by their Community ID ([`flow`]). When a flow has been quiet for a while, and every agent that saw it has
//! reported what was before, all that left and was not lost has arrived, so the difference is the loss, to the packet. Where an
//! agent may have missed a part ([`agents`]), or this collector, the report says so, and why. A flow that is never quiet is
//! reported with bounds once a minute: what left before an early moment and had not arrived by a later one is lost for sure.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::{Duration, Instant},
};

mod agents;
mod file;
mod flow;
mod report;
mod sighting;
#[cfg(test)]
mod tests;

use agents::{Agents, Doubt, Noted};
pub(crate) use file::PairFile;
use flow::{Flow, Now};
use report::Report;
use sighting::FlowId;
pub(super) use sighting::Sightings;

use crate::{
    clock,
    proto::{PairsStatus, PathStatus},
};

/// How long a flow waits at least for the batches of an agent that is late, and is remembered when it is quiet.
const WAIT: Duration = Duration::from_mins(5);
/// An agent that says it reports less often is waited for no longer.
const MOST_LATE: Duration = Duration::from_hours(1);
/// Paths that have sums of their own.
const MOST_PATHS: usize = 1000;

/// How agents are compared.
#[derive(Clone, Copy, Debug)]
pub struct PairSettings {
    /// How much the clocks of two hosts may differ, with the time that packets are on their way.
    pub settle: Duration,
    pub max_flows: usize,
}

pub(super) struct Pairs {
    settings: PairSettings,
    agents: Agents,
    flows: HashMap<FlowId, Flow>,
    /// Of what was seen until then, a part may be forgotten, or never have been followed.
    forgotten_to: u64,
    paths: BTreeMap<[String; 2], PathStatus>,
    not_followed: u64,
    unpaired: u64,
}

impl Pairs {
    pub(super) fn new(settings: PairSettings) -> Self {
        Self {
            settings,
            agents: Agents::default(),
            flows: HashMap::new(),
            forgotten_to: 0,
            paths: BTreeMap::new(),
            not_followed: 0,
            unpaired: 0,
        }
    }

    fn settle_ns(&self) -> u64 {
        clock::nanos(self.settings.settle)
    }

    fn wait(&self, now: Instant) -> Duration {
        let latest = self.agents.latest(WAIT, now).min(MOST_LATE);
        let slowest = self.settings.settle.saturating_add(latest);
        WAIT.max(slowest.saturating_mul(3))
    }

    /// Takes a batch that has not been taken before.
    pub(super) fn take(&mut self, batch: &Sightings, now: Instant) {
        let settle_ns = self.settle_ns();
        let mut noted = self.agents.note(batch, settle_ns, now);
        if noted == Noted::Nowhere {
            let flows = self.flows.values();
            let named: HashSet<_> = flows.flat_map(Flow::agents).collect();
            let silent_for = self.wait(now);
            self.agents.forget(&named, silent_for, now);
            noted = self.agents.note(batch, settle_ns, now);
        }
        let agent = match noted {
            Noted::At(agent) => agent,
            Noted::Elsewhere => return,
            Noted::Nowhere => {
                self.not_followed += batch.flows.len() as u64;
                return;
            }
        };
        for sighting in &batch.flows {
            let is_full = self.flows.len() >= self.settings.max_flows;
            if is_full && !self.flows.contains_key(&sighting.flow) {
                self.not_followed += 1;
                self.forgotten_to = self.forgotten_to.max(batch.window[1]);
                continue;
            }
            let forgotten_to = self.forgotten_to;
            let flow = self
                .flows
                .entry(sighting.flow)
                .or_insert_with(|| Flow::new(sighting, forgotten_to, now));
            let has_room = self.agents.has_room_in(flow.agents(), agent);
            if !has_room || !flow.take(sighting, agent, batch.window, now) {
                self.not_followed += 1;
            }
        }
    }

    /// Reports what can be compared by now, and forgets what has been quiet for long.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Report> {
        let mut reports = Vec::new();
        let now = Now {
            at: now,
            settle_ns: self.settle_ns(),
            wait: self.wait(now),
        };
        let Self {
            agents,
            flows,
            unpaired,
            forgotten_to,
            ..
        } = self;
        flows.retain(|id, flow| {
            let made = flow.due(id, agents, &now);
            *unpaired += u64::from(flow.is_told_now(&now) && made.is_empty());
            reports.extend(made);
            let is_over = flow.is_over(&now);
            if is_over {
                // An agent may be later still.
                *forgotten_to = (*forgotten_to).max(flow.last_seen());
            }
            !is_over
        });
        self.add_all(&reports);
        reports
    }

    /// Reports what has not been told, at the end.
    pub(super) fn end(&mut self) -> Vec<Report> {
        let flows = self.flows.iter();
        let reports: Vec<_> = flows
            .flat_map(|(id, flow)| flow.stopped(id, &self.agents))
            .collect();
        self.flows.clear();
        self.add_all(&reports);
        reports
    }

    fn add_all(&mut self, reports: &[Report]) {
        for report in reports {
            self.add(report);
        }
    }

    fn add(&mut self, report: &Report) {
        let mut name = [&report.from, &report.to].map(|agent| agent.hostname.clone());
        if self.paths.len() >= MOST_PATHS && !self.paths.contains_key(&name) {
            name = Default::default();
        }
        let path = self
            .paths
            .entry(name)
            .or_insert_with_key(|[from, to]| PathStatus {
                from_hostname: from.clone(),
                to_hostname: to.clone(),
                ..PathStatus::default()
            });
        match report.why {
            // It is added when it is quiet.
            Some(Doubt::GoesOn) => path.going_on += 1,
            Some(_) => path.inexact += 1,
            None => {
                path.exact += 1;
                let lost = report.lost.map_or(0, |lost| lost.min);
                for (sum, more) in [
                    (&mut path.sent_packets, report.sent.packets),
                    (&mut path.sent_ip_bytes, report.sent.ip_bytes),
                    (&mut path.lost_packets, lost),
                    (&mut path.surplus_packets, report.surplus()),
                ] {
                    *sum = sum.saturating_add(more);
                }
            }
        }
    }

    pub(super) fn status(&self) -> PairsStatus {
        PairsStatus {
            paths: self.paths.values().cloned().collect(),
            flows: self.flows.len() as u64,
            capacity: self.settings.max_flows as u64,
            not_followed: self.not_followed,
            unpaired: self.unpaired,
            ..PairsStatus::default()
        }
    }
}
