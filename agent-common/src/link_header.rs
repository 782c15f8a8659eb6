//! Detects packets whose link header is not the one that the type of their interface promises.
//!
//! `tc` can redirect a packet from a device without link headers to an Ethernet device, where it lacks the Ethernet
//! header, and the other way around, where it has one too many (`tcf_mirred_to_dev`, 6.1 to 6.19). For almost every
//! packet the first bytes prove that the header is right. In doubt, the programs compare them with the bytes at the
//! kernel's network header: they are equal if the packet begins with its IP header.

use crate::{
    frame::Header,
    link::{ETHERTYPE_IPV4, ETHERTYPE_IPV6},
    parse::LinkType,
};

/// How many of the first bytes are compared: an Ethernet header and two more bytes.
pub const COMPARED: usize = 16;

/// Whether the start of a packet leaves the link type in doubt. `protocol` is `skb->protocol` in host order: for a
/// frame that the kernel took for Ethernet, the EtherType behind the removed tag. A packet that is not IP has no flow
/// either way.
#[inline(always)]
pub fn is_doubtful(
    start: &impl Header,
    protocol: u16,
    len_bytes: u32,
    link_type: LinkType,
) -> bool {
    let (version, ip_len) = match protocol {
        ETHERTYPE_IPV4 => (4, start.be16::<2>()),
        ETHERTYPE_IPV6 => (6, start.be16::<4>()),
        _ => return false,
    };
    let is_version = start.u8::<0>() >> 4 == version;
    let has_ethertype = start.be16::<12>() == protocol;
    match link_type {
        LinkType::Ethernet => is_version && (!has_ethertype || u32::from(ip_len) <= len_bytes),
        LinkType::Ip => has_ethertype || !is_version,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETHERTYPE_ARP: u16 = 0x0806;
    const TAGGED: u16 = 0x8100;

    /// The first bytes of a frame, from its two addresses' first bytes and its EtherType.
    fn ethernet(first: u8, ethertype: u16) -> [u8; COMPARED] {
        let mut start = [0xee; COMPARED];
        start[0] = first;
        start[12..14].copy_from_slice(&ethertype.to_be_bytes());
        start[14] = 0x45;
        start
    }

    /// The same for an IP packet without a link header, with two bytes of its source address where an EtherType would
    /// be.
    fn bare(version: u8, len: u16, source: u16) -> [u8; COMPARED] {
        let mut start = [0; COMPARED];
        start[0] = version << 4 | 5;
        let at = if version == 4 { 2 } else { 4 };
        start[at..at + 2].copy_from_slice(&len.to_be_bytes());
        start[12..14].copy_from_slice(&source.to_be_bytes());
        start
    }

    #[test]
    fn an_ethernet_device_doubts_whatever_could_be_a_bare_packet() {
        let doubts = |start: [u8; COMPARED], protocol| {
            is_doubtful(&start, protocol, 1000, LinkType::Ethernet)
        };
        for ethertype in [ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ARP, TAGGED] {
            assert!(!doubts(ethernet(0x02, ethertype), ethertype));
            // The length would be 61,166.
            assert!(!doubts(ethernet(0x44, ethertype), ethertype));
        }
        for (version, protocol) in [(4, ETHERTYPE_IPV4), (6, ETHERTYPE_IPV6)] {
            // In a source such as 8.0.69.1 or 2001:db8:86dd::1, two bytes look like the EtherType.
            for source in [0x0a4d, protocol] {
                assert!(doubts(bare(version, 900, source), protocol), "{source:x}");
            }
            // No length in the IP header (BIG TCP).
            assert!(doubts(bare(version, 0, protocol), protocol));
        }
        // The kernel took it for another kind of frame, such as LLC.
        assert!(!doubts(ethernet(0x01, 0x26), 0x0004));
        // A truncated packet.
        assert!(doubts(bare(4, 1500, 0x0a4d), ETHERTYPE_IPV4));
    }

    #[test]
    fn a_device_without_link_headers_doubts_whatever_could_have_one() {
        let doubts =
            |start: [u8; COMPARED], protocol| is_doubtful(&start, protocol, 1000, LinkType::Ip);
        for (version, protocol) in [(4, ETHERTYPE_IPV4), (6, ETHERTYPE_IPV6)] {
            assert!(!doubts(bare(version, 900, 0x0a4d), protocol));
            assert!(doubts(bare(version, 900, protocol), protocol));
            for first in [0x02, 0x45, 0x60] {
                assert!(doubts(ethernet(first, protocol), protocol), "{first:x}");
            }
        }
        // A packet that is not IP has no flow either way.
        assert!(!doubts(ethernet(0x02, ETHERTYPE_ARP), ETHERTYPE_ARP));
    }
}
