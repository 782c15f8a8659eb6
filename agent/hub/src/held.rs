//! Counts the bytes of batches in a queue or in the transport, each batch once.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;

use crate::kept::keeping;

/// A batch's share of the agent's total. The queues and the transport hold it together.
pub(super) struct Held {
    bytes: u64,
    total: Arc<AtomicU64>,
}

impl Held {
    pub(super) fn new(bytes: u64, total: &Arc<AtomicU64>) -> Self {
        total.fetch_add(bytes, Relaxed);
        Self {
            bytes,
            total: Arc::clone(total),
        }
    }

    /// The batch's bytes, which count until their last slice is dropped. The transport keeps them until its peer has
    /// taken them.
    pub(super) fn attach(self: Arc<Self>, body: Bytes) -> Bytes {
        keeping(body, self)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Relaxed);
    }
}

/// Counts another encoding of a batch once, until every consumer that needs it has taken it.
#[derive(Default)]
pub struct SharedHeld(Mutex<Weak<Held>>);

impl SharedHeld {
    pub(super) fn of(&self, bytes: u64, total: &Arc<AtomicU64>) -> Arc<Held> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let held = Arc::new(Held::new(bytes, total));
            *shared = Arc::downgrade(&held);
            held
        })
    }
}
