//! The messages of the DNS that the programs hand over.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use agent_common::dns::{DnsMessage, lost};
use anyhow::{Context as _, Result};
use aya::maps::{Array, Map, MapData, RingBuf};

use super::{
    memory::{map_memory_bytes, memory_bytes},
    ring,
};

/// The ring in which they wait: room for 5,000.
pub const RING_LEN_BYTES: u32 = 8 << 20;

/// Its maps.
pub struct Maps {
    pub messages: MapData,
    pub lost: MapData,
}

/// Takes messages from the programs.
pub struct DnsMessages {
    ring: RingBuf<MapData>,
    lost: Array<MapData, u64>,
    memory_bytes: u64,
}

/// How many messages userspace did not get, and why: see [`lost`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    pub no_room: u64,
    pub over_rate: u64,
    pub unreadable: u64,
}

impl DnsMessages {
    pub fn new(maps: Maps) -> Result<Self> {
        let Maps { messages, lost } = maps;
        let of_lost = map_memory_bytes(&lost);
        let ring = RingBuf::try_from(Map::RingBuf(messages)).context("map the ring of the DNS")?;
        let lost = Array::try_from(Map::Array(lost));
        Ok(Self {
            memory_bytes: memory_bytes(ring.as_fd()) + of_lost,
            ring,
            lost: lost.context("the counts of lost messages of the DNS")?,
        })
    }

    /// Hands on the messages that wait, in their order, `most` at most. Returns how many there were.
    pub fn take(&mut self, most: usize, each: impl FnMut(&DnsMessage)) -> Result<usize> {
        ring::take(&mut self.ring, most, each).context("messages of the DNS")
    }

    /// The ring, to wait for: it can be read when the first message has come since all were taken.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.ring.as_fd().try_clone_to_owned()
    }

    pub fn lost(&self) -> Result<Lost> {
        let of = |kind| {
            let count = self.lost.get(&kind, 0);
            count.context("read how many messages of the DNS were lost")
        };
        Ok(Lost {
            no_room: of(lost::NO_ROOM)?,
            over_rate: of(lost::OVER_RATE)?,
            unreadable: of(lost::UNREADABLE)?,
        })
    }

    /// All of it is allocated at the beginning.
    pub fn kernel_memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}
