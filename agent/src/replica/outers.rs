//! The endpoints of the tunnels that flows came through: of few flows or of all, so not in every entry.

use std::collections::HashMap;

use agent_common::{FlowKey, Outer};

use super::{
    Replica, came_through_a_tunnel,
    find::{Found, hash_of},
};

#[derive(Default)]
pub struct Outers {
    known: HashMap<FlowKey, Outer>,
    /// Flows that ended since these were last settled.
    ended: Vec<FlowKey>,
}

impl Outers {
    /// Of a joined flow either half's.
    pub fn of(&self, key: &FlowKey, is_joined: bool) -> Option<Outer> {
        if !came_through_a_tunnel(key) {
            return None;
        }
        let beside = || is_joined.then(|| self.known.get(&beside(key))).flatten();
        self.known.get(key).or_else(beside).copied()
    }

    /// A flow ended. Its endpoints are kept until they are settled: a flow that made room for another
    /// may come again in the same update, and was noted before it.
    pub fn end(&mut self, key: &FlowKey) {
        if came_through_a_tunnel(key) {
            self.ended.push(*key);
        }
    }
}

impl Replica {
    /// Keeps the endpoints of the tunnel that a flow came through, which the next `update` brings;
    /// asks for them where they are not known.
    pub fn note_outer(&mut self, key: &FlowKey, ask: impl FnOnce() -> Option<Outer>) {
        if !self.outers.known.contains_key(key)
            && let Some(outer) = ask()
        {
            self.outers.known.insert(*key, outer);
        }
    }

    /// Forgets the endpoints of flows that ended and are not here again, at either side of the interface.
    /// Comes before the next `note_outer`, which would take a flow that is gone for a known one.
    pub(super) fn settle_outers(&mut self) {
        while let Some(key) = self.outers.ended.pop() {
            let hash = hash_of(&self.seed, &key);
            for key in [key, beside(&key)] {
                if !matches!(self.find(hash, &key), Found::Flow(_)) {
                    self.outers.known.remove(&key);
                }
            }
        }
    }
}

/// The same flow at the other side of the interface.
fn beside(key: &FlowKey) -> FlowKey {
    key.with_side(key.side() ^ 1)
}
