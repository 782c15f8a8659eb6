//! Counts the bytes of batches that wait in a queue or in the transport, each batch once.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{
        AtomicU64, AtomicUsize,
        Ordering::{AcqRel, Relaxed},
    },
};

use bytes::Bytes;

/// The agent's totals.
#[derive(Default)]
pub(super) struct Totals {
    all_bytes: AtomicU64,
    /// Of these, what a transport has, be it in queues as well. To lose it from the queues frees nothing.
    in_transport_bytes: AtomicU64,
}

impl Totals {
    pub(super) fn all_bytes(&self) -> u64 {
        self.all_bytes.load(Relaxed)
    }

    pub(super) fn in_transport_bytes(&self) -> u64 {
        self.in_transport_bytes.load(Relaxed)
    }
}

/// A batch's part of the totals. The queues and the transport share it.
pub(super) struct Held {
    bytes: u64,
    /// How many transports have it.
    transports: AtomicUsize,
    totals: Arc<Totals>,
}

impl Held {
    pub(super) fn new(bytes: u64, totals: &Arc<Totals>) -> Self {
        totals.all_bytes.fetch_add(bytes, Relaxed);
        Self {
            bytes,
            transports: AtomicUsize::new(0),
            totals: Arc::clone(totals),
        }
    }

    /// The batch's bytes, which count until the last slice of them is dropped. The transport keeps them until
    /// its peer has taken them.
    pub(super) fn attach(self: Arc<Self>, body: Bytes) -> Bytes {
        if self.transports.fetch_add(1, AcqRel) == 0 {
            let in_transport = &self.totals.in_transport_bytes;
            in_transport.fetch_add(self.bytes, Relaxed);
        }
        Bytes::from_owner(Charged { body, held: self })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.totals.all_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

/// For another form of a batch, which is counted as long as a consumer has not taken it.
#[derive(Default)]
pub struct SharedHeld(Mutex<Weak<Held>>);

impl SharedHeld {
    pub(super) fn of(&self, bytes: u64, totals: &Arc<Totals>) -> Arc<Held> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let held = Arc::new(Held::new(bytes, totals));
            *shared = Arc::downgrade(&held);
            held
        })
    }
}

struct Charged {
    body: Bytes,
    held: Arc<Held>,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        let held = &self.held;
        if held.transports.fetch_sub(1, AcqRel) == 1 {
            let in_transport = &held.totals.in_transport_bytes;
            in_transport.fetch_sub(held.bytes, Relaxed);
        }
    }
}
