//! Connections of a listener that have no open request. When the listener has no place left, one of them gives way: first those
//! on which no request ever came, or none that was admitted.

use super::{
    caller::Caller,
    limits::{Doors, Refusal},
};
use crate::silent::Silent;

#[derive(Default)]
pub struct Idle {
    /// No request has come.
    pub(super) silent: Silent<Caller>,
    /// A request has come and has ended.
    pub(super) rested: Silent<Caller>,
}

impl Idle {
    /// Closes one of them, and so frees its place. Returns whether there was one.
    pub(super) fn make_room(&self, doors: &Doors) -> bool {
        while let Some(caller) = self.silent.pop().or_else(|| self.rested.pop()) {
            // A request may have come meanwhile.
            if caller.give_way() {
                doors.refuse(Refusal::GaveWay, &caller.peer);
                return true;
            }
        }
        false
    }
}
