//! Tracks each agent: up to when it has reported, and since when its reports are complete.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use proto::AgentIdentity;
use serde::Serialize;
use tls::identity::Identity;

use super::{
    MOST_LATE,
    room::Room,
    sighting::{Gaps, MOST_INTERFACES, Sightings},
    wait_for,
};

/// The most agents known at a time. An agent that restarts counts again.
const MOST: usize = 10_000;
/// The most interfaces over all agents.
const MOST_INTERFACES_OF_ALL: usize = 1 << 18;
/// Agents per credential in one flow: an agent that restarts during the flow counts twice.
const MOST_OF_A_CREDENTIAL: usize = 2;
/// Finding agents to forget takes a walk over all flows.
const FORGET_EVERY: Duration = Duration::from_secs(10);
/// After this silence, the agent's other stream is read. An agent may have two outputs to this collector.
const SILENT_STREAM: Duration = Duration::from_secs(30);

/// Why the counts of two agents cannot be compared exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Doubt {
    /// The flow may have begun before both agents reported to this collector.
    Began,
    /// Batches of an agent are missing.
    Lost,
    /// An agent's flow table has refused packets.
    TableFull,
    /// An agent's filter has left out packets.
    Filtered,
    /// An agent has changed its sampling rate.
    Sampled,
    /// An agent has counted super-frames without knowing how many packets they were.
    InexactSize,
    /// An agent has put fragments into flows of their own.
    Fragments,
    /// An agent's clock was set.
    Clock,
    /// One agent has seen the packets at several interfaces, or at one that appeared after the flow began.
    Interfaces,
    /// No packets have arrived. An agent that does not watch there reports the same.
    OneSided,
    /// More packets arrived than had left.
    Surplus,
    /// No socket shows at which agent an end is, or sockets of several agents, units or processes do.
    Ends,
    /// An agent's packets came after the flow was reported.
    Late,
    /// Packets may have come when there was no room to follow the flow, or before it was forgotten.
    NoRoom,
    /// An agent has ended, or has stopped reporting.
    Silent,
    /// The collector stops.
    Stopped,
    /// The flow goes on, so packets are on their way.
    GoesOn,
}

/// The number of an agent in this table.
pub(super) type Index = u32;

pub(super) struct Agents {
    all: HashMap<Index, Agent>,
    /// By sender, machine, boot and start.
    by_name: HashMap<[String; 4], Index>,
    next: Index,
    places: Room,
    pub(super) interfaces: Room,
    forgot_at: Option<Instant>,
}

/// The result of noting a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    At(Index),
    /// The batch came on another stream of the agent, or has no scan of an agent that is not known yet.
    Elsewhere,
    /// There are too many agents, or too many of this sender.
    Nowhere,
}

pub(super) struct Agent {
    pub name: Arc<AgentIdentity>,
    pub sender: Identity,
    pub heard: Instant,
    /// The stream that is read.
    stream_id: u64,
    seq: u64,
    /// The window of the last scan.
    window: [u64; 2],
    /// The end of the last scan that has come completely.
    pub seen_to: u64,
    /// The end of a scan. All data after it is complete.
    pub whole_since: u64,
    /// Why data before `whole_since` may be incomplete.
    pub why: Doubt,
    /// The end of the last window with a flow that was not followed.
    pub refused_to: u64,
    has_ended: bool,
    /// How late a record may come.
    pub report_interval_ns: u64,
    sample_rate: u32,
    /// After the interval was shortened, records may still be as late as before until this time.
    slower_until: u64,
    gaps: Gaps,
    /// Batches were lost, and the next window will say until when.
    has_lost: bool,
    /// When each interface was first seen, as far as there is room.
    interfaces: BTreeMap<(u32, u32), u64>,
}

impl Default for Agents {
    fn default() -> Self {
        Self {
            all: HashMap::new(),
            by_name: HashMap::new(),
            next: 0,
            places: Room::new(MOST),
            interfaces: Room::new(MOST_INTERFACES_OF_ALL),
            forgot_at: None,
        }
    }
}

impl Agents {
    pub(super) fn get(&self, index: Index) -> &Agent {
        &self.all[&index]
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    #[cfg(test)]
    pub(super) fn interfaces(&self) -> usize {
        let interfaces = self.all.values().map(|agent| agent.interfaces.len());
        interfaces.sum()
    }

    /// Whether a flow seen by `all` may also be followed for `agent`. The agents of one credential must leave room for
    /// others.
    pub(super) fn has_room_in(&self, all: impl Iterator<Item = Index>, agent: Index) -> bool {
        let sender = &self.get(agent).sender;
        if !matches!(sender, Identity::Named(_)) {
            return true;
        }
        let others = all.filter(|&other| other != agent);
        let of_it = others.filter(|&other| self.get(other).sender == *sender);
        of_it.count() < MOST_OF_A_CREDENTIAL
    }

    /// Notes that a flow of this agent, in a window that ended at `end`, is not followed.
    pub(super) fn has_no_room(&mut self, agent: Index, end: u64) {
        let agent = self.all.get_mut(&agent).expect("it was noted");
        agent.refused_to = agent.refused_to.max(end);
    }

    /// Notes the same for a followed flow whose places other agents of the credential hold.
    pub(super) fn has_no_room_in_a_flow(&mut self, agent: Index, end: u64) {
        let agent = self.all.get_mut(&agent).expect("it was noted");
        agent.is_not_whole(end, Doubt::NoRoom);
    }

    /// Whether the agent has reported everything up to `last_seen`, and that the flow has been quiet since.
    pub(super) fn is_settled(&self, agent: Index, last_seen: u64, settle_ns: u64) -> bool {
        let agent = self.get(agent);
        let quiet_for = settle_ns.saturating_add(agent.report_interval_ns);
        agent.seen_to >= last_seen.saturating_add(quiet_for)
    }

    /// How late records may be, by the settings of the agents that were heard within this time.
    pub(super) fn latest(&self, within: Duration, now: Instant) -> Duration {
        let heard = self.all.values().filter(|agent| {
            let interval = Duration::from_nanos(agent.report_interval_ns);
            let silent_for = now.duration_since(agent.heard);
            !agent.has_ended && silent_for < within.max(interval.min(MOST_LATE))
        });
        let latest = heard.map(|agent| agent.report_interval_ns).max();
        Duration::from_nanos(latest.unwrap_or_default())
    }

    pub(super) fn note(&mut self, batch: &Sightings, settle_ns: u64, now: Instant) -> Noted {
        let AgentIdentity {
            agent_id,
            boot_id,
            instance_id,
            identity,
            ..
        } = &batch.agent;
        let name = [identity, agent_id, boot_id, instance_id].map(Clone::clone);
        if let Some(&index) = self.by_name.get(&name) {
            let agent = self.all.get_mut(&index);
            let agent = agent.expect("what has a name is there");
            return if agent.note(batch, &mut self.interfaces, settle_ns, now) {
                Noted::At(index)
            } else {
                Noted::Elsewhere
            };
        }
        // This batch only reports losses.
        if batch.window[1] == 0 {
            return Noted::Elsewhere;
        }
        if !self.places.take(&batch.sender) {
            return Noted::Nowhere;
        }
        let index = self.next;
        self.next = self.next.wrapping_add(1);
        let mut agent = Agent::first(batch, now);
        agent.note_interfaces(batch, &mut self.interfaces);
        self.all.insert(index, agent);
        self.by_name.insert(name, index);
        Noted::At(index)
    }

    /// Whether it is time to look for agents to forget.
    pub(super) fn may_forget(&mut self, now: Instant) -> bool {
        let waits = |at: Instant| now.duration_since(at) < FORGET_EVERY;
        if self.forgot_at.is_some_and(waits) {
            return false;
        }
        self.forgot_at = Some(now);
        true
    }

    /// Forgets agents that have ended or were silent for `silent_for`, unless they are in `named`.
    pub(super) fn forget(&mut self, named: &HashSet<Index>, silent_for: Duration, now: Instant) {
        self.all.retain(|index, agent| {
            let is_gone = agent.has_ended || now.duration_since(agent.heard) >= silent_for;
            let stays = named.contains(index) || !is_gone;
            if !stays {
                self.places.give_back(&agent.sender, 1);
                let interfaces = agent.interfaces.len();
                self.interfaces.give_back(&agent.sender, interfaces);
            }
            stays
        });
        self.by_name.retain(|_, index| self.all.contains_key(index));
    }
}

impl Agent {
    fn first(batch: &Sightings, now: Instant) -> Self {
        let end = batch.window[1];
        Self {
            name: Arc::new(batch.agent.clone()),
            sender: batch.sender.clone(),
            heard: now,
            stream_id: batch.stream_id,
            seq: batch.seq,
            window: batch.window,
            seen_to: if batch.is_last_of_scan { end } else { 0 },
            // Part of this scan may have gone to another collector.
            whole_since: end,
            why: Doubt::Began,
            refused_to: 0,
            has_ended: batch.is_final,
            report_interval_ns: batch.report_interval_ns,
            sample_rate: batch.sample_rate,
            slower_until: 0,
            gaps: batch.gaps,
            has_lost: false,
            interfaces: BTreeMap::new(),
        }
    }

    /// The name for sums: the host name. With a credential, the credential's name, since a domain after it is only a
    /// claim, and one credential could claim thousands.
    pub(super) fn host(&self) -> String {
        match &self.sender {
            Identity::Named(name) => name.to_string(),
            Identity::User(_) | Identity::Address(_) => self.name.hostname.clone(),
        }
    }

    /// Whether to stop waiting for this agent.
    pub(super) fn is_gone(&self, settle_ns: u64, now: Instant) -> bool {
        self.has_ended || now.duration_since(self.heard) >= self.wait(settle_ns)
    }

    /// How long to wait for this agent.
    pub(super) fn wait(&self, settle_ns: u64) -> Duration {
        wait_for(
            Duration::from_nanos(settle_ns),
            Duration::from_nanos(self.report_interval_ns),
        )
    }

    /// Returns whether the batch counts.
    fn note(&mut self, batch: &Sightings, room: &mut Room, settle_ns: u64, now: Instant) -> bool {
        if batch.stream_id == self.stream_id {
            self.has_lost |= batch.seq != self.seq.wrapping_add(1)
                || batch.gaps.lost_batches > self.gaps.lost_batches;
        } else if now.duration_since(self.heard) < SILENT_STREAM {
            return false;
        } else {
            self.stream_id = batch.stream_id;
            self.has_lost = true;
        }
        self.heard = now;
        self.seq = batch.seq;
        self.gaps.lost_batches = batch.gaps.lost_batches;
        let [begin, end] = batch.window;
        if end == 0 {
            return true;
        }
        if batch.window != self.window {
            // Each window begins where the one before ended, unless batches are missing.
            if begin.abs_diff(self.window[1]) > settle_ns / 2 {
                self.seen_to = self.seen_to.min(begin);
                if !self.has_lost {
                    // Times from before the clock was set may lie in the future.
                    (self.whole_since, self.why) = (end, Doubt::Clock);
                    for since in self.interfaces.values_mut() {
                        *since = (*since).min(end);
                    }
                }
            }
            self.window = batch.window;
        }
        if std::mem::take(&mut self.has_lost) {
            self.is_not_whole(end, Doubt::Lost);
        }
        if batch.has_refused {
            self.is_not_whole(end, Doubt::TableFull);
        }
        if batch.sample_rate != self.sample_rate {
            self.sample_rate = batch.sample_rate;
            self.is_not_whole(end, Doubt::Sampled);
        }
        self.note_account(batch);
        self.note_interfaces(batch, room);
        self.note_report_interval(batch);
        self.has_ended |= batch.is_final;
        if batch.is_last_of_scan {
            self.seen_to = self.seen_to.max(end);
        }
        true
    }

    fn note_interfaces(&mut self, batch: &Sightings, room: &mut Room) {
        let mut has_room = true;
        for &interface in &batch.interfaces {
            if self.interfaces.contains_key(&interface) {
                continue;
            }
            if self.interfaces.len() >= MOST_INTERFACES {
                room.give_back(&self.sender, self.interfaces.len());
                self.interfaces.clear();
            }
            if has_room && !room.has_place(&self.sender) {
                self.forget_interfaces(batch, room);
                has_room = room.has_place(&self.sender);
            }
            if room.take(&self.sender) {
                self.interfaces.insert(interface, batch.window[1]);
            }
        }
    }

    /// Forgets interfaces that the batch does not list.
    fn forget_interfaces(&mut self, batch: &Sightings, room: &mut Room) {
        let there: HashSet<_> = batch.interfaces.iter().collect();
        let before = self.interfaces.len();
        self.interfaces
            .retain(|interface, _| there.contains(interface));
        room.give_back(&self.sender, before - self.interfaces.len());
    }

    fn note_account(&mut self, batch: &Sightings) {
        let Some(account) = batch.gaps.account else {
            return;
        };
        let before = self.gaps.account.replace(account).unwrap_or(account);
        let reasons = [
            Doubt::TableFull,
            Doubt::Filtered,
            Doubt::InexactSize,
            Doubt::Fragments,
        ];
        for (reason, (after, before)) in reasons.into_iter().zip(account.into_iter().zip(before)) {
            if after != before {
                self.is_not_whole(batch.window[1], reason);
            }
        }
    }

    /// Takes over the batch's report interval. If it gets shorter, earlier records may still be as late as before.
    fn note_report_interval(&mut self, batch: &Sightings) {
        let (before, after) = (self.report_interval_ns, batch.report_interval_ns);
        let end = batch.window[1];
        if after < before && self.slower_until == 0 {
            self.slower_until = end.saturating_add(before);
        }
        if after >= before || end > self.slower_until {
            self.report_interval_ns = after;
            self.slower_until = 0;
        }
    }

    /// When the interface was first seen, or `u64::MAX` if it found no room. Packets before that may be uncounted.
    pub(super) fn counts_since(&self, interface: (u32, u32)) -> u64 {
        let since = self.interfaces.get(&interface).copied();
        since.unwrap_or(u64::MAX)
    }

    /// Marks everything until `end` as possibly incomplete.
    fn is_not_whole(&mut self, end: u64, why: Doubt) {
        self.whole_since = self.whole_since.max(end);
        self.why = why;
    }
}
