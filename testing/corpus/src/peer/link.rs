//! PPPoE and MPLS in the second parser. etherparse does not support them, so this module reads them and passes the
//! payload to etherparse.

use agent_common::{Encapsulation, Reason};
use etherparse::{EtherType, Ipv6Header, LaxSlicedPacket, ether_type};

use super::Reading;

pub(super) const PPPOE: EtherType = EtherType(0x8864);
pub(super) const MPLS: EtherType = EtherType(0x8847);
pub(super) const MPLS_UPSTREAM: EtherType = EtherType(0x8848);

const PPP_PROTOCOL_LEN: usize = 2;
const MPLS_LABELS: usize = 4;

impl Reading {
    pub(super) fn pppoe(&mut self, bytes: &[u8], frame: &[u8]) -> Result<(), Reason> {
        let (header, rest) = bytes
            .split_first_chunk::<8>()
            .ok_or(Reason::TruncatedPppoe)?;
        let [0x11, 0, id_high, id_low, len @ .., high, low] = *header else {
            return Err(Reason::NotIp);
        };
        let inside = usize::from(u16::from_be_bytes(len)).checked_sub(PPP_PROTOCOL_LEN);
        let rest = inside
            .and_then(|len| rest.get(..len))
            .ok_or(Reason::TruncatedPppoe)?;
        self.packet.key.encapsulation = Encapsulation::Pppoe as u8;
        self.packet.key.tunnel_id = u16::from_be_bytes([id_high, id_low]).into();
        let ether_type = match [high, low] {
            [0, 0x21] => ether_type::IPV4,
            [0, 0x57] => ether_type::IPV6,
            _ => return Err(Reason::NotIp),
        };
        self.network(&LaxSlicedPacket::from_ether_type(ether_type, rest), frame)
    }

    pub(super) fn mpls(&mut self, bytes: &[u8], frame: &[u8]) -> Result<(), Reason> {
        self.packet.key.encapsulation = Encapsulation::Mpls as u8;
        let labels = bytes.chunks_exact(4).take(MPLS_LABELS);
        let Some(above) = labels.clone().position(|label| label[2] & 1 != 0) else {
            return Err(if labels.len() == MPLS_LABELS {
                Reason::MplsDepth
            } else {
                Reason::TruncatedMpls
            });
        };
        let rest = &bytes[(above + 1) * 4..];
        if rest.len() < 6 {
            return Err(Reason::TruncatedMpls);
        }
        let ether_type = match rest[0] >> 4 {
            4 if may_be_ipv4(rest) => ether_type::IPV4,
            6 if may_be_ipv6(rest) => ether_type::IPV6,
            _ => return Err(Reason::NotIp),
        };
        self.network(&LaxSlicedPacket::from_ether_type(ether_type, rest), frame)
    }
}

/// Whether the header's length field matches a packet that fills the frame.
fn may_be_ipv4(bytes: &[u8]) -> bool {
    let len = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
    bytes.len().checked_sub(len).is_some_and(is_padding)
}

fn may_be_ipv6(bytes: &[u8]) -> bool {
    let len = Ipv6Header::LEN + usize::from(u16::from_be_bytes([bytes[4], bytes[5]]));
    bytes.len().checked_sub(len).is_some_and(is_padding)
}

/// Ethernet pads a payload to 46 bytes.
fn is_padding(len: usize) -> bool {
    len < 46
}
