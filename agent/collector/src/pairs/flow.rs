//! A flow, and what each agent has seen of it since it was last compared.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use agent_common::Direction;
use sys::clock;
use tls::identity::Identity;

use super::{
    WAIT,
    agents::{Agents, Doubt, Index},
    details::Details,
    report::{Bounds, Moment, Report},
    sighting::{FlowId, Sighting, Sum, Way},
};
use crate::streams::unix_now;

mod conversation;
mod kept;
pub(super) use conversation::{Conversation, Grade, State};
use kept::Kept;

/// How often a flow that goes on is reported.
pub(super) const REPORT_EVERY: Duration = Duration::from_mins(1);
/// How long the agents at the ends are given to tell what they knew later.
const WAIT_FOR_NEWS: Duration = Duration::from_secs(30);
/// The most agents per flow.
pub(super) const MOST_SIGHTS: usize = 8;

pub(super) struct Flow {
    /// The sender that is charged for the flow.
    pub sender: Identity,
    /// Windows that came before the flow was followed end at this time or earlier.
    followed_from: u64,
    /// Packets before this time may be missing here, and the reason.
    whole_since: (u64, Doubt),
    /// The end of the last window of an agent that found no place in this flow.
    refused_to: u64,
    last_seen: u64,
    changed: Instant,
    /// When the flow was last reported, or when it began.
    told: Instant,
    /// When it was first seen since it was last quiet.
    begun: Instant,
    /// Everything seen so far has been reported.
    is_told: bool,
    sights: Vec<Sight>,
    /// For conversations.
    kept: Kept,
}

/// One agent's view of a flow since the flow was last quiet.
struct Sight {
    agent: Index,
    now: Passed,
    /// No packet counted here is older.
    since: u64,
    last_seen: u64,
    changed: Instant,
    /// The end of the last window with packets.
    window_end: u64,
    /// The counts before that window, and the start of that window.
    before: (Passed, u64),
    /// The interface of the packets, by way and side.
    at: [[Option<(u32, u32)>; 2]; 2],
    /// The packets of one way were seen on the same side of two interfaces, so they may be counted twice.
    is_at_several: bool,
    /// The network namespace of all packets, and whether some were in another one.
    netns: Option<u32>,
    is_in_several_netns: bool,
    /// The drops may lack some.
    has_old_drops: bool,
    details: Option<Box<Details>>,
}

/// Sums by the end that sent the packets, then by side: arrived, left.
type Passed = [[Sum; 2]; 2];

/// The current time and settings, to judge whether a flow is quiet.
pub(super) struct Now {
    pub time: Time,
    pub settle_ns: u64,
    /// The least time that a flow is remembered.
    pub least_ns: u64,
    pub wait: Duration,
    /// How long a flow seen by only one agent waits for another, and how long a quiet flow is remembered.
    pub remember: Duration,
}

/// The same moment by both of the collector's clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    pub at: Instant,
    pub unix_ns: u64,
}

impl Time {
    pub(super) fn now() -> Self {
        Self {
            at: Instant::now(),
            unix_ns: clock::nanos(unix_now()),
        }
    }
}

/// The next step for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Report it with exact numbers, if possible.
    Tell,
    /// Report it with bounds.
    GoOn,
    Forget,
}

impl Now {
    /// The latest time that an agent with a correct clock can have reported.
    fn latest(&self) -> u64 {
        self.time.unix_ns.saturating_add(self.settle_ns)
    }

    /// No flow that may be forgotten has packets after this time.
    pub(super) fn latest_forgotten(&self) -> u64 {
        let latest = self.latest().saturating_sub(self.least_ns);
        latest.saturating_add(self.settle_ns)
    }
}

impl Flow {
    pub(super) fn new(
        sender: Identity,
        followed_from: u64,
        forgotten_to: u64,
        now: Instant,
    ) -> Self {
        Self {
            sender,
            followed_from,
            whole_since: (forgotten_to, Doubt::NoRoom),
            refused_to: 0,
            last_seen: 0,
            changed: now,
            told: now,
            begun: now,
            is_told: false,
            sights: Vec::with_capacity(2),
            kept: Kept::default(),
        }
    }

    pub(super) fn agents(&self) -> impl Iterator<Item = Index> {
        self.sights.iter().map(|sight| sight.agent)
    }

    /// Whether packets were seen since the flow was last reported as quiet.
    pub(super) fn has_packets(&self) -> bool {
        self.sights.iter().any(Sight::has_packets)
    }

    /// Whether there is anything new since the last report, and more is to come.
    pub(super) fn goes_on(&self, agents: &Agents, now: &Now) -> bool {
        self.changed >= self.told && !are_quiet(self.sights.iter(), agents, now)
    }

    /// Notes a conversation that is written.
    pub(super) fn tell(&mut self, conversation: &Conversation) {
        if self.has_packets() {
            self.kept.tell(conversation);
        } else {
            self.kept.tell_news(conversation);
        }
    }

    /// Whether everything seen so far has been reported.
    pub(super) fn is_told(&self) -> bool {
        self.is_told
    }

    /// Once the flow is forgotten, packets up to this time may be missing.
    pub(super) fn forgotten_to(&self) -> u64 {
        self.last_seen.max(self.whole_since.0)
    }

    /// Adds a sighting. Returns false if too many agents see the flow.
    pub(super) fn add(
        &mut self,
        sighting: &Sighting,
        agent: Index,
        window: [u64; 2],
        now: Instant,
    ) -> bool {
        let place = self.sights.iter().position(|sight| sight.agent == agent);
        let told = self.kept.told_end(agent).map(|told| told.failure);
        // Without packets, only the agents at the ends may add to a conversation that is written.
        if !sighting.has_packets() && place.is_none() && told.is_none() {
            return true;
        }
        if place.is_none() && self.sights.len() == MOST_SIGHTS {
            self.refused_to = self.refused_to.max(window[1]);
            self.changed = now;
            return false;
        }
        let (details, has_old_drops) = self.kept.since_before(sighting, agent);
        if !sighting.has_packets() {
            let before = place.and_then(|place| self.sights[place].details.as_ref());
            let failure = before.map_or(told, |before| Some(before.failure));
            let is_news = details.as_ref().is_some_and(|details| {
                let has_failed = details.failure.is_some() && failure != Some(details.failure);
                has_failed || has_old_drops || details.ends.iter().any(|end| end.dropped > 0)
            });
            if !is_news {
                return true;
            }
        }
        let place = place.unwrap_or_else(|| {
            self.sights.push(Sight::new(agent, window[0], now));
            self.sights.len() - 1
        });
        let sight = &mut self.sights[place];
        sight.add(sighting, window, now);
        sight.add_details(details, sighting);
        sight.has_old_drops |= has_old_drops;
        if std::mem::take(&mut self.is_told) {
            (self.told, self.begun) = (now, now);
        }
        self.changed = now;
        self.last_seen = self.last_seen.max(sighting.last_seen);
        true
    }

    /// The next step for the flow, if there is one.
    pub(super) fn next(&self, agents: &Agents, now: &Now) -> Option<Next> {
        let unchanged_for = now.time.at.duration_since(self.changed);
        if self.is_told {
            return (unchanged_for >= now.remember).then_some(Next::Forget);
        }
        let begun_for = now.time.at.duration_since(self.begun);
        if !self.has_packets() {
            return (begun_for >= WAIT_FOR_NEWS).then_some(Next::Tell);
        }
        let is_alone = self.sights.len() < 2;
        let is_quiet = !is_alone && are_quiet(self.sights.iter(), agents, now);
        // Another agent may be late.
        if is_quiet && begun_for < now.remember && self.waits_for_an_end(agents) {
            return None;
        }
        let wait = if is_alone { now.remember } else { now.wait };
        if is_quiet || unchanged_for >= wait || self.is_held_up(agents, now) {
            return Some(Next::Tell);
        }
        let is_time = now.time.at.duration_since(self.told) >= REPORT_EVERY;
        is_time.then_some(Next::GoOn)
    }

    /// Whether agents of two senders have long been quiet, and others keep the flow from being quiet. The wait for the
    /// others ends, since they could claim to see anything.
    fn is_held_up(&self, agents: &Agents, now: &Now) -> bool {
        let unchanged_for = |sight: &Sight| now.time.at.duration_since(sight.changed);
        // The cheap check goes first: it needs no look at the agents.
        let quiet = self.sights.iter();
        let quiet = quiet.filter(|sight| unchanged_for(sight) >= WAIT);
        if quiet.clone().count() < 2 {
            return false;
        }
        let wait = |sight: &Sight| agents.get(sight.agent).wait(now.settle_ns);
        let quiet = quiet.filter(|sight| unchanged_for(sight) >= wait(sight));
        let mut senders = quiet.clone().map(|sight| &agents.get(sight.agent).sender);
        let first = senders.next();
        senders.any(|sender| Some(sender) != first) && are_quiet(quiet, agents, now)
    }

    /// Reports a flow that is quiet or has waited long enough, and starts it over.
    pub(super) fn due_reports(&mut self, id: &FlowId, agents: &Agents, now: &Now) -> Vec<Report> {
        let reports = self.reports(id, agents, |from, to, sums| {
            let why = self.doubt(agents, now.settle_ns, from, to);
            why.or((sums[1].packets == 0).then_some(Doubt::OneSided))
        });
        self.begin_anew(now);
        reports
    }

    /// Reports a flow that is not quiet.
    pub(super) fn go_on(&mut self, id: &FlowId, agents: &Agents, now: &Now) -> Vec<Report> {
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
        self.told = now.time.at;
        reports
    }

    /// Reports the flow when the collector stops.
    pub(super) fn stopped(&self, id: &FlowId, agents: &Agents) -> Vec<Report> {
        self.reports(id, agents, |_, _, _| Some(Doubt::Stopped))
    }

    /// Starts over after a report. A later agent's packets may belong to the reported ones.
    fn begin_anew(&mut self, now: &Now) {
        // By the clock of an agent that comes later. An agent that was settled has no packets before this time.
        let before_settled = now.settle_ns.saturating_sub(1);
        // Do not trust an agent that claims to have seen packets later than possible.
        let last_seen = self.last_seen.min(now.latest());
        self.is_not_whole(last_seen.saturating_add(before_settled), Doubt::Late);
        let refused_to = std::mem::take(&mut self.refused_to);
        if refused_to > 0 {
            let refused_to = refused_to.min(now.latest());
            self.is_not_whole(refused_to.saturating_add(now.settle_ns), Doubt::NoRoom);
        }
        self.is_told = true;
        self.told = now.time.at;
        let sights = std::mem::take(&mut self.sights);
        let is_seen = |agent| sights.iter().any(|sight| sight.agent == agent);
        self.kept.forget_others(is_seen);
    }

    /// Packets before `time` may be missing.
    fn is_not_whole(&mut self, time: u64, why: Doubt) {
        if time >= self.whole_since.0 {
            self.whole_since = (time, why);
        }
    }

    /// Makes a report for each path between two agents. `judge` says why it is not exact.
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
                        sender: self.sender.clone(),
                        community_id: id.community_id,
                        ends: id.ends,
                        way,
                        agents: [from.agent, to.agent],
                        from: name(from),
                        to: name(to),
                        since: from.since.min(to.since),
                        until: from.last_seen.max(to.last_seen),
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

    /// Why the sums of these two agents may not count the same packets.
    fn doubt(&self, agents: &Agents, settle_ns: u64, from: &Sight, to: &Sight) -> Option<Doubt> {
        let (whole_since, why) = self.whole_since;
        let since = from.since.min(to.since);
        let last_seen = from.last_seen.max(to.last_seen);
        if whole_since != 0 && since <= whole_since {
            return Some(why);
        }
        [from, to].into_iter().find_map(|sight| {
            let agent = agents.get(sight.agent);
            let margin = settle_ns.saturating_add(agent.report_interval_ns);
            let is_before = |time: u64| since < time.saturating_add(margin);
            if is_before(agent.whole_since) {
                return Some(agent.why);
            }
            // Once a flow is followed, it is not refused for lack of a place.
            if is_before(agent.refused_to.min(self.followed_from)) {
                return Some(Doubt::NoRoom);
            }
            let mut at = sight.at.iter().flatten().flatten();
            if sight.is_at_several || at.any(|&one| is_before(agent.counts_since(one))) {
                return Some(Doubt::Interfaces);
            }
            let is_settled = agents.is_settled(sight.agent, last_seen, settle_ns);
            (!is_settled).then_some(Doubt::Silent)
        })
    }
}

/// Whether these agents have reported everything they saw, and that nothing followed.
fn are_quiet<'a>(
    sights: impl Iterator<Item = &'a Sight> + Clone,
    agents: &Agents,
    now: &Now,
) -> bool {
    let last_seen = sights.clone().map(|sight| sight.last_seen).max();
    let last_seen = last_seen.unwrap_or_default();
    let mut agents_of_it = sights.map(|sight| sight.agent);
    agents_of_it.all(|agent| {
        agents.get(agent).is_gone(now.settle_ns, now.time.at)
            || agents.is_settled(agent, last_seen, now.settle_ns)
    })
}

/// Whether packets leave one agent's network for the other's. Two routers form no path, since their order is unknown.
fn is_path(from: &Sight, to: &Sight, way: usize) -> bool {
    if from.agent == to.agent {
        return false;
    }
    let packets =
        |sight: &Sight, way: usize, side: Direction| sight.now[way][side as usize].packets;
    let arriving = |sight, way| packets(sight, way, Direction::Ingress);
    let leaving = |sight, way| packets(sight, way, Direction::Egress);
    let sends = leaving(from, way) > 0;
    // If the receiver only answers, all packets to it may be lost.
    let answers = leaving(to, 1 - way) > 0 && arriving(to, 1 - way) == 0;
    let receives = arriving(to, way) > 0 || (leaving(to, way) == 0 && answers);
    let from_passes_on = arriving(from, way) > 0;
    let to_passes_on = leaving(to, way) > 0;
    sends && receives && !(from_passes_on && to_passes_on)
}

impl Sight {
    fn new(agent: Index, window_begin: u64, now: Instant) -> Self {
        Self {
            agent,
            now: Passed::default(),
            since: u64::MAX,
            last_seen: 0,
            changed: now,
            window_end: 0,
            before: (Passed::default(), window_begin),
            at: Default::default(),
            is_at_several: false,
            netns: None,
            is_in_several_netns: false,
            has_old_drops: false,
            details: None,
        }
    }

    fn add(&mut self, sighting: &Sighting, [begin, end]: [u64; 2], now: Instant) {
        self.changed = now;
        if !sighting.has_packets() {
            return;
        }
        self.since = self.since.min(sighting.since);
        self.last_seen = self.last_seen.max(sighting.last_seen);
        let netns = sighting.interface.0;
        self.is_in_several_netns |= *self.netns.get_or_insert(netns) != netns;
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

    fn add_details(&mut self, details: Option<Details>, sighting: &Sighting) {
        let Some(mut details) = details else { return };
        // A flow has a first record at each interface.
        let is_another = self.details.as_ref().is_none_or(|before| {
            before.interface == sighting.interface && before.began != details.began
        });
        details.new_flows = (sighting.is_first && is_another).into();
        match &mut self.details {
            None => self.details = Some(Box::new(details)),
            Some(before) => before.add(&details),
        }
    }

    /// Two points in time with the sums up to then: the latest known one, and an earlier one.
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
            // Only part of the current scan has come.
            [Some(earlier), None]
        }
    }
}
