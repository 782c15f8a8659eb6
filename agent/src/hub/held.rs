//! Counts the bytes of batches that wait in a queue or in the transport: each batch once for the whole agent,
//! and once for each consumer that has not taken it.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;

use super::consumer::Consumer;

/// A batch's part of the agent's total. The queues and the transport share it.
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
}

impl Drop for Held {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Relaxed);
    }
}

/// For another form of a batch, which is counted as long as a consumer has not taken it.
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

/// A batch's part of one consumer's total.
pub(super) struct Charge {
    consumer: Arc<Consumer>,
    held: Arc<Held>,
}

impl Charge {
    pub(super) fn new(consumer: &Arc<Consumer>, held: &Arc<Held>) -> Self {
        consumer.held_bytes.fetch_add(held.bytes, Relaxed);
        Self {
            consumer: Arc::clone(consumer),
            held: Arc::clone(held),
        }
    }

    /// The batch's bytes, which count until the last slice of them is dropped. The transport keeps them until
    /// its peer has taken them.
    pub(super) fn attach(self, body: Bytes) -> Bytes {
        Bytes::from_owner(Charged {
            body,
            _charge: self,
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.consumer.held_bytes.fetch_sub(self.held.bytes, Relaxed);
    }
}

struct Charged {
    body: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}
