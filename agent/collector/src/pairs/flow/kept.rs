//! State of a flow between two conversations. Drops and failures may be reported late: they are written once, and only
//! for the agents at the ends.

use std::sync::Arc;

use proto::{AgentIdentity, Failure};

use super::{
    super::{
        agents::{Doubt, Index},
        details::{Details, EndDetails},
        sighting::Sighting,
    },
    conversation::{Conversation, Grade, Owner},
};

/// An agent that sees a flow at more interfaces with drops than this takes no room from others.
const MOST_DROPS_OF_AN_AGENT: usize = 4;

#[derive(Default)]
pub(super) struct Kept {
    /// Only of flows with drops.
    drops: Vec<Drops>,
    /// The last conversation with packets.
    pub told: Option<Box<Told>>,
}

/// The total of dropped packets in the last record of a flow at an interface.
struct Drops {
    agent: Index,
    interface: (u32, u32),
    began: u64,
    total: [u64; 2],
}

pub(super) struct Told {
    pub grade: Grade,
    pub why: Option<Doubt>,
    pub client: usize,
    pub is_assumed: bool,
    pub until: u64,
    pub ends: [Option<ToldEnd>; 2],
    pub hosts: [Option<Arc<str>>; 2],
}

#[derive(Clone)]
pub(super) struct ToldEnd {
    pub index: Index,
    pub agent: Arc<AgentIdentity>,
    pub owner: Owner,
    pub failure: Option<Failure>,
    pub details: EndDetails,
}

impl Kept {
    /// The details of a sighting, with the drops since the record before. The second value is whether they are unknown:
    /// the flow had drops before it was followed, or the agent's clock was set, or it sees the flow at too many
    /// interfaces. `is_followed`: the agent has reported the flow before.
    pub(super) fn since_before(
        &mut self,
        sighting: &Sighting,
        agent: Index,
        is_followed: bool,
    ) -> (Option<Details>, bool) {
        let Some(mut details) = sighting.details.as_deref().cloned() else {
            return (None, false);
        };
        let total = details.ends.each_ref().map(|end| end.dropped);
        if total == [0; 2] {
            return (Some(details), false);
        }
        let is_known =
            |drops: &Drops| (drops.agent, drops.interface) == (agent, sighting.interface);
        let known = self.drops.iter().position(is_known);
        let before = match known.map(|place| &self.drops[place]) {
            Some(drops) if drops.began == details.began => Some(drops.total),
            None if is_followed => Some([0; 2]),
            _ if sighting.is_first => Some([0; 2]),
            Some(_) | None => None,
        };
        for (end, before) in details.ends.iter_mut().zip(before.unwrap_or(total)) {
            end.dropped = end.dropped.saturating_sub(before);
        }
        let drops = Drops {
            agent,
            interface: sighting.interface,
            began: details.began,
            total,
        };
        let of_it = self.drops.iter().filter(|drops| drops.agent == agent);
        let has_room = known.is_some() || of_it.count() < MOST_DROPS_OF_AN_AGENT;
        if let Some(place) = known {
            self.drops[place] = drops;
        } else if has_room {
            self.drops.push(drops);
        }
        (Some(details), before.is_none() || !has_room)
    }

    /// The end at which the agent was in the last conversation.
    pub(super) fn told_end(&self, agent: Index) -> Option<&ToldEnd> {
        let ends = self.told.iter().flat_map(|told| &told.ends);
        ends.flatten().find(|end| end.index == agent)
    }

    /// Notes a conversation that is written.
    pub(super) fn tell(&mut self, conversation: &Conversation) {
        let ends = conversation.ends.each_ref().map(|end| {
            let seen = end.seen.as_ref()?;
            Some(ToldEnd {
                index: seen.index,
                agent: Arc::clone(&seen.agent),
                owner: seen.owner,
                failure: seen.failure,
                details: seen.details.clone(),
            })
        });
        self.told = Some(Box::new(Told {
            grade: conversation.grade,
            why: conversation.why,
            client: conversation.client,
            is_assumed: conversation.is_assumed,
            until: conversation.until,
            ends,
            hosts: conversation.ends.each_ref().map(|end| end.host.clone()),
        }));
    }
}
