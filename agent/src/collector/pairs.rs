//! What is lost on the way between two agents: packets of a flow that one saw leave and another did not see arrive.
//!
//! Flows are followed by their Community ID. When a flow has been quiet for a while, and every agent that saw it has reported
//! what was before, all that left and was not lost has arrived, so the difference is the loss, to the packet. Where an agent may
//! have missed a part, the report says so, and why. A flow that is never quiet is reported with bounds once a minute: what left
//! before an early moment and had not arrived by a later one is lost for sure.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

mod agents;
mod file;
mod report;
mod sighting;
#[cfg(test)]
mod tests;

use agents::{Agents, Doubt, Index, Noted};
pub(crate) use file::PairFile;
use report::Report;
use report::{Bounds, Moment};
use sighting::Sighting;
pub(super) use sighting::Sightings;
use sighting::{Ends, FlowId, Side, Sum, Way};

use crate::proto::{PairsStatus, PathStatus};

/// How often a flow is reported that goes on.
const REPORT_EVERY: Duration = Duration::from_mins(1);
/// How long a flow waits for the batches of an agent that is late, and is remembered when it is quiet.
const WAIT: Duration = Duration::from_mins(5);
/// Agents that see one flow.
const MOST_SIGHTS: usize = 8;
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
    paths: BTreeMap<[String; 2], PathStatus>,
    not_followed: u64,
    unpaired: u64,
}

struct Flow {
    ends: Ends,
    /// No packet that counts here is older.
    since: u64,
    last_seen: u64,
    changed: Instant,
    /// When it was reported last, or began.
    told: Instant,
    /// Whether all of it has been reported.
    is_told: bool,
    was_paired: bool,
    sights: Vec<Sight>,
}

/// What one agent has seen of a flow since the flow was quiet.
struct Sight {
    agent: Index,
    now: Passed,
    /// When the window ends in which packets came last.
    window_end: u64,
    /// What was before that window, and when it began.
    before: (Passed, u64),
}

/// By the end that sent the packets, then those that arrived and those that left.
type Passed = [[Sum; 2]; 2];

impl Pairs {
    pub(super) fn new(settings: PairSettings) -> Self {
        Self {
            settings,
            agents: Agents::default(),
            flows: HashMap::new(),
            paths: BTreeMap::new(),
            not_followed: 0,
            unpaired: 0,
        }
    }

    /// Takes a batch that has not been taken before.
    pub(super) fn take(&mut self, batch: &Sightings, now: Instant) {
        let agent = match self.agents.note(batch) {
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
                continue;
            }
            let since = sighting.began.unwrap_or(batch.window[0]);
            let flow = self
                .flows
                .entry(sighting.flow)
                .or_insert_with(|| Flow::new(sighting.ends, since, now));
            flow.take(sighting, agent, since, batch.window, now);
        }
    }

    /// Reports what can be compared by now, and forgets what has been quiet for long.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Report> {
        let mut reports = Vec::new();
        let Self {
            settings,
            agents,
            flows,
            unpaired,
            ..
        } = self;
        flows.retain(|id, flow| {
            let made = flow.due(id, agents, settings.settle, now);
            flow.was_paired |= !made.is_empty();
            reports.extend(made);
            let is_over = flow.is_told && now.duration_since(flow.changed) >= WAIT;
            *unpaired += u64::from(is_over && !flow.was_paired);
            !is_over
        });
        for report in &reports {
            self.add(report);
        }
        reports
    }

    fn add(&mut self, report: &Report) {
        // What goes on is added when it is quiet.
        if report.why == Some(Doubt::GoesOn) {
            return;
        }
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
        if report.why.is_some() {
            path.inexact += 1;
            return;
        }
        path.exact += 1;
        path.sent_packets += report.sent.packets;
        path.sent_ip_bytes += report.sent.ip_bytes;
        path.lost_packets += report.lost.map_or(0, |lost| lost.min);
        path.surplus_packets += report.surplus();
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

impl Flow {
    fn new(ends: Ends, since: u64, now: Instant) -> Self {
        Self {
            ends,
            since,
            last_seen: 0,
            changed: now,
            told: now,
            is_told: false,
            was_paired: false,
            sights: Vec::new(),
        }
    }

    fn take(
        &mut self,
        sighting: &Sighting,
        agent: Index,
        since: u64,
        window: [u64; 2],
        now: Instant,
    ) {
        let place = self.sights.iter().position(|sight| sight.agent == agent);
        let sight = match place {
            Some(place) => &mut self.sights[place],
            None if self.sights.len() == MOST_SIGHTS => return,
            None => {
                self.since = self.since.min(since);
                self.sights.push(Sight::new(agent, window[0]));
                self.sights.last_mut().expect("it was pushed")
            }
        };
        if self.is_told {
            self.is_told = false;
            self.told = now;
        }
        self.changed = now;
        self.last_seen = self.last_seen.max(sighting.last_seen);
        sight.take(sighting.ways, window);
    }

    /// What is to be said of the flow now.
    fn due(&mut self, id: &FlowId, agents: &Agents, settle: Duration, now: Instant) -> Vec<Report> {
        if self.is_told {
            return Vec::new();
        }
        let settle_ns = crate::clock::nanos(settle);
        let is_quiet = self.sights.iter().all(|sight| {
            let agent = agents.get(sight.agent);
            let quiet_for = settle_ns.saturating_add(agent.report_interval_ns);
            agent.has_ended || agent.seen_to >= self.last_seen.saturating_add(quiet_for)
        });
        let waits = now.duration_since(self.changed);
        // The other agent may be late.
        let is_alone = self.sights.len() < 2;
        if is_quiet && !is_alone || waits >= WAIT {
            let reports = self.reports(id, agents, settle_ns, |flow, from, to| {
                let why = if is_quiet {
                    flow.doubt(agents, settle_ns, from, to)
                } else {
                    Some(Doubt::Silent)
                };
                (why, false)
            });
            self.is_told = true;
            // What every agent has seen up to here is told.
            let told_to = self.sights.iter().map(|sight| {
                let agent = agents.get(sight.agent);
                agent.seen_to.saturating_sub(agent.report_interval_ns)
            });
            self.since = told_to
                .min()
                .unwrap_or(0)
                .max(self.last_seen.saturating_add(1));
            for sight in &mut self.sights {
                sight.now = Passed::default();
                sight.before = (Passed::default(), sight.window_end);
            }
            return reports;
        }
        if now.duration_since(self.told) < REPORT_EVERY {
            return Vec::new();
        }
        self.told = now;
        self.reports(id, agents, settle_ns, |flow, from, to| {
            let why = flow.doubt(agents, settle_ns, from, to);
            (Some(why.unwrap_or(Doubt::GoesOn)), why.is_none())
        })
    }

    /// A report for each path between two agents. `judge` says why it is not exact, and whether bounds make sense.
    fn reports(
        &self,
        id: &FlowId,
        agents: &Agents,
        settle_ns: u64,
        judge: impl Fn(&Self, &Sight, &Sight) -> (Option<Doubt>, bool),
    ) -> Vec<Report> {
        let mut reports = Vec::new();
        for way in 0..2 {
            for from in &self.sights {
                for to in &self.sights {
                    if !is_path(from, to, way) {
                        continue;
                    }
                    let (why, is_bounded) = judge(self, from, to);
                    let sent = from.now[way][Side::Leaving as usize];
                    let received = to.now[way][Side::Arriving as usize];
                    let lost = match (why, is_bounded) {
                        (None, _) => Some(Bounds::exact(sent, received)),
                        (Some(_), true) => {
                            let moments = |sight: &Sight, side| sight.moments(agents, way, side);
                            let margin = settle_ns
                                + agents.get(from.agent).report_interval_ns
                                + agents.get(to.agent).report_interval_ns;
                            Some(Bounds::between(
                                moments(from, Side::Leaving),
                                moments(to, Side::Arriving),
                                margin,
                            ))
                        }
                        (Some(_), false) => None,
                    };
                    reports.push(Report {
                        community_id: id.community_id,
                        ends: self.ends,
                        way,
                        from: agents.get(from.agent).name.clone(),
                        to: agents.get(to.agent).name.clone(),
                        since: self.since,
                        until: self.last_seen,
                        sent,
                        received,
                        lost,
                        why,
                    });
                }
            }
        }
        reports
    }

    /// Why the sums of these two may not be of the same packets.
    fn doubt(&self, agents: &Agents, settle_ns: u64, from: &Sight, to: &Sight) -> Option<Doubt> {
        [from, to].into_iter().find_map(|sight| {
            let agent = agents.get(sight.agent);
            let margin = settle_ns.saturating_add(agent.report_interval_ns);
            if self.since < agent.whole_since.saturating_add(margin) {
                return Some(agent.why);
            }
            let ends_in_time =
                !agent.has_ended || self.last_seen.saturating_add(settle_ns) <= agent.seen_to;
            (!ends_in_time).then_some(Doubt::Silent)
        })
    }
}

/// Whether packets leave the one's network for the other's. Of two routers it is not known which comes first.
fn is_path(from: &Sight, to: &Sight, way: usize) -> bool {
    if from.agent == to.agent {
        return false;
    }
    let packets = |sight: &Sight, way: usize, side: Side| sight.now[way][side as usize].packets;
    let arriving = |sight, way| packets(sight, way, Side::Arriving);
    let leaving = |sight, way| packets(sight, way, Side::Leaving);
    let sends = leaving(from, way) > 0;
    // All may be lost that went to the one that only answers.
    let answers = leaving(to, 1 - way) > 0 && arriving(to, 1 - way) == 0;
    let receives = arriving(to, way) > 0 || (leaving(to, way) == 0 && answers);
    let from_passes_on = arriving(from, way) > 0;
    let to_passes_on = leaving(to, way) > 0;
    sends && receives && !(from_passes_on && to_passes_on)
}

impl Sight {
    fn new(agent: Index, window_begin: u64) -> Self {
        Self {
            agent,
            now: Passed::default(),
            window_end: 0,
            before: (Passed::default(), window_begin),
        }
    }

    fn take(&mut self, ways: [Way; 2], [begin, end]: [u64; 2]) {
        if end > self.window_end {
            self.before = (self.now, begin);
            self.window_end = end;
        }
        for (sums, way) in self.now.iter_mut().zip(ways) {
            if let Some(side) = way.side {
                sums[side as usize] += way.sum;
            }
        }
    }

    /// What had passed, and when: as late as it is known, and earlier.
    fn moments(&self, agents: &Agents, way: usize, side: Side) -> [Option<Moment>; 2] {
        let moment = |passed: &Passed, at| Moment {
            sum: passed[way][side as usize],
            at,
        };
        let (before, began) = &self.before;
        let seen_to = agents.get(self.agent).seen_to;
        let earlier = moment(before, *began);
        if self.window_end <= seen_to {
            [Some(moment(&self.now, seen_to)), Some(earlier)]
        } else {
            // A scan is under way, of which a part has come.
            [Some(earlier), None]
        }
    }
}
