//! Tunnels in the second parser. This module reads their headers independently of our parser and passes the payload to
//! etherparse.

use std::ops::Range;

use agent_common::{Encapsulation, FlowKey, Outer, Packet, tunnel::outcome};

use super::{Difference, Payload, Reading};

const DEPTH: usize = 2;

const IPV4_IN_IP: u8 = 4;
const UDP: u8 = 17;
const IPV6_IN_IP: u8 = 41;
const GRE: u8 = 47;

#[derive(Clone, Copy)]
enum Layer {
    Ethernet,
    Ip(u8),
}

struct Tunnel {
    kind: Encapsulation,
    id: u32,
    layer: Layer,
    inside: Range<usize>,
}

impl Reading {
    /// Opens tunnels down to the innermost readable packet.
    pub(super) fn innermost(mut self, frame: &[u8]) -> Self {
        for _ in 0..DEPTH {
            if self.difference.is_some() {
                return self;
            }
            if !self.may_be_tunnel() {
                return self;
            }
            let is_bounded = self
                .payload
                .as_ref()
                .is_some_and(|payload| payload.is_bounded);
            let Some(tunnel) = self.tunnel(frame) else {
                self.outcome |= outcome::UNOPENED;
                return self;
            };
            let mut inner = Self {
                is_super_frame: self.is_super_frame,
                is_bounded,
                ..Self::default()
            };
            let bytes = &frame[tunnel.inside];
            let parsed = match tunnel.layer {
                Layer::Ethernet => inner.ethernet(None, bytes, frame, false),
                Layer::Ip(version) if bytes.first().is_some_and(|it| it >> 4 == version) => {
                    inner.bare_ip(bytes, frame)
                }
                Layer::Ip(_) => {
                    self.outcome |= outcome::UNOPENED;
                    return self;
                }
            };
            if inner.difference.is_some() {
                inner.difference = Some(Difference::InsideATunnel);
            }
            if parsed.is_err() {
                self.difference = inner.difference;
                self.outcome |= outcome::UNOPENED;
                return self;
            }
            inner.packet.key.encapsulation = tunnel.kind as u8;
            inner.packet.key.tunnel_id = tunnel.id;
            let link = self.outer.unwrap_or_else(|| link(&self.packet.key));
            inner.outer = Some(Outer {
                vlan_ids: link.vlan_ids,
                has_pppoe_session: link.has_pppoe_session,
                pppoe_session: link.pppoe_session,
                ..outer(&self.packet, &inner.packet)
            });
            inner.outcome = outcome::DECAPSULATED;
            self = inner;
        }
        if self.may_be_tunnel() {
            self.outcome |= outcome::DEEPER;
        }
        self
    }

    /// A later fragment has no ports, so only its protocol shows that it may belong to a tunnel.
    pub(super) fn note_later_fragment(&mut self) {
        let packet = &self.packet;
        if packet.part.offset_bytes() != 0
            && [GRE, IPV4_IN_IP, IPV6_IN_IP].contains(&packet.key.protocol)
        {
            self.outcome |= outcome::UNOPENED;
        }
    }

    /// Decides by protocol and port alone.
    fn may_be_tunnel(&self) -> bool {
        self.payload.as_ref().is_some_and(|payload| {
            matches!(
                (payload.protocol, payload.destination_port),
                (UDP, 1..) | (IPV4_IN_IP | IPV6_IN_IP | GRE, _)
            )
        })
    }

    fn tunnel(&self, frame: &[u8]) -> Option<Tunnel> {
        let Payload {
            protocol,
            destination_port,
            range,
            ..
        } = self.payload.clone()?;
        if !self.packet.part.is_whole() {
            return None;
        }
        let bytes = &frame[range.clone()];
        let tunnel = |kind, id, layer, header_len| {
            (header_len <= bytes.len()).then(|| Tunnel {
                kind,
                id,
                layer,
                inside: range.start + header_len..range.end,
            })
        };
        match (protocol, destination_port) {
            (UDP, 4789 | 8472) => {
                let [0x08 | 0x88, _, _, _, high, middle, low, 0, ..] = *bytes else {
                    return None;
                };
                let id = u32::from_be_bytes([0, high, middle, low]);
                tunnel(Encapsulation::Vxlan, id, Layer::Ethernet, 8)
            }
            (UDP, 6081) => {
                let [words @ 0..0x40, flags, a, b, high, middle, low, _, ..] = *bytes else {
                    return None;
                };
                if flags & 0x80 != 0 {
                    return None;
                }
                let id = u32::from_be_bytes([0, high, middle, low]);
                let header_len = 8 + usize::from(words) * 4;
                tunnel(Encapsulation::Geneve, id, layer([a, b])?, header_len)
            }
            (GRE, _) => {
                let [flags, 0, a, b, ..] = *bytes else {
                    return None;
                };
                if flags & 0x4f != 0 {
                    return None;
                }
                let mut fields = bytes[4..].chunks(4);
                let mut words = 1;
                if flags & 0x80 != 0 {
                    fields.next();
                    words += 1;
                }
                let (mut kind, mut id) = (Encapsulation::GreWithoutKey, 0);
                if flags & 0x20 != 0 {
                    kind = Encapsulation::Gre;
                    id = u32::from_be_bytes(fields.next()?.try_into().ok()?);
                    words += 1;
                }
                words += usize::from(flags & 0x10 != 0);
                tunnel(kind, id, layer([a, b])?, words * 4)
            }
            (IPV4_IN_IP, _) => tunnel(Encapsulation::IpInIp, 0, Layer::Ip(4), 0),
            (IPV6_IN_IP, _) => tunnel(Encapsulation::IpInIp, 0, Layer::Ip(6), 0),
            _ => None,
        }
    }
}

/// Orders the tunnel's endpoints so that its sender is on the side of the inner packet's sender.
fn outer(tunnel: &Packet, inside: &Packet) -> Outer {
    let ends = [tunnel.key.addr_a, tunnel.key.addr_b];
    let sender = ends[usize::from(tunnel.direction)];
    let receiver = ends[usize::from(1 - tunnel.direction)];
    let (addr_a, addr_b) = if inside.direction == 0 {
        (sender, receiver)
    } else {
        (receiver, sender)
    };
    Outer {
        addr_a,
        addr_b,
        ip_version: tunnel.key.ip_version,
        ..Outer::default()
    }
}

/// The tags and the PPPoE session around the outermost packet.
fn link(key: &FlowKey) -> Outer {
    let is_pppoe = key.encapsulation == Encapsulation::Pppoe as u8;
    Outer {
        vlan_ids: key.vlan_ids,
        has_pppoe_session: is_pppoe.into(),
        pppoe_session: if is_pppoe { key.tunnel_id as u16 } else { 0 },
        ..Outer::default()
    }
}

fn layer(ether_type: [u8; 2]) -> Option<Layer> {
    match ether_type {
        [0x65, 0x58] => Some(Layer::Ethernet),
        [0x08, 0x00] => Some(Layer::Ip(4)),
        [0x86, 0xdd] => Some(Layer::Ip(6)),
        _ => None,
    }
}
