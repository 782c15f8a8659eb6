//! Synthetic frames with correct lengths and checksums.
//!
//! `etherparse` writes the headers, so that our parser is tested against independent code.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result, bail, ensure};
use etherparse::{
    EtherType, Ethernet2Header, IpFragOffset, IpNumber, Ipv4Header, Ipv6Header, SingleVlanHeader,
    TcpHeader, UdpHeader, VlanId, ip_number,
};

use crate::{
    Extension,
    checksum::{crc32c, icmpv4_checksum, icmpv6_checksum},
};

const ETHER_TYPE_IPV4: u16 = 0x0800;
const ETHER_TYPE_IPV6: u16 = 0x86DD;
const ETHER_TYPE_VLAN: u16 = 0x8100;
const ETHER_TYPE_PROVIDER_VLAN: u16 = 0x88A8;

/// Everything below the transport header. Each transport method adds the rest and returns the frame's bytes.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Source and destination; `None` for an interface without an Ethernet header.
    macs: Option<([u8; 6], [u8; 6])>,
    /// EtherType and VLAN id of each tag, outermost first.
    tags: Vec<(u16, u16)>,
    src: IpAddr,
    dst: IpAddr,
    dscp: u8,
    hop_limit: u8,
    ipv4_options: Vec<u8>,
    /// Identification, offset in bytes, more fragments. The identification has 16 bits, as in IPv4.
    fragment: Option<(u16, u16, bool)>,
    extensions: Vec<Extension>,
    tcp_options: Vec<u8>,
    /// Sequence and acknowledgment numbers.
    tcp_numbers: (u32, u32),
    min_len_bytes: usize,
}

impl Frame {
    /// An Ethernet frame between two addresses of the same IP version.
    pub fn ethernet(
        src_mac: [u8; 6],
        dst_mac: [u8; 6],
        src: impl Into<IpAddr>,
        dst: impl Into<IpAddr>,
    ) -> Self {
        Self {
            macs: Some((src_mac, dst_mac)),
            ..Self::bare(src, dst)
        }
    }

    /// A packet without an Ethernet header, as on a tun device.
    pub fn bare(src: impl Into<IpAddr>, dst: impl Into<IpAddr>) -> Self {
        Self {
            macs: None,
            tags: Vec::new(),
            src: src.into(),
            dst: dst.into(),
            dscp: 0,
            hop_limit: 64,
            ipv4_options: Vec::new(),
            fragment: None,
            extensions: Vec::new(),
            tcp_options: Vec::new(),
            tcp_numbers: (1, 0),
            min_len_bytes: 0,
        }
    }

    /// The same frame with other addresses.
    #[must_use]
    pub fn between(mut self, src: impl Into<IpAddr>, dst: impl Into<IpAddr>) -> Self {
        (self.src, self.dst) = (src.into(), dst.into());
        self
    }

    /// Adds an 802.1Q tag inside any existing tags.
    #[must_use]
    pub fn vlan(mut self, id: u16) -> Self {
        self.tags.push((ETHER_TYPE_VLAN, id));
        self
    }

    /// Adds an 802.1ad tag with an 802.1Q tag inside.
    #[must_use]
    pub fn qinq(mut self, outer_id: u16, inner_id: u16) -> Self {
        self.tags.extend([
            (ETHER_TYPE_PROVIDER_VLAN, outer_id),
            (ETHER_TYPE_VLAN, inner_id),
        ]);
        self
    }

    #[must_use]
    pub fn dscp(mut self, dscp: u8) -> Self {
        self.dscp = dscp;
        self
    }

    #[must_use]
    pub fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    /// Sets raw IPv4 options; their length must be a multiple of four.
    #[must_use]
    pub fn ipv4_options(mut self, options: &[u8]) -> Self {
        self.ipv4_options = options.to_vec();
        self
    }

    /// Makes the frame a fragment, with the IPv4 header or with an IPv6 fragment header after any existing extension
    /// headers. Only the first fragment, with offset 0, has a transport header; build the others with [`Frame::ip`].
    #[must_use]
    pub fn fragment(mut self, id: u16, offset_bytes: u16, more: bool) -> Self {
        if self.src.is_ipv4() {
            self.fragment = Some((id, offset_bytes, more));
            self
        } else {
            self.extension(Extension::Fragment {
                id: id.into(),
                offset_bytes,
                more,
            })
        }
    }

    /// Adds an IPv6 extension header after any existing ones.
    #[must_use]
    pub fn extension(mut self, extension: Extension) -> Self {
        self.extensions.push(extension);
        self
    }

    /// Sets raw TCP options; their length must be a multiple of four.
    #[must_use]
    pub fn tcp_options(mut self, options: &[u8]) -> Self {
        self.tcp_options = options.to_vec();
        self
    }

    /// Sets TCP's sequence and acknowledgment numbers; the defaults are 1 and 0.
    #[must_use]
    pub fn tcp_numbers(mut self, sequence: u32, acknowledgment: u32) -> Self {
        self.tcp_numbers = (sequence, acknowledgment);
        self
    }

    /// Adds zero bytes after the IP packet up to this frame length, as Ethernet pads to 60.
    #[must_use]
    pub fn pad_to(mut self, min_len_bytes: usize) -> Self {
        self.min_len_bytes = min_len_bytes;
        self
    }

    pub fn udp(&self, src_port: u16, dst_port: u16, payload: &[u8]) -> Result<Vec<u8>> {
        let length = (UdpHeader::LEN + payload.len())
            .try_into()
            .context("a UDP length has 16 bits")?;
        let mut header = UdpHeader {
            source_port: src_port,
            destination_port: dst_port,
            length,
            checksum: 0,
        };
        header.checksum = match self.addresses()? {
            Addresses::V4(src, dst) => {
                header.calc_checksum_ipv4_raw(src.octets(), dst.octets(), payload)?
            }
            Addresses::V6(src, dst) => {
                header.calc_checksum_ipv6_raw(src.octets(), dst.octets(), payload)?
            }
        };
        self.ip(ip_number::UDP.0, &[&header.to_bytes(), payload].concat())
    }

    /// `flags` is the flag byte of the TCP header, with FIN as the lowest bit.
    pub fn tcp(&self, src_port: u16, dst_port: u16, flags: u8, payload: &[u8]) -> Result<Vec<u8>> {
        let (sequence, acknowledgment) = self.tcp_numbers;
        let mut header = TcpHeader::new(src_port, dst_port, sequence, u16::MAX);
        header.acknowledgment_number = acknowledgment;
        header
            .set_options_raw(&self.tcp_options)
            .context("TCP options")?;
        header.fin = flags & 0x01 != 0;
        header.syn = flags & 0x02 != 0;
        header.rst = flags & 0x04 != 0;
        header.psh = flags & 0x08 != 0;
        header.ack = flags & 0x10 != 0;
        header.urg = flags & 0x20 != 0;
        header.ece = flags & 0x40 != 0;
        header.cwr = flags & 0x80 != 0;
        header.checksum = match self.addresses()? {
            Addresses::V4(src, dst) => {
                header.calc_checksum_ipv4_raw(src.octets(), dst.octets(), payload)?
            }
            Addresses::V6(src, dst) => {
                header.calc_checksum_ipv6_raw(src.octets(), dst.octets(), payload)?
            }
        };
        self.ip(ip_number::TCP.0, &[&header.to_bytes(), payload].concat())
    }

    /// An echo request or reply.
    pub fn icmp_echo(
        &self,
        request: bool,
        id: u16,
        sequence: u16,
        payload: &[u8],
    ) -> Result<Vec<u8>> {
        let message_type = match (self.src.is_ipv4(), request) {
            (true, true) => 8,
            (true, false) => 0,
            (false, true) => 128,
            (false, false) => 129,
        };
        let [a, b] = id.to_be_bytes();
        let [c, d] = sequence.to_be_bytes();
        self.icmp(message_type, 0, [a, b, c, d], payload)
    }

    /// ICMP or `ICMPv6`, depending on the addresses. `rest` is the second half of the header.
    pub fn icmp(
        &self,
        message_type: u8,
        code: u8,
        rest: [u8; 4],
        payload: &[u8],
    ) -> Result<Vec<u8>> {
        let mut message = [&[message_type, code, 0, 0], &rest[..], payload].concat();
        let (protocol, checksum) = match self.addresses()? {
            Addresses::V4(..) => (ip_number::ICMP, icmpv4_checksum(&message)),
            Addresses::V6(src, dst) => (ip_number::IPV6_ICMP, icmpv6_checksum(src, dst, &message)),
        };
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        self.ip(protocol.0, &message)
    }

    /// An SCTP common header followed by `chunks`.
    pub fn sctp(&self, src_port: u16, dst_port: u16, chunks: &[u8]) -> Result<Vec<u8>> {
        let ports = [src_port.to_be_bytes(), dst_port.to_be_bytes()].concat();
        let mut packet = [&ports[..], &[0, 0, 0, 1], &[0; 4], chunks].concat();
        let checksum = crc32c(&packet);
        packet[8..12].copy_from_slice(&checksum.to_le_bytes());
        self.ip(ip_number::SCTP.0, &packet)
    }

    /// A plain GRE header (RFC 2784) followed by a packet of the given `EtherType`.
    pub fn gre(&self, ether_type: u16, packet: &[u8]) -> Result<Vec<u8>> {
        self.ip(
            ip_number::GRE.0,
            &[&[0, 0], &ether_type.to_be_bytes()[..], packet].concat(),
        )
    }

    /// Any IP protocol. `payload` follows the IP headers unchanged.
    pub fn ip(&self, protocol: u8, payload: &[u8]) -> Result<Vec<u8>> {
        let (ether_type, header) = match self.addresses()? {
            Addresses::V4(src, dst) => (
                ETHER_TYPE_IPV4,
                self.ipv4_header(src, dst, protocol, payload.len())?,
            ),
            Addresses::V6(src, dst) => (
                ETHER_TYPE_IPV6,
                self.ipv6_headers(src, dst, protocol, payload.len())?,
            ),
        };
        self.ether_type(ether_type, &[&header, payload].concat())
    }

    /// Any `EtherType`. `payload` follows the Ethernet header and the tags unchanged.
    pub fn ether_type(&self, ether_type: u16, payload: &[u8]) -> Result<Vec<u8>> {
        let mut frame = Vec::with_capacity(64 + payload.len());
        if let Some((source, destination)) = self.macs {
            let first = self
                .tags
                .first()
                .map_or(ether_type, |&(tag_protocol, _)| tag_protocol);
            Ethernet2Header {
                source,
                destination,
                ether_type: EtherType(first),
            }
            .write(&mut frame)?;
            let following = self
                .tags
                .iter()
                .skip(1)
                .map(|&(tag_protocol, _)| tag_protocol)
                .chain([ether_type]);
            for (&(_, id), next) in self.tags.iter().zip(following) {
                let vlan_id = VlanId::try_new(id).context("a VLAN id has twelve bits")?;
                let tag = SingleVlanHeader {
                    vlan_id,
                    ether_type: EtherType(next),
                    ..Default::default()
                };
                tag.write(&mut frame)?;
            }
        }
        frame.extend_from_slice(payload);
        frame.resize(frame.len().max(self.min_len_bytes), 0);
        Ok(frame)
    }

    fn addresses(&self) -> Result<Addresses> {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Ok(Addresses::V4(src, dst)),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Ok(Addresses::V6(src, dst)),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
                bail!("{} and {} are of different IP versions", self.src, self.dst)
            }
        }
    }

    fn ipv4_header(
        &self,
        src: Ipv4Addr,
        dst: Ipv4Addr,
        protocol: u8,
        payload_len: usize,
    ) -> Result<Vec<u8>> {
        let mut header = Ipv4Header::new(
            0,
            self.hop_limit,
            IpNumber(protocol),
            src.octets(),
            dst.octets(),
        )?;
        header.dscp = self.dscp.try_into().context("DSCP has six bits")?;
        header.options = self.ipv4_options[..].try_into().context("IPv4 options")?;
        if let Some((id, offset_bytes, more)) = self.fragment {
            ensure!(
                offset_bytes % 8 == 0,
                "fragment offsets are multiples of eight"
            );
            header.dont_fragment = false;
            header.identification = id;
            header.fragment_offset = IpFragOffset::try_new(offset_bytes / 8)?;
            header.more_fragments = more;
        }
        header.set_payload_len(payload_len)?;
        header.header_checksum = header.calc_header_checksum();
        Ok(header.to_bytes().to_vec())
    }

    fn ipv6_headers(
        &self,
        src: Ipv6Addr,
        dst: Ipv6Addr,
        protocol: u8,
        payload_len: usize,
    ) -> Result<Vec<u8>> {
        let mut extensions = Vec::new();
        let following = self
            .extensions
            .iter()
            .skip(1)
            .map(Extension::number)
            .chain([protocol]);
        for (extension, next) in self.extensions.iter().zip(following) {
            extension.write(next, &mut extensions)?;
        }
        let mut header = Ipv6Header {
            next_header: IpNumber(self.extensions.first().map_or(protocol, Extension::number)),
            hop_limit: self.hop_limit,
            source: src.octets(),
            destination: dst.octets(),
            ..Default::default()
        };
        header.set_dscp(self.dscp.try_into().context("DSCP has six bits")?);
        header.set_payload_length(extensions.len() + payload_len)?;
        Ok([&header.to_bytes()[..], &extensions].concat())
    }
}

enum Addresses {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

#[cfg(test)]
mod tests {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice, checksum::Sum16BitWords};

    use super::*;

    const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const B: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn v4() -> Frame {
        Frame::ethernet(A, B, Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2))
    }

    fn v6() -> Frame {
        let address = |n| Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, n);
        Frame::ethernet(A, B, address(1), address(2))
    }

    #[test]
    fn headers_come_in_the_order_that_was_asked_for() {
        let bytes = v4()
            .qinq(100, 200)
            .ipv4_options(&[1; 8])
            .dscp(46)
            .udp(1000, 53, b"hello")
            .unwrap();
        assert_eq!(bytes.len(), 14 + 8 + 28 + 8 + 5);
        let packet = SlicedPacket::from_ethernet(&bytes).unwrap();
        let vlan_ids: Vec<u16> = packet.vlan_ids().iter().map(|id| id.value()).collect();
        assert_eq!(vlan_ids, [100, 200]);
        let Some(NetSlice::Ipv4(ip)) = packet.net else {
            panic!("IPv4")
        };
        assert_eq!(ip.header().options(), [1; 8]);
        assert_eq!(ip.header().dcp().value(), 46);
        let Some(TransportSlice::Udp(udp)) = packet.transport else {
            panic!("UDP")
        };
        assert_eq!((udp.source_port(), udp.destination_port()), (1000, 53));
        assert_eq!(udp.payload(), b"hello");
    }

    #[test]
    fn extension_headers_lead_to_the_transport_header() {
        let bytes = v6()
            .extension(Extension::HopByHop { length_bytes: 16 })
            .extension(Extension::Routing { length_bytes: 8 })
            .extension(Extension::Authentication { length_bytes: 16 })
            .extension(Extension::DestinationOptions { length_bytes: 8 })
            .tcp(1000, 443, 0x12, b"")
            .unwrap();
        assert_eq!(bytes.len(), 14 + 40 + 16 + 8 + 16 + 8 + 20);
        let (next, _, rest) = etherparse::Ipv6Extensions::from_slice(IpNumber(0), &bytes[54..])
            .map(|(_, n, r)| (n, 0, r))
            .unwrap();
        assert_eq!((next, rest.len()), (ip_number::TCP, 20));
    }

    #[test]
    fn fragments_are_marked_in_both_versions() {
        let bytes = v4().fragment(7, 1480, false).ip(17, &[0; 10]).unwrap();
        let (header, _) = Ipv4Header::from_slice(&bytes[14..]).unwrap();
        assert_eq!(
            (header.identification, header.fragment_offset.byte_offset()),
            (7, 1480)
        );
        let bytes = v6().fragment(7, 1448, true).ip(17, &[0; 10]).unwrap();
        assert_eq!(bytes[54..62], [17, 0, 5, 0xA9, 0, 0, 0, 7]);
    }

    #[test]
    fn frames_are_padded_behind_the_packet() {
        let bytes = v4().pad_to(60).icmp_echo(true, 1, 1, b"").unwrap();
        assert_eq!(bytes.len(), 60);
        assert_eq!(u16::from_be_bytes([bytes[16], bytes[17]]), 28);
        assert_eq!(
            Sum16BitWords::new()
                .add_slice(&bytes[34..42])
                .ones_complement(),
            0
        );
    }

    #[test]
    fn addresses_of_two_versions_are_refused() {
        let mixed = v4().between(Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
        assert!(mixed.udp(1, 2, b"").is_err());
    }
}
