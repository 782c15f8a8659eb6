//! Finds the flow whose packet an ICMP error quotes.

use agent_common::{
    FlowKey, L4Kind, LinkType, Packet,
    icmp::{IcmpMessage, KEPT_LEN},
    parse_all, protocol,
};

const ICMP_LEN: usize = 8;
/// An error quotes at least this many bytes after the IP header (RFC 792). They hold the ports.
const LEAST_QUOTED_LEN: usize = 8;
const IPV6_LEN: usize = 40;
const IPV6_NEXT_HEADER: usize = 6;
/// Offset in the TCP header of its length, in words, in the upper half of a byte.
const TCP_LENGTH: usize = 12;
const TCP_SHORTEST: u8 = 5 << 4;
/// ICMP for IPv4 only: the packet is too long. The sender uses it for path MTU discovery (RFC 1191).
const FRAGMENTATION_NEEDED: u8 = 4;

/// The type and code of an ICMP error; of an ICMPv6 error if the flow is IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    pub icmp_type: u8,
    pub code: u8,
}

/// The flow of a quoted packet, the packet's direction in it, and the ICMP error that quotes it.
#[derive(Debug, PartialEq, Eq)]
pub struct QuotedPacket {
    pub key: FlowKey,
    pub direction: u8,
    pub error: IcmpError,
}

/// Whether the error only reports that a packet is too long to be sent without fragmentation.
pub fn is_fragmentation_needed(message: &IcmpMessage) -> bool {
    let [_, code] = message.key.port_a.to_be_bytes();
    message.key.protocol == protocol::ICMP && code == FRAGMENTATION_NEEDED
}

/// The packet that an ICMP error quotes. `None` if it cannot be parsed.
pub fn quoted_packet(message: &IcmpMessage) -> Option<QuotedPacket> {
    let kept = message.packet.get(..message.kept_bytes as usize)?;
    let icmp = match kept.first()? >> 4 {
        4 => usize::from(kept[0] & 0xf) * 4,
        6 if kept.get(IPV6_NEXT_HEADER) == Some(&protocol::ICMPV6) => IPV6_LEN,
        // A host that sends an ICMP error puts no extension header before it.
        _ => return None,
    };
    let quoted = filled_up(kept.get(icmp + ICMP_LEN..)?)?;
    let mut packet = Packet::default();
    parse_all(&&quoted[..], LinkType::Ip, None, &mut packet).ok()?;
    let has_ports = packet.key.kind() == Some(L4Kind::Ports);
    if has_ports && packet.key.port_a == 0 && packet.key.port_b == 0 {
        // The ports lie beyond the quoted bytes.
        return None;
    }
    // The quoted packet was seen on the opposite side: on its way out if the error came in.
    let of_error = message.key.side() ^ message.direction as u8 & 1;
    let key = FlowKey {
        netns: message.key.netns,
        ifindex: message.key.ifindex,
        vlan_ids: message.key.vlan_ids,
        encapsulation: message.key.encapsulation,
        tunnel_id: message.key.tunnel_id,
        ..packet.key
    };
    let [icmp_type, code] = message.key.port_a.to_be_bytes();
    Some(QuotedPacket {
        key: key.with_side(packet.direction ^ 1 ^ of_error),
        direction: packet.direction,
        error: IcmpError { icmp_type, code },
    })
}

/// Pads the quoted bytes with zeros, since a router need not quote the whole TCP header.
fn filled_up(quoted: &[u8]) -> Option<[u8; KEPT_LEN]> {
    let mut whole = [0; KEPT_LEN];
    whole.get_mut(..quoted.len())?.copy_from_slice(quoted);
    let behind_ip = match whole[0] >> 4 {
        4 => usize::from(whole[0] & 0xf) * 4,
        _ => IPV6_LEN,
    };
    if quoted.len() < behind_ip + LEAST_QUOTED_LEN {
        return None;
    }
    let length = behind_ip + TCP_LENGTH;
    if length >= quoted.len() {
        *whole.get_mut(length)? = TCP_SHORTEST;
    }
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: u8 = 6;

    /// An error that arrived at interface 2 and quotes a packet from 10.0.0.1 to 192.0.2.1.
    fn error(protocol: u8, behind_ip: &[u8], code: u8) -> IcmpMessage {
        let mut bytes = vec![0x45, 0, 0, 56, 0, 0, 0, 0, 64, 1, 0, 0];
        bytes.extend([10, 0, 0, 254, 10, 0, 0, 1]);
        bytes.extend([3, code, 0, 0, 0, 0, 0, 0]);
        bytes.extend([0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, protocol, 0, 0]);
        bytes.extend([10, 0, 0, 1, 192, 0, 2, 1]);
        bytes.extend(behind_ip);
        let mut message = IcmpMessage {
            key: FlowKey {
                netns: 7,
                ifindex: 2,
                vlan_ids: [5, 0],
                ip_version: 4,
                protocol: protocol::ICMP,
                port_a: u16::from_be_bytes([3, code]),
                ..FlowKey::default()
            },
            seen_ns: 5,
            direction: 1,
            kept_bytes: bytes.len() as u32,
            packet: [0xff; KEPT_LEN],
        };
        // It arrived, and b sent it.
        message.key = message.key.with_side(1);
        message.packet[..bytes.len()].copy_from_slice(&bytes);
        message
    }

    #[test]
    fn eight_bytes_of_what_is_quoted_name_the_flow() {
        for protocol in [TCP, protocol::UDP] {
            let ports = [0x9c, 0x40, 0, 80, 0, 20, 0, 0];
            let quoted = quoted_packet(&error(protocol, &ports, 1)).unwrap();
            let key = quoted.key;
            assert_eq!(&key.addr_a[..4], [10, 0, 0, 1]);
            assert_eq!(&key.addr_b[..4], [192, 0, 2, 1]);
            assert_eq!((key.port_a, key.port_b), (40_000, 80));
            assert_eq!((key.netns, key.ifindex, key.vlan_ids), (7, 2, [5, 0]));
            assert_eq!((key.protocol, quoted.direction), (protocol, 0));
            // It left: 0 ^ 1.
            assert_eq!(key.side(), 1);
            let error = IcmpError {
                icmp_type: 3,
                code: 1,
            };
            assert_eq!(quoted.error, error);
        }
    }

    #[test]
    fn a_packet_that_is_too_long_is_not_unreachable_and_what_is_too_short_is_nobodys() {
        let ports = [0x9c, 0x40, 0, 80, 0, 20, 0, 0];
        assert!(is_fragmentation_needed(&error(TCP, &ports, 4)));
        let whole = error(TCP, &ports, 1);
        assert!(!is_fragmentation_needed(&whole));
        for kept_bytes in (0..48).chain([u32::MAX]) {
            let short = IcmpMessage {
                kept_bytes,
                ..whole
            };
            assert_eq!(
                quoted_packet(&short).map(|quoted| quoted.key.port_a),
                None,
                "{kept_bytes}"
            );
        }
    }

    #[test]
    fn an_error_of_ipv6_and_what_was_said_of_a_packet_with_extension_headers() {
        let addresses = [0x20_u8; 32];
        let mut bytes = vec![0x60, 0, 0, 0, 0, 56, 58, 64];
        bytes.extend(addresses);
        bytes.extend([1, 4, 0, 0, 0, 0, 0, 0]);
        let quoted_at = bytes.len();
        // Hop-by-hop options before UDP.
        bytes.extend([0x60, 0, 0, 0, 0, 16, 0, 64]);
        bytes.extend([0xfd; 16]);
        bytes.extend([0xfe; 16]);
        bytes.extend([protocol::UDP, 0, 1, 4, 0, 0, 0, 0]);
        bytes.extend([0, 53, 0x9c, 0x40, 0, 8, 0, 0]);
        let mut message = error(protocol::UDP, &[], 0);
        (message.key.protocol, message.key.ip_version) = (protocol::ICMPV6, 6);
        message.key.port_a = u16::from_be_bytes([1, 4]);
        message.packet[..bytes.len()].copy_from_slice(&bytes);
        message.kept_bytes = bytes.len() as u32;
        let quoted = quoted_packet(&message).unwrap();
        assert_eq!((quoted.key.port_a, quoted.key.port_b), (53, 40_000));
        assert_eq!(quoted.error.code, 4);
        // The quoted bytes end before the ports.
        message.kept_bytes = quoted_at as u32 + 48;
        assert_eq!(quoted_packet(&message), None);
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_is_read_or_not(bytes in proptest::collection::vec(proptest::num::u8::ANY, KEPT_LEN), kept in 0_u32..400) {
            let mut message = error(TCP, &[0; 8], 1);
            message.packet.copy_from_slice(&bytes);
            message.kept_bytes = kept;
            let _ = quoted_packet(&message);
        }
    }
}
