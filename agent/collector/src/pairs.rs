//! Finds packets that are lost between two agents: one saw them leave, and the other did not see them arrive.
//!
//! Flows are matched by their Community ID ([`flow`]). Once a flow has been quiet for a while, and every agent that
//! saw it has reported up to then, every packet has arrived or is lost, so the difference is the exact loss. If an
//! agent ([`agents`]) or this collector may have missed packets, the report says so, and why. A flow that is never
//! quiet is reported with bounds once a minute: packets that left before an early moment and had not arrived by a
//! later one are certainly lost.
//!
//! From the same flows, it makes [`Conversation`]s: one record for both ends.

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::Entry},
    time::Duration,
};

use proto::{ConversationsStatus, PairsStatus, PathStatus};
use sys::clock;

mod agents;
mod details;
mod file;
mod flow;
mod report;
mod room;
mod sighting;
#[cfg(test)]
mod tests;

use agents::{Agents, Doubt, Index, Noted};
pub(super) use file::Statuses;
pub use file::{PairFiles, PairOutputs};
use flow::{Conversation, Flow, Grade, Next, Now, State, Time};
use report::Report;
use room::Room;
pub(super) use sighting::Sightings;
use sighting::{FlowId, Sighting};

/// The least time that a flow waits for a late agent's batches, and that a quiet flow is remembered.
const WAIT: Duration = Duration::from_mins(5);
/// The longest report interval that is waited for, whatever an agent says.
const MOST_LATE: Duration = Duration::from_hours(1);
/// Paths with their own sums.
const MOST_PATHS: usize = 1000;

/// How long to wait for an agent whose records may come this late.
fn wait_for(settle: Duration, late: Duration) -> Duration {
    let slowest = settle.saturating_add(late.min(MOST_LATE));
    WAIT.max(slowest.saturating_mul(3))
}

/// How agents are compared.
#[derive(Clone, Copy, Debug)]
pub struct PairSettings {
    /// The most that the clocks of two hosts may differ, plus the time packets take between them.
    pub settle: Duration,
    /// The most flows in memory. One sender gets at most half of them.
    pub max_flows: usize,
}

/// Reports and conversations that are to be written.
#[derive(Default)]
pub(super) struct Due {
    pub reports: Vec<Report>,
    pub conversations: Vec<Conversation>,
}

impl Due {
    fn len(&self) -> usize {
        self.reports.len() + self.conversations.len()
    }
}

pub(super) struct Pairs {
    settings: PairSettings,
    agents: Agents,
    flows: HashMap<FlowId, Flow>,
    /// Places for flows. Each flow is charged to the sender that saw it first.
    places: Room,
    /// Flows that are due to be reported or forgotten, in reverse order.
    to_visit: Vec<FlowId>,
    /// Packets seen up to this time may belong to a flow that was forgotten.
    forgotten_to: u64,
    paths: BTreeMap<[String; 2], PathStatus>,
    not_followed: u64,
    unpaired: u64,
    /// The conversations so far, if they are made.
    conversations: Option<ConversationsStatus>,
}

impl Pairs {
    pub(super) fn new(settings: PairSettings, with_conversations: bool) -> Self {
        Self {
            settings,
            agents: Agents::default(),
            flows: HashMap::new(),
            places: Room::new(settings.max_flows),
            to_visit: Vec::new(),
            forgotten_to: 0,
            paths: BTreeMap::new(),
            not_followed: 0,
            unpaired: 0,
            conversations: with_conversations.then(ConversationsStatus::default),
        }
    }

    pub(super) fn makes_conversations(&self) -> bool {
        self.conversations.is_some()
    }

    fn settle_ns(&self) -> u64 {
        clock::nanos(self.settings.settle)
    }

    fn now(&self, time: Time) -> Now {
        let PairSettings { settle, .. } = self.settings;
        let wait = wait_for(settle, self.agents.latest(WAIT, time.at));
        let least = wait_for(settle, Duration::ZERO);
        // An agent that says it reports late makes all flows wait. That must not fill the table.
        let is_crowded = self.places.is_more_than_half_full();
        Now {
            time,
            settle_ns: self.settle_ns(),
            least_ns: clock::nanos(least),
            wait,
            remember: if is_crowded { least } else { wait },
        }
    }

    /// Takes in a batch. Each batch must be taken only once.
    pub(super) fn add_batch(&mut self, batch: &Sightings, time: Time) {
        let settle_ns = self.settle_ns();
        let mut noted = self.agents.note(batch, settle_ns, time.at);
        if noted == Noted::Nowhere && self.agents.may_forget(time.at) {
            let flows = self.flows.values();
            let named: HashSet<_> = flows.flat_map(Flow::agents).collect();
            let silent_for = self.now(time).wait;
            self.agents.forget(&named, silent_for, time.at);
            noted = self.agents.note(batch, settle_ns, time.at);
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
            let is_followed = self.follow(sighting, agent, batch, time);
            self.not_followed += u64::from(!is_followed);
        }
    }

    /// Returns whether there was room. If not, only reports that may lack these packets become inexact.
    fn follow(&mut self, sighting: &Sighting, agent: Index, batch: &Sightings, time: Time) -> bool {
        let latest = time.unix_ns.saturating_add(self.settle_ns());
        let end = batch.window[1];
        let flow = match self.flows.entry(sighting.flow) {
            Entry::Occupied(flow) => flow.into_mut(),
            Entry::Vacant(place) => {
                // What is said later of a flow that was forgotten.
                if !sighting.has_packets() {
                    return true;
                }
                if !self.places.take(&batch.sender) {
                    self.agents.has_no_room(agent, end);
                    return false;
                }
                let sender = batch.sender.clone();
                place.insert(Flow::new(sender, latest, self.forgotten_to, time.at))
            }
        };
        if !self.agents.has_room_in(flow.agents(), agent) {
            self.agents.has_no_room_in_a_flow(agent, end);
            return false;
        }
        flow.add(sighting, agent, batch.window, time.at)
    }

    /// Collects the flows that are due, unless some are left from the last look.
    pub(super) fn look(&mut self, time: Time) {
        let now = self.now(time);
        // May lie in the future if the collector's clock was set back.
        self.forgotten_to = self.forgotten_to.min(now.latest_forgotten());
        if self.to_visit.is_empty() {
            let flows = self.flows.iter();
            let flows = flows.filter(|(_, flow)| flow.next(&self.agents, &now).is_some());
            self.to_visit = flows.map(|(id, _)| *id).collect();
        }
    }

    /// Visits the flows that are due: reports flows that can be compared, and forgets flows that have long been quiet.
    /// Stops at `most` reports and conversations.
    pub(super) fn due(&mut self, time: Time, most: usize) -> Due {
        let now = self.now(time);
        let mut due = Due::default();
        while due.len() < most
            && let Some(id) = self.to_visit.pop()
        {
            self.visit(&id, &now, &mut due);
        }
        self.add_all(&due);
        due
    }

    pub(super) fn has_more(&self) -> bool {
        !self.to_visit.is_empty()
    }

    fn visit(&mut self, id: &FlowId, now: &Now, due: &mut Due) {
        let Some(flow) = self.flows.get_mut(id) else {
            return;
        };
        while let Some(next) = flow.next(&self.agents, now) {
            match next {
                Next::Tell => {
                    let made = flow.conversation(id, &self.agents, now.settle_ns, State::Quiet);
                    if let Some(made) = &made {
                        flow.tell(made);
                    }
                    due.conversations.extend(made);
                    let had_packets = flow.has_packets();
                    let made = flow.due_reports(id, &self.agents, now);
                    self.unpaired += u64::from(had_packets && made.is_empty());
                    due.reports.extend(made);
                }
                Next::GoOn => {
                    if flow.goes_on(&self.agents, now) {
                        let state = State::GoesOn;
                        let made = flow.conversation(id, &self.agents, now.settle_ns, state);
                        due.conversations.extend(made);
                    }
                    due.reports.extend(flow.go_on(id, &self.agents, now));
                }
                Next::Forget => {
                    // Another agent may be later still.
                    let forgotten_to = flow.forgotten_to().min(now.latest_forgotten());
                    self.forgotten_to = self.forgotten_to.max(forgotten_to);
                    self.places.give_back(&flow.sender, 1);
                    self.flows.remove(id);
                    return;
                }
            }
        }
    }

    /// Collects the flows that are still unreported when the collector stops.
    pub(super) fn stop(&mut self) {
        let flows = self.flows.iter().filter(|(_, flow)| !flow.is_told());
        self.to_visit = flows.map(|(id, _)| *id).collect();
    }

    /// Reports the collected flows. Stops at `most` reports and conversations.
    pub(super) fn end(&mut self, most: usize) -> Due {
        let settle_ns = self.settle_ns();
        let mut due = Due::default();
        while due.len() < most
            && let Some(id) = self.to_visit.pop()
        {
            let Some(flow) = self.flows.remove(&id) else {
                continue;
            };
            let made = flow.conversation(&id, &self.agents, settle_ns, State::Stopped);
            due.conversations.extend(made);
            due.reports.extend(flow.stopped(&id, &self.agents));
        }
        self.add_all(&due);
        due
    }

    fn add_all(&mut self, due: &Due) {
        for report in &due.reports {
            self.add(report);
        }
        for conversation in &due.conversations {
            self.count(conversation);
        }
    }

    fn count(&mut self, conversation: &Conversation) {
        let Some(status) = &mut self.conversations else {
            return;
        };
        let count = match conversation.grade {
            _ if conversation.why == Some(Doubt::GoesOn) => &mut status.going_on,
            Grade::Proven => &mut status.proven,
            Grade::BothSeen => &mut status.both_seen,
            Grade::OneEnd => &mut status.one_end,
            Grade::NoEnd => &mut status.no_end,
        };
        *count += 1;
    }

    fn add(&mut self, report: &Report) {
        let mut name = report.agents.map(|agent| self.agents.get(agent).host());
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
            // A flow that goes on is added to the sums once it is quiet.
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

    pub(super) fn conversations(&self) -> Option<&ConversationsStatus> {
        self.conversations.as_ref()
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
