//! A flow, and what each agent has seen of it since it was compared last.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use agent_common::Direction;

use super::{
    agents::{Agents, Doubt, Index},
    report::{Bounds, Moment, Report},
    sighting::{Ends, FlowId, Sighting, Sum, Way},
};

/// How often a flow is reported that goes on.
pub(super) const REPORT_EVERY: Duration = Duration::from_mins(1);
/// Agents that see one flow.
const MOST_SIGHTS: usize = 8;

pub(super) struct Flow {
    ends: Ends,
    /// No packet that counts here is older.
    since: u64,
    /// What was before may be missing here, and why.
    whole_since: (u64, Doubt),
    last_seen: u64,
    changed: Instant,
    /// When it was reported last, or began.
    told: Instant,
    /// Whether all of it has been reported.
    is_told: bool,
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
    /// Where the packets were.
    at: [[Option<(u32, u32)>; 2]; 2],
    /// The packets of one way were on one side of two interfaces, so that they may be counted twice.
    is_at_several: bool,
}

/// By the end that sent the packets, then those that arrived and those that left.
type Passed = [[Sum; 2]; 2];

/// What it takes to judge whether a flow is quiet.
pub(super) struct Now {
    pub at: Instant,
    pub settle_ns: u64,
    pub wait: Duration,
}

impl Flow {
    pub(super) fn new(sighting: &Sighting, forgotten_to: u64, now: Instant) -> Self {
        Self {
            ends: sighting.ends,
            since: sighting.since,
            whole_since: (forgotten_to, Doubt::NoRoom),
            last_seen: 0,
            changed: now,
            told: now,
            is_told: false,
            sights: Vec::with_capacity(2),
        }
    }

    pub(super) fn agents(&self) -> impl Iterator<Item = Index> {
        self.sights.iter().map(|sight| sight.agent)
    }

    pub(super) fn last_seen(&self) -> u64 {
        self.last_seen
    }

    /// Fails if too many agents see it.
    pub(super) fn take(
        &mut self,
        sighting: &Sighting,
        agent: Index,
        window: [u64; 2],
        now: Instant,
    ) -> bool {
        let place = self.sights.iter().position(|sight| sight.agent == agent);
        let sight = match place {
            Some(place) => &mut self.sights[place],
            None if self.sights.len() == MOST_SIGHTS => return false,
            None => {
                self.sights.push(Sight::new(agent, window[0]));
                self.sights.last_mut().expect("it was pushed")
            }
        };
        sight.take(sighting, window);
        if std::mem::take(&mut self.is_told) {
            self.told = now;
            self.since = sighting.since;
        }
        self.since = self.since.min(sighting.since);
        self.changed = now;
        self.last_seen = self.last_seen.max(sighting.last_seen);
        true
    }

    /// Whether it can be forgotten.
    pub(super) fn is_over(&self, now: &Now) -> bool {
        self.is_told && now.at.duration_since(self.changed) >= now.wait
    }

    /// Whether it has been told at this moment.
    pub(super) fn is_told_now(&self, now: &Now) -> bool {
        self.is_told && self.told == now.at
    }

    /// What is to be said of the flow now.
    pub(super) fn due(&mut self, id: &FlowId, agents: &Agents, now: &Now) -> Vec<Report> {
        if self.is_told {
            return Vec::new();
        }
        let is_quiet = self.sights.iter().all(|sight| {
            let agent = agents.get(sight.agent);
            let is_silent = now.at.duration_since(agent.heard) >= now.wait;
            agent.has_ended || is_silent || self.is_settled(agents, sight, now.settle_ns)
        });
        // Another agent may be late.
        let waits = now.at.duration_since(self.changed) < now.wait;
        if is_quiet && self.sights.len() >= 2 || !waits {
            let reports = self.reports(id, agents, |from, to, sums| {
                let why = self.doubt(agents, now.settle_ns, from, to);
                why.or((sums[1].packets == 0).then_some(Doubt::OneSided))
            });
            self.tell(agents, now);
            return reports;
        }
        if now.at.duration_since(self.told) < REPORT_EVERY {
            return Vec::new();
        }
        let mut reports = self.reports(id, agents, |from, to, _| {
            let why = self.doubt(agents, now.settle_ns, from, to);
            Some(
                why.filter(|&why| why != Doubt::Silent)
                    .unwrap_or(Doubt::GoesOn),
            )
        });
        for report in &mut reports {
            if report.why == Some(Doubt::GoesOn) {
                report.lost = self.bounds(agents, report, now.settle_ns);
            }
        }
        self.told = now.at;
        reports
    }

    /// At the end of the collector.
    pub(super) fn stopped(&self, id: &FlowId, agents: &Agents) -> Vec<Report> {
        if self.is_told {
            return Vec::new();
        }
        self.reports(id, agents, |_, _, _| Some(Doubt::Stopped))
    }

    /// What was seen up to here is told, and begins anew. An agent that comes later has what no one counted.
    fn tell(&mut self, agents: &Agents, now: &Now) {
        let told_to = self.sights.iter().map(|sight| {
            let agent = agents.get(sight.agent);
            agent.seen_to.saturating_sub(agent.report_interval_ns)
        });
        let told_to = told_to.min().unwrap_or(0).min(self.last_seen);
        self.whole_since = (self.whole_since.0.max(told_to), Doubt::Late);
        self.is_told = true;
        self.told = now.at;
        self.sights.clear();
    }

    /// Whether the agent has reported what was before the flow was quiet, and that it has been quiet since.
    fn is_settled(&self, agents: &Agents, sight: &Sight, settle_ns: u64) -> bool {
        let agent = agents.get(sight.agent);
        let quiet_for = settle_ns.saturating_add(agent.report_interval_ns);
        agent.seen_to >= self.last_seen.saturating_add(quiet_for)
    }

    /// A report for each path between two agents. `judge` says why it is not exact.
    fn reports(
        &self,
        id: &FlowId,
        agents: &Agents,
        judge: impl Fn(&Sight, &Sight, [Sum; 2]) -> Option<Doubt>,
    ) -> Vec<Report> {
        let mut reports = Vec::new();
        for way in 0..2 {
            for from in &self.sights {
                for to in &self.sights {
                    if !is_path(from, to, way) {
                        continue;
                    }
                    let sent = from.now[way][Direction::Egress as usize];
                    let received = to.now[way][Direction::Ingress as usize];
                    let why = judge(from, to, [sent, received]);
                    let name = |sight: &Sight| Arc::clone(&agents.get(sight.agent).name);
                    reports.push(Report {
                        community_id: id.community_id,
                        ends: self.ends,
                        way,
                        agents: [from.agent, to.agent],
                        from: name(from),
                        to: name(to),
                        since: self.since,
                        until: self.last_seen,
                        sent,
                        received,
                        lost: why.is_none().then(|| Bounds::exact(sent, received)),
                        why,
                    });
                }
            }
        }
        reports
    }

    fn bounds(&self, agents: &Agents, report: &Report, settle_ns: u64) -> Option<Bounds> {
        let sight = |index| self.sights.iter().find(|sight| sight.agent == index);
        let [from, to] = report.agents;
        let (from, to) = (sight(from)?, sight(to)?);
        let late = [from, to].map(|sight| agents.get(sight.agent).report_interval_ns);
        let margin = late.into_iter().fold(settle_ns, u64::saturating_add);
        Some(Bounds::between(
            from.moments(agents, report.way, Direction::Egress),
            to.moments(agents, report.way, Direction::Ingress),
            margin,
        ))
    }

    /// Why the sums of these two may not be of the same packets.
    fn doubt(&self, agents: &Agents, settle_ns: u64, from: &Sight, to: &Sight) -> Option<Doubt> {
        let (whole_since, why) = self.whole_since;
        if whole_since != 0 && self.since <= whole_since {
            return Some(why);
        }
        [from, to].into_iter().find_map(|sight| {
            let agent = agents.get(sight.agent);
            let margin = settle_ns.saturating_add(agent.report_interval_ns);
            let is_before = |time: u64| self.since < time.saturating_add(margin);
            if is_before(agent.whole_since) {
                return Some(agent.why);
            }
            let mut at = sight.at.iter().flatten().flatten();
            if sight.is_at_several || at.any(|&one| is_before(agent.counts_since(one))) {
                return Some(Doubt::Interfaces);
            }
            let is_settled = self.is_settled(agents, sight, settle_ns);
            (!is_settled).then_some(Doubt::Silent)
        })
    }
}

/// Whether packets leave the one's network for the other's. Two routers make no path, since it is not known which comes first.
fn is_path(from: &Sight, to: &Sight, way: usize) -> bool {
    if from.agent == to.agent {
        return false;
    }
    let packets =
        |sight: &Sight, way: usize, side: Direction| sight.now[way][side as usize].packets;
    let arriving = |sight, way| packets(sight, way, Direction::Ingress);
    let leaving = |sight, way| packets(sight, way, Direction::Egress);
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
            at: Default::default(),
            is_at_several: false,
        }
    }

    fn take(&mut self, sighting: &Sighting, [begin, end]: [u64; 2]) {
        if end > self.window_end {
            self.before = (self.now, begin);
            self.window_end = end;
        }
        for ((sums, at), way) in self.now.iter_mut().zip(&mut self.at).zip(sighting.ways) {
            let Way { side, sum } = way;
            let Some(side) = side.filter(|_| sum.packets > 0) else {
                continue;
            };
            sums[side as usize] += sum;
            let at = at[side as usize].get_or_insert(sighting.interface);
            self.is_at_several |= *at != sighting.interface;
        }
    }

    /// What had passed, and when: as late as it is known, and earlier.
    fn moments(&self, agents: &Agents, way: usize, side: Direction) -> [Option<Moment>; 2] {
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
