//! Room for a consumer's own copies of batches: filtered, or compressed.
//!
//! Bytes in the transport cannot be taken back. So each consumer that needs copies reserves its share of the bound at
//! the start, and makes a copy only once the transport has dropped the earlier ones. A consumer that never reads takes
//! only its own share.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    Hub,
    held_bytes::{HeldBytes, SharedHeldBytes},
};
use crate::guarded_bytes::with_guard;

/// A share: room for a batch of some 260 KiB, filtered and compressed.
pub const COPIES_BYTES: u64 = 640 << 10;

/// A consumer's share of the bound, used by one batch at a time.
pub struct CopyRoom {
    share: Arc<Share>,
    turns: Arc<Semaphore>,
}

struct Share {
    hub: Hub,
    _reserved: HeldBytes,
    /// Room to leave free for others when a copy needs more than the share.
    left_bytes: u64,
}

impl CopyRoom {
    pub(super) fn new(hub: Hub, reserved: HeldBytes, left_bytes: u64) -> Self {
        Self {
            share: Arc::new(Share {
                hub,
                _reserved: reserved,
                left_bytes,
            }),
            turns: Arc::new(Semaphore::new(1)),
        }
    }

    /// Waits until all earlier copies are dropped.
    pub async fn turn(&self) -> Turn {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        Turn {
            share: Arc::clone(&self.share),
            more: None,
            _permit: turn.expect("turns are never closed"),
        }
    }
}

/// The right to make copies of one batch. The next turn begins when this one and all its copies are dropped.
pub struct Turn {
    share: Arc<Share>,
    more: Option<HeldBytes>,
    _permit: OwnedSemaphorePermit,
}

impl Turn {
    /// Reserves room for copies of `bytes` bytes. `None` if that is more than a share and the bound has no room for the
    /// rest.
    pub fn reserve(mut self, bytes: u64) -> Option<Arc<Self>> {
        if bytes > COPIES_BYTES {
            let Share {
                hub, left_bytes, ..
            } = &*self.share;
            self.more = Some(hub.reserve(bytes - COPIES_BYTES, *left_bytes)?);
        }
        Some(Arc::new(self))
    }

    /// A copy, which takes its room until the transport drops it. If several consumers have the same copy, `held`
    /// counts its bytes only once.
    pub fn hold(self: &Arc<Self>, bytes: Bytes, held: &SharedHeldBytes) -> Bytes {
        let held = held.get_or_count(bytes.len() as u64, &self.share.hub.copied_bytes);
        with_guard(bytes, (held, Arc::clone(self)))
    }
}
