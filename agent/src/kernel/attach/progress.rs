//! Hooks on their way from the thread that attaches to the scans: whatever may count is known before it
//! does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Hook;
use crate::kernel::links::Counters;

/// A hook with its interface's own counters around attachment.
#[derive(Clone, Debug)]
pub struct AttachedHook {
    pub hook: Hook,
    pub before_attach: Counters,
    /// `None` until it is attached; it may count already.
    pub after_attach: Option<Counters>,
}

/// At most two entries a hook; clones are the same.
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
