//! Room for what a consumer has for itself: its batches without what its filter leaves out, or compressed.
//!
//! Others cannot share such a copy, and nobody can take back what the transport has. So each consumer that needs copies
//! has its share of the bound from the beginning, and waits within it: one that never reads takes no more than that, and
//! leaves others theirs.

use std::sync::{Arc, atomic::AtomicU64};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::held::{Held, SharedHeld};

/// What the copies of one consumer take together. A single one may be longer.
pub const COPIES_BYTES: u32 = 512 << 10;

/// A consumer's share of the bound.
pub struct CopyRoom {
    free: Arc<Semaphore>,
    share: Arc<Held>,
    /// The bytes of all copies.
    total: Arc<AtomicU64>,
}

impl CopyRoom {
    /// `reserved_bytes` has the shares of all.
    pub(super) fn new(reserved_bytes: &Arc<AtomicU64>, total: &Arc<AtomicU64>) -> Self {
        Self {
            free: Arc::new(Semaphore::new(COPIES_BYTES as usize)),
            share: Arc::new(Held::new(COPIES_BYTES.into(), reserved_bytes)),
            total: Arc::clone(total),
        }
    }

    /// Waits until there is room for copies of this length. `None` never comes, as the room is never closed.
    pub async fn take(&self, bytes: usize) -> Option<Claim> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(COPIES_BYTES);
        let free = Arc::clone(&self.free).acquire_many_owned(bytes).await;
        Some(Claim {
            permit: free.ok()?,
            share: Arc::clone(&self.share),
            total: Arc::clone(&self.total),
        })
    }
}

/// Room for copies that are about to be made. What they do not need is free again when it is dropped.
pub struct Claim {
    permit: OwnedSemaphorePermit,
    share: Arc<Held>,
    total: Arc<AtomicU64>,
}

impl Claim {
    /// A copy, which takes its room until the transport drops it. `held` counts the bytes once for the agent where others have
    /// the same.
    pub fn hold(&mut self, bytes: Bytes, held: &SharedHeld) -> Bytes {
        let room = bytes.len().min(self.permit.num_permits());
        let held = held.of(bytes.len() as u64, &self.total);
        Bytes::from_owner(Copied {
            bytes,
            _held: held,
            _permit: self.permit.split(room),
            _share: Arc::clone(&self.share),
        })
    }
}

struct Copied {
    bytes: Bytes,
    _held: Arc<Held>,
    _permit: Option<OwnedSemaphorePermit>,
    _share: Arc<Held>,
}

impl AsRef<[u8]> for Copied {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
