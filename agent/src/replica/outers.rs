//! The endpoints of the tunnels that flows came through: of few flows or of all, so not in every entry.

use std::collections::{HashMap, HashSet};

use agent_common::{FlowKey, Outer};

use super::came_through_a_tunnel;

#[derive(Default)]
pub struct Outers {
    known: HashMap<FlowKey, Outer>,
    /// Flows of the update that comes next or is under way.
    expected: HashSet<FlowKey>,
}

impl Outers {
    /// Asks for those of a flow that it does not know; the next update brings the flow.
    pub fn note(&mut self, key: &FlowKey, ask: impl FnOnce() -> Option<Outer>) {
        if !self.known.contains_key(key)
            && let Some(outer) = ask()
        {
            self.known.insert(*key, outer);
        }
        self.expected.insert(*key);
    }

    /// The update is over: forgets those of flows that are not in the replica, because others took their
    /// place.
    pub fn settle(&mut self, is_known: impl Fn(&FlowKey) -> bool) {
        for key in self.expected.drain() {
            if !is_known(&key) {
                self.known.remove(&key);
            }
        }
    }

    /// Of a joined flow either half's.
    pub fn of(&self, key: &FlowKey, is_joined: bool) -> Option<Outer> {
        if !came_through_a_tunnel(key) {
            return None;
        }
        let beside = || is_joined.then(|| self.known.get(&beside(key))).flatten();
        self.known.get(key).or_else(beside).copied()
    }

    /// A flow ended. One that the update is still to bring may have ended to make room for another: it
    /// comes again.
    pub fn forget(&mut self, key: &FlowKey) {
        if !self.expected.contains(key) {
            self.known.remove(key);
        }
    }

    /// Also those of the flow at the other side of the interface, which is not known.
    pub fn forget_both(&mut self, key: &FlowKey) {
        self.forget(key);
        self.forget(&beside(key));
    }
}

/// The same flow at the other side of the interface.
fn beside(key: &FlowKey) -> FlowKey {
    key.with_side(1 - key.side())
}
