//! The endpoints of the tunnels that flows came through: of few flows or of all, so not in every entry.

use std::collections::HashMap;

use agent_common::{FlowKey, Outer};

use super::came_through_a_tunnel;

#[derive(Default)]
pub struct Outers(HashMap<FlowKey, Outer>);

impl Outers {
    /// Asks for those of a flow that it does not know.
    pub fn note(&mut self, key: &FlowKey, ask: impl FnOnce() -> Option<Outer>) {
        if !self.0.contains_key(key)
            && let Some(outer) = ask()
        {
            self.0.insert(*key, outer);
        }
    }

    /// Of a joined flow either half's.
    pub fn of(&self, key: &FlowKey, is_joined: bool) -> Option<Outer> {
        if !came_through_a_tunnel(key) {
            return None;
        }
        let beside = || is_joined.then(|| self.0.get(&beside(key))).flatten();
        self.0.get(key).or_else(beside).copied()
    }

    pub fn forget(&mut self, key: &FlowKey) {
        self.0.remove(key);
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
