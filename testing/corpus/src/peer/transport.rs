//! The transport layer of the second parser, which completes the packet's key.

use agent_common::{L4Kind, Reason};
use etherparse::{
    Icmpv4Slice, Icmpv6Slice, TcpHeaderSlice, UdpHeaderSlice, err::tcp::HeaderSliceError,
};

use super::{Difference, Payload, Reading, Transport};

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const DCCP: u8 = 33;
const ICMPV6: u8 = 58;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;

const ICMP_LEN: usize = 8;
const TCP_LEN: usize = 20;
const UDP_LEN: usize = 8;
/// The length of SCTP's common header and of the shortest DCCP header. etherparse supports neither.
const SCTP_OR_DCCP_LEN: usize = 12;

/// VXLAN, the port that Linux used for VXLAN before its RFC, VXLAN-GPE, Geneve.
const TUNNELS: [u16; 4] = [4789, 8472, 4790, 6081];

/// ICMP types of replies, each with its request.
const ICMP_REPLIES: &[(u8, u8)] = &[(0, 8), (9, 10), (14, 13), (16, 15), (18, 17)];
const ICMPV6_REPLIES: &[(u8, u8)] = &[(129, 128), (134, 133), (136, 135), (140, 139)];
/// Requests that have an identifier.
const ICMP_QUERIES: &[u8] = &[8, 13, 15, 17];
const ICMPV6_QUERIES: &[u8] = &[128];

const SYN_ACK: u8 = 0x12;

impl Reading {
    pub(super) fn transport(&mut self, transport: &Transport<'_>) -> Result<(), Reason> {
        self.packet.key.protocol = transport.protocol;
        if transport.later_fragment {
            self.place(transport, L4Kind::Fragment, None);
            return Ok(());
        }
        match transport.protocol {
            TCP => self.tcp(transport),
            UDP | UDP_LITE => self.udp(transport),
            SCTP | DCCP => self.sctp_or_dccp(transport),
            ICMP | ICMPV6 => self.icmp(transport),
            _ => {
                self.place(transport, L4Kind::None, None);
                self.note_payload(transport, 0, 0);
                Ok(())
            }
        }
    }

    fn tcp(&mut self, transport: &Transport<'_>) -> Result<(), Reason> {
        let header =
            TcpHeaderSlice::from_slice(transport.payload).map_err(|error| match error {
                HeaderSliceError::Content(_) => Reason::MalformedTcp,
                HeaderSliceError::Len(_) => {
                    if transport.payload.len() >= TCP_LEN {
                        self.note(Difference::TcpOptionsCut);
                    }
                    Reason::TruncatedTransport
                }
            })?;
        let ports = (header.source_port(), header.destination_port());
        self.place(transport, L4Kind::Ports, Some(ports));
        let flags = [
            header.fin(),
            header.syn(),
            header.rst(),
            header.psh(),
            header.ack(),
            header.urg(),
            header.ece(),
            header.cwr(),
        ];
        let flags = (0..)
            .zip(flags)
            .fold(0, |byte, (bit, flag)| byte | u8::from(flag) << bit);
        self.packet.tcp_flags = flags;
        if flags & SYN_ACK == SYN_ACK {
            self.packet.initiator ^= 1;
        }
        self.repeat(transport, usize::from(header.data_offset()) * 4);
        Ok(())
    }

    fn udp(&mut self, transport: &Transport<'_>) -> Result<(), Reason> {
        let header = UdpHeaderSlice::from_slice(transport.payload)
            .map_err(|_| Reason::TruncatedTransport)?;
        let ports = (header.source_port(), header.destination_port());
        self.place(transport, L4Kind::Ports, Some(ports));
        if transport.protocol != UDP {
            self.repeat(transport, UDP_LEN);
            return Ok(());
        }
        let len = usize::from(header.length());
        let is_to_the_end = transport.is_endless || transport.src.is_ipv6() && len == 0;
        if len < UDP_LEN && !is_to_the_end {
            return Err(Reason::MalformedUdp);
        }
        if TUNNELS.contains(&header.destination_port()) {
            let whole = transport.payload;
            // A datagram inside a tunnel has less than 64 KiB, even if its IP header gives no length.
            let says_nothing = len == 0 || transport.is_endless && !self.is_bounded;
            let datagram = if says_nothing {
                whole
            } else {
                &whole[..len.min(whole.len())]
            };
            let datagram = Transport {
                payload: datagram,
                ..*transport
            };
            self.note_payload(&datagram, header.destination_port(), UDP_LEN);
        } else {
            self.repeat(transport, UDP_LEN);
        }
        Ok(())
    }

    fn sctp_or_dccp(&mut self, transport: &Transport<'_>) -> Result<(), Reason> {
        let header = transport
            .payload
            .get(..SCTP_OR_DCCP_LEN)
            .ok_or(Reason::TruncatedTransport)?;
        let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        self.place(transport, L4Kind::Ports, Some((port(0), port(2))));
        if transport.protocol == SCTP {
            self.repeat(transport, SCTP_OR_DCCP_LEN);
        }
        Ok(())
    }

    fn icmp(&mut self, transport: &Transport<'_>) -> Result<(), Reason> {
        let (replies, queries) = if transport.protocol == ICMP {
            (ICMP_REPLIES, ICMP_QUERIES)
        } else {
            (ICMPV6_REPLIES, ICMPV6_QUERIES)
        };
        let (icmp_type, code, rest) = self.icmp_header(transport)?;
        let request = replies.iter().find(|(reply, _)| *reply == icmp_type);
        let request_type = request.map_or(icmp_type, |(_, request)| *request);
        let has_identifier = queries.contains(&request_type);
        let kind = if has_identifier {
            L4Kind::IcmpQuery
        } else {
            L4Kind::Icmp
        };
        self.place(transport, kind, None);
        let key = &mut self.packet.key;
        key.port_a = u16::from_be_bytes([request_type, code]);
        if has_identifier {
            key.port_b = u16::from_be_bytes([rest[0], rest[1]]);
        }
        if request.is_some() {
            if transport.src == transport.dst {
                self.packet.direction = 1;
            }
            self.packet.initiator = 1 - self.packet.direction;
        }
        Ok(())
    }

    fn icmp_header(&mut self, transport: &Transport<'_>) -> Result<(u8, u8, [u8; 4]), Reason> {
        let payload = transport.payload;
        let header = if transport.protocol == ICMP {
            Icmpv4Slice::from_slice(payload).map(|it| (it.type_u8(), it.code_u8(), it.bytes5to8()))
        } else {
            Icmpv6Slice::from_slice(payload).map(|it| (it.type_u8(), it.code_u8(), it.bytes5to8()))
        };
        header.map_err(|_| {
            if payload.len() >= ICMP_LEN {
                self.note(Difference::TimestampLength);
            }
            Reason::TruncatedTransport
        })
    }

    /// Stores the endpoints in the key, the lower one first.
    fn place(&mut self, transport: &Transport<'_>, kind: L4Kind, ports: Option<(u16, u16)>) {
        let (src_port, dst_port) = ports.unwrap_or_default();
        let mut ends = [(transport.src, src_port), (transport.dst, dst_port)];
        let sender_is_b = ends[0] > ends[1];
        ends.sort_unstable();
        let key = &mut self.packet.key;
        key.l4_kind = kind as u8;
        for ((address, port), (key_address, key_port)) in ends.into_iter().zip([
            (&mut key.addr_a, &mut key.port_a),
            (&mut key.addr_b, &mut key.port_b),
        ]) {
            match address {
                std::net::IpAddr::V4(address) => {
                    key_address[..4].copy_from_slice(&address.octets());
                }
                std::net::IpAddr::V6(address) => *key_address = address.octets(),
            }
            *key_port = port;
        }
        self.packet.direction = u8::from(sender_is_b);
        self.packet.initiator = self.packet.direction;
    }

    fn note_payload(&mut self, transport: &Transport<'_>, destination_port: u16, at: usize) {
        let start = transport.offset_bytes;
        self.payload = Some(Payload {
            protocol: transport.protocol,
            destination_port,
            range: start + at..start + transport.payload.len().max(at),
            is_bounded: self.is_bounded || !transport.is_endless,
        });
    }

    fn repeat(&mut self, transport: &Transport<'_>, header_len: usize) {
        self.packet.segment_header_len_bytes = (transport.offset_bytes + header_len) as u32;
    }
}
