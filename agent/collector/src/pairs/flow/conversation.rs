//! One record for both ends of a connection, from what all agents saw of it.
//!
//! An end is at an agent if a socket of its host sent the end's packets, and no other agent says so. Else, the packets
//! alone may show it: they leave at one agent and arrive nowhere there. That is a guess, since a router may have
//! interfaces that it does not watch, so only sockets make a conversation [`Grade::Proven`].

use std::sync::Arc;

use agent_common::Direction;
use formats::{harmless, time::UtcTime};
use proto::{AgentIdentity, Failure, community_id};
use serde::Serialize;
use tls::identity::Identity;

use super::{
    super::{
        agents::{Agents, Doubt, Index},
        details::EndDetails,
        report::Name,
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
    until: u64,
    new_flows: u32,
    has_closed: bool,
    /// The end that opened the connection.
    client: usize,
    is_assumed: bool,
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

/// What the agent at an end saw.
#[derive(Clone, Debug)]
pub(in super::super) struct Seen {
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

/// An agent between the ends, or one of which it is unknown.
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
    /// Between the agents that saw the packets.
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
    /// The conversation since the flow was last quiet. `None` if the records have no details.
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
        let places = [0, 1].map(|end| self.agent_at(end));
        let known = places.map(|place| place.ok().flatten());
        let at = known.map(|known| known.map(|(sight, _)| sight));
        let is_unclear = places.iter().any(Result::is_err);
        // With the word of the ends, others cannot change who opened the connection.
        let (client, is_assumed) =
            opened(at.into_iter().flatten()).or_else(|| opened(self.sights.iter()))?;
        let ends = [0, 1].map(|end| End {
            seen: known[end].map(|(sight, owner)| seen(sight, owner, end, agents)),
            host: self.host(end, at[1 - end]),
        });
        let is_end = |sight: &Sight| at.into_iter().flatten().any(|at| std::ptr::eq(at, sight));
        let between: Vec<_> = self.sights.iter().filter(|sight| !is_end(sight)).collect();
        let grade = match at {
            [Some(_), Some(_)] => Grade::BothSeen,
            [Some(_), None] | [None, Some(_)] => Grade::OneEnd,
            [None, None] => Grade::NoEnd,
        };
        let judged = match at {
            [Some(one), Some(other)] => [one, other],
            [Some(one), None] | [None, Some(one)] => [one; 2],
            [None, None] => [self.sights.first()?, self.sights.last()?],
        };
        let has_packets = self.sights.iter().any(Sight::has_packets);
        let why = match state {
            State::Stopped => Some(Doubt::Stopped),
            State::GoesOn => Some(Doubt::GoesOn),
            State::Quiet if !has_packets => None,
            State::Quiet => {
                let [from, to] = judged;
                let why = self.doubt(agents, settle_ns, from, to);
                let has_old_drops = judged.iter().any(|sight| sight.has_old_drops);
                why.or_else(|| has_old_drops.then_some(Doubt::Began))
                    .or_else(|| is_unclear.then_some(Doubt::Ends))
            }
        };
        let mut conversation = Conversation {
            sender: self.sender.clone(),
            grade,
            why,
            id: *id,
            since: judged.iter().map(|sight| sight.since).min()?,
            until: judged.iter().map(|sight| sight.last_seen).max()?,
            new_flows: judged
                .iter()
                .filter_map(|sight| Some(sight.details.as_ref()?.new_flows))
                .max()?,
            has_closed: judged.iter().any(|sight| {
                sight
                    .details
                    .as_ref()
                    .is_some_and(|details| details.has_closed)
            }),
            client,
            is_assumed,
            ends,
            via: between
                .iter()
                .map(|sight| {
                    let is_whole = self.doubt(agents, settle_ns, sight, sight).is_none();
                    Via::of(sight, agents, is_whole)
                })
                .collect(),
            lost: None,
        };
        conversation.close();
        Some(conversation)
    }

    /// The agents at the ends, as far as they are known.
    pub(super) fn agents_at_ends(&self) -> [Option<Index>; 2] {
        [0, 1].map(|end| {
            let place = self.agent_at(end).ok().flatten();
            place.map(|(sight, _)| sight.agent)
        })
    }

    /// The agent at this end, if there is one. Fails if several may be it.
    fn agent_at(&self, end: usize) -> Result<Option<(&Sight, Owner)>, ()> {
        let single = |which: &dyn Fn(&Sight) -> bool| {
            let mut those = self.sights.iter().filter(|sight| which(sight));
            let first = those.next();
            those.next().map_or(Ok(first), |_| Err(()))
        };
        let has_socket = |sight: &Sight| {
            let details = sight.details.as_ref();
            sight.is_end(end) && details.is_some_and(|details| details.ends[end].has_socket)
        };
        if let Some(sight) = single(&has_socket)? {
            return Ok(Some((sight, Owner::Socket)));
        }
        // A translation is made by a router. An agent at the other end is none at this one.
        let is_likely = |sight: &Sight| {
            let details = sight.details.as_ref();
            let is_elsewhere = details.is_some_and(|details| {
                details.nat_community_id.is_some() || details.ends[1 - end].has_socket
            });
            let was_here = self.told_ends[end] == Some(sight.agent);
            sight.is_end(end) && !is_elsewhere && (was_here || sight.has_packets())
        };
        Ok(single(&is_likely)?.map(|sight| (sight, Owner::Packets)))
    }

    /// The name of an end's address. The other end has asked for it.
    fn host(&self, end: usize, other: Option<&Sight>) -> Option<Arc<str>> {
        let name = |sight: &Sight| sight.details.as_ref()?.ends[end].host.clone();
        let of_others = || self.sights.iter().find_map(name);
        other.and_then(name).or_else(of_others)
    }
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

fn seen(sight: &Sight, owner: Owner, end: usize, agents: &Agents) -> Seen {
    let details = sight.details.as_ref().expect("it was looked for");
    Seen {
        agent: Arc::clone(&agents.get(sight.agent).name),
        owner,
        sent: sight.now[end][Direction::Egress as usize],
        received: sight.now[1 - end][Direction::Ingress as usize],
        dropped: details.ends[1 - end].dropped,
        failure: details.failure,
        details: details.ends[end].clone(),
    }
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
        let passed = self.is_whole && arrived > 0;
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

    /// The places of losses on one way: `missing` packets on the path, and those that were dropped at its end. The
    /// routers' words count only if they add up.
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
        let line = serde_json::to_string(&line).expect("it has no map");
        let mut line = harmless::json(&line).into_owned().into_bytes();
        line.push(b'\n');
        line
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
        let text = |text: &'a str| (!text.is_empty()).then_some(text);
        Self {
            addr,
            port,
            host: end.host.as_deref(),
            owner: seen.map(|seen| seen.owner),
            agent: seen.map(|seen| Name::of(&seen.agent)),
            unit: unit.and_then(|unit| text(&unit.name)),
            container_id: unit.and_then(|unit| text(&unit.container_id)),
            process: details.and_then(|details| details.process.as_deref()),
            sent_packets: seen.map(|seen| seen.sent.packets),
            sent_ip_bytes: seen.map(|seen| seen.sent.ip_bytes),
            received_packets: seen.map(|seen| seen.received.packets),
            received_ip_bytes: seen.map(|seen| seen.received.ip_bytes),
            dropped_packets: seen.map(|seen| seen.dropped),
            handshake_rtt_us: details.and_then(|details| details.handshake_rtt_us),
            failure: seen.and_then(|seen| failure(seen.failure?)),
        }
    }
}

/// As in the records of flows.
fn failure(failure: Failure) -> Option<&'static str> {
    Some(match failure {
        Failure::Unspecified => return None,
        Failure::Refused => "refused",
        Failure::Unanswered => "unanswered",
        Failure::Unreachable => "unreachable",
        Failure::Reset => "reset",
    })
}
