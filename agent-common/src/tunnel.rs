//! Tunnels: a packet that may be one's comes in, the packet that it carries goes out in its place.
//!
//! The inner packet is parsed as if it had arrived by itself: its own addresses, tags, fragments. The
//! key keeps the kind of tunnel and its number, since tenants may use the same addresses; a tunnel
//! without a number is told from others by its endpoints.

use crate::{
    flow::{Encapsulation, Outer},
    frame::{Frame, Header},
    ip::{self, NO_LIMIT},
    link::{self, ETHERTYPE_IPV4, ETHERTYPE_IPV6},
    parse::Packet,
    transport::{self, GENEVE, GRE, IPV4_IN_IP, IPV6_IN_IP, TUNNEL_PORTS, UDP, VXLAN, VXLAN_LINUX},
};

mod name;

pub use name::name;

/// Tunnels within tunnels that are opened.
pub const MAX_DEPTH: u32 = 2;

/// What became of a packet, as bits.
pub mod outcome {
    /// It is what a tunnel carries.
    pub const DECAPSULATED: u32 = 1;
    /// It is a tunnel's, and what that carries could not be read.
    pub const UNOPENED: u32 = 2;
    /// It is a tunnel's within [`super::MAX_DEPTH`] others.
    pub const DEEPER: u32 = 4;
}

/// What stands at the start of the inner packet.
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
    /// 0 where the tunnel has none.
    pub tunnel_id: u32,
    pub layer: Layer,
    pub offset_bytes: u32,
    /// Nothing behind this is the tunnel's.
    pub end_bytes: u32,
}

const VXLAN_LEN: u32 = 8;
/// The network identifier is valid; and with the group policy extension, which Linux has.
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

impl Packet {
    /// Whether protocol or port are a tunnel's.
    #[inline(always)]
    pub fn may_be_tunnel(&self) -> bool {
        self.payload.0 != 0
    }

    /// The same of a later fragment by its key, which must be its flow's: without ports, by the
    /// protocol alone.
    #[inline(always)]
    pub fn is_tunnels_later_fragment(&self) -> bool {
        self.part.is_later()
            && match self.key.protocol {
                GRE | IPV4_IN_IP | IPV6_IN_IP => true,
                UDP => TUNNEL_PORTS.contains(&self.destination_port()),
                _ => false,
            }
    }
}

/// Reads the tunnel's header; `None` where there is none that can be opened. A fragment is not: those
/// behind it carry no header, and all of a datagram is to be in one flow.
#[inline(always)]
pub fn header<F: Frame>(frame: &F, packet: &Packet) -> Option<Inner> {
    if !packet.part.is_whole() {
        return None;
    }
    let (start, mut end_bytes) = packet.payload;
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
fn ip_in_ip(offset_bytes: u32, layer: Layer) -> Inner {
    Inner {
        encapsulation: Encapsulation::IpInIp,
        tunnel_id: 0,
        layer,
        offset_bytes,
        end_bytes: NO_LIMIT,
    }
}

/// RFC 7348. The reserved byte at the end is looked at, as Linux does (`vxlan_rcv`): ports alone do
/// not make a tunnel.
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

/// RFC 8926. Options are passed over, critical ones too: nothing is forwarded here.
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

/// A packet that is being opened, as [`open`] leaves it. Larger than it should stand on a stack of 512
/// bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// What may be a tunnel's packet, then what that carries.
    pub packet: Packet,
    /// The endpoints of the tunnel that was opened last, and what is around the first.
    pub outer: Outer,
    /// Bits of [`outcome`].
    pub outcome: u32,
    depth: u32,
    inner: Inner,
    saved: Packet,
}

impl Opening {
    #[inline(always)]
    pub fn begin(&mut self, packet: &Packet) {
        self.packet = *packet;
        self.outcome = 0;
        self.depth = 0;
    }

    pub fn new(packet: &Packet) -> Self {
        Self {
            packet: *packet,
            outer: Outer::default(),
            outcome: 0,
            depth: 0,
            inner: ip_in_ip(0, Layer::Ipv4),
            saved: Packet::default(),
        }
    }
}

/// Puts the innermost packet that can be reached in the place of the one that is being opened.
///
/// The steps are [`read_header`] and [`parse_inner`]; where the stack is short, the caller makes
/// functions of them that are not inlined.
#[inline(always)]
pub fn open<F>(
    frame: &F,
    opening: &mut Opening,
    read_header: impl Fn(&F, &mut Opening) -> bool,
    parse_inner: impl Fn(&F, &mut Opening) -> bool,
) {
    for _ in 0..MAX_DEPTH {
        if !read_header(frame, opening) || !parse_inner(frame, opening) {
            return;
        }
    }
}

/// Finds the inner packet; says whether there is one.
#[inline(always)]
pub fn read_header<F: Frame>(frame: &F, opening: &mut Opening) -> bool {
    if !opening.packet.may_be_tunnel() {
        return false;
    }
    let Some(inner) = header(frame, &opening.packet) else {
        opening.outcome |= outcome::UNOPENED;
        return false;
    };
    opening.inner = inner;
    true
}

/// Parses the inner packet that [`read_header`] found; says whether it could be.
#[inline(always)]
pub fn parse_inner<F: Frame>(frame: &F, opening: &mut Opening) -> bool {
    opening.saved = opening.packet;
    opening.packet = Packet::default();
    let inner = opening.inner;
    let frame = Within {
        frame,
        end_bytes: inner.end_bytes,
    };
    let (offset, packet) = (inner.offset_bytes, &mut opening.packet);
    let parsed = match inner.layer {
        Layer::Ethernet => link::ethernet::<_, false>(&frame, offset, 0, packet),
        Layer::Ipv4 => ip::v4(&frame, offset, NO_LIMIT, packet),
        Layer::Ipv6 => ip::v6(&frame, offset, NO_LIMIT, packet),
    };
    if parsed.is_err() {
        opening.packet = opening.saved;
        opening.outcome |= outcome::UNOPENED;
        return false;
    }
    // What the outer packet has no room for is not the inner one's, whatever its header says.
    opening.packet.payload.1 = opening.packet.payload.1.min(inner.end_bytes);
    opening.packet.key.encapsulation = inner.encapsulation as u8;
    opening.packet.key.tunnel_id = if inner.encapsulation.is_unnumbered_tunnel() {
        name(&opening.saved.key)
    } else {
        inner.tunnel_id
    };
    let is_swapped = opening.saved.direction != opening.packet.direction;
    opening.outer.set_ends(&opening.saved.key, is_swapped);
    if opening.depth == 0 {
        opening.outer.set_link(&opening.saved.key);
    }
    opening.outcome |= outcome::DECAPSULATED;
    opening.depth += 1;
    if opening.depth == MAX_DEPTH && opening.packet.may_be_tunnel() {
        opening.outcome |= outcome::DEEPER;
    }
    true
}

/// A frame of which nothing behind an offset is read: bytes behind an IP packet are padding.
struct Within<'a, F> {
    frame: &'a F,
    end_bytes: u32,
}

impl<F: Frame> Frame for Within<'_, F> {
    type Header<const N: usize> = F::Header<N>;

    #[inline(always)]
    fn header<const N: usize>(&self, offset_bytes: u32) -> Option<F::Header<N>> {
        if offset_bytes + N as u32 > self.end_bytes {
            return None;
        }
        self.frame.header(offset_bytes)
    }

    #[inline(always)]
    fn len_bytes(&self) -> u32 {
        self.frame.len_bytes().min(self.end_bytes)
    }

    #[inline(always)]
    fn is_super_frame(&self) -> bool {
        self.frame.is_super_frame()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::Part;

    #[test]
    fn an_opening_that_was_used_begins_anew() {
        let packet = |tunnel_id| {
            let mut packet = Packet::default();
            packet.key.tunnel_id = tunnel_id;
            packet
        };
        let mut used = Opening::new(&packet(1));
        (used.outcome, used.depth) = (outcome::DEEPER, MAX_DEPTH);
        used.begin(&packet(2));
        assert_eq!(used.packet, packet(2));
        assert_eq!((used.outcome, used.depth), (0, 0));
    }

    #[test]
    fn a_later_fragment_is_a_tunnels_by_the_protocol_or_port_of_its_flow() {
        let is_tunnels = |protocol, port_b, part| {
            let mut packet = Packet {
                part,
                ..Packet::default()
            };
            (packet.key.protocol, packet.key.port_b) = (protocol, port_b);
            packet.is_tunnels_later_fragment()
        };
        let later = Part::new(8, false);
        let tunnels = [
            (GRE, 0),
            (IPV4_IN_IP, 0),
            (IPV6_IN_IP, 0),
            (UDP, VXLAN),
            (UDP, GENEVE),
        ];
        for (protocol, port) in tunnels {
            assert!(is_tunnels(protocol, port, later), "{protocol} {port}");
            assert!(!is_tunnels(protocol, port, Part::new(0, true)));
        }
        assert!(!is_tunnels(UDP, 53, later));
        assert!(!is_tunnels(6, VXLAN, later));
    }

    #[test]
    fn a_frame_within_another_ends_where_its_packet_or_the_other_one_does() {
        let outer = &[0_u8; 10][..];
        let len = |end_bytes| {
            let frame = &outer;
            Within { frame, end_bytes }.len_bytes()
        };
        assert_eq!((len(4), len(10), len(u32::MAX)), (4, 10, 10));
    }
}
