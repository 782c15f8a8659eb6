//! The outer endpoints of flows that came through tunnels. Usually few flows have any, so they are not part of every
//! entry.

use std::collections::HashMap;

use agent_common::{FlowCounters, FlowKey, Outer};

use super::{Replica, came_through_a_tunnel, find::Found, handshake::opens};

#[derive(Default)]
pub struct Outers {
    known: HashMap<FlowKey, Outer>,
    /// Endpoints from this scan that differ from the known ones. The next flow with the same ports may begin with
    /// them.
    next: HashMap<FlowKey, Outer>,
    /// Flows that ended since the last `settle_outers`.
    ended: Vec<FlowKey>,
}

impl Outers {
    /// The endpoints noted for a flow. For a joined flow, those of either half.
    pub fn get(&self, key: &FlowKey, is_joined: bool) -> Option<Outer> {
        if !came_through_a_tunnel(key) {
            return None;
        }
        let beside = || is_joined.then(|| self.known.get(&beside(key))).flatten();
        self.known.get(key).or_else(beside).copied()
    }

    pub fn begin_scan(&mut self) {
        self.next.clear();
    }

    /// A flow begins. If its key had a flow before, that one may have come through another tunnel with the same
    /// number.
    pub fn begin(&mut self, key: &FlowKey) {
        // `next` is empty in most scans, and a look-up would hash the key first.
        if !self.next.is_empty()
            && let Some(outer) = self.next.remove(key)
        {
            self.known.insert(*key, outer);
        }
    }

    /// Notes that a flow ended. Its endpoints are kept until `settle_outers`: an evicted flow may come again in the
    /// same update, and its endpoints were already noted for that.
    pub fn end(&mut self, key: &FlowKey) {
        if came_through_a_tunnel(key) {
            self.ended.push(*key);
        }
    }
}

impl Replica {
    /// Notes the endpoints of the tunnel of a flow that the next `update` brings. Asks for them if they are not
    /// known, or if another flow with the same ports may begin.
    pub fn note_outer(
        &mut self,
        key: &FlowKey,
        counters: &FlowCounters,
        ask: impl FnOnce() -> Option<Outer>,
    ) {
        let Outers { known, next, .. } = &mut self.outers;
        match known.get(key) {
            Some(outer) if opens(counters) => {
                if let Some(other) = ask().filter(|other| other != outer) {
                    next.insert(*key, other);
                }
            }
            Some(_) => {}
            None => {
                if let Some(outer) = ask() {
                    known.insert(*key, outer);
                }
            }
        }
    }

    /// Forgets the endpoints of flows that ended and did not come back, on either side of the interface. Must
    /// run before the next `note_outer`, which would take the endpoints of a gone flow for known ones.
    pub(super) fn settle_outers(&mut self) {
        while let Some(key) = self.outers.ended.pop() {
            for key in [key, beside(&key)] {
                if !matches!(self.find(&key), Found::Flow(_)) {
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
