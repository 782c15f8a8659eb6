//! Whether a packet begins with the header that the type of its interface promises.
//!
//! `tc` may put a packet of a device without link headers in the way of an Ethernet device, where it has no Ethernet
//! header, and the other way around, where it has one (`tcf_mirred_to_dev`, 6.1 to 6.19). Almost every packet shows by
//! its first bytes that it is as it should be. Where these leave a doubt, they are compared with what the kernel has at
//! the packet's network header: they are the same if the packet begins there.

use crate::{
    frame::Header,
    link::{ETHERTYPE_IPV4, ETHERTYPE_IPV6},
    parse::LinkType,
};

/// How many of the first bytes are compared: an Ethernet header, and two more.
pub const COMPARED: usize = 16;

/// Whether the start of a packet leaves a doubt. `protocol` is `skb->protocol` in host order: for a frame that the
/// kernel took for Ethernet, its EtherType behind the tag that was taken out. What is no IP is in no flow in either case.
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

    /// The same of an IP packet without anything in front, with the two bytes of its source where an EtherType would be.
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
            // A source such as 8.0.69.1 or 2001:db8:86dd::1 has the EtherType's place.
            for source in [0x0a4d, protocol] {
                assert!(doubts(bare(version, 900, source), protocol), "{source:x}");
            }
            // Without a length, as in BIG TCP.
            assert!(doubts(bare(version, 0, protocol), protocol));
        }
        // The kernel took it for something else, as an LLC frame.
        assert!(!doubts(ethernet(0x01, 0x26), 0x0004));
        // A packet that is cut.
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
        // What is no IP has no flow in either case.
        assert!(!doubts(ethernet(0x02, ETHERTYPE_ARP), ETHERTYPE_ARP));
    }
}
