//! How many frames and bytes on the wire an skb stands for (GSO and GRO).

/// The kernel's description of an skb. The GSO fields are zero for a single frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Skb {
    /// `skb->len`: counted from the link header, or from the IP header if there is none.
    pub len_bytes: u32,
    /// `gso_size`: the payload of one segment; 0 for a single frame, 0xFFFF for SCTP.
    pub gso_size_bytes: u32,
    /// `gso_segs`: the number of segments. virtio and tap leave it 0.
    pub gso_segs: u32,
    /// Bytes that each frame on the wire has and the skb lacks: [`TAG_LEN`] if the VLAN tag was removed
    /// (`vlan_present`), plus [`FRAGMENT_HEADER_LEN`] if the skb becomes IPv6 fragments.
    pub lacking_len_bytes: u32,
}

pub const TAG_LEN: u32 = 4;
/// RFC 8200 section 4.5.
pub const FRAGMENT_HEADER_LEN: u32 = 8;

impl Skb {
    #[inline(always)]
    pub fn lacks_tag(&self) -> bool {
        self.lacking_len_bytes & TAG_LEN != 0
    }
}

/// Frames and bytes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireSize {
    pub packets: u64,
    pub bytes: u64,
    /// False if the repeated headers are unknown, so that `bytes` is too low.
    pub exact: bool,
}

/// `header_len_bytes` is the length of the headers that each segment repeats, through the innermost
/// transport header; 0 if unknown.
#[inline(always)]
pub fn wire_size(skb: Skb, header_len_bytes: u32) -> WireSize {
    let once = u64::from(skb.len_bytes) + u64::from(skb.lacking_len_bytes);
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
        // If the header length is unknown, this may be one too many. The result is marked inexact below.
        let payload = if known {
            skb.len_bytes - header_len_bytes
        } else {
            skb.len_bytes
        };
        payload.div_ceil(skb.gso_size_bytes).max(1)
    };
    let repeated = if known { header_len_bytes } else { 0 } + skb.lacking_len_bytes;
    WireSize {
        packets: u64::from(packets),
        bytes: once + u64::from(packets - 1) * u64::from(repeated),
        exact: known,
    }
}

/// The octets of the IP packets (IPFIX element 1, `octetDeltaCount`): headers and payload, without the link layer and
/// without padding. `size` is the frame's size on the wire. The IP packet lies between the two offsets in the frame.
#[inline(always)]
pub fn ip_bytes(skb: Skb, size: WireSize, (start_bytes, end_bytes): (u32, u32)) -> u64 {
    if skb.gso_size_bytes == 0 {
        return u64::from(end_bytes.min(skb.len_bytes).saturating_sub(start_bytes));
    }
    // If the repeated headers are unknown, `size.bytes` does not include them.
    let headers = if size.exact { size.packets } else { 1 };
    let tags = u64::from(skb.lacking_len_bytes & TAG_LEN) * size.packets;
    size.bytes
        .saturating_sub(u64::from(start_bytes) * headers + tags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ip_bytes_are_without_link_header_tag_and_padding() {
        // A datagram of 46 bytes, padded to 60, with a removed tag.
        let skb = Skb {
            len_bytes: 60,
            lacking_len_bytes: TAG_LEN,
            ..Skb::default()
        };
        let of = |skb, header_len, ip| ip_bytes(skb, wire_size(skb, header_len), ip);
        assert_eq!(of(skb, 42, (14, 46)), 32);
        assert_eq!(of(skb, 42, (14, 60)), 46);
        // An IP header with a length beyond the frame.
        assert_eq!(of(skb, 42, (14, 1_000)), 46);
        assert_eq!(of(skb, 42, (70, 1_000)), 0);
    }

    #[test]
    fn ip_bytes_of_a_super_frame_are_those_of_its_segments() {
        // 1,448 + 1,448 + 104 bytes behind 52 bytes of IP and TCP, with one tag in the frame and one removed.
        let skb = Skb {
            len_bytes: 18 + 52 + 3_000,
            gso_size_bytes: 1_448,
            gso_segs: 3,
            lacking_len_bytes: TAG_LEN,
        };
        let ip = (18, u32::MAX);
        assert_eq!(ip_bytes(skb, wire_size(skb, 18 + 52), ip), 3_000 + 3 * 52);
        assert_eq!(ip_bytes(skb, wire_size(skb, 0), ip), 3_000 + 52);
        // Fragments have one more header, which belongs to IP.
        let fragments = Skb {
            lacking_len_bytes: FRAGMENT_HEADER_LEN,
            ..skb
        };
        let size = wire_size(fragments, 18 + 40);
        assert_eq!(ip_bytes(fragments, size, ip), 3_012 + 3 * (40 + 8));
    }

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
            lacking_len_bytes: TAG_LEN,
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
            lacking_len_bytes: TAG_LEN,
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

    /// RFC 791: 2,008 bytes of UDP in fragments of 1,000 behind 34 bytes of headers.
    #[test]
    fn fragments_have_the_transport_header_once() {
        let skb = Skb {
            len_bytes: 34 + 2_008,
            gso_size_bytes: 1_000,
            ..Skb::default()
        };
        let size = |bytes| WireSize {
            packets: 3,
            bytes,
            exact: true,
        };
        assert_eq!(wire_size(skb, 34), size(2_008 + 3 * 34));
        let ipv6 = Skb {
            lacking_len_bytes: FRAGMENT_HEADER_LEN,
            ..skb
        };
        assert_eq!(wire_size(ipv6, 34), size(2_008 + 3 * (34 + 8)));
    }
}
