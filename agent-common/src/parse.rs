//! The parser: a frame comes in, a [`Packet`] with its flow key goes out, or the [`Reason`] why not.
//!
//! Link layer and IP headers are here, what is behind them in [`crate::transport`]. Every loop is
//! bounded and every offset has a limit, so the verifier accepts the same source that the host
//! tests run.

use crate::{
    account::Reason,
    flow::{Encapsulation, FlowKey, L4Kind},
    frame::{Frame, Header},
    transport,
};

/// What stands at the first byte of a frame; the interface's hardware type (ARPHRD) decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    Ethernet,
    /// No link header: tun, WireGuard, IP tunnels, raw IP modems.
    Ip,
}

/// What the parser says about a packet. `netns` and `ifindex` of the key are the caller's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    pub key: FlowKey,
    /// 0 where the sender is endpoint a, 1 where it is b.
    pub direction: u8,
    /// The direction that this packet alone would call the initiator's: its own, or the other one
    /// for an answer (SYN with ACK, ICMP reply).
    pub initiator: u8,
    /// The TCP header's flag byte; 0 for other protocols.
    pub tcp_flags: u8,
    /// DSCP, six bits.
    pub dscp: u8,
    /// From the start of the frame through the TCP, UDP or SCTP header: what each segment of a
    /// super-frame repeats. 0 where it is not known.
    pub segment_header_len_bytes: u32,
    /// Which part of its datagram the packet is.
    pub part: Part,
    /// The identification that all fragments of the datagram carry.
    pub datagram_id: u32,
    /// Of a packet that may be a tunnel's: where its payload begins and where the IP packet ends, in
    /// bytes of the frame. Both 0 for other packets.
    pub payload: (u32, u32),
}

/// A packet's part of its datagram, as IPv4 writes it: the offset in units of eight bytes (lower 13
/// bits), and whether more fragments follow. 0 is a whole datagram, also where an IPv6 Fragment
/// header says so (RFC 6946).
///
/// Bits and no enum: the verifier walks all of the parser again for each value that it can tell
/// from others.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part(u32);

impl Part {
    const MORE: u32 = 0x2000;
    const OFFSET: u32 = 0x1fff;

    pub const fn new(offset_bytes: u16, more: bool) -> Self {
        Self(offset_bytes as u32 >> 3 | if more { Self::MORE } else { 0 })
    }

    /// From the second 32-bit word of an IPv4 header (RFC 791).
    #[inline(always)]
    fn ipv4(word: u32) -> Self {
        Self(word & (Self::MORE | Self::OFFSET))
    }

    /// From the second 16-bit word of a Fragment header (RFC 8200 section 4.5).
    #[inline(always)]
    fn ipv6(word: u16) -> Self {
        Self(u32::from(word >> 3 | (word & 1) << 13))
    }

    #[inline(always)]
    pub const fn is_whole(self) -> bool {
        self.0 == 0
    }

    /// Has the header with the ports, which the others lack.
    #[inline(always)]
    pub const fn is_first(self) -> bool {
        self.0 == Self::MORE
    }

    #[inline(always)]
    pub const fn is_later(self) -> bool {
        self.0 & Self::OFFSET != 0
    }

    pub const fn offset_bytes(self) -> u16 {
        ((self.0 & Self::OFFSET) << 3) as u16
    }

    pub const fn has_more(self) -> bool {
        self.0 & Self::MORE != 0
    }
}

/// Extension headers that the walk goes through. RFC 8200 allows seven in sensible use.
const MAX_EXTENSION_HEADERS: u32 = 8;

const ETHERNET_LEN: u32 = 14;
const VLAN_LEN: u32 = 4;
const VLAN_ID_MASK: u16 = 0x0fff;
/// Below this an EtherType is an 802.3 length.
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
/// Unicast, and what was multicast and upstream-assigned labels are (RFC 5332).
const ETHERTYPE_MPLS: u16 = 0x8847;
const ETHERTYPE_MPLS_UPSTREAM: u16 = 0x8848;

/// RFC 2516: version and type 1, and the code of session data.
const PPPOE_SESSION_DATA: u16 = 0x1100;
const PPPOE_LEN: u32 = 6;
const PPP_PROTOCOL_LEN: u32 = 2;
const PPP_IPV4: u16 = 0x0021;
const PPP_IPV6: u16 = 0x0057;

/// Labels that the walk goes through.
const MAX_MPLS_LABELS: u32 = 4;
const MPLS_LABEL_LEN: u32 = 4;
const MPLS_BOTTOM_OF_STACK: u8 = 1;

const IPV4_LEN: u32 = 20;
const IPV6_LEN: u32 = 40;

const NEXT_FRAGMENT: u8 = 44;

/// What a next-header value's length field counts beyond the first eight bytes: eight bytes, four
/// (Authentication), or nothing (Fragment, whose second byte is reserved).
static EXTENSION_UNIT: [u8; 256] = {
    let mut unit = [NOT_AN_EXTENSION; 256];
    unit[0] = 8; // hop-by-hop options
    unit[43] = 8; // routing
    unit[NEXT_FRAGMENT as usize] = 0;
    unit[51] = 4; // authentication
    unit[60] = 8; // destination options
    unit[135] = 8; // mobility
    unit[139] = 8; // host identity
    unit[140] = 8; // shim6
    unit
};
const NOT_AN_EXTENSION: u8 = 0xff;

/// Where the transport header is and who talks to whom: what the IP layer hands on.
#[derive(Clone, Copy)]
pub(crate) struct Transport {
    pub protocol: u8,
    pub offset_bytes: u32,
    /// Where the IP packet ends; bytes behind it are padding. `u32::MAX` where the header gives no
    /// length (BIG TCP, jumbograms).
    pub end_bytes: u32,
    pub later_fragment: bool,
    /// Source below, equal to, or above destination: decides the canonical order.
    pub order: core::cmp::Ordering,
}

/// Parses `frame` into `packet`, which must be [`Packet::default`]. PPPoE and MPLS are not IP to it:
/// where it says so, [`parse_encapsulated`] may know more.
///
/// `offloaded_tci` is the tag that the driver took out of the frame (`skb->vlan_tci`), which is
/// the outermost one.
#[inline(always)]
pub fn parse<F: Frame>(
    frame: &F,
    link_type: LinkType,
    offloaded_tci: Option<u16>,
    packet: &mut Packet,
) -> Result<(), Reason> {
    parse_any::<F, false>(frame, link_type, offloaded_tci, packet)
}

/// As [`parse`], and behind PPPoE and MPLS: apart, since these make the offsets behind them variable
/// for the verifier, and each offset that it can tell from others is a walk of its own.
#[inline(always)]
pub fn parse_encapsulated<F: Frame>(
    frame: &F,
    link_type: LinkType,
    offloaded_tci: Option<u16>,
    packet: &mut Packet,
) -> Result<(), Reason> {
    parse_any::<F, true>(frame, link_type, offloaded_tci, packet)
}

#[inline(always)]
fn parse_any<F: Frame, const ENCAPSULATED: bool>(
    frame: &F,
    link_type: LinkType,
    offloaded_tci: Option<u16>,
    packet: &mut Packet,
) -> Result<(), Reason> {
    let mut tags = 0;
    if let Some(tci) = offloaded_tci {
        packet.key.vlan_ids[0] = tci & VLAN_ID_MASK;
        tags = 1;
    }
    match link_type {
        LinkType::Ethernet => ethernet::<F, ENCAPSULATED>(frame, 0, tags, packet),
        LinkType::Ip => bare_ip(frame, packet),
    }
}

#[inline(always)]
fn bare_ip<F: Frame>(frame: &F, packet: &mut Packet) -> Result<(), Reason> {
    // Two bytes, though one is read: the verifier learns nothing from `data >= data_end`
    // (`find_good_pkt_pointers`), which is what the compiler makes of one byte.
    let first = frame.header::<2>(0).ok_or(Reason::TruncatedIpv4)?;
    match first.u8::<0>() >> 4 {
        4 => ipv4(frame, 0, packet),
        6 => ipv6(frame, 0, packet),
        _ => Err(Reason::NotIp),
    }
}

/// `start` is the offset of the Ethernet header.
#[inline(always)]
pub(crate) fn ethernet<F: Frame, const ENCAPSULATED: bool>(
    frame: &F,
    start: u32,
    tags_before: usize,
    packet: &mut Packet,
) -> Result<(), Reason> {
    let header = frame.header::<14>(start).ok_or(Reason::TruncatedEthernet)?;
    let mut ethertype = header.be16::<12>();
    let mut offset = start + ETHERNET_LEN;

    // At most two tags with the offloaded one; written out, since a loop would make the offsets
    // behind it variable for the verifier.
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

    if ENCAPSULATED {
        if ethertype == ETHERTYPE_PPPOE {
            ethertype = pppoe(frame, offset, packet)?;
            offset += PPPOE_LEN + PPP_PROTOCOL_LEN;
        } else if matches!(ethertype, ETHERTYPE_MPLS | ETHERTYPE_MPLS_UPSTREAM) {
            (ethertype, offset) = mpls(frame, offset, packet)?;
        }
    }

    match ethertype {
        ETHERTYPE_IPV4 => ipv4(frame, offset, packet),
        ETHERTYPE_IPV6 => ipv6(frame, offset, packet),
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

/// RFC 2516, RFC 1661. Returns the EtherType of what is inside.
#[inline(always)]
fn pppoe<F: Frame>(frame: &F, offset: u32, packet: &mut Packet) -> Result<u16, Reason> {
    let header = frame.header::<8>(offset).ok_or(Reason::TruncatedPppoe)?;
    if header.be16::<0>() != PPPOE_SESSION_DATA {
        return Err(Reason::NotIp);
    }
    packet.key.encapsulation = Encapsulation::Pppoe as u8;
    packet.key.tunnel_id = header.be16::<2>().into();
    match header.be16::<6>() {
        PPP_IPV4 => Ok(ETHERTYPE_IPV4),
        PPP_IPV6 => Ok(ETHERTYPE_IPV6),
        _ => Err(Reason::NotIp),
    }
}

/// RFC 3032. Returns the EtherType of what is behind the bottom of the stack, and its offset. Only
/// the first nibble says what it is (RFC 4928).
#[inline(always)]
fn mpls<F: Frame>(frame: &F, start: u32, packet: &mut Packet) -> Result<(u16, u32), Reason> {
    packet.key.encapsulation = Encapsulation::Mpls as u8;
    let mut offset = start;
    for _ in 0..MAX_MPLS_LABELS {
        let label = frame.header::<4>(offset).ok_or(Reason::TruncatedMpls)?;
        offset += MPLS_LABEL_LEN;
        if label.u8::<2>() & MPLS_BOTTOM_OF_STACK != 0 {
            let inside = frame.header::<2>(offset).ok_or(Reason::TruncatedMpls)?;
            return match inside.u8::<0>() >> 4 {
                4 => Ok((ETHERTYPE_IPV4, offset)),
                6 => Ok((ETHERTYPE_IPV6, offset)),
                _ => Err(Reason::NotIp),
            };
        }
    }
    Err(Reason::MplsDepth)
}

/// RFC 791. `offset` is that of the IPv4 header.
#[inline(always)]
pub(crate) fn ipv4<F: Frame>(frame: &F, offset: u32, packet: &mut Packet) -> Result<(), Reason> {
    let header = frame.header::<20>(offset).ok_or(Reason::TruncatedIpv4)?;
    let version_and_len = header.u8::<0>();
    let header_len = u32::from(version_and_len & 0x0f) * 4;
    let total_len = u32::from(header.be16::<2>());
    if version_and_len >> 4 != 4
        || header_len < IPV4_LEN
        || (total_len != 0 && total_len < header_len)
    {
        return Err(Reason::MalformedIpv4);
    }
    // Nobody reads options, but where they are cut, what follows the header is not there.
    if header_len > IPV4_LEN && frame.header::<4>(offset + header_len - 4).is_none() {
        return Err(Reason::TruncatedIpv4);
    }
    packet.dscp = header.u8::<1>() >> 2;
    packet.key.ip_version = 4;

    let (source, destination) = (header.ne32::<12>(), header.ne32::<16>());
    let order = u32::from_be(source).cmp(&u32::from_be(destination));
    let (a, b) = if order.is_gt() {
        (destination, source)
    } else {
        (source, destination)
    };
    set_first_four(&mut packet.key.addr_a, a);
    set_first_four(&mut packet.key.addr_b, b);

    let id_and_part = u32::from_be(header.ne32::<4>());
    packet.datagram_id = id_and_part >> 16;
    packet.part = Part::ipv4(id_and_part);
    transport::parse(
        frame,
        Transport {
            protocol: header.u8::<9>(),
            offset_bytes: offset + header_len,
            end_bytes: if total_len == 0 {
                u32::MAX
            } else {
                offset + total_len
            },
            later_fragment: packet.part.is_later(),
            order,
        },
        packet,
    )
}

/// RFC 8200. `offset` is that of the IPv6 header.
#[inline(always)]
pub(crate) fn ipv6<F: Frame>(frame: &F, offset: u32, packet: &mut Packet) -> Result<(), Reason> {
    let header = frame.header::<40>(offset).ok_or(Reason::TruncatedIpv6)?;
    let version_and_class = header.be16::<0>();
    if version_and_class >> 12 != 6 {
        return Err(Reason::MalformedIpv6);
    }
    packet.dscp = (version_and_class >> 6) as u8 & 0x3f;
    packet.key.ip_version = 6;

    let source = (header.ne64::<8>(), header.ne64::<16>());
    let destination = (header.ne64::<24>(), header.ne64::<32>());
    let order = match u64::from_be(source.0).cmp(&u64::from_be(destination.0)) {
        core::cmp::Ordering::Equal => u64::from_be(source.1).cmp(&u64::from_be(destination.1)),
        unequal @ (core::cmp::Ordering::Less | core::cmp::Ordering::Greater) => unequal,
    };
    let (a, b) = if order.is_gt() {
        (destination, source)
    } else {
        (source, destination)
    };
    set_halves(&mut packet.key.addr_a, a);
    set_halves(&mut packet.key.addr_b, b);

    let payload_len = u32::from(header.be16::<4>());
    let mut transport = Transport {
        protocol: header.u8::<6>(),
        offset_bytes: offset + IPV6_LEN,
        end_bytes: if payload_len == 0 {
            u32::MAX
        } else {
            offset + IPV6_LEN + payload_len
        },
        later_fragment: false,
        order,
    };
    walk_extensions(frame, &mut transport, packet)?;
    transport::parse(frame, transport, packet)
}

/// Moves `transport` behind the extension headers. A later fragment ends the walk: what its
/// Fragment header calls next lies in the first one. Of two Fragment headers the last one counts.
#[inline(always)]
fn walk_extensions<F: Frame>(
    frame: &F,
    transport: &mut Transport,
    packet: &mut Packet,
) -> Result<(), Reason> {
    let start_bytes = transport.offset_bytes;
    for _ in 0..MAX_EXTENSION_HEADERS {
        let unit = extension_unit(transport.protocol);
        if unit == NOT_AN_EXTENSION {
            return last_extension_is_whole(frame, transport, start_bytes);
        }
        // Every extension header is at least eight bytes (RFC 8200 section 4, RFC 4302).
        if transport.offset_bytes + 8 > transport.end_bytes {
            return Err(Reason::TruncatedExtension);
        }
        let header = frame
            .header::<8>(transport.offset_bytes)
            .ok_or(Reason::TruncatedExtension)?;
        let is_fragment = transport.protocol == NEXT_FRAGMENT;
        transport.protocol = header.u8::<0>();
        transport.offset_bytes += 8 + u32::from(header.u8::<1>()) * u32::from(unit & 0x0c);
        if is_fragment {
            packet.part = Part::ipv6(header.be16::<2>());
            packet.datagram_id = u32::from_be(header.ne32::<4>());
            if packet.part.is_later() {
                transport.later_fragment = true;
                return Ok(());
            }
        }
    }
    last_extension_is_whole(frame, transport, start_bytes)?;
    if extension_unit(transport.protocol) == NOT_AN_EXTENSION {
        Ok(())
    } else {
        Err(Reason::ExtensionDepth)
    }
}

/// Whether the bytes before `transport` are there; a header further ahead that is cut leaves no room
/// for the next one.
#[inline(always)]
fn last_extension_is_whole<F: Frame>(
    frame: &F,
    transport: &Transport,
    start_bytes: u32,
) -> Result<(), Reason> {
    if transport.offset_bytes == start_bytes {
        return Ok(());
    }
    if transport.offset_bytes > transport.end_bytes
        || frame.header::<8>(transport.offset_bytes - 8).is_none()
    {
        return Err(Reason::TruncatedExtension);
    }
    Ok(())
}

/// One table look-up whose result the verifier does not know: were each kind of header a branch of
/// its own, it would walk every sequence of kinds.
#[inline(always)]
fn extension_unit(next_header: u8) -> u8 {
    // SAFETY: a reference into a static; volatile only to keep the compiler from branching on what
    // it knows of the table.
    unsafe { core::ptr::from_ref(&EXTENSION_UNIT[usize::from(next_header)]).read_volatile() }
}

#[inline(always)]
fn set_first_four(address: &mut [u8; 16], value_ne: u32) {
    let bytes = value_ne.to_ne_bytes();
    address[0] = bytes[0];
    address[1] = bytes[1];
    address[2] = bytes[2];
    address[3] = bytes[3];
}

#[inline(always)]
fn set_halves(address: &mut [u8; 16], (high_ne, low_ne): (u64, u64)) {
    let (high, low) = (high_ne.to_ne_bytes(), low_ne.to_ne_bytes());
    *address = [
        high[0], high[1], high[2], high[3], high[4], high[5], high[6], high[7], //
        low[0], low[1], low[2], low[3], low[4], low[5], low[6], low[7],
    ];
}

impl Packet {
    /// Of a packet whose key has ports.
    #[inline(always)]
    pub(crate) fn destination_port(&self) -> u16 {
        if self.direction == 0 {
            self.key.port_b
        } else {
            self.key.port_a
        }
    }

    /// Puts the transport's facts into the key. `order` compares source and destination.
    #[inline(always)]
    pub(crate) fn set_direction(&mut self, kind: L4Kind, protocol: u8, reversed: bool) {
        self.key.l4_kind = kind as u8;
        self.key.protocol = protocol;
        self.direction = u8::from(reversed);
        self.initiator = self.direction;
    }
}
