//! One record for both ends of a connection, from what all agents saw of it.
//!
//! An end is at an agent if its packets begin there and those for it end there, as far as the agent saw any, and at no
//! other agent. That alone is a guess, since a router may have interfaces that it does not watch. Only a socket of the
//! agent's host that sent the end's packets makes a conversation [`Grade::Proven`].

use std::sync::Arc;

use agent_common::Direction;
use formats::time::UtcTime;
use proto::{AgentIdentity, Failure, community_id};
use serde::Serialize;
use tls::identity::Identity;

use super::{
    super::{
        agents::{Agents, Doubt, Index},
        details::EndDetails,
        report::{Name, text},
        sighting::{FlowId, Sum},
    },
    Flow, Sight,
};

/// How much of a conversation is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Grade {
    /// Sockets show both ends, and all packets are accounted for.
    Proven,
    /// Both ends were seen.
    BothSeen,
    OneEnd,
    /// Only agents between the ends saw it, or it is unknown which agent is an end.
    NoEnd,
}

pub(crate) struct Conversation {
    /// The sender that is charged for the flow.
    pub(in super::super) sender: Identity,
    pub(in super::super) grade: Grade,
    /// Why it is not proven, or why the counts of its only end may not be whole.
    pub(in super::super) why: Option<Doubt>,
    id: FlowId,
    since: u64,
    pub(super) until: u64,
    new_flows: u32,
    has_closed: bool,
    /// The end that opened the connection.
    pub(super) client: usize,
    pub(super) is_assumed: bool,
    pub(in super::super) ends: [End; 2],
    via: Vec<Via>,
    /// Where packets were lost, if that is known.
    pub(in super::super) lost: Option<Vec<Loss>>,
}

#[derive(Clone, Debug, Default)]
pub(in super::super) struct End {
    pub seen: Option<Seen>,
    /// The name of the address, as any agent knows it.
    pub host: Option<Arc<str>>,
}

/// The counts and names of the agent at an end.
#[derive(Clone, Debug)]
pub(in super::super) struct Seen {
    pub index: Index,
    pub agent: Arc<AgentIdentity>,
    pub owner: Owner,
    pub sent: Sum,
    pub received: Sum,
    /// Packets that arrived and were then dropped.
    pub dropped: u64,
    pub failure: Option<Failure>,
    pub details: EndDetails,
}

/// What shows that an end is at an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum Owner {
    Socket,
    Packets,
}

/// An agent that is at neither end, as far as is known.
struct Via {
    agent: Arc<AgentIdentity>,
    /// Packets of each end that arrived, left, and were dropped in between.
    passed: [[u64; 3]; 2],
    /// Nothing speaks against these counts.
    is_whole: bool,
    nat_community_id: Option<[u8; 20]>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Loss {
    /// The end that sent the packets.
    pub(in super::super) way: usize,
    pub(in super::super) place: Place,
    pub(in super::super) packets: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum Place {
    /// No agent's counts show it: between the agents.
    Between,
    /// They arrived at this agent, and went no further.
    At(Arc<AgentIdentity>),
}

/// How far a conversation has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum State {
    Quiet,
    GoesOn,
    /// The collector stops.
    Stopped,
}

impl Flow {
    /// The conversation since the flow was last quiet. `None` if there is nothing to tell, or if the records have no
    /// details.
    pub(in super::super) fn conversation(
        &self,
        id: &FlowId,
        agents: &Agents,
        settle_ns: u64,
        state: State,
    ) -> Option<Conversation> {
        if self.sights.iter().any(|sight| sight.details.is_none()) {
            return None;
        }
        if !self.has_packets() {
            return self.later_news(id, agents, settle_ns, state);
        }
        let found = [0, 1].map(|end| self.place_of(end, agents));
        let is_unclear = found.iter().any(Option::is_none);
        let places = found.map(Option::unwrap_or_default);
        let at_ends = || places.iter().flat_map(|place| &place.sights).copied();
        // With the word of the ends, others cannot change who opened the connection.
        let (client, is_assumed) = opened(at_ends()).or_else(|| opened(self.sights.iter()))?;
        let [one, other] = places.each_ref().map(|place| &place.sights[..]);
        let all: Vec<_> = self.sights.iter().collect();
        let (grade, [froms, tos]) = match [one.is_empty(), other.is_empty()] {
            [false, false] => (Grade::BothSeen, [one, other]),
            [false, true] => (Grade::OneEnd, [one; 2]),
            [true, false] => (Grade::OneEnd, [other; 2]),
            [true, true] => (Grade::NoEnd, [&all[..]; 2]),
        };
        let judged = || froms.iter().chain(tos).copied();
        let why = match state {
            State::Stopped => Some(Doubt::Stopped),
            State::GoesOn => Some(Doubt::GoesOn),
            State::Quiet => {
                let mut doubts = froms.iter().flat_map(|from| {
                    tos.iter()
                        .filter_map(move |to| self.doubt(agents, settle_ns, from, to))
                });
                let has_begun = [one, other].iter().any(|sights| sights.len() > 1)
                    || judged().any(|sight| sight.has_old_drops);
                let is_split = at_ends().any(|sight| sight.is_in_several_netns);
                let also = [
                    (self.refused_to > 0, Doubt::NoRoom),
                    (has_begun, Doubt::Began),
                    (is_unclear || is_split, Doubt::Ends),
                ];
                let mut also = also.into_iter().filter(|(is_so, _)| *is_so);
                doubts.next().or_else(|| also.next().map(|(_, why)| why))
            }
        };
        let is_end = |sight: &Sight| at_ends().any(|at| std::ptr::eq(at, sight));
        let details = || judged().filter_map(|sight| sight.details.as_ref());
        let mut conversation = Conversation {
            sender: self.sender.clone(),
            grade,
            why,
            id: *id,
            since: judged().map(|sight| sight.since).min()?,
            until: judged().map(|sight| sight.last_seen).max()?,
            new_flows: [froms, tos].map(new_flows).into_iter().min()?,
            has_closed: details().any(|details| details.has_closed),
            client,
            is_assumed,
            ends: [0, 1].map(|end| End {
                seen: seen(&places[end], end, agents),
                host: host(end, [one, other]),
            }),
            via: self.via(is_end, agents, settle_ns),
            lost: None,
        };
        conversation.close();
        Some(conversation)
    }

    /// Drops and failures that the agents at the ends reported after the conversation was written.
    fn later_news(
        &self,
        id: &FlowId,
        agents: &Agents,
        settle_ns: u64,
        state: State,
    ) -> Option<Conversation> {
        let told = self.kept.told.as_deref()?;
        let sight_of = |seen: &Seen| {
            let mut sights = self.sights.iter();
            sights.find(|sight| sight.agent == seen.index)
        };
        let told_ends = told.ends.iter().filter_map(|end| end.seen.as_ref());
        let at_ends = || told_ends.clone().filter_map(sight_of);
        at_ends().next()?;
        let mut ends = told.ends.clone();
        for (end, way) in ends.iter_mut().zip([1, 0]) {
            let Some(seen) = &mut end.seen else { continue };
            let details = sight_of(seen).and_then(|sight| sight.details.as_ref());
            let failure = details.and_then(|details| details.failure);
            (seen.sent, seen.received) = Default::default();
            seen.dropped = details.map_or(0, |details| details.ends[way].dropped);
            seen.failure = failure.filter(|&failure| seen.failure != Some(failure));
        }
        let (grade, why) = match told.grade {
            Grade::Proven => (Grade::BothSeen, None),
            Grade::BothSeen => (Grade::BothSeen, Some(told.why.unwrap_or(Doubt::Ends))),
            grade @ (Grade::OneEnd | Grade::NoEnd) => (grade, told.why),
        };
        let has_old_drops = at_ends().any(|sight| sight.has_old_drops);
        let why = why
            .or_else(|| has_old_drops.then_some(Doubt::Began))
            .or_else(|| (state == State::Stopped).then_some(Doubt::Stopped));
        let is_end = |sight: &Sight| self.kept.told_end(sight.agent).is_some();
        let mut conversation = Conversation {
            sender: self.sender.clone(),
            grade,
            why,
            id: *id,
            since: told.until,
            until: told.until,
            new_flows: 0,
            has_closed: false,
            client: told.client,
            is_assumed: told.is_assumed,
            ends,
            via: self.via(is_end, agents, settle_ns),
            lost: None,
        };
        conversation.close();
        Some(conversation)
    }

    /// The agents that are at no end.
    fn via(&self, is_end: impl Fn(&Sight) -> bool, agents: &Agents, settle_ns: u64) -> Vec<Via> {
        let others = self.sights.iter().filter(|sight| !is_end(sight));
        let via = others.map(|sight| {
            let is_whole = self.doubt(agents, settle_ns, sight, sight).is_none();
            Via::of(sight, agents, is_whole && !sight.has_old_drops)
        });
        via.collect()
    }

    /// Whether conversations are made, and an agent that is late may show where an end is. In vain before, it is not
    /// waited for again.
    pub(super) fn waits_for_an_end(&self, agents: &Agents) -> bool {
        let has_details = self.sights.iter().all(|sight| sight.details.is_some());
        has_details
            && [0, 1].into_iter().any(|end| {
                let was_known = self
                    .kept
                    .told
                    .as_ref()
                    .map(|told| told.ends[end].seen.is_some());
                let place = self.place_of(end, agents);
                let is_known = place.is_some_and(|place| !place.sights.is_empty());
                !is_known && was_known != Some(false)
            })
    }

    /// Where this end is. `None` if several hosts may have it.
    fn place_of(&self, end: usize, agents: &Agents) -> Option<PlaceOfEnd<'_>> {
        let mut place = PlaceOfEnd::default();
        let told = self.kept.told.as_ref();
        let told = told.and_then(|told| told.ends[end].seen.as_ref());
        for sight in &self.sights {
            let Some(details) = sight.details.as_ref() else {
                continue;
            };
            let has_socket = |end: usize| details.ends[end].has_socket;
            // A translation is made by a router. An agent at the other end is none at this one.
            let is_elsewhere = has_socket(1 - end) || details.nat_community_id.is_some();
            let is_told = told.is_some_and(|told| told.index == sight.agent);
            if !sight.has_packets() && !is_told {
                continue;
            }
            if !sight.is_end(end) || (is_elsewhere && !has_socket(end)) {
                continue;
            }
            place.sights.push(sight);
            place.has_socket |= has_socket(end);
        }
        // An agent that starts again is at the same host. One that had the socket before may only be late.
        let agents = place
            .sights
            .iter()
            .map(|sight| &agents.get(sight.agent).name);
        let told = told.filter(|told| told.owner == Owner::Socket);
        let all = agents.chain(told.map(|told| &told.agent));
        let mut hosts = all.map(|agent| (&agent.identity, &agent.agent_id, &agent.boot_id));
        let is_empty = place.sights.is_empty();
        let first = hosts.next();
        (is_empty || hosts.all(|host| Some(host) == first)).then_some(place)
    }
}

/// The sights of the host at an end. Empty if no agent is there.
#[derive(Default)]
struct PlaceOfEnd<'a> {
    sights: Vec<&'a Sight>,
    has_socket: bool,
}

/// How many flows began, as these have counted them.
fn new_flows(sights: &[&Sight]) -> u32 {
    let details = sights.iter().filter_map(|sight| sight.details.as_ref());
    let most = details.map(|details| details.new_flows).max();
    most.unwrap_or_default()
}

/// The name of an end's address. The other end has asked for it.
fn host(end: usize, at: [&[&Sight]; 2]) -> Option<Arc<str>> {
    let mut asked = at[1 - end].iter().chain(at[end]);
    asked.find_map(|sight| sight.details.as_ref()?.ends[end].host.clone())
}

impl Sight {
    fn packets(&self, end: usize, side: Direction) -> u64 {
        self.now[end][side as usize].packets
    }

    pub(super) fn has_packets(&self) -> bool {
        self.now.as_flattened().iter().any(|sum| sum.packets > 0)
    }

    /// Whether the packets of this end begin here, and those for it go no further, as far as the agent saw any.
    fn is_end(&self, end: usize) -> bool {
        let begins = self.packets(end, Direction::Ingress) == 0;
        let ends = self.packets(1 - end, Direction::Egress) == 0;
        begins && ends
    }
}

/// Which end opened the connection, and whether that is assumed. It is if agents disagree.
fn opened<'a>(sights: impl Iterator<Item = &'a Sight>) -> Option<(usize, bool)> {
    let told = sights.filter_map(|sight| {
        let details = sight.details.as_ref()?;
        Some((details.initiator, details.is_assumed))
    });
    told.reduce(|one, other| match (one, other) {
        ((_, true), (_, false)) => other,
        ((_, false), (_, true)) => one,
        _ if one == other => one,
        _ => (one.0, true),
    })
}

fn seen(place: &PlaceOfEnd<'_>, end: usize, agents: &Agents) -> Option<Seen> {
    let last = place.sights.iter().max_by_key(|sight| sight.last_seen)?;
    let sum = |way: usize, side: Direction| {
        let mut sum = Sum::default();
        for sight in &place.sights {
            sum += sight.now[way][side as usize];
        }
        sum
    };
    let details = place
        .sights
        .iter()
        .filter_map(|sight| sight.details.as_ref());
    let dropped = details.map(|details| details.ends[1 - end].dropped);
    let details = last.details.as_ref()?;
    Some(Seen {
        index: last.agent,
        agent: Arc::clone(&agents.get(last.agent).name),
        owner: if place.has_socket {
            Owner::Socket
        } else {
            Owner::Packets
        },
        sent: sum(end, Direction::Egress),
        received: sum(1 - end, Direction::Ingress),
        dropped: dropped.fold(0, u64::saturating_add),
        failure: details.failure,
        details: details.ends[end].clone(),
    })
}

impl Via {
    fn of(sight: &Sight, agents: &Agents, is_whole: bool) -> Self {
        let details = sight.details.as_ref().expect("it was looked for");
        let passed = [0, 1].map(|end| {
            [
                sight.packets(end, Direction::Ingress),
                sight.packets(end, Direction::Egress),
                details.ends[end].dropped,
            ]
        });
        Self {
            agent: Arc::clone(&agents.get(sight.agent).name),
            passed,
            is_whole,
            nat_community_id: details.nat_community_id,
        }
    }

    /// How many packets of this end arrived and did not leave, if the packets passed through here.
    fn kept(&self, way: usize) -> Option<u64> {
        let [arrived, left, _] = self.passed[way];
        // Where nothing leaves, the agent may not watch.
        let passed = self.is_whole && arrived > 0 && left > 0;
        passed.then(|| arrived.checked_sub(left)).flatten()
    }
}

impl Conversation {
    /// Finds where packets were lost, and whether that proves the conversation.
    fn close(&mut self) {
        let [Some(one), Some(other)] = self.ends.each_ref().map(|end| end.seen.as_ref()) else {
            return;
        };
        if self.why.is_some() {
            return;
        }
        let mut lost = Vec::new();
        for (way, from, to) in [(0, one, other), (1, other, one)] {
            let (sent, arrived) = (from.sent.packets, to.received.packets);
            if arrived > sent {
                self.why = Some(Doubt::Surplus);
                return;
            }
            if arrived == 0 && sent > 0 {
                self.why = Some(Doubt::OneSided);
                return;
            }
            lost.extend(self.losses(way, sent - arrived, to));
        }
        let is_proven = |seen: &Seen| seen.owner == Owner::Socket && !seen.details.has_several;
        self.lost = Some(lost);
        if [one, other].into_iter().all(is_proven) {
            self.grade = Grade::Proven;
        } else {
            self.why = Some(Doubt::Ends);
        }
    }

    /// Locates the losses on one way: `missing` packets on the path, and the drops at its end. Ignores the routers
    /// unless their counts add up.
    fn losses(&self, way: usize, missing: u64, to: &Seen) -> Vec<Loss> {
        let kept = self
            .via
            .iter()
            .filter_map(|via| Some((&via.agent, via.kept(way)?)));
        let kept: Vec<_> = kept.filter(|(_, packets)| *packets > 0).collect();
        let at_routers = kept
            .iter()
            .try_fold(0_u64, |sum, (_, packets)| sum.checked_add(*packets));
        let between = at_routers.and_then(|at_routers| missing.checked_sub(at_routers));
        let (kept, between) = match between {
            Some(between) => (kept, between),
            None => (Vec::new(), missing),
        };
        let at = |agent: &Arc<AgentIdentity>| Place::At(Arc::clone(agent));
        let at_routers = kept
            .into_iter()
            .map(|(agent, packets)| (at(agent), packets));
        let all = at_routers
            .chain([(Place::Between, between), (at(&to.agent), to.dropped)])
            .filter(|(_, packets)| *packets > 0);
        all.map(|(place, packets)| Loss {
            way,
            place,
            packets,
        })
        .collect()
    }

    /// The conversation as a line of JSON, with the newline.
    pub(crate) fn line(&self) -> Vec<u8> {
        let role = |way: usize| {
            if way == self.client {
                "client"
            } else {
                "server"
            }
        };
        let end = |end: usize| {
            EndLine::of(
                &self.ends[end],
                self.id.ends.addr[end].to_string(),
                self.id.ends.port[end],
            )
        };
        let lost = self.lost.as_ref().map(|lost| {
            let lost = lost.iter().map(|loss| LossLine {
                sent_by: role(loss.way),
                at: match &loss.place {
                    Place::Between => None,
                    Place::At(agent) => Some(Name::of(agent)),
                },
                packets: loss.packets,
            });
            lost.collect::<Vec<_>>()
        });
        let via = self.via.iter().map(|via| {
            let passed = |way: usize| {
                let [arrived, left, dropped] = via.passed[way];
                PassedLine {
                    arrived,
                    left,
                    dropped,
                }
            };
            ViaLine {
                agent: Name::of(&via.agent),
                client: passed(self.client),
                server: passed(1 - self.client),
                nat_community_id: via.nat_community_id.map(|id| community_id::text(&id)),
            }
        });
        let line = Line {
            r#type: "conversation",
            grade: self.grade,
            inexact: self.why,
            community_id: community_id::text(&self.id.community_id),
            protocol: self.id.ends.protocol,
            since: UtcTime::new(self.since),
            until: UtcTime::new(self.until),
            new_flows: self.new_flows,
            closed: self.has_closed,
            initiator_assumed: self.is_assumed,
            client: end(self.client),
            server: end(1 - self.client),
            lost_packets: lost.as_ref().map(|lost| {
                let packets = lost.iter().map(|loss| loss.packets);
                packets.fold(0, u64::saturating_add)
            }),
            lost,
            via: via.collect(),
        };
        text(&line)
    }
}

#[derive(Serialize)]
struct Line<'a> {
    r#type: &'static str,
    grade: Grade,
    inexact: Option<Doubt>,
    community_id: String,
    protocol: u32,
    since: UtcTime,
    until: UtcTime,
    new_flows: u32,
    closed: bool,
    initiator_assumed: bool,
    client: EndLine<'a>,
    server: EndLine<'a>,
    lost_packets: Option<u64>,
    lost: Option<Vec<LossLine<'a>>>,
    via: Vec<ViaLine<'a>>,
}

#[derive(Serialize)]
struct EndLine<'a> {
    addr: String,
    port: Option<u32>,
    host: Option<&'a str>,
    /// `null` without an agent, as is all that follows.
    owner: Option<Owner>,
    agent: Option<Name<'a>>,
    unit: Option<&'a str>,
    container_id: Option<&'a str>,
    process: Option<&'a str>,
    sent_packets: Option<u64>,
    sent_ip_bytes: Option<u64>,
    received_packets: Option<u64>,
    received_ip_bytes: Option<u64>,
    dropped_packets: Option<u64>,
    handshake_rtt_us: Option<u32>,
    failure: Option<&'static str>,
}

#[derive(Serialize)]
struct LossLine<'a> {
    sent_by: &'static str,
    /// `null` for between the agents.
    at: Option<Name<'a>>,
    packets: u64,
}

#[derive(Serialize)]
struct ViaLine<'a> {
    #[serde(flatten)]
    agent: Name<'a>,
    client: PassedLine,
    server: PassedLine,
    nat_community_id: Option<String>,
}

#[derive(Serialize)]
struct PassedLine {
    #[serde(rename = "arrived_packets")]
    arrived: u64,
    #[serde(rename = "left_packets")]
    left: u64,
    #[serde(rename = "dropped_packets")]
    dropped: u64,
}

impl<'a> EndLine<'a> {
    fn of(end: &'a End, addr: String, port: Option<u32>) -> Self {
        let seen = end.seen.as_ref();
        let details = seen.map(|seen| &seen.details);
        let unit = details.and_then(|details| details.unit.as_deref());
        let known = |name: &'a str| (!name.is_empty()).then_some(name);
        Self {
            addr,
            port,
            host: end.host.as_deref(),
            owner: seen.map(|seen| seen.owner),
            agent: seen.map(|seen| Name::of(&seen.agent)),
            unit: unit.and_then(|unit| known(&unit.name)),
            container_id: unit.and_then(|unit| known(&unit.container_id)),
            process: details.and_then(|details| details.process.as_deref()),
            sent_packets: seen.map(|seen| seen.sent.packets),
            sent_ip_bytes: seen.map(|seen| seen.sent.ip_bytes),
            received_packets: seen.map(|seen| seen.received.packets),
            received_ip_bytes: seen.map(|seen| seen.received.ip_bytes),
            dropped_packets: seen.map(|seen| seen.dropped),
            handshake_rtt_us: details.and_then(|details| details.handshake_rtt_us),
            failure: seen.and_then(|seen| Some(seen.failure?.name())),
        }
    }
}
