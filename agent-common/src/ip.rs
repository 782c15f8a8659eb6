//! Parses the IP headers: addresses, fragmentation fields, extension headers.

use crate::{
    account::Reason,
    frame::{Frame, Header},
    parse::{EXTENSIONS, Packet, Part, Transport},
    transport,
};

/// How many extension headers the parser walks. RFC 8200 allows seven in sensible use.
const MAX_EXTENSION_HEADERS: u32 = 8;

pub(crate) const IPV4_LEN: u32 = 20;
pub(crate) const IPV6_LEN: u32 = 40;

/// A limit for a packet whose end only its own IP header gives.
pub(crate) const NO_LIMIT: u32 = u32::MAX;

const NEXT_HOP_BY_HOP: u8 = 0;
const NEXT_FRAGMENT: u8 = 44;

/// The length of a hop-by-hop header whose only option is the jumbo payload length (RFC 2675).
const JUMBO_LEN: u16 = 8;
/// The type and length of that option.
const JUMBO_OPTION: u16 = 0xc204;

/// By next-header value: how many bytes one unit of the extension header's length field stands for. The
/// field counts what follows the first eight bytes, in units of eight bytes, of four (Authentication), or
/// not at all (Fragment, whose second byte is reserved).
///
/// Mobility, host identity and shim6 (135, 139, 140) have the same layout but are left out. Their messages have the
/// next header 59 (none), so all of them would fall into one flow of protocol 59. Here 135, 139 or 140 is the packet's
/// protocol instead, as in the kernel (`ipv6_ext_hdr`).
static EXTENSION_UNIT: [u8; 256] = {
    let mut unit = [NOT_AN_EXTENSION; 256];
    unit[NEXT_HOP_BY_HOP as usize] = 8;
    unit[43] = 8; // routing
    unit[NEXT_FRAGMENT as usize] = 0;
    unit[51] = 4 | NOT_EMPTY; // authentication
    unit[60] = 8; // destination options
    unit
};
/// A flag beside the unit: the length field must be at least 1, so that the header has the twelve bytes of
/// RFC 4302 section 2.
const NOT_EMPTY: u8 = 1;
const NOT_AN_EXTENSION: u8 = 0xff;

#[inline(always)]
pub(crate) fn bare<F: Frame, const WHAT: u32>(
    frame: &F,
    packet: &mut Packet,
) -> Result<(), Reason> {
    // Asks for two bytes to read one. For one byte the compiler would write the check as
    // `data >= data_end`, from which the verifier learns nothing (`find_good_pkt_pointers`).
    let first = frame.header::<2>(0).ok_or(Reason::TruncatedIpv4)?;
    match first.u8::<0>() >> 4 {
        4 => v4(frame, 0, NO_LIMIT, packet),
        6 => v6::<F, WHAT>(frame, 0, NO_LIMIT, packet),
        _ => Err(Reason::NotIp),
    }
}

/// Parses IPv4 (RFC 791). `offset` is where its header begins. Nothing from `limit_bytes` on belongs to the
/// packet, whatever its header says.
#[inline(always)]
pub(crate) fn v4<F: Frame>(
    frame: &F,
    offset: u32,
    limit_bytes: u32,
    packet: &mut Packet,
) -> Result<(), Reason> {
    let header = frame.header::<20>(offset).ok_or(Reason::TruncatedIpv4)?;
    let version_and_len = header.u8::<0>();
    let header_len = u32::from(version_and_len & 0x0f) * 4;
    let total_len = u32::from(header.be16::<2>());
    let has_no_len = total_len == 0 && frame.is_super_frame();
    if version_and_len >> 4 != 4 || header_len < IPV4_LEN || (total_len < header_len && !has_no_len)
    {
        return Err(Reason::MalformedIpv4);
    }
    // The parser skips the options. If they are cut, the transport header behind them is missing too.
    if header_len > IPV4_LEN
        && (offset + header_len > limit_bytes
            || frame.header::<4>(offset + header_len - 4).is_none())
    {
        return Err(Reason::TruncatedIpv4);
    }
    packet.dscp = header.u8::<1>() >> 2;
    packet.key.ip_version = 4;
    packet.ip_start_bytes = offset as u16;
    packet.ip_end_bytes = if has_no_len {
        limit_bytes
    } else {
        limit_bytes.min(offset + total_len)
    };

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
            end_bytes: packet.ip_end_bytes,
            later_fragment: packet.part.is_later(),
            order,
        },
        packet,
    )
}

/// Parses IPv6 (RFC 8200). `offset` and `limit_bytes` are as for [`v4`].
#[inline(always)]
pub(crate) fn v6<F: Frame, const WHAT: u32>(
    frame: &F,
    offset: u32,
    limit_bytes: u32,
    packet: &mut Packet,
) -> Result<(), Reason> {
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
    let next_header = header.u8::<6>();
    if WHAT & EXTENSIONS == 0 && extension_unit(next_header) != NOT_AN_EXTENSION {
        return Err(Reason::NotIp);
    }
    let mut end_bytes = limit_bytes.min(offset + IPV6_LEN + payload_len);
    if payload_len == 0 && frame.is_super_frame() {
        end_bytes = limit_bytes;
        if WHAT & EXTENSIONS != 0 && next_header == NEXT_HOP_BY_HOP {
            packet.jumbo_len_bytes = jumbo_len_bytes(frame, offset + IPV6_LEN);
        }
    }
    packet.ip_start_bytes = offset as u16;
    packet.ip_end_bytes = end_bytes;
    let mut transport = Transport {
        protocol: next_header,
        offset_bytes: offset + IPV6_LEN,
        end_bytes,
        later_fragment: false,
        order,
    };
    if WHAT & EXTENSIONS != 0 {
        walk_extensions(frame, &mut transport, packet)?;
    }
    transport::parse(frame, transport, packet)
}

/// The length of the hop-by-hop header at `offset` if it is the one that the kernel puts into a super-frame
/// (`ipv6_has_hopopt_jumbo`). 0 if a sender put it there.
#[inline(always)]
fn jumbo_len_bytes<F: Frame>(frame: &F, offset: u32) -> u16 {
    let Some(header) = frame.header::<8>(offset) else {
        return 0;
    };
    let differs = u16::from(header.u8::<0>() ^ crate::protocol::TCP)
        | u16::from(header.u8::<1>())
        | (header.be16::<2>() ^ JUMBO_OPTION);
    if differs == 0 { JUMBO_LEN } else { 0 }
}

/// Moves `transport` behind the extension headers. The walk ends at a later fragment: the next header that its Fragment
/// header names is in the first fragment. Of two Fragment headers the last one counts.
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
        let units = u32::from(header.u8::<1>());
        let fewest_units = u32::from(unit & NOT_EMPTY);
        // A length under the minimum moves the offset beyond any frame, so the next read fails. A
        // branch for it would double the verifier's paths with each header.
        let nowhere = units.wrapping_sub(fewest_units) & 0x8000_0000;
        transport.protocol = header.u8::<0>();
        transport.offset_bytes += 8 + units * u32::from(unit & 0x0c) + nowhere;
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

/// Checks that the last extension header is whole. The earlier ones need no check: the frame has the header
/// behind them.
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

/// Looks the header up in a table, so that the verifier does not know the result. With a branch for each
/// kind of header it would walk every sequence of kinds.
#[inline(always)]
fn extension_unit(next_header: u8) -> u8 {
    // SAFETY: a reference into a static. The read is volatile only so that the compiler cannot branch on the table's
    // known contents.
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
