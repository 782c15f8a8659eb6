//! Counts the bytes of batches in a queue or in the transport, each batch once.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;

use crate::guarded_bytes::with_guard;

/// A batch's share of the agent's total. The queues and the transport hold it together.
pub(super) struct HeldBytes {
    bytes: u64,
    total: Arc<AtomicU64>,
}

impl HeldBytes {
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
        with_guard(body, self)
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Relaxed);
    }
}

/// Counts another encoding of a batch once, until every consumer that needs it has taken it.
#[derive(Default)]
pub struct SharedHeldBytes(Mutex<Weak<HeldBytes>>);

impl SharedHeldBytes {
    /// The share of this encoding. The first call counts it.
    pub(super) fn get_or_count(&self, bytes: u64, total: &Arc<AtomicU64>) -> Arc<HeldBytes> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let held = Arc::new(HeldBytes::new(bytes, total));
            *shared = Arc::downgrade(&held);
            held
        })
    }
}
