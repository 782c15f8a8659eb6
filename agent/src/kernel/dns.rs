//! The messages of the DNS that the programs hand over.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use agent_common::dns::{DnsMessage, lost};
use anyhow::{Context as _, Result};
use aya::maps::{Array, Map, MapData, RingBuf};

use super::memory::{map_memory_bytes, memory_bytes};

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
    pub fn take(&mut self, most: usize, mut each: impl FnMut(&DnsMessage)) -> usize {
        for taken in 0..most {
            let Some(noted) = self.ring.next() else {
                return taken;
            };
            debug_assert_eq!(noted.len(), size_of::<DnsMessage>());
            if noted.len() == size_of::<DnsMessage>() {
                #[expect(clippy::cast_ptr_alignment, reason = "the kernel aligns by 8 bytes")]
                let message = noted.as_ptr().cast::<DnsMessage>();
                // SAFETY: it has the size of one and its alignment, and any bytes are one.
                each(unsafe { &*message });
            }
        }
        most
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
