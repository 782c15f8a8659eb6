//! A listener's connections without an open request. When the listener has no place left, one of them gives way: first
//! those that never had an admitted request.

use super::{caller::Caller, limits::AdmissionControl};
use crate::silent::Silent;

#[derive(Default)]
pub struct Idle {
    /// No request has arrived.
    pub(super) silent: Silent<Caller>,
    /// A request has arrived and ended.
    pub(super) rested: Silent<Caller>,
}

impl Idle {
    /// Closes one connection, which frees its place. Returns whether there was one.
    pub(super) fn make_room(&self, admission: &AdmissionControl) -> bool {
        while let Some(caller) = self.silent.pop().or_else(|| self.rested.pop()) {
            // A request may have arrived meanwhile.
            if caller.give_way(admission) {
                return true;
            }
        }
        false
    }
}
