//! State of a flow between two conversations. Drops and failures may be reported late: they are written once, and only
//! for the agents at the ends.

use super::{
    super::{
        agents::{Doubt, Index},
        details::Details,
        sighting::Sighting,
    },
    MOST_SIGHTS,
    conversation::{Conversation, End, Grade, Seen},
};

/// An agent that sees a flow at more interfaces takes no room from others.
const MOST_DROPS_OF_AN_AGENT: usize = 4;
const MOST_DROPS: usize = 2 * MOST_SIGHTS;

#[derive(Default)]
pub(super) struct Kept {
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
    pub ends: [End; 2],
}

impl Kept {
    /// The details of a sighting, with the drops since the record before. The second value is whether they are unknown:
    /// the flow had drops before it was followed, or the agent's clock was set, or it sees the flow at too many
    /// interfaces.
    pub(super) fn since_before(
        &mut self,
        sighting: &Sighting,
        agent: Index,
    ) -> (Option<Details>, bool) {
        let Some(mut details) = sighting.details.as_deref().cloned() else {
            return (None, false);
        };
        let total = details.ends.each_ref().map(|end| end.dropped);
        let is_known =
            |drops: &Drops| (drops.agent, drops.interface) == (agent, sighting.interface);
        let known = self.drops.iter().position(is_known);
        let before = match known.map(|place| &self.drops[place]) {
            Some(drops) if drops.began == details.began => Some(drops.total),
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
        let has_drops = total != [0; 2];
        (Some(details), has_drops && (before.is_none() || !has_room))
    }

    /// Forgets agents that are not among these nor at an end, if there are many.
    pub(super) fn forget_others(&mut self, seen: impl Fn(Index) -> bool) {
        if self.drops.len() > MOST_DROPS {
            let drops = std::mem::take(&mut self.drops);
            let stays = |drops: &Drops| seen(drops.agent) || self.told_end(drops.agent).is_some();
            self.drops = drops.into_iter().filter(stays).collect();
        }
    }

    /// The end at which the agent was in the last conversation.
    pub(super) fn told_end(&self, agent: Index) -> Option<&Seen> {
        let ends = self.told.iter().flat_map(|told| &told.ends);
        let mut seen = ends.filter_map(|end| end.seen.as_ref());
        seen.find(|seen| seen.index == agent)
    }

    /// Notes a conversation that is written. An end that it does not show stays where it was.
    pub(super) fn tell(&mut self, conversation: &Conversation) {
        let mut ends = conversation.ends.clone();
        if let Some(before) = self.told.take() {
            for (end, before) in ends.iter_mut().zip(before.ends) {
                end.seen = end.seen.take().or(before.seen);
            }
        }
        self.told = Some(Box::new(Told {
            grade: conversation.grade,
            why: conversation.why,
            client: conversation.client,
            is_assumed: conversation.is_assumed,
            until: conversation.until,
            ends,
        }));
    }

    /// Notes the failures in a line without packets.
    pub(super) fn tell_news(&mut self, news: &Conversation) {
        let ends = self.told.iter_mut().flat_map(|told| &mut told.ends);
        for (known, end) in ends.zip(&news.ends) {
            if let (Some(known), Some(seen)) = (&mut known.seen, &end.seen) {
                known.failure = seen.failure.or(known.failure);
            }
        }
    }
}
