//! Parses the header behind IP: ports, TCP flags, ICMP type, code and identifier.
//!
//! A header counts as truncated if the frame or the IP packet's own length ends within it. Bytes behind
//! the IP packet are padding and never become ports.

use core::cmp::Ordering;

use crate::{
    account::Reason,
    flow::{L4Kind, tcp_flags},
    frame::{Frame, Header},
    ip::NO_LIMIT,
    parse::{Packet, Transport},
    protocol::{DCCP, GRE, ICMP, ICMPV6, IPV4_IN_IP, IPV6_IN_IP, SCTP, TCP, UDP, UDP_LITE},
};

const TCP_LEN: u32 = 20;
pub(crate) const UDP_LEN: u32 = 8;
const SCTP_LEN: u32 = 12;
/// RFC 4340, with short sequence numbers. The ports are its first four bytes.
const DCCP_LEN: u32 = 12;
const ICMP_LEN: u32 = 8;

/// UDP destination ports of tunnels: VXLAN, the port that Linux used for it before RFC 7348, VXLAN-GPE,
/// Geneve. Their super-frames also repeat the inner headers.
pub(crate) const TUNNEL_PORTS: [u16; 4] = [VXLAN, VXLAN_LINUX, 4790, GENEVE];
pub(crate) const VXLAN: u16 = 4789;
pub(crate) const VXLAN_LINUX: u16 = 8472;
pub(crate) const GENEVE: u16 = 6081;

#[inline(always)]
pub(crate) fn parse<F: Frame>(
    frame: &F,
    transport: Transport,
    packet: &mut Packet,
) -> Result<(), Reason> {
    let protocol = transport.protocol;
    if transport.later_fragment {
        packet.set_direction(L4Kind::Fragment, protocol, transport.order.is_gt());
        return Ok(());
    }
    match protocol {
        TCP => tcp(frame, transport, packet),
        UDP | UDP_LITE => udp(frame, transport, packet),
        SCTP => {
            ports::<F, 12>(frame, transport, packet)?;
            packet.segment_header_len_bytes = transport.offset_bytes + SCTP_LEN;
            Ok(())
        }
        DCCP => ports::<F, 12>(frame, transport, packet),
        ICMP | ICMPV6 => icmp(frame, transport, packet),
        _ => {
            packet.set_direction(L4Kind::None, protocol, transport.order.is_gt());
            if matches!(protocol, IPV4_IN_IP | IPV6_IN_IP | GRE) {
                packet.payload_start_bytes = transport.offset_bytes as u16;
            }
            Ok(())
        }
    }
}

const _: () = assert!(UDP_LEN == 8 && SCTP_LEN == 12 && DCCP_LEN == 12);

/// Reads the transport header, which must lie in the IP packet as a whole.
#[inline(always)]
fn header<F: Frame, const N: usize>(
    frame: &F,
    transport: Transport,
) -> Result<F::Header<N>, Reason> {
    if transport.offset_bytes + N as u32 > transport.end_bytes {
        return Err(Reason::TruncatedTransport);
    }
    frame
        .header::<N>(transport.offset_bytes)
        .ok_or(Reason::TruncatedTransport)
}

#[inline(always)]
fn set_ports(packet: &mut Packet, transport: Transport, source: u16, destination: u16) {
    let order = match transport.order {
        Ordering::Equal => source.cmp(&destination),
        unequal @ (Ordering::Less | Ordering::Greater) => unequal,
    };
    let reversed = order.is_gt();
    let (a, b) = if reversed {
        (destination, source)
    } else {
        (source, destination)
    };
    packet.key.port_a = a;
    packet.key.port_b = b;
    packet.set_direction(L4Kind::Ports, transport.protocol, reversed);
}

const SYN_ACK: u8 = tcp_flags::SYN | tcp_flags::ACK;

/// RFC 9293.
#[inline(always)]
fn tcp<F: Frame>(frame: &F, transport: Transport, packet: &mut Packet) -> Result<(), Reason> {
    let header = header::<F, 20>(frame, transport)?;
    let header_len = u32::from(header.u8::<12>() >> 4) * 4;
    if header_len < TCP_LEN {
        return Err(Reason::MalformedTcp);
    }
    set_ports(packet, transport, header.be16::<0>(), header.be16::<2>());
    packet.segment_header_len_bytes = transport.offset_bytes + header_len;
    packet.tcp_flags = header.u8::<13>();
    if packet.tcp_flags & SYN_ACK == SYN_ACK {
        packet.initiator = 1 - packet.direction;
    }
    Ok(())
}

#[inline(always)]
fn ports<F: Frame, const N: usize>(
    frame: &F,
    transport: Transport,
    packet: &mut Packet,
) -> Result<(), Reason> {
    let header = header::<F, N>(frame, transport)?;
    set_ports(packet, transport, header.be16::<0>(), header.be16::<2>());
    Ok(())
}

/// RFC 768, RFC 3828. A UDP super-frame repeats the UDP header. A tunnel's also repeats the inner headers,
/// which are not read here.
#[inline(always)]
fn udp<F: Frame>(frame: &F, transport: Transport, packet: &mut Packet) -> Result<(), Reason> {
    let header = header::<F, 8>(frame, transport)?;
    let payload_offset = transport.offset_bytes + UDP_LEN;
    set_ports(packet, transport, header.be16::<0>(), header.be16::<2>());
    if transport.protocol == UDP && is_short(transport, packet, header.be16::<4>()) {
        return Err(Reason::MalformedUdp);
    }
    if transport.protocol == UDP && TUNNEL_PORTS.contains(&packet.destination_port()) {
        packet.payload_start_bytes = payload_offset as u16;
    } else {
        packet.segment_header_len_bytes = payload_offset;
    }
    Ok(())
}

/// Whether the UDP length is shorter than the UDP header, which is illegal. 0 is accepted over IPv6 (`__udp6_lib_rcv`;
/// RFC 2675 means it for jumbograms only). If no field gives the IP packet's length, any value is accepted: it is 0 or
/// the lower 16 bits of the real length.
///
/// A single comparison, since each branch here doubles the verifier's work.
#[inline(always)]
fn is_short(transport: Transport, packet: &Packet, len: u16) -> bool {
    let may_be_zero = u32::from(packet.key.ip_version == 6);
    // Only `NO_LIMIT` has the highest bit set.
    let is_endless = transport.end_bytes >> 31;
    let or_more = u32::from(len)
        .wrapping_sub(may_be_zero)
        .wrapping_add(is_endless << 16);
    or_more < UDP_LEN - may_be_zero
}

/// Where a UDP datagram ends. Its payload begins at `start` and its IP packet ends at `end_bytes`. A length field that
/// points beyond the IP packet is ignored: the kernel drops such packets, but their ports are valid.
///
/// Only tunnels need this, so [`parse`] spares the verifier the extra work.
#[inline(always)]
pub(crate) fn udp_end<F: Frame>(frame: &F, start: u32, end_bytes: u32) -> Option<u32> {
    let len = u32::from(frame.header::<4>(start - 4)?.be16::<0>());
    Some(if end_bytes == NO_LIMIT || len == 0 {
        end_bytes
    } else {
        end_bytes.min(start - UDP_LEN + len)
    })
}

/// RFC 792, RFC 4443. A reply belongs to the flow of its request.
#[inline(always)]
fn icmp<F: Frame>(frame: &F, transport: Transport, packet: &mut Packet) -> Result<(), Reason> {
    let header = header::<F, 8>(frame, transport)?;
    let (icmp_type, code) = (header.u8::<0>(), header.u8::<1>());
    let query = if transport.protocol == ICMP {
        icmpv4_query(icmp_type)
    } else {
        icmpv6_query(icmp_type)
    };

    // The addresses decide the order. If both are the same host, request and reply decide.
    let reversed = match transport.order {
        Ordering::Equal => query.is_reply,
        Ordering::Less => false,
        Ordering::Greater => true,
    };
    packet.key.port_a = u16::from(query.request_type) << 8 | u16::from(code);
    let kind = if query.has_identifier {
        packet.key.port_b = header.be16::<4>();
        L4Kind::IcmpQuery
    } else {
        L4Kind::Icmp
    };
    packet.set_direction(kind, transport.protocol, reversed);
    if query.is_reply {
        packet.initiator = 1 - packet.direction;
    }
    Ok(())
}

const _: () = assert!(ICMP_LEN == 8);

struct Query {
    request_type: u8,
    is_reply: bool,
    has_identifier: bool,
}

#[inline(always)]
fn icmpv4_query(icmp_type: u8) -> Query {
    let (request_type, is_reply, has_identifier) = match icmp_type {
        0 => (8, true, true),    // echo reply
        8 => (8, false, true),   // echo
        14 => (13, true, true),  // timestamp reply
        13 => (13, false, true), // timestamp
        16 => (15, true, true),  // information reply
        15 => (15, false, true), // information request
        18 => (17, true, true),  // address mask reply
        17 => (17, false, true), // address mask request
        9 => (10, true, false),  // router advertisement answers a solicitation
        other => (other, false, false),
    };
    Query {
        request_type,
        is_reply,
        has_identifier,
    }
}

#[inline(always)]
fn icmpv6_query(icmp_type: u8) -> Query {
    let (request_type, is_reply, has_identifier) = match icmp_type {
        129 => (128, true, true),  // echo reply
        128 => (128, false, true), // echo request
        134 => (133, true, false), // router advertisement
        136 => (135, true, false), // neighbour advertisement
        140 => (139, true, false), // node information reply
        other => (other, false, false),
    };
    Query {
        request_type,
        is_reply,
        has_identifier,
    }
}
