//! The IP layer of the second parser: finds the transport header from etherparse's slices.

use std::net::IpAddr;

use agent_common::{Encapsulation, Part, Reason};
use etherparse::{
    IpAuthHeaderSlice, IpFragOffset, IpNumber, Ipv6FragmentHeader, Ipv6FragmentHeaderSlice,
    Ipv6RawExtHeaderSlice, LaxIpPayloadSlice, LaxIpv4Slice, LaxIpv6Slice,
    err::{Layer, ipv6_exts, packet::SliceError},
    ip_number,
};

use super::{Difference, Reading, Transport};

const EXTENSION_HEADERS: usize = 8;

impl Reading {
    pub(super) fn ipv4<'a>(
        &mut self,
        packet: &'a LaxIpv4Slice<'_>,
        frame: &[u8],
    ) -> Result<Transport<'a>, Reason> {
        let header = packet.header();
        let has_no_len = header.total_len() == 0 && self.is_super_frame;
        if !has_no_len && header.payload_len().is_err() {
            return Err(Reason::MalformedIpv4);
        }
        if header.protocol() == ip_number::AUTH {
            self.note(Difference::Ipv4Authentication);
        }
        self.packet.dscp = header.dcp().value();
        self.packet.key.ip_version = 4;
        self.note_place(header.slice(), packet.payload().payload, frame);
        let offset = header.fragments_offset();
        self.note_fragment(
            header.identification().into(),
            offset,
            header.more_fragments(),
        );
        Ok(Transport {
            later_fragment: header.fragments_offset().value() != 0,
            is_endless: has_no_len && !self.is_in_pppoe(),
            ..transport(
                packet.payload(),
                frame,
                header.source_addr().into(),
                header.destination_addr().into(),
            )
        })
    }

    pub(super) fn ipv6<'a>(
        &mut self,
        packet: &'a LaxIpv6Slice<'_>,
        stopped: Option<&(SliceError, Layer)>,
        frame: &[u8],
    ) -> Result<Transport<'a>, Reason> {
        let header = packet.header();
        self.packet.dscp = header.dscp().value();
        self.packet.key.ip_version = 6;
        self.note_place(header.slice(), packet.payload().payload, frame);
        let behind = header.slice().as_ptr().addr() - frame.as_ptr().addr() + header.slice().len();
        // The hop-by-hop header with a jumbo option that the kernel inserts, followed by TCP.
        let is_jumbo = matches!(frame.get(behind..), Some([6, 0, 0xc2, 4, _, _, _, _, ..]));
        if header.payload_length() == 0
            && header.next_header() == ip_number::IPV6_HOP_BY_HOP
            && self.is_super_frame
            && is_jumbo
        {
            self.packet.jumbo_len_bytes = 8;
        }
        let payload = packet.payload();
        let mut transport = transport(
            payload,
            frame,
            header.source_addr().into(),
            header.destination_addr().into(),
        );
        transport.is_endless =
            header.payload_length() == 0 && self.is_super_frame && !self.is_in_pppoe();
        let walk = walk(header.next_header(), packet.extensions().slice())?;
        if let Some(fragment) = walk.fragment {
            self.note_fragment(
                fragment.identification,
                fragment.fragment_offset,
                fragment.more_fragments,
            );
        }
        if let Some(protocol) = walk.later_fragment {
            transport.protocol = protocol.0;
            transport.later_fragment = true;
            return Ok(transport);
        }
        if let Some((error, _)) = stopped.filter(|(_, layer)| is_extension(*layer)) {
            if walk.headers == EXTENSION_HEADERS {
                return Err(Reason::ExtensionDepth);
            }
            self.note_stopped_walk(error);
            return Err(Reason::TruncatedExtension);
        }
        Ok(transport)
    }

    /// Whether the packet is inside PPPoE, whose header gives the length if the IP header does not.
    fn is_in_pppoe(&self) -> bool {
        self.packet.key.encapsulation == Encapsulation::Pppoe as u8
    }

    /// Records where the IP packet begins and ends.
    fn note_place(&mut self, header: &[u8], payload: &[u8], frame: &[u8]) {
        let offset = |bytes: &[u8]| bytes.as_ptr().addr() - frame.as_ptr().addr();
        self.packet.ip_start_bytes = offset(header) as u16;
        self.packet.ip_end_bytes = (offset(payload) + payload.len()) as u32;
    }

    fn note_fragment(&mut self, id: u32, offset: IpFragOffset, more: bool) {
        self.packet.part = Part::new(offset.byte_offset(), more);
        self.packet.datagram_id = if self.packet.part.is_whole() { 0 } else { id };
    }

    fn note_stopped_walk(&mut self, error: &SliceError) {
        if matches!(
            error,
            SliceError::Ipv6Exts(ipv6_exts::HeaderError::HopByHopNotAtStart)
        ) {
            self.note(Difference::HopByHopNotFirst);
        }
    }
}

fn transport<'a>(
    payload: &LaxIpPayloadSlice<'a>,
    frame: &[u8],
    src: IpAddr,
    dst: IpAddr,
) -> Transport<'a> {
    Transport {
        protocol: payload.ip_number.0,
        payload: payload.payload,
        offset_bytes: payload.payload.as_ptr().addr() - frame.as_ptr().addr(),
        later_fragment: false,
        is_endless: false,
        src,
        dst,
    }
}

fn is_extension(layer: Layer) -> bool {
    matches!(
        layer,
        Layer::Ipv6ExtHeader
            | Layer::Ipv6HopByHopHeader
            | Layer::Ipv6DestOptionsHeader
            | Layer::Ipv6RouteHeader
            | Layer::Ipv6FragHeader
            | Layer::IpAuthHeader
    )
}

struct Walk {
    headers: usize,
    /// The last Fragment header.
    fragment: Option<Ipv6FragmentHeader>,
    /// The protocol in a fragment header with a non-zero offset.
    later_fragment: Option<IpNumber>,
}

/// Counts the complete extension headers in `rest`, up to the header of a later fragment. etherparse's own iterator is
/// unsuitable: it continues after a header that it has refused.
fn walk(mut next: IpNumber, mut rest: &[u8]) -> Result<Walk, Reason> {
    let mut headers = 0;
    let mut fragment = None;
    let mut later_fragment = None;
    while !rest.is_empty() && later_fragment.is_none() {
        headers += 1;
        if headers > EXTENSION_HEADERS {
            return Err(Reason::ExtensionDepth);
        }
        let cut = Reason::TruncatedExtension;
        let len = match next {
            ip_number::AUTH => {
                let header = IpAuthHeaderSlice::from_slice(rest).map_err(|_| cut)?;
                next = header.next_header();
                header.slice().len()
            }
            ip_number::IPV6_FRAG => {
                let header = Ipv6FragmentHeaderSlice::from_slice(rest).map_err(|_| cut)?;
                next = header.next_header();
                fragment = Some(header.to_header());
                later_fragment = (header.fragment_offset().value() != 0).then_some(next);
                header.slice().len()
            }
            _ => {
                let header = Ipv6RawExtHeaderSlice::from_slice(rest).map_err(|_| cut)?;
                next = header.next_header();
                header.slice().len()
            }
        };
        rest = &rest[len..];
    }
    Ok(Walk {
        headers,
        fragment,
        later_fragment,
    })
}
