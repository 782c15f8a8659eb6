//! The headers that each segment of a super-frame repeats, as decided by the kernel's GSO type.
//!
//! Ports and headers alone do not decide. A UDP super-frame may be plain datagrams (each repeats the UDP header), a
//! tunnel's datagrams at any port (each also repeats the inner headers), or one datagram that becomes fragments.

use crate::{
    parse::Packet,
    protocol::{SCTP, TCP, UDP},
    transport::UDP_LEN,
    wire_size::FRAGMENT_HEADER_LEN,
};

/// Offsets and GSO bits of the running kernel that `__sk_buff` does not show. They come from its BTF. All are
/// 0 if they could not be found.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkbLayout {
    /// In bytes within `struct sk_buff`, like the next three.
    pub head: u32,
    pub data: u32,
    pub end: u32,
    pub inner_transport_header: u32,
    /// In bytes within `struct skb_shared_info`.
    pub gso_type: u32,
    /// The bits of `gso_type` for TCP: `SKB_GSO_TCPV4` and `SKB_GSO_TCPV6`. The fields below are bits of `gso_type` as
    /// well.
    pub tcp: u32,
    /// `SKB_GSO_UDP_L4`: the skb becomes datagrams.
    pub datagrams: u32,
    /// `SKB_GSO_UDP`: the skb is one datagram that becomes fragments.
    pub fragments: u32,
    /// The bits of GRE, IP in IP and tunnels over UDP.
    pub tunnels: u32,
    /// Bits that do not change which headers repeat.
    pub harmless: u32,
}

const _: () = assert!(size_of::<SkbLayout>() == 40);

impl SkbLayout {
    pub const UNKNOWN: Self = Self {
        head: 0,
        data: 0,
        end: 0,
        inner_transport_header: 0,
        gso_type: 0,
        tcp: 0,
        datagrams: 0,
        fragments: 0,
        tunnels: 0,
        harmless: 0,
    };
}

#[cfg(feature = "user")]
// SAFETY: repr(C), integers only, no padding (asserted by size above).
unsafe impl aya::Pod for SkbLayout {}

/// The headers of each segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repeats {
    /// Headers that the skb has once, from the start of the frame; 0 if unknown.
    pub header_len_bytes: u32,
    /// Headers that the skb does not have at all.
    pub lacking_len_bytes: u32,
}

impl Packet {
    /// Whether the packet itself shows which headers repeat. TCP's and SCTP's own header is the last one, since only
    /// payload follows it. A packet from a tunnel does not show it, since the kernel may cut the tunnel's packet
    /// instead.
    #[inline(always)]
    pub fn tells_what_repeats(&self, is_opened: bool) -> bool {
        matches!(self.key.protocol, TCP | SCTP) && !is_opened
    }

    /// The headers that repeat in all other packets, by the kernel's `gso_type`. `inner_transport` returns the offset
    /// of the inner packet's transport header in bytes from the start of the frame. `tcp_header_len` reads the length
    /// of the TCP header at such an offset, 0 if there is none.
    #[inline(always)]
    pub fn repeats(
        &self,
        is_opened: bool,
        gso_type: u32,
        layout: &SkbLayout,
        inner_transport: impl FnOnce() -> u32,
        tcp_header_len: impl FnOnce(u32) -> u32,
    ) -> Repeats {
        let mut repeats = Repeats::default();
        let known =
            layout.tcp | layout.datagrams | layout.fragments | layout.tunnels | layout.harmless;
        if gso_type & !known != 0 {
            // A GSO type that this code does not know.
            return repeats;
        }
        if gso_type & layout.tunnels != 0 {
            let inner = inner_transport();
            let len = if gso_type & layout.tcp != 0 {
                tcp_header_len(inner)
            } else if gso_type & layout.datagrams != 0 {
                UDP_LEN
            } else {
                0
            };
            if len != 0 {
                repeats.header_len_bytes = inner.wrapping_add(len);
            }
        } else if self.key.protocol == UDP && !is_opened {
            let udp_end = if self.may_be_tunnel() {
                self.payload_start_bytes.into()
            } else {
                self.segment_header_len_bytes
            };
            if gso_type & layout.datagrams != 0 {
                repeats.header_len_bytes = udp_end;
            } else if gso_type & layout.fragments != 0 {
                // Only the first fragment has the UDP header, which is payload to the IP layer.
                repeats.header_len_bytes = udp_end.wrapping_sub(UDP_LEN);
                if self.key.ip_version == 6 {
                    repeats.lacking_len_bytes = FRAGMENT_HEADER_LEN;
                }
            }
        }
        repeats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UDP_TUNNEL: u32 = 1 << 10;
    const LAYOUT: SkbLayout = SkbLayout {
        head: 1,
        data: 2,
        end: 3,
        inner_transport_header: 4,
        gso_type: 5,
        tcp: 1 | 1 << 4,
        datagrams: 1 << 17,
        fragments: 1 << 16,
        tunnels: UDP_TUNNEL,
        harmless: 1 << 1,
    };

    fn udp() -> Packet {
        let mut packet = Packet {
            segment_header_len_bytes: 42,
            ..Packet::default()
        };
        packet.key.protocol = UDP;
        packet.key.ip_version = 4;
        packet
    }

    fn by(packet: &Packet, is_opened: bool, gso_type: u32) -> (u32, u32) {
        let tcp_header_len = |at| {
            assert_eq!(at, 92);
            32
        };
        let repeats = packet.repeats(is_opened, gso_type, &LAYOUT, || 92, tcp_header_len);
        (repeats.header_len_bytes, repeats.lacking_len_bytes)
    }

    #[test]
    fn the_gso_type_decides_and_not_the_port() {
        let vxlan_port = Packet {
            payload_start_bytes: 42,
            segment_header_len_bytes: 0,
            ..udp()
        };
        for packet in [udp(), vxlan_port] {
            assert!(!packet.tells_what_repeats(false));
            assert_eq!(by(&packet, false, LAYOUT.datagrams), (42, 0));
            assert_eq!(by(&packet, false, LAYOUT.fragments), (34, 0));
            for is_opened in [false, true] {
                let inside = |bits| by(&packet, is_opened, UDP_TUNNEL | bits);
                assert_eq!(inside(LAYOUT.tcp), (92 + 32, 0));
                assert_eq!(inside(LAYOUT.datagrams), (92 + 8, 0));
                assert_eq!(inside(0), (0, 0));
            }
            assert_eq!(by(&packet, false, 0), (0, 0));
        }
    }

    #[test]
    fn fragments_of_ipv6_have_a_header_more() {
        let mut packet = udp();
        packet.key.ip_version = 6;
        assert_eq!(by(&packet, false, LAYOUT.fragments), (34, 8));
        assert_eq!(by(&packet, false, LAYOUT.datagrams), (42, 0));
    }

    #[test]
    fn what_cannot_be_known_is_not_guessed() {
        let (harmless, unknown) = (LAYOUT.harmless, 1 << 15);
        assert_eq!(by(&udp(), false, LAYOUT.datagrams | harmless), (42, 0));
        assert_eq!(by(&udp(), false, LAYOUT.datagrams | unknown), (0, 0));
        assert_eq!(by(&udp(), false, UDP_TUNNEL | LAYOUT.tcp | unknown), (0, 0));
        for bits in [LAYOUT.datagrams, LAYOUT.fragments, LAYOUT.tcp] {
            assert_eq!(by(&udp(), true, bits), (0, 0));
        }
        let mut tcp = udp();
        tcp.key.protocol = TCP;
        assert!(tcp.tells_what_repeats(false));
        assert!(!tcp.tells_what_repeats(true));
        assert_eq!(by(&tcp, true, LAYOUT.tcp), (0, 0));
    }
}
