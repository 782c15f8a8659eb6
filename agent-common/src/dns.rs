//! Messages of the Domain Name System that the programs hand to userspace.

use crate::FlowKey;

/// The port of the DNS (RFC 1035).
pub const PORT: u16 = 53;
/// Of the header of a message.
pub const HEADER_LEN: usize = 12;
/// What is kept of a message: as much as an Ethernet frame has room for behind the headers of IPv4 and UDP. What uses DNS over UDP is
/// told to send less (1,232 bytes, RFC 9715).
pub const KEPT_LEN: usize = 1472;

/// A message as a packet brought it: a query or an answer, whichever its header says.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DnsMessage {
    /// The packet's flow.
    pub key: FlowKey,
    /// Time since boot, suspend included.
    pub seen_ns: u64,
    /// The packet's direction: 0 is a → b.
    pub direction: u32,
    /// Whether it is the first fragment of a datagram.
    pub is_part: u32,
    /// What the packet has behind its UDP header.
    pub len_bytes: u32,
    /// How many bytes of `payload` are set.
    pub kept_bytes: u32,
    pub payload: [u8; KEPT_LEN],
}

const _: () = assert!(size_of::<DnsMessage>() == size_of::<FlowKey>() + 24 + KEPT_LEN);

/// What became of messages that userspace does not get: indices.
pub mod lost {
    /// The ring was full.
    pub const NO_ROOM: u32 = 0;
    /// There were more in a second than the setting allows.
    pub const OVER_RATE: u32 = 1;
    /// One frame stood for several (GRO), or its bytes could not be read.
    pub const UNREADABLE: u32 = 2;
    pub const KINDS: u32 = 3;
}

/// How many messages were handed over in a second.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DnsBudget {
    /// The boot time by [`Self::SECOND_SHIFT`].
    pub second: u64,
    pub taken: u64,
}

impl DnsBudget {
    /// A second that needs no division: 1.07 of them.
    pub const SECOND_SHIFT: u32 = 30;
}

#[cfg(feature = "user")]
mod pod {
    // SAFETY: repr(C), integers only, no padding (asserted by size above).
    unsafe impl aya::Pod for super::DnsMessage {}
    // SAFETY: repr(C), integers of one size only.
    unsafe impl aya::Pod for super::DnsBudget {}
}
