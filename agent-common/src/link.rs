//! Parses the link layer: an Ethernet header, VLAN tags, and PPPoE or MPLS headers before IP.

use crate::{
    account::Reason,
    flow::Encapsulation,
    frame::{Frame, Header},
    ip::{self, IPV4_LEN, IPV6_LEN, NO_LIMIT},
    parse::{ENCAPSULATION, Packet},
};

const ETHERNET_LEN: u32 = 14;
const VLAN_LEN: u32 = 4;
/// A sender pads the payload of an Ethernet frame to this length.
const MIN_PAYLOAD_LEN: u32 = 46;
pub(crate) const VLAN_ID_MASK: u16 = 0x0fff;
/// Smaller values are an 802.3 length.
const MIN_ETHERTYPE: u16 = 0x0600;

pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_RARP: u16 = 0x8035;
/// 802.1Q, 802.1ad, and the value that equipment used for QinQ before 802.1ad.
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;
const ETHERTYPE_QINQ_OLD: u16 = 0x9100;
const ETHERTYPE_PPPOE: u16 = 0x8864;
/// Unicast labels. The other value was for multicast and is for upstream-assigned labels (RFC 5332).
const ETHERTYPE_MPLS: u16 = 0x8847;
const ETHERTYPE_MPLS_UPSTREAM: u16 = 0x8848;

/// RFC 2516: version and type 1, and the code of session data.
const PPPOE_SESSION_DATA: u16 = 0x1100;
const PPPOE_LEN: u32 = 6;
const PPP_PROTOCOL_LEN: u32 = 2;
const PPP_IPV4: u16 = 0x0021;
const PPP_IPV6: u16 = 0x0057;

/// How many MPLS labels the parser walks.
const MAX_MPLS_LABELS: u32 = 4;
const MPLS_LABEL_LEN: u32 = 4;
const MPLS_BOTTOM_OF_STACK: u8 = 1;

/// `start` is the offset of the Ethernet header.
#[inline(always)]
pub(crate) fn ethernet<F: Frame, const WHAT: u32>(
    frame: &F,
    start: u32,
    tags_before: usize,
    packet: &mut Packet,
) -> Result<(), Reason> {
    let header = frame.header::<14>(start).ok_or(Reason::TruncatedEthernet)?;
    let mut ethertype = header.be16::<12>();
    let mut offset = start + ETHERNET_LEN;

    // At most two tags, the offloaded one included. Written out, since a loop would make every later
    // offset variable for the verifier.
    if is_vlan(ethertype) {
        if tags_before == 0 {
            ethertype = vlan::<F, 0>(frame, offset, packet)?;
        } else {
            ethertype = vlan::<F, 1>(frame, offset, packet)?;
        }
        offset += VLAN_LEN;
        if is_vlan(ethertype) {
            if tags_before != 0 {
                return Err(Reason::VlanDepth);
            }
            ethertype = vlan::<F, 1>(frame, offset, packet)?;
            offset += VLAN_LEN;
            if is_vlan(ethertype) {
                return Err(Reason::VlanDepth);
            }
        }
    }

    let mut limit_bytes = NO_LIMIT;
    if WHAT & ENCAPSULATION != 0 {
        if ethertype == ETHERTYPE_PPPOE {
            (ethertype, limit_bytes) = pppoe(frame, offset, packet)?;
            offset += PPPOE_LEN + PPP_PROTOCOL_LEN;
        } else if matches!(ethertype, ETHERTYPE_MPLS | ETHERTYPE_MPLS_UPSTREAM) {
            (ethertype, offset) = mpls(frame, offset, packet)?;
        }
    }

    match ethertype {
        ETHERTYPE_IPV4 => ip::v4(frame, offset, limit_bytes, packet),
        ETHERTYPE_IPV6 => ip::v6::<F, WHAT>(frame, offset, limit_bytes, packet),
        ETHERTYPE_ARP | ETHERTYPE_RARP => Err(Reason::Arp),
        0..MIN_ETHERTYPE => Err(Reason::Llc),
        _ => Err(Reason::NotIp),
    }
}

#[inline(always)]
fn is_vlan(ethertype: u16) -> bool {
    matches!(
        ethertype,
        ETHERTYPE_VLAN | ETHERTYPE_QINQ | ETHERTYPE_QINQ_OLD
    )
}

/// Reads the tag at `offset` into `vlan_ids[POSITION]` and returns the EtherType behind it.
#[inline(always)]
fn vlan<F: Frame, const POSITION: usize>(
    frame: &F,
    offset: u32,
    packet: &mut Packet,
) -> Result<u16, Reason> {
    let tag = frame.header::<4>(offset).ok_or(Reason::TruncatedVlan)?;
    packet.key.vlan_ids[POSITION] = tag.be16::<0>() & VLAN_ID_MASK;
    Ok(tag.be16::<2>())
}

/// Parses PPPoE (RFC 2516, RFC 1661). Returns the EtherType of the packet inside and the offset of its end; bytes
/// behind that are padding. A length beyond the frame's end makes the packet truncated (`pppoe_rcv`).
#[inline(always)]
fn pppoe<F: Frame>(frame: &F, offset: u32, packet: &mut Packet) -> Result<(u16, u32), Reason> {
    let header = frame.header::<8>(offset).ok_or(Reason::TruncatedPppoe)?;
    if header.be16::<0>() != PPPOE_SESSION_DATA {
        return Err(Reason::NotIp);
    }
    let len = u32::from(header.be16::<4>());
    let end_bytes = offset + PPPOE_LEN + len;
    if len < PPP_PROTOCOL_LEN || end_bytes > frame.len_bytes() {
        return Err(Reason::TruncatedPppoe);
    }
    packet.key.encapsulation = Encapsulation::Pppoe as u8;
    packet.key.tunnel_id = header.be16::<2>().into();
    match header.be16::<6>() {
        PPP_IPV4 if len < PPP_PROTOCOL_LEN + IPV4_LEN => Err(Reason::TruncatedIpv4),
        PPP_IPV4 => Ok((ETHERTYPE_IPV4, end_bytes)),
        PPP_IPV6 if len < PPP_PROTOCOL_LEN + IPV6_LEN => Err(Reason::TruncatedIpv6),
        PPP_IPV6 => Ok((ETHERTYPE_IPV6, end_bytes)),
        _ => Err(Reason::NotIp),
    }
}

/// Parses the MPLS label stack (RFC 3032). Returns the EtherType of the packet behind it, and its offset. Only the
/// packet's first nibble tells its type (RFC 4928). A pseudowire without control word begins with an Ethernet address,
/// whose first nibble may be anything. So the IP header's length must also fit the frame.
#[inline(always)]
fn mpls<F: Frame>(frame: &F, start: u32, packet: &mut Packet) -> Result<(u16, u32), Reason> {
    packet.key.encapsulation = Encapsulation::Mpls as u8;
    let mut offset = start;
    for _ in 0..MAX_MPLS_LABELS {
        let label = frame.header::<4>(offset).ok_or(Reason::TruncatedMpls)?;
        offset += MPLS_LABEL_LEN;
        if label.u8::<2>() & MPLS_BOTTOM_OF_STACK != 0 {
            let inside = frame.header::<6>(offset).ok_or(Reason::TruncatedMpls)?;
            let (ethertype, end_bytes) = match inside.u8::<0>() >> 4 {
                4 => (ETHERTYPE_IPV4, offset + u32::from(inside.be16::<2>())),
                6 => (
                    ETHERTYPE_IPV6,
                    offset + IPV6_LEN + u32::from(inside.be16::<4>()),
                ),
                _ => return Err(Reason::NotIp),
            };
            // One comparison covers a length that is too long or too short: for each branch the verifier walks the rest
            // of the parser once more.
            let padding_bytes = frame.len_bytes().wrapping_sub(end_bytes);
            return if padding_bytes < MIN_PAYLOAD_LEN {
                Ok((ethertype, offset))
            } else {
                Err(Reason::NotIp)
            };
        }
    }
    Err(Reason::MplsDepth)
}
