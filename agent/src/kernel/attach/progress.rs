//! Passes hooks from the thread that attaches to the scans, so that a hook is known before it can count.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Hook;
use crate::kernel::links::Counters;

/// A hook with its interface's own counters around attachment.
#[derive(Clone, Debug)]
pub struct AttachedHook {
    pub hook: Hook,
    pub before_attach: Counters,
    /// `None` until it is attached. It may count before that.
    pub after_attach: Option<Counters>,
}

/// Has at most two entries per hook. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Progress {
    hooks: Arc<Mutex<Vec<AttachedHook>>>,
}

impl Progress {
    pub(super) fn push(&self, hook: AttachedHook) {
        self.hooks().push(hook);
    }

    pub(super) fn take(&self) -> Vec<AttachedHook> {
        std::mem::take(&mut self.hooks())
    }

    fn hooks(&self) -> MutexGuard<'_, Vec<AttachedHook>> {
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
