//! Room for what a consumer has for itself: its batches without what its filter leaves out, or compressed.
//!
//! Nobody can take back what the transport has. So each consumer that needs copies has its share of the bound from the
//! beginning, and makes the next one when the transport has dropped those before: one that never reads takes no more
//! than its share, and leaves others theirs.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    Hub,
    held::{Held, SharedHeld},
};
use crate::kept::keeping;

/// A share: room for a batch of some 260 KiB as its filter leaves it and as it is compressed.
pub const COPIES_BYTES: u64 = 640 << 10;

/// A consumer's share of the bound, and who may use it.
pub struct CopyRoom {
    share: Arc<Share>,
    turns: Arc<Semaphore>,
}

struct Share {
    hub: Hub,
    _reserved: Held,
    /// What it leaves to others when it takes more.
    left_bytes: u64,
}

impl CopyRoom {
    pub(super) fn new(hub: Hub, reserved: Held, left_bytes: u64) -> Self {
        Self {
            share: Arc::new(Share {
                hub,
                _reserved: reserved,
                left_bytes,
            }),
            turns: Arc::new(Semaphore::new(1)),
        }
    }

    /// Waits until all copies made before were dropped.
    pub async fn turn(&self) -> Turn {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        Turn {
            share: Arc::clone(&self.share),
            more: None,
            _permit: turn.expect("turns are never closed"),
        }
    }
}

/// The right to make copies of one batch. The next turn begins when this and all these copies were dropped.
pub struct Turn {
    share: Arc<Share>,
    more: Option<Held>,
    _permit: OwnedSemaphorePermit,
}

impl Turn {
    /// For copies that take so many bytes. `None` if that is more than a share, and the bound has no room for the rest.
    pub fn of(mut self, bytes: u64) -> Option<Arc<Self>> {
        if bytes > COPIES_BYTES {
            let Share {
                hub, left_bytes, ..
            } = &*self.share;
            self.more = Some(hub.reserve(bytes - COPIES_BYTES, *left_bytes)?);
        }
        Some(Arc::new(self))
    }

    /// A copy, which takes its room until the transport drops it. `held` counts the bytes once for the agent where others have
    /// the same.
    pub fn hold(self: &Arc<Self>, bytes: Bytes, held: &SharedHeld) -> Bytes {
        let held = held.of(bytes.len() as u64, &self.share.hub.copied_bytes);
        keeping(bytes, (held, Arc::clone(self)))
    }
}
