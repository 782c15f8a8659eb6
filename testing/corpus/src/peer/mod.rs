//! The second parser: `etherparse` dissects a frame, and this module converts the result to our types.
//!
//! Headers, lengths and offsets come from etherparse. Two limits (two VLAN tags, eight extension headers) and the
//! canonical order are our own rules, so they are implemented here a second time.

use std::{net::IpAddr, ops::Range};

use agent_common::{LinkType, Outer, Packet, Reason};
use etherparse::{
    EtherType, LaxLinkExtSlice, LaxNetSlice, LaxSlicedPacket,
    err::{Layer, ip, packet::SliceError},
    ether_type,
};

use crate::{Meaning, Parsed, RawFrame};

mod difference;
mod ip_packet;
mod link;
mod transport;
mod tunnel;

pub use difference::Difference;

/// The result of the second parser.
pub struct Theirs {
    pub parsed: Parsed,
    /// Why our parser may read this frame differently.
    pub difference: Option<Difference>,
}

pub fn parse(frame: &RawFrame) -> Theirs {
    let mut reading = Reading {
        is_super_frame: frame.is_super_frame,
        ..Reading::default()
    };
    let bytes = &frame.bytes[..];
    let parsed = match frame.link_type {
        LinkType::Ethernet => reading.ethernet(frame.tag, bytes, bytes, true),
        LinkType::Ip => reading.bare_ip(bytes, bytes),
    };
    if parsed.is_ok() && frame.decapsulate {
        reading = reading.innermost(bytes);
        reading.note_later_fragment();
    }
    Theirs {
        parsed: parsed.map(|()| Meaning {
            packet: reading.packet,
            outer: reading.outer,
            outcome: reading.outcome,
        }),
        difference: reading.difference,
    }
}

/// The state while reading a frame.
#[derive(Clone, Default)]
struct Reading {
    /// Whether a length of 0 means that the length does not fit the header's field.
    is_super_frame: bool,
    /// Whether a surrounding tunnel gives the end of the packet.
    is_bounded: bool,
    packet: Packet,
    difference: Option<Difference>,
    /// The payload, if the packet may be a tunnel.
    payload: Option<Payload>,
    outer: Option<Outer>,
    /// Bits of [`agent_common::tunnel::outcome`].
    outcome: u32,
}

#[derive(Clone)]
struct Payload {
    protocol: u8,
    destination_port: u16,
    /// Offsets in the frame.
    range: Range<usize>,
    /// Whether a header gives its end.
    is_bounded: bool,
}

/// The IP layer's input to the transport layer.
struct Transport<'a> {
    protocol: u8,
    payload: &'a [u8],
    /// Offset in the frame.
    offset_bytes: usize,
    later_fragment: bool,
    /// Whether the IP header lacks a length.
    is_endless: bool,
    src: IpAddr,
    dst: IpAddr,
}

const VLAN_TAGS: usize = 2;
const VLAN_ID_MASK: u16 = 0x0fff;
const ETHERTYPE_RARP: EtherType = EtherType(0x8035);
const LOWEST_ETHERTYPE: u16 = 0x0600;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;

impl Reading {
    /// Keeps the first difference, since everything after it may be misread.
    fn note(&mut self, difference: Difference) {
        self.difference.get_or_insert(difference);
    }

    /// `bytes` must begin with an Ethernet header and be a part of `frame`.
    fn ethernet(
        &mut self,
        tag: Option<u16>,
        bytes: &[u8],
        frame: &[u8],
        is_uplink: bool,
    ) -> Result<(), Reason> {
        let sliced =
            LaxSlicedPacket::from_ethernet(bytes).map_err(|_| Reason::TruncatedEthernet)?;
        self.tags(tag, &sliced)?;
        // There is no payload after a MACsec header that encrypts it.
        let Some(payload) = sliced.ether_payload() else {
            return Err(Reason::NotIp);
        };
        match payload.ether_type {
            link::PPPOE if is_uplink => self.pppoe(payload.payload, frame),
            link::MPLS | link::MPLS_UPSTREAM if is_uplink => self.mpls(payload.payload, frame),
            _ => self.network(&sliced, frame),
        }
    }

    /// Reads the layers above the link layer.
    fn network(&mut self, sliced: &LaxSlicedPacket<'_>, frame: &[u8]) -> Result<(), Reason> {
        let Some(payload) = sliced.ether_payload() else {
            return Err(Reason::NotIp);
        };
        let version = match payload.ether_type {
            ether_type::IPV4 => 4,
            ether_type::IPV6 => 6,
            ether_type::ARP | ETHERTYPE_RARP => return Err(Reason::Arp),
            EtherType(length) if length < LOWEST_ETHERTYPE => return Err(Reason::Llc),
            _ => return Err(Reason::NotIp),
        };
        if payload
            .payload
            .first()
            .is_some_and(|byte| byte >> 4 != version)
        {
            self.note(Difference::VersionAgainstEtherType);
        }
        match &sliced.stop_err {
            Some((error, Layer::IpHeader)) => {
                Err(self.ip_header_error(error, version, payload.payload))
            }
            _ if version == 6 => match self.empty(payload.payload) {
                Some(header) => self.bare_ip(header, frame),
                None => self.ip(sliced, frame),
            },
            _ => self.ip(sliced, frame),
        }
    }

    /// The IPv6 header alone if its length field says that nothing follows. etherparse takes the rest as payload.
    fn empty<'a>(&self, packet: &'a [u8]) -> Option<&'a [u8]> {
        let header = packet.get(..IPV6_LEN)?;
        let is_empty = header[0] >> 4 == 6 && header[4..6] == [0, 0];
        (is_empty && !self.is_super_frame).then_some(header)
    }

    fn tags(&mut self, tag: Option<u16>, sliced: &LaxSlicedPacket<'_>) -> Result<(), Reason> {
        let is_macsec = |header: &LaxLinkExtSlice<'_>| matches!(header, LaxLinkExtSlice::Macsec(_));
        let stopped_at = sliced.stop_err.as_ref().map(|(_, layer)| *layer);
        if sliced.link_exts.iter().any(is_macsec)
            || matches!(stopped_at, Some(Layer::MacsecHeader | Layer::MacsecPacket))
        {
            self.note(Difference::Macsec);
        }
        let in_frame = sliced.vlan_ids();
        let ids: Vec<u16> = tag
            .map(|tag| tag & VLAN_ID_MASK)
            .into_iter()
            .chain(in_frame.iter().map(|id| id.value()))
            .collect();
        let cut = stopped_at == Some(Layer::VlanHeader);
        if ids.len() + usize::from(cut) > VLAN_TAGS {
            return Err(Reason::VlanDepth);
        }
        if cut {
            return Err(Reason::TruncatedVlan);
        }
        self.packet.key.vlan_ids[..ids.len()].copy_from_slice(&ids);
        Ok(())
    }

    fn bare_ip(&mut self, bytes: &[u8], frame: &[u8]) -> Result<(), Reason> {
        let bytes = self.empty(bytes).unwrap_or(bytes);
        let error = match LaxSlicedPacket::from_ip(bytes) {
            Ok(sliced) => return self.ip(&sliced, frame),
            Err(ip::LaxHeaderSliceError::Len(error)) => SliceError::Len(error),
            Err(ip::LaxHeaderSliceError::Content(error)) => SliceError::Ip(error),
        };
        if bytes.len() == 1 {
            self.note(Difference::OneByte);
        }
        let version = bytes.first().map_or(4, |byte| byte >> 4);
        Err(match version {
            4 | 6 => self.ip_header_error(&error, version, bytes),
            _ => Reason::NotIp,
        })
    }

    /// Our reason for an error in the IP header, given the `version` that the layer below announced.
    fn ip_header_error(&mut self, error: &SliceError, version: u8, header: &[u8]) -> Reason {
        let is_short = matches!(error, SliceError::Len(_));
        if version == 6 {
            return if is_short {
                Reason::TruncatedIpv6
            } else {
                Reason::MalformedIpv6
            };
        }
        let total_len = header
            .get(2..4)
            .map_or(0, |len| u16::from_be_bytes([len[0], len[1]]));
        let header_len = u16::from(header.first().map_or(0, |byte| byte & 0x0f)) * 4;
        let has_two_faults = if is_short {
            // Options are cut off, and the total length is wrong.
            header.len() >= IPV4_LEN
                && total_len < header_len
                && !(total_len == 0 && self.is_super_frame)
        } else {
            // The header length is wrong, and the header is cut off as well.
            header.len() < IPV4_LEN
        };
        if has_two_faults {
            self.note(Difference::FirstOfTwoFaults);
        }
        if is_short {
            Reason::TruncatedIpv4
        } else {
            Reason::MalformedIpv4
        }
    }

    fn ip(&mut self, sliced: &LaxSlicedPacket<'_>, frame: &[u8]) -> Result<(), Reason> {
        let transport = match &sliced.net {
            Some(LaxNetSlice::Ipv4(packet)) => self.ipv4(packet, frame),
            Some(LaxNetSlice::Ipv6(packet)) => self.ipv6(packet, sliced.stop_err.as_ref(), frame),
            Some(LaxNetSlice::Arp(_)) | None => Err(Reason::NotIp),
        }?;
        self.transport(&transport)
    }
}
