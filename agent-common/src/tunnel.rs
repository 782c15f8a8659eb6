//! Opens tunnels: replaces a tunnel's packet by the packet inside.
//!
//! The inner packet is parsed as if it had arrived by itself, with its own addresses, tags and fragments.
//! Its key keeps the tunnel's kind and number, since tenants may use the same addresses. Tunnels without a number are
//! distinguished by their endpoints.

use crate::{
    flow::Outer,
    frame::Frame,
    ip::{self, NO_LIMIT},
    link,
    parse::{EXTENSIONS, Packet},
    protocol::{GRE, IPV4_IN_IP, IPV6_IN_IP, UDP},
    transport::TUNNEL_PORTS,
};

mod header;
mod name;
mod within;

pub use header::{Inner, Layer, header};
pub use name::name;
use within::Within;

/// How many nested tunnels are opened.
pub const MAX_DEPTH: u32 = 2;

/// The result of opening a packet, as bits.
pub mod outcome {
    /// The packet was taken out of a tunnel.
    pub const DECAPSULATED: u32 = 1;
    /// The packet is a tunnel's, and the parser could not read the packet inside.
    pub const UNOPENED: u32 = 2;
    /// The packet is a tunnel's, inside [`super::MAX_DEPTH`] others.
    pub const DEEPER: u32 = 4;
    /// Not about tunnels: the driver does not report the VLAN tag that it removed from the frame.
    pub const TAG_UNKNOWN: u32 = 8;
}

impl Packet {
    /// Whether its protocol or port is a tunnel's.
    #[inline(always)]
    pub fn may_be_tunnel(&self) -> bool {
        self.payload_start_bytes != 0
    }

    /// The same for a later fragment, which has no ports itself. Its key must already be that of its flow. If the flow
    /// has no ports either, only the protocol decides.
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

/// The state of [`open`], and its result. It is too large for a stack of 512 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Initially the packet to open, then the innermost packet found so far.
    pub packet: Packet,
    /// The endpoints of the innermost opened tunnel, with the tags and session around the outermost one.
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
            inner: header::ip_in_ip(0, Layer::Ipv4),
            saved: Packet::default(),
        }
    }
}

/// Replaces the packet that is being opened by the innermost packet that can be parsed.
///
/// The steps are [`read_header`] and [`parse_inner`]. A caller with little stack wraps them in functions that are not
/// inlined.
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

/// Finds the inner packet. Returns whether there is one.
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

/// Parses the inner packet that [`read_header`] found. Returns whether it could be parsed.
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
        Layer::Ethernet => link::ethernet::<_, EXTENSIONS>(&frame, offset, 0, packet),
        Layer::Ipv4 => ip::v4(&frame, offset, NO_LIMIT, packet),
        Layer::Ipv6 => ip::v6::<_, EXTENSIONS>(&frame, offset, NO_LIMIT, packet),
    };
    if parsed.is_err() {
        opening.packet = opening.saved;
        opening.outcome |= outcome::UNOPENED;
        return false;
    }
    // The inner packet ends with the outer one at the latest, whatever its header says.
    opening.packet.ip_end_bytes = opening.packet.ip_end_bytes.min(inner.end_bytes);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        parse::Part,
        transport::{GENEVE, VXLAN},
    };

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
}
