//! The ICMP errors that the programs hand over.

use std::os::fd::AsFd as _;

use agent_common::icmp::{IcmpMessage, lost};
use anyhow::{Context as _, Result};
use aya::maps::{Array, Map, MapData, RingBuf};
use sys::log_limit::LogLimit;

use super::{
    memory::{map_memory_bytes, memory_bytes},
    ring,
};

/// The ring in which they wait for a scan: room for some 3,700.
pub const RING_LEN_BYTES: u32 = 1 << 20;

/// Its maps.
pub struct Maps {
    pub errors: MapData,
    pub lost: MapData,
}

/// Takes them from the programs.
pub struct IcmpErrors {
    ring: RingBuf<MapData>,
    lost: Array<MapData, u64>,
    memory_bytes: u64,
    /// Whether the programs hand over any.
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

    /// Hands on what came since the last call.
    pub fn take(&mut self, each: impl FnMut(&IcmpMessage)) -> Result<()> {
        if !self.is_wanted {
            return Ok(());
        }
        // What comes meanwhile may wait for the next scan.
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

    /// How many were not read.
    pub fn lost(&self) -> u64 {
        self.told_lost
    }

    /// All of it is allocated at the beginning.
    pub fn kernel_memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}
