//! Reads the headers of tunnels to find the packet inside.

use super::within::Within;
use crate::{
    flow::Encapsulation,
    frame::{Frame, Header},
    ip::NO_LIMIT,
    link::{ETHERTYPE_IPV4, ETHERTYPE_IPV6},
    parse::Packet,
    protocol::{GRE, IPV4_IN_IP, IPV6_IN_IP, UDP},
    transport::{self, GENEVE, VXLAN, VXLAN_LINUX},
};

/// The header at the start of the inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    Ethernet,
    Ipv4,
    Ipv6,
}

/// Where an inner packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inner {
    pub encapsulation: Encapsulation,
    /// 0 if the tunnel has none.
    pub tunnel_id: u32,
    pub layer: Layer,
    pub offset_bytes: u32,
    /// Nothing behind this offset belongs to the tunnel.
    pub end_bytes: u32,
}

const VXLAN_LEN: u32 = 8;
/// The flag for a valid network identifier, alone and with the flag of the group policy extension, which Linux
/// supports.
const VXLAN_FLAGS: [u8; 2] = [0x08, 0x88];

const GENEVE_LEN: u32 = 8;
const GENEVE_VERSION: u8 = 0xc0;
const GENEVE_OPTION_WORDS: u8 = 0x3f;
const GENEVE_CONTROL: u8 = 0x80;

const GRE_LEN: u32 = 4;
const GRE_CHECKSUM: u16 = 0x8000;
const GRE_KEY: u16 = 0x2000;
const GRE_SEQUENCE: u16 = 0x1000;

/// Transparent Ethernet bridging.
const ETHERTYPE_ETHERNET: u16 = 0x6558;

/// Reads the tunnel's header. `None` if there is none that can be opened. Fragments are never opened: later ones have
/// no header, and all fragments of a datagram must be in one flow.
#[inline(always)]
pub fn header<F: Frame>(frame: &F, packet: &Packet) -> Option<Inner> {
    if !packet.part.is_whole() {
        return None;
    }
    let start = u32::from(packet.payload_start_bytes);
    let mut end_bytes = packet.ip_end_bytes;
    if packet.key.protocol == UDP {
        end_bytes = transport::udp_end(frame, start, end_bytes)?;
    }
    let frame = Within { frame, end_bytes };
    let inner = match packet.key.protocol {
        UDP => match packet.destination_port() {
            VXLAN | VXLAN_LINUX => vxlan(&frame, start),
            GENEVE => geneve(&frame, start),
            _ => None,
        },
        GRE => gre(&frame, start),
        IPV4_IN_IP => Some(ip_in_ip(start, Layer::Ipv4)),
        IPV6_IN_IP => Some(ip_in_ip(start, Layer::Ipv6)),
        _ => None,
    }?;
    Some(Inner { end_bytes, ..inner })
}

#[inline(always)]
pub(super) fn ip_in_ip(offset_bytes: u32, layer: Layer) -> Inner {
    Inner {
        encapsulation: Encapsulation::IpInIp,
        tunnel_id: 0,
        layer,
        offset_bytes,
        end_bytes: NO_LIMIT,
    }
}

/// RFC 7348. The port alone does not prove a tunnel, so the reserved byte at the end must be 0, as in Linux
/// (`vxlan_rcv`).
#[inline(always)]
fn vxlan<F: Frame>(frame: &F, start: u32) -> Option<Inner> {
    let header = frame.header::<8>(start)?;
    let id_and_reserved = u32::from_be(header.ne32::<4>());
    if !VXLAN_FLAGS.contains(&header.u8::<0>()) || id_and_reserved & 0xff != 0 {
        return None;
    }
    Some(Inner {
        encapsulation: Encapsulation::Vxlan,
        tunnel_id: id_and_reserved >> 8,
        layer: Layer::Ethernet,
        offset_bytes: start + VXLAN_LEN,
        end_bytes: NO_LIMIT,
    })
}

/// RFC 8926. Options are skipped, even critical ones: the rules for critical options concern endpoints.
#[inline(always)]
fn geneve<F: Frame>(frame: &F, start: u32) -> Option<Inner> {
    let header = frame.header::<8>(start)?;
    let version_and_len = header.u8::<0>();
    if version_and_len & GENEVE_VERSION != 0 || header.u8::<1>() & GENEVE_CONTROL != 0 {
        return None;
    }
    Some(Inner {
        encapsulation: Encapsulation::Geneve,
        tunnel_id: u32::from_be(header.ne32::<4>()) >> 8,
        layer: layer(header.be16::<2>())?,
        offset_bytes: start + GENEVE_LEN + u32::from(version_and_len & GENEVE_OPTION_WORDS) * 4,
        end_bytes: NO_LIMIT,
    })
}

/// RFC 2784 and RFC 2890: version 0, without source routes.
#[inline(always)]
fn gre<F: Frame>(frame: &F, start: u32) -> Option<Inner> {
    let header = frame.header::<4>(start)?;
    let flags = header.be16::<0>();
    if flags & !(GRE_CHECKSUM | GRE_KEY | GRE_SEQUENCE) != 0 {
        return None;
    }
    let layer = layer(header.be16::<2>())?;
    let mut offset_bytes = start + GRE_LEN;
    if flags & GRE_CHECKSUM != 0 {
        offset_bytes += 4;
    }
    let (mut encapsulation, mut tunnel_id) = (Encapsulation::GreWithoutKey, 0);
    if flags & GRE_KEY != 0 {
        encapsulation = Encapsulation::Gre;
        tunnel_id = u32::from_be(frame.header::<4>(offset_bytes)?.ne32::<0>());
        offset_bytes += 4;
    }
    if flags & GRE_SEQUENCE != 0 {
        offset_bytes += 4;
    }
    Some(Inner {
        encapsulation,
        tunnel_id,
        layer,
        offset_bytes,
        end_bytes: NO_LIMIT,
    })
}

#[inline(always)]
fn layer(ethertype: u16) -> Option<Layer> {
    match ethertype {
        ETHERTYPE_ETHERNET => Some(Layer::Ethernet),
        ETHERTYPE_IPV4 => Some(Layer::Ipv4),
        ETHERTYPE_IPV6 => Some(Layer::Ipv6),
        _ => None,
    }
}
