//! What batches take for as long as somebody has not taken them: each batch once for the whole agent, and
//! once for each consumer that it waits for, in its queue or in the transport.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;

use super::consumer::Consumer;

/// A batch's part of what is held in all. The queues and the transport share it.
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

/// A batch's part of what waits for one consumer.
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

    /// The batch's bytes, which count until the last slice of them is dropped: the transport keeps them
    /// until its peer has taken them.
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
