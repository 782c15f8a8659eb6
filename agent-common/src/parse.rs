//! The parser: reads a frame into a [`Packet`] with its flow key, or returns the [`Reason`] why it cannot.
//!
//! It goes through [`crate::link`] and [`crate::ip`] to [`crate::transport`]. Every loop is bounded and
//! every offset has a limit, so the verifier accepts the same source that the host tests run.

use crate::{
    account::Reason,
    flow::{FlowKey, L4Kind},
    frame::Frame,
    ip,
    link::{self, VLAN_ID_MASK},
};

/// The header at the start of a frame. It follows from the interface's hardware type (ARPHRD).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    Ethernet,
    /// No link header: tun, WireGuard, IP tunnels, raw IP modems.
    Ip,
}

impl LinkType {
    #[inline(always)]
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Ethernet => Self::Ip,
            Self::Ip => Self::Ethernet,
        }
    }
}

/// The parser's result for a packet. The caller fills in `netns` and `ifindex` of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    pub key: FlowKey,
    /// 0 if the sender is endpoint a, 1 if it is b.
    pub direction: u8,
    /// The direction of the flow's initiator, as far as this packet shows: its own direction, or the other
    /// one if it is an answer (SYN with ACK, ICMP reply).
    pub initiator: u8,
    /// The TCP header's flag byte; 0 for other protocols.
    pub tcp_flags: u8,
    /// DSCP, six bits.
    pub dscp: u8,
    /// The headers that each segment of a super-frame repeats: from the start of the frame through the TCP,
    /// UDP or SCTP header. 0 if unknown.
    pub segment_header_len_bytes: u32,
    /// The length of the hop-by-hop header that the kernel itself puts into an IPv6 super-frame that is too long for
    /// the IPv6 length field (BIG TCP). It never goes onto the wire (`ip6_xmit`, `ipv6_gro_complete`; 5.19 to 6.19). 0
    /// in all other frames.
    pub jumbo_len_bytes: u16,
    /// Which part of its datagram the packet is.
    pub part: Part,
    /// The identification that all fragments of the datagram carry.
    pub datagram_id: u32,
    /// The offset of the IP header in the frame: the inner one once a tunnel is opened.
    pub ip_start_bytes: u16,
    /// The offset of the payload of a packet that may be a tunnel's. 0 for other packets.
    pub payload_start_bytes: u16,
    /// Where the IP packet ends; bytes behind it are padding. [`NO_LIMIT`](crate::ip::NO_LIMIT) if no length field
    /// gives the end (BIG TCP).
    pub ip_end_bytes: u32,
}

/// A packet's part of its datagram, written as in IPv4: the offset in units of eight bytes (lower 13 bits), and whether
/// more fragments follow. 0 is a whole datagram, including one with an IPv6 Fragment header that covers all of it (RFC
/// 6946).
///
/// Not an enum: the verifier would walk the rest of the parser once for each variant.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part(u16);

impl Part {
    const MORE: u16 = 0x2000;
    const OFFSET: u16 = 0x1fff;

    pub const fn new(offset_bytes: u16, more: bool) -> Self {
        Self(offset_bytes >> 3 | if more { Self::MORE } else { 0 })
    }

    #[inline(always)]
    pub const fn bits(self) -> u16 {
        self.0
    }

    #[inline(always)]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// From the second 32-bit word of an IPv4 header (RFC 791).
    #[inline(always)]
    pub(crate) fn ipv4(word: u32) -> Self {
        Self(word as u16 & (Self::MORE | Self::OFFSET))
    }

    /// From the second 16-bit word of a Fragment header (RFC 8200 section 4.5).
    #[inline(always)]
    pub(crate) fn ipv6(word: u16) -> Self {
        Self(word >> 3 | (word & 1) << 13)
    }

    #[inline(always)]
    pub const fn is_whole(self) -> bool {
        self.0 == 0
    }

    /// Only the first fragment has the header with the ports.
    #[inline(always)]
    pub const fn is_first(self) -> bool {
        self.0 == Self::MORE
    }

    #[inline(always)]
    pub const fn is_later(self) -> bool {
        self.0 & Self::OFFSET != 0
    }

    pub const fn offset_bytes(self) -> u16 {
        (self.0 & Self::OFFSET) << 3
    }

    pub const fn has_more(self) -> bool {
        self.0 & Self::MORE != 0
    }
}

impl Packet {
    /// The key must have ports.
    #[inline(always)]
    pub(crate) fn destination_port(&self) -> u16 {
        if self.direction == 0 {
            self.key.port_b
        } else {
            self.key.port_a
        }
    }

    /// Sets the key's transport fields. `reversed` means that the source is endpoint b.
    #[inline(always)]
    pub(crate) fn set_direction(&mut self, kind: L4Kind, protocol: u8, reversed: bool) {
        self.key.l4_kind = kind as u8;
        self.key.protocol = protocol;
        self.direction = u8::from(reversed);
        self.initiator = self.direction;
    }
}

/// The IP layer's input to the transport parser.
#[derive(Clone, Copy)]
pub(crate) struct Transport {
    pub protocol: u8,
    pub offset_bytes: u32,
    /// Where the IP packet ends; bytes behind it are padding. [`ip::NO_LIMIT`] if no length field gives the end (BIG
    /// TCP).
    pub end_bytes: u32,
    pub later_fragment: bool,
    /// How the source address compares with the destination address. It decides the canonical order.
    pub order: core::cmp::Ordering,
}

/// Headers that a parser reads besides plain IP: a constant, so that each parser contains only the code it needs.
pub(crate) const COMMON: u32 = 0;
/// PPPoE and MPLS before IP.
pub(crate) const ENCAPSULATION: u32 = 1;
/// IPv6 extension headers.
pub(crate) const EXTENSIONS: u32 = 2;
const ALL: u32 = ENCAPSULATION | EXTENSIONS;

/// Parses `frame` into `packet`, which must be [`Packet::default`]. Returns [`Reason::NotIp`] for PPPoE, MPLS and IPv6
/// with extension headers, which [`parse_all`] reads.
///
/// `offloaded_tci` is the outermost VLAN tag if the driver removed it from the frame (`skb->vlan_tci`).
#[inline(always)]
pub fn parse<F: Frame>(
    frame: &F,
    link_type: LinkType,
    offloaded_tci: Option<u16>,
    packet: &mut Packet,
) -> Result<(), Reason> {
    parse_any::<F, COMMON>(frame, link_type, offloaded_tci, packet)
}

/// Like [`parse`], but also reads PPPoE, MPLS and extension headers. The lengths of these make all later offsets
/// variable, and the verifier walks the rest once for each offset it can tell apart. So this is a separate parser.
#[inline(always)]
pub fn parse_all<F: Frame>(
    frame: &F,
    link_type: LinkType,
    offloaded_tci: Option<u16>,
    packet: &mut Packet,
) -> Result<(), Reason> {
    parse_any::<F, ALL>(frame, link_type, offloaded_tci, packet)
}

#[inline(always)]
fn parse_any<F: Frame, const WHAT: u32>(
    frame: &F,
    link_type: LinkType,
    offloaded_tci: Option<u16>,
    packet: &mut Packet,
) -> Result<(), Reason> {
    let mut tags = 0;
    if let Some(tci) = offloaded_tci {
        packet.key.vlan_ids[0] = tci & VLAN_ID_MASK;
        tags = 1;
    }
    match link_type {
        LinkType::Ethernet => link::ethernet::<F, WHAT>(frame, 0, tags, packet),
        LinkType::Ip => ip::bare::<F, WHAT>(frame, packet),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_the_whole_the_first_or_a_later_one() {
        // The header's word: don't fragment, more fragments, the offset in units of eight bytes.
        let cases = [
            (0x0000, "whole", 0, false),
            (0x4000, "whole", 0, false),
            (0x2000, "first", 0, true),
            (0x2003, "later", 24, true),
            (0x0003, "later", 24, false),
            (0x1fff, "later", 0xfff8, false),
            (0x3fff, "later", 0xfff8, true),
        ];
        for (word, which, offset_bytes, more) in cases {
            // The identification precedes it.
            let part = Part::ipv4(0xffff_0000 | word);
            assert_eq!(part, Part::new(offset_bytes, more), "{word:x}");
            let word = offset_bytes | u16::from(more);
            assert_eq!(part, Part::ipv6(word | 6), "the reserved bits say nothing");
            assert_eq!(part.is_whole(), which == "whole", "{word:x}");
            assert_eq!(part.is_first(), which == "first", "{word:x}");
            assert_eq!(part.is_later(), which == "later", "{word:x}");
            assert_eq!((part.offset_bytes(), part.has_more()), (offset_bytes, more));
        }
    }
}
