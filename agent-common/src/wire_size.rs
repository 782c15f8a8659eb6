//! How many frames on the wire, and how many bytes, an skb stands for (GSO and GRO).

use crate::parse::LinkType;

/// What the kernel says about an skb; all zero but `len_bytes` where it is a single frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Skb {
    /// `skb->len`: from the link header, or the IP header where there is none.
    pub len_bytes: u32,
    /// `gso_size`: payload of one segment; 0 for a single frame, 0xFFFF for SCTP.
    pub gso_size_bytes: u32,
    /// `gso_segs`: how many segments; virtio and tap leave it 0.
    pub gso_segs: u32,
    /// 4 where the VLAN tag was taken out of the frame (`vlan_present`), else 0.
    pub tag_len_bytes: u32,
}

/// The longest IPv6 packet whose length its header can say, with that header; and the Ethernet header
/// with two tags.
const LONGEST_IPV6: u32 = 40 + 0xffff;
const LONGEST_LINK_HEADER: u32 = 14 + 8;

/// What the kernel itself put into a super-frame of IPv6 that is longer than the header's length field
/// can say (BIG TCP): hop-by-hop options with the jumbo payload's length, which never go onto the wire
/// (`ip6_xmit`, `ipv6_gro_complete`, `ipv6_hopopt_jumbo_remove`; 5.19 to 6.18).
#[inline(always)]
pub fn jumbo_len_bytes(skb: Skb, link_type: LinkType, ip_version: u8) -> u32 {
    // With these eight bytes it is longer by more than the tags can be.
    let longest = match link_type {
        LinkType::Ethernet => LONGEST_IPV6 + LONGEST_LINK_HEADER,
        LinkType::Ip => LONGEST_IPV6,
    };
    if skb.gso_size_bytes != 0 && ip_version == 6 && skb.len_bytes > longest {
        JUMBO_LEN
    } else {
        0
    }
}

/// RFC 2675: the smallest hop-by-hop header.
const JUMBO_LEN: u32 = 8;

/// Frames and bytes as they are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireSize {
    pub packets: u64,
    pub bytes: u64,
    /// False where the repeated headers are unknown, so that `bytes` is too low.
    pub exact: bool,
}

/// `header_len_bytes` is what each segment repeats, through the innermost segmented transport
/// header; 0 where it is unknown.
#[inline(always)]
pub fn wire_size(skb: Skb, header_len_bytes: u32) -> WireSize {
    let once = u64::from(skb.len_bytes) + u64::from(skb.tag_len_bytes);
    if skb.gso_size_bytes == 0 {
        return WireSize {
            packets: 1,
            bytes: once,
            exact: true,
        };
    }
    let known = header_len_bytes != 0 && header_len_bytes <= skb.len_bytes;
    let packets = if skb.gso_segs != 0 {
        skb.gso_segs
    } else {
        // With an unknown header this may be one too many, and is marked inexact below.
        let payload = if known {
            skb.len_bytes - header_len_bytes
        } else {
            skb.len_bytes
        };
        payload.div_ceil(skb.gso_size_bytes).max(1)
    };
    let repeated = if known { header_len_bytes } else { 0 } + skb.tag_len_bytes;
    WireSize {
        packets: u64::from(packets),
        bytes: once + u64::from(packets - 1) * u64::from(repeated),
        exact: known,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_frame_is_itself() {
        let skb = Skb {
            len_bytes: 60,
            ..Skb::default()
        };
        assert_eq!(
            wire_size(skb, 54),
            WireSize {
                packets: 1,
                bytes: 60,
                exact: true
            }
        );
        let tagged = Skb {
            tag_len_bytes: 4,
            ..skb
        };
        assert_eq!(
            wire_size(tagged, 54),
            WireSize {
                packets: 1,
                bytes: 64,
                exact: true
            }
        );
    }

    #[test]
    fn every_segment_repeats_headers_and_tag() {
        // 3,000 bytes of payload in segments of 1,448 behind 66 bytes of headers: 1,448 + 1,448 + 104.
        let skb = Skb {
            len_bytes: 66 + 3_000,
            gso_size_bytes: 1_448,
            gso_segs: 3,
            tag_len_bytes: 4,
        };
        assert_eq!(
            wire_size(skb, 66),
            WireSize {
                packets: 3,
                bytes: 3_000 + 3 * (66 + 4),
                exact: true
            }
        );
    }

    #[test]
    fn segments_are_counted_where_the_driver_leaves_them_zero() {
        let skb = Skb {
            len_bytes: 66 + 2_896,
            gso_size_bytes: 1_448,
            ..Skb::default()
        };
        assert_eq!(wire_size(skb, 66).packets, 2);
        let one_more = Skb {
            len_bytes: skb.len_bytes + 1,
            ..skb
        };
        assert_eq!(wire_size(one_more, 66).packets, 3);
    }

    #[test]
    fn sctp_brings_its_own_count() {
        let skb = Skb {
            len_bytes: 1_000,
            gso_size_bytes: 0xffff,
            gso_segs: 4,
            ..Skb::default()
        };
        assert_eq!(
            wire_size(skb, 46),
            WireSize {
                packets: 4,
                bytes: 1_000 + 3 * 46,
                exact: true
            }
        );
    }

    #[test]
    fn an_unknown_header_is_said() {
        let skb = Skb {
            len_bytes: 3_000,
            gso_size_bytes: 1_000,
            gso_segs: 3,
            ..Skb::default()
        };
        assert_eq!(
            wire_size(skb, 0),
            WireSize {
                packets: 3,
                bytes: 3_000,
                exact: false
            }
        );
    }

    #[test]
    fn only_a_super_frame_that_is_too_long_for_ipv6_has_a_jumbo_header() {
        let skb = Skb {
            len_bytes: 22 + 40 + 0xffff + 1,
            gso_size_bytes: 1_448,
            ..Skb::default()
        };
        assert_eq!(jumbo_len_bytes(skb, LinkType::Ethernet, 6), 8);
        assert_eq!(jumbo_len_bytes(skb, LinkType::Ethernet, 4), 0);
        let fits = Skb {
            len_bytes: skb.len_bytes - 1,
            ..skb
        };
        assert_eq!(jumbo_len_bytes(fits, LinkType::Ethernet, 6), 0);
        assert_eq!(jumbo_len_bytes(fits, LinkType::Ip, 6), 8);
        let jumbogram = Skb {
            gso_size_bytes: 0,
            ..skb
        };
        assert_eq!(jumbo_len_bytes(jumbogram, LinkType::Ethernet, 6), 0);
    }
}
