//! The endpoints of the tunnels that flows came through. Often few flows have any, so they are not part of
//! every entry.

use std::collections::HashMap;

use agent_common::{FlowKey, Outer};

use super::{
    Replica, came_through_a_tunnel,
    find::{Found, hash_of},
};

#[derive(Default)]
pub struct Outers {
    known: HashMap<FlowKey, Outer>,
    /// Flows that ended since the last `settle_outers`.
    ended: Vec<FlowKey>,
}

impl Outers {
    /// The endpoints noted for a flow. For a joined flow those of either half.
    pub fn of(&self, key: &FlowKey, is_joined: bool) -> Option<Outer> {
        if !came_through_a_tunnel(key) {
            return None;
        }
        let beside = || is_joined.then(|| self.known.get(&beside(key))).flatten();
        self.known.get(key).or_else(beside).copied()
    }

    /// Notes that a flow ended. Its endpoints are kept until `settle_outers`: a flow that made room for another
    /// may come again in the same update, for which its endpoints were already noted.
    pub fn end(&mut self, key: &FlowKey) {
        if came_through_a_tunnel(key) {
            self.ended.push(*key);
        }
    }
}

impl Replica {
    /// Notes the endpoints of the tunnel of a flow that the next `update` brings. Asks for them if they are not
    /// known.
    pub fn note_outer(&mut self, key: &FlowKey, ask: impl FnOnce() -> Option<Outer>) {
        if !self.outers.known.contains_key(key)
            && let Some(outer) = ask()
        {
            self.outers.known.insert(*key, outer);
        }
    }

    /// Forgets the endpoints of flows that ended and did not come back, on either side of the interface. Must
    /// run before the next `note_outer`, which would take the endpoints of a gone flow for known ones.
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

/// The key of the same flow on the other side of the interface.
fn beside(key: &FlowKey) -> FlowKey {
    key.with_side(key.side() ^ 1)
}
