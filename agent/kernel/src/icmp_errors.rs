//! The ICMP errors that the programs pass to userspace.

use agent_common::icmp::{IcmpMessage, lost};
use anyhow::{Context as _, Result};
use sys::log_limit::LogLimit;

use super::ring::{Maps, Ring};

/// Size of the ring of ICMP errors: room for some 3,700 between two scans.
pub const RING_LEN_BYTES: u32 = 1 << 20;

/// Reads ICMP errors from the ring.
pub struct IcmpErrors {
    ring: Ring<IcmpMessage>,
    /// Whether the programs pass on ICMP errors.
    is_wanted: bool,
    told_lost: u64,
    log: LogLimit,
}

impl IcmpErrors {
    pub fn new(maps: Maps, is_wanted: bool) -> Result<Self> {
        Ok(Self {
            ring: Ring::new(maps).context("ICMP errors")?,
            is_wanted,
            told_lost: 0,
            log: LogLimit::default(),
        })
    }

    /// Passes on the errors since the last call.
    pub fn take(&mut self, each: impl FnMut(&IcmpMessage)) -> Result<()> {
        if !self.is_wanted {
            return Ok(());
        }
        // Limited to one full ring; errors that arrive meanwhile may wait for the next scan.
        let most = RING_LEN_BYTES as usize / size_of::<IcmpMessage>();
        self.ring.take(most, each).context("ICMP errors")?;
        let lost = (0..lost::KINDS).map(|kind| self.ring.lost(kind));
        let lost = lost.sum::<Result<u64>>().context("ICMP errors")?;
        if lost != self.told_lost {
            self.told_lost = lost;
            if self.log.event().is_some() {
                tracing::warn!(
                    so_far = lost,
                    "ICMP errors were not read, so their flows may seem unanswered: more came between two scans than \
                     the kernel keeps, or they were too short"
                );
            }
        }
        Ok(())
    }

    /// How many errors were lost.
    pub fn lost(&self) -> u64 {
        self.told_lost
    }

    /// The kernel allocates all of it when the maps are created.
    pub fn kernel_memory_bytes(&self) -> u64 {
        self.ring.kernel_memory_bytes()
    }
}
