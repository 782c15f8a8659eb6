//! The DNS messages that the programs pass to userspace.

use std::{io, os::fd::OwnedFd};

use agent_common::dns::{DnsMessage, lost};
use anyhow::{Context as _, Result};

use super::ring::{Maps, Ring};

/// Size of the ring of DNS messages: room for 5,000.
pub const RING_LEN_BYTES: u32 = 8 << 20;

/// Reads DNS messages from the ring.
pub struct DnsMessages(Ring<DnsMessage>);

/// How many messages userspace did not get, by reason; see [`lost`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    pub no_room: u64,
    pub over_rate: u64,
    pub unreadable: u64,
}

impl DnsMessages {
    pub fn new(maps: Maps) -> Result<Self> {
        Ok(Self(Ring::new(maps).context("messages of the DNS")?))
    }

    /// Passes on up to `most` waiting messages in order. Returns how many there were.
    pub fn take(&mut self, most: usize, each: impl FnMut(&DnsMessage)) -> Result<usize> {
        self.0.take(most, each).context("messages of the DNS")
    }

    /// A descriptor of the ring to wait on. It becomes readable when a message arrives after all were taken.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.0.try_clone_descriptor()
    }

    pub fn lost(&self) -> Result<Lost> {
        let of = |kind| self.0.lost(kind).context("messages of the DNS");
        Ok(Lost {
            no_room: of(lost::NO_ROOM)?,
            over_rate: of(lost::OVER_RATE)?,
            unreadable: of(lost::UNREADABLE)?,
        })
    }

    /// The kernel allocates all of it when the maps are created.
    pub fn kernel_memory_bytes(&self) -> u64 {
        self.0.kernel_memory_bytes()
    }
}
