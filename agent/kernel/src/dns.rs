//! The DNS messages that the programs pass to userspace.

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

/// Size of the ring of DNS messages: room for 5,000.
pub const RING_LEN_BYTES: u32 = 8 << 20;

/// The ring, and the counts of lost messages.
pub struct Maps {
    pub messages: MapData,
    pub lost: MapData,
}

/// Reads DNS messages from the ring.
pub struct DnsMessages {
    ring: RingBuf<MapData>,
    lost: Array<MapData, u64>,
    memory_bytes: u64,
}

/// How many messages userspace did not get, by reason; see [`lost`].
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

    /// Passes on up to `most` waiting messages in order. Returns how many there were.
    pub fn take(&mut self, most: usize, each: impl FnMut(&DnsMessage)) -> Result<usize> {
        ring::take(&mut self.ring, most, each).context("messages of the DNS")
    }

    /// A descriptor of the ring to wait on. It becomes readable when a message arrives after all were taken.
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

    /// The kernel allocates all of it when the maps are created.
    pub fn kernel_memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}
