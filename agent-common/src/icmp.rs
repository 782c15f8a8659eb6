//! ICMP errors that the programs copy to userspace.

use crate::{FlowKey, L4Kind, protocol};

/// Bytes kept of an error, from its IP header on: enough for the quoted packet's IP header and the bytes behind it.
pub const KEPT_LEN: usize = 192;
/// The shortest error: an IPv4 header, an ICMP header, the quoted IPv4 header and eight more quoted bytes (RFC 792).
pub const LEAST_LEN: usize = 20 + 8 + 20 + 8;

/// Destination unreachable, of ICMP (RFC 792) and ICMPv6 (RFC 4443).
const UNREACHABLE: u16 = 3;
const UNREACHABLE_V6: u16 = 1;

/// An ICMP error from one packet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IcmpMessage {
    /// The flow of the packet that carries the error.
    pub key: FlowKey,
    /// Time since boot, suspend included.
    pub seen_ns: u64,
    /// The packet's direction: 0 is a → b.
    pub direction: u32,
    /// How many bytes of `packet` are set.
    pub kept_bytes: u32,
    /// From the IP header on.
    pub packet: [u8; KEPT_LEN],
}

const _: () = assert!(size_of::<IcmpMessage>() == size_of::<FlowKey>() + 16 + KEPT_LEN);

/// Why an error did not reach userspace: indices of counters.
pub mod lost {
    /// The ring was full.
    pub const NO_ROOM: u32 = 0;
    /// Too short, or bytes that could not be read.
    pub const UNREADABLE: u32 = 1;
    pub const KINDS: u32 = 2;
}

/// Whether the flow consists of "destination unreachable" errors.
#[inline(always)]
pub fn tells_of_unreachable(key: &FlowKey) -> bool {
    if key.kind() != Some(L4Kind::Icmp) {
        return false;
    }
    let icmp_type = key.port_a >> 8;
    key.protocol == protocol::ICMP && icmp_type == UNREACHABLE
        || key.protocol == protocol::ICMPV6 && icmp_type == UNREACHABLE_V6
}

#[cfg(feature = "user")]
mod pod {
    // SAFETY: repr(C), integers only, no padding (asserted by size above).
    unsafe impl aya::Pod for super::IcmpMessage {}
}
