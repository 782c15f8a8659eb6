//! DNS messages that the programs copy to userspace.

use crate::FlowKey;

/// The port of the DNS (RFC 1035).
pub const PORT: u16 = 53;
/// The length of a message's header.
pub const HEADER_LEN: usize = 12;
/// Bytes kept of a message: all that fits into an Ethernet frame behind an IPv4 and a UDP header. RFC 9715 asks senders
/// of DNS over UDP for at most 1,232 bytes.
pub const KEPT_LEN: usize = 1472;

/// A DNS message from one packet. Its header says whether it is a query or an answer.
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
    /// The length of the UDP payload in the packet.
    pub len_bytes: u32,
    /// How many bytes of `payload` are set.
    pub kept_bytes: u32,
    pub payload: [u8; KEPT_LEN],
}

const _: () = assert!(size_of::<DnsMessage>() == size_of::<FlowKey>() + 24 + KEPT_LEN);

/// Why a message did not reach userspace: indices of counters.
pub mod lost {
    /// The ring was full.
    pub const NO_ROOM: u32 = 0;
    /// More messages in a second than the setting allows.
    pub const OVER_RATE: u32 = 1;
    /// A super-frame (GRO), or bytes that could not be read.
    pub const UNREADABLE: u32 = 2;
    pub const KINDS: u32 = 3;
}

/// How many messages were copied to userspace in a second.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DnsBudget {
    /// The boot time in nanoseconds, shifted right by [`Self::SECOND_SHIFT`].
    pub second: u64,
    pub taken: u64,
}

impl DnsBudget {
    /// Turns nanoseconds into "seconds" of 1.07 s without a division.
    pub const SECOND_SHIFT: u32 = 30;
}

#[cfg(feature = "user")]
mod pod {
    // SAFETY: repr(C), integers only, no padding (asserted by size above).
    unsafe impl aya::Pod for super::DnsMessage {}
    // SAFETY: repr(C), integers of one size only.
    unsafe impl aya::Pod for super::DnsBudget {}
}
