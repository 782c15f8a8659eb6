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

/// A share: room for a batch of some 260 KiB as its filter leaves it and as it is compressed.
pub const COPIES_BYTES: u64 = 640 << 10;

/// A consumer's share of the bound.
pub struct CopyRoom {
    hub: Hub,
    share: Arc<Held>,
    /// What it leaves to others when it takes more.
    left_bytes: u64,
    turns: Arc<Semaphore>,
}

impl CopyRoom {
    pub(super) fn new(hub: Hub, share: Held, left_bytes: u64) -> Self {
        Self {
            hub,
            share: Arc::new(share),
            left_bytes,
            turns: Arc::new(Semaphore::new(1)),
        }
    }

    /// Waits until all copies made before were dropped.
    pub async fn turn(&self) -> Turn {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        Turn {
            hub: self.hub.clone(),
            _share: Arc::clone(&self.share),
            left_bytes: self.left_bytes,
            _more: None,
            _permit: turn.expect("turns are never closed"),
        }
    }
}

/// The right to make copies of one batch. The next turn begins when this and all these copies were dropped.
pub struct Turn {
    hub: Hub,
    _share: Arc<Held>,
    left_bytes: u64,
    _more: Option<Held>,
    _permit: OwnedSemaphorePermit,
}

impl Turn {
    /// For copies that take so many bytes. `None` if that is more than a share, and the bound has no room for the rest.
    pub fn of(self, bytes: u64) -> Option<Arc<Self>> {
        let more = bytes.checked_sub(COPIES_BYTES).filter(|more| *more > 0);
        let more = more.map(|more| self.hub.reserve(more, self.left_bytes));
        let more = match more {
            Some(reserved) => Some(reserved?),
            None => None,
        };
        Some(Arc::new(Self {
            _more: more,
            ..self
        }))
    }

    /// A copy, which takes its room until the transport drops it. `held` counts the bytes once for the agent where others have
    /// the same.
    pub fn hold(self: &Arc<Self>, bytes: Bytes, held: &SharedHeld) -> Bytes {
        let held = held.of(bytes.len() as u64, &self.hub.copied_bytes);
        Bytes::from_owner(Copied {
            bytes,
            _held: held,
            _turn: Arc::clone(self),
        })
    }
}

struct Copied {
    bytes: Bytes,
    _held: Arc<Held>,
    _turn: Arc<Turn>,
}

impl AsRef<[u8]> for Copied {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
