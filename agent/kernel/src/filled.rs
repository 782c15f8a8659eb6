//! Waits until the programs report, in a ring, that the page in use is filling early.

use std::io;

use anyhow::{Context as _, Result};
use aya::maps::{MapData, RingBuf};
use tokio::io::{Interest, unix::AsyncFd};

/// Receives the programs' reports without polling.
pub struct FilledPages {
    ring: AsyncFd<RingBuf<MapData>>,
}

impl FilledPages {
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn listen(ring: RingBuf<MapData>) -> Result<Self> {
        // SAFETY: the ring owns its map's descriptor, which stays open and the same for its life.
        let ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) };
        let ring = ring
            .map_err(|error| error.into_parts().1)
            .context("listen for pages that fill")?;
        Ok(Self { ring })
    }

    /// Resolves when page `active` has passed its mark.
    ///
    /// A report about the other page is late: the flip made that page idle, and the scan drained it. If a late report
    /// is read only after one more flip, it seems to concern the active page and causes a scan that was not needed yet.
    pub async fn passed(&mut self, active: u32) -> io::Result<()> {
        loop {
            let mut ready = self.ring.readable_mut().await?;
            let ring = ready.get_inner_mut();
            let mut has_passed = false;
            while let Some(said) = ring.next() {
                has_passed |= *said == u64::from(active).to_ne_bytes();
            }
            ready.clear_ready();
            if has_passed {
                return Ok(());
            }
        }
    }
}
