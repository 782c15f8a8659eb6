//! The ICMP errors that the programs pass to userspace.

use std::os::fd::AsFd as _;

use agent_common::icmp::{IcmpMessage, lost};
use anyhow::{Context as _, Result};
use aya::maps::{Array, Map, MapData, RingBuf};
use sys::log_limit::LogLimit;

use super::{
    memory::{map_memory_bytes, memory_bytes},
    ring,
};

/// Size of the ring of ICMP errors: room for some 3,700 between two scans.
pub const RING_LEN_BYTES: u32 = 1 << 20;

/// The ring, and the counts of lost errors.
pub struct Maps {
    pub errors: MapData,
    pub lost: MapData,
}

/// Reads ICMP errors from the ring.
pub struct IcmpErrors {
    ring: RingBuf<MapData>,
    lost: Array<MapData, u64>,
    memory_bytes: u64,
    /// Whether the programs pass on ICMP errors.
    is_wanted: bool,
    told_lost: u64,
    log: LogLimit,
}

impl IcmpErrors {
    pub fn new(maps: Maps, is_wanted: bool) -> Result<Self> {
        let Maps { errors, lost } = maps;
        let of_lost = map_memory_bytes(&lost);
        let ring =
            RingBuf::try_from(Map::RingBuf(errors)).context("map the ring of ICMP errors")?;
        let lost = Array::try_from(Map::Array(lost));
        Ok(Self {
            memory_bytes: memory_bytes(ring.as_fd()) + of_lost,
            ring,
            lost: lost.context("the counts of lost ICMP errors")?,
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
        ring::take(&mut self.ring, most, each).context("ICMP errors")?;
        let lost = (0..lost::KINDS).map(|kind| self.lost.get(&kind, 0));
        let lost = lost.sum::<Result<u64, _>>();
        let lost = lost.context("read how many ICMP errors were lost")?;
        if lost != self.told_lost {
            self.told_lost = lost;
            if self.log.event().is_some() {
                tracing::warn!(
                    so_far = lost,
                    "ICMP errors were not read, so flows that they tell of may seem unanswered: more came between two scans than the \
                     kernel keeps, or they were too short"
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
        self.memory_bytes
    }
}
