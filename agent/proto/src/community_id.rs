//! Community ID version 1, seed 0: a digest of a flow's key that other tools compute in the same way
//! (<https://github.com/corelight/community-id-spec>).

use agent_common::{FlowKey, L4Kind, protocol::ICMP};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha1::{Digest as _, Sha1};

const SEED: u16 = 0;

/// The beginning of the text form. 28 characters of base64 follow.
const VERSION: &str = "1:";
pub const TEXT_LEN: usize = 2 + 28;

/// The SHA-1 digest of a flow's key.
///
/// `initiator` is the endpoint of the key that sent the first packet, 0 for a and 1 for b. It matters only
/// for ICMP types without a reply: the specification gives each of their directions its own ID. Later
/// fragments have the ID of a protocol without ports.
pub fn community_id(key: &FlowKey, initiator: u8) -> [u8; 20] {
    let ends = Ends::of(key, initiator);
    let len = if key.ip_version == 4 { 4 } else { 16 };

    let mut hash = Sha1::new();
    hash.update(SEED.to_be_bytes());
    hash.update(&ends.addr[0][..len]);
    hash.update(&ends.addr[1][..len]);
    hash.update([key.protocol, 0]);
    if let Some([first, second]) = ends.port {
        hash.update(first.to_be_bytes());
        hash.update(second.to_be_bytes());
    }
    hash.finalize().into()
}

/// The text form that people and other tools use.
pub fn text(digest: &[u8; 20]) -> String {
    let mut text = String::with_capacity(TEXT_LEN);
    text.push_str(VERSION);
    STANDARD.encode_string(digest, &mut text);
    text
}

/// The endpoints in hashing order.
struct Ends<'a> {
    addr: [&'a [u8; 16]; 2],
    port: Option<[u16; 2]>,
}

impl<'a> Ends<'a> {
    fn of(key: &'a FlowKey, initiator: u8) -> Self {
        let in_key_order = [&key.addr_a, &key.addr_b];
        match key.kind() {
            Some(L4Kind::Ports) => Self {
                addr: in_key_order,
                port: Some([key.port_a, key.port_b]),
            }
            .lower_first(),
            Some(L4Kind::Icmp | L4Kind::IcmpQuery) => {
                let [icmp_type, code] = key.port_a.to_be_bytes();
                let addr = if initiator == 0 {
                    in_key_order
                } else {
                    [&key.addr_b, &key.addr_a]
                };
                match counterpart(key.protocol, icmp_type) {
                    Some(answer) => {
                        let port = Some([u16::from(icmp_type), u16::from(answer)]);
                        Self { addr, port }.lower_first()
                    }
                    None => Self {
                        addr,
                        port: Some([u16::from(icmp_type), u16::from(code)]),
                    },
                }
            }
            Some(L4Kind::None | L4Kind::Fragment) | None => Self {
                addr: in_key_order,
                port: None,
            }
            .lower_first(),
        }
    }

    fn lower_first(self) -> Self {
        let Self {
            addr: [first, second],
            port,
        } = self;
        let ports = port.unwrap_or_default();
        if (first, ports[0]) <= (second, ports[1]) {
            return self;
        }
        Self {
            addr: [second, first],
            port: port.map(|[first, second]| [second, first]),
        }
    }
}

/// The ICMP type of the reply to a request, or of the request for a reply.
fn counterpart(protocol: u8, icmp_type: u8) -> Option<u8> {
    const V4: [(u8, u8); 5] = [(8, 0), (10, 9), (13, 14), (15, 16), (17, 18)];
    const V6: [(u8, u8); 6] = [
        (128, 129),
        (130, 131),
        (133, 134),
        (135, 136),
        (139, 140),
        (144, 145),
    ];
    let pairs: &[(u8, u8)] = if protocol == ICMP { &V4 } else { &V6 };
    pairs.iter().find_map(|&(question, answer)| {
        if icmp_type == question {
            Some(answer)
        } else if icmp_type == answer {
            Some(question)
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use agent_common::protocol::ICMPV6;

    use super::*;

    /// The ID of a packet from the specification's baseline. For ICMP the ports are type and code.
    fn id_of(protocol: u8, source: &str, destination: &str, port: Option<(u16, u16)>) -> String {
        let address = |text: &str| match text.parse().unwrap() {
            IpAddr::V4(v4) => {
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&v4.octets());
                (4, bytes)
            }
            IpAddr::V6(v6) => (6, v6.octets()),
        };
        let (ip_version, source) = address(source);
        let (_, destination) = address(destination);
        let is_icmp = protocol == ICMP || protocol == ICMPV6;
        let (source_port, destination_port) = if is_icmp {
            (0, 0)
        } else {
            port.unwrap_or_default()
        };
        let reversed = (source, source_port) > (destination, destination_port);
        let mut key = FlowKey {
            ip_version,
            protocol,
            ..FlowKey::default()
        };
        (key.addr_a, key.addr_b) = if reversed {
            (destination, source)
        } else {
            (source, destination)
        };
        match port {
            None => key.l4_kind = L4Kind::None as u8,
            Some((icmp_type, code)) if is_icmp => {
                key.l4_kind = L4Kind::Icmp as u8;
                key.port_a = icmp_type << 8 | code;
            }
            Some(_) => {
                key.l4_kind = L4Kind::Ports as u8;
                (key.port_a, key.port_b) = if reversed {
                    (destination_port, source_port)
                } else {
                    (source_port, destination_port)
                };
            }
        }
        text(&community_id(&key, u8::from(reversed)))
    }

    #[test]
    fn flows_have_the_specifications_identifiers() {
        let node_a = "3ffe:507:0:1:200:86ff:fe05:80da";
        let near_a = "fe80::200:86ff:fe05:80da";
        let near_b = "fe80::260:97ff:fe07:69ea";
        let mail = (
            "2001:470:e5bf:dead:4957:2174:e82c:4887",
            "2607:f8b0:400c:c03::1a",
        );
        let port = |source, destination| Some((source, destination));
        #[rustfmt::skip]
        let baseline = [
            (6, "128.232.110.120", "66.35.250.204", port(34855, 80), "1:LQU9qZlK+B5F3KDmev6m5PMibrg="),
            (6, "66.35.250.204", "128.232.110.120", port(80, 34855), "1:LQU9qZlK+B5F3KDmev6m5PMibrg="),
            (6, mail.0, mail.1, port(63943, 25), "1:/qFaeAR+gFe1KYjMzVDsMv+wgU4="),
            (17, "192.168.1.52", "8.8.8.8", port(54585, 53), "1:d/FP5EW3wiY1vCndhwleRRKHowQ="),
            (17, "8.8.8.8", "192.168.1.52", port(53, 54585), "1:d/FP5EW3wiY1vCndhwleRRKHowQ="),
            (132, "192.168.170.8", "192.168.170.56", port(7, 7), "1:MP2EtRCAUIZvTw6MxJHLV7N7JDs="),
            (132, "192.168.170.56", "192.168.170.8", port(80, 7), "1:jQgCxbku+pNGw8WPbEc/TS/uTpQ="),
            (46, "10.1.12.2", "10.1.12.1", None, "1:KHlLkgoJW7ifUTyTSgyVfkFHzKw="),
            (1, "192.168.0.89", "192.168.0.1", port(8, 0), "1:X0snYXpgwiv9TZtqg64sgzUn6Dk="),
            (1, "192.168.0.1", "192.168.0.89", port(0, 8), "1:X0snYXpgwiv9TZtqg64sgzUn6Dk="),
            (1, "192.168.0.89", "192.168.0.1", port(20, 0), "1:3o2RFccXzUgjl7zDpqmY7yJi8rI="),
            (1, "192.168.0.89", "192.168.0.1", port(20, 1), "1:tz/fHIDUHs19NkixVVoOZywde+I="),
            (1, "10.0.0.1", "10.0.0.2", port(11, 0), "1:YHxtAirCG//0OzkcVAukqKQN9xM="),
            (58, near_a, near_b, port(135, 0), "1:dGHyGvjMfljg6Bppwm3bg0LO8TY="),
            (58, near_b, near_a, port(136, 0), "1:dGHyGvjMfljg6Bppwm3bg0LO8TY="),
            (58, near_b, near_a, port(135, 0), "1:zavyT/cezQr1fmImYCwYnMXbgck="),
            (58, node_a, "3ffe:501:0:1001::2", port(128, 0), "1:+TW+HtLHvV1xnGhV1lv7XoJrqQg="),
            (58, "3ffe:501:1800:2345::2", node_a, port(3, 0), "1:2ObVBgIn28oZvibYZhZMBgh7WdQ="),
            (58, "3ffe:501:410:0:2c0:dfff:fe47:33e", node_a, port(1, 4), "1:hLZd0XGWojozrvxqE0dWB1iM6R0="),
            (58, near_a, "ff02::2", port(133, 0), "1:hO+sN4H+MG5MY/8hIrXPqc4ZQz0="),
            (58, near_b, "ff02::1", port(134, 0), "1:pkvHqCL88/tg1k4cPigmZXUtL00="),
        ];
        for (protocol, source, destination, port, expected) in baseline {
            let found = id_of(protocol, source, destination, port);
            assert_eq!(
                found, expected,
                "{protocol} {source} {destination} {port:?}"
            );
        }
    }

    #[test]
    fn a_later_fragment_is_hashed_without_ports() {
        let mut key = FlowKey {
            ip_version: 4,
            protocol: 17,
            ..FlowKey::default()
        };
        key.addr_b[0] = 1;
        key.l4_kind = L4Kind::Fragment as u8;
        let fragment = community_id(&key, 0);
        key.l4_kind = L4Kind::None as u8;
        assert_eq!(fragment, community_id(&key, 1));
    }
}
