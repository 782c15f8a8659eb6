//! Applies rules to records, outside the kernel.
//!
//! Rules are about packets, and a record counts the packets of both directions. So a record passes if the rules would
//! count at least one packet of its flow: a packet from the source or one from the destination, if that end has sent
//! any since the flow began. Packets are matched as in the kernel programs: `src` is the packet's sender, and `ingress`
//! the side where it was seen. Counts never change.
//!
//! A flow that has passed once keeps passing, since its packets only become more. It may begin to pass when the first
//! packet of the other direction arrives.

use std::net::IpAddr;

use agent_common::Direction;
use proto::FlowRecord;

use super::{Action, Net, Ports, Rule, Sides};

/// The properties of a record that rules test. `[0]` is the source's, `[1]` the destination's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// An IANA number.
    pub protocol: u8,
    pub addresses: [IpAddr; 2],
    /// `None` for a protocol without ports, and for fragments whose ports are unknown.
    pub ports: Option<[u16; 2]>,
    /// Where each end's packets were seen; `None` if it has sent none since the flow began.
    pub sent: [Option<Direction>; 2],
}

/// Whether rules let a record pass. The first rule that matches a packet decides; a packet that no rule matches passes.
/// `interface` is the name of the flow's interface. An empty name matches no list.
pub fn passes(rules: &[Rule], record: impl Into<Facts>, interface: &str) -> bool {
    if rules.is_empty() {
        return true;
    }
    record.into().packets().into_iter().flatten().any(|packet| {
        let decides = first_match(rules, &packet, interface);
        decides.is_none_or(|rule| rules[rule].action == Action::Include)
    })
}

/// A packet as rules see it. `[0]` is the sender's, `[1]` the receiver's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub protocol: u8,
    pub addresses: [IpAddr; 2],
    pub ports: Option<[u16; 2]>,
    pub direction: Direction,
}

impl Facts {
    /// One packet from each end that has sent any.
    fn packets(&self) -> [Option<Sent>; 2] {
        let &Self {
            protocol,
            addresses: [src, dst],
            ports,
            sent,
        } = self;
        let forward = sent[0].map(|direction| Sent {
            protocol,
            addresses: [src, dst],
            ports,
            direction,
        });
        let reverse = sent[1].map(|direction| Sent {
            protocol,
            addresses: [dst, src],
            ports: ports.map(|[src, dst]| [dst, src]),
            direction,
        });
        [forward, reverse]
    }
}

/// The index of the first rule that matches.
pub(super) fn first_match(rules: &[Rule], packet: &Sent, interface: &str) -> Option<usize> {
    rules.iter().position(|rule| {
        (rule.protocols.is_empty() || rule.protocols.contains(&packet.protocol))
            && rule.direction.is_none_or(|side| side == packet.direction)
            && hold(&rule.nets, packet.addresses, Net::has)
            && (rule.ports.is_empty()
                || packet
                    .ports
                    .is_some_and(|ports| hold(&rule.ports, ports, Ports::contains)))
            && (rule.interfaces.is_empty()
                || rule.interfaces.iter().any(|known| known.matches(interface)))
    })
}

/// Whether all terms of one kind hold for the sender's and the receiver's value.
fn hold<T, V: Copy>(terms: &Sides<T>, [src, dst]: [V; 2], holds: impl Fn(&T, &V) -> bool) -> bool {
    let any = |terms: &[T], value: V| terms.iter().any(|term| holds(term, &value));
    (terms.src.is_empty() || any(&terms.src, src))
        && (terms.dst.is_empty() || any(&terms.dst, dst))
        && (terms.either.is_empty() || any(&terms.either, src) || any(&terms.either, dst))
}

impl From<&FlowRecord> for Facts {
    fn from(record: &FlowRecord) -> Self {
        let ends = record.ends();
        let ports = ends.map(|end| end.port.and_then(|port| u16::try_from(port).ok()));
        let sides = record.directions().map(proto::Direction::side);
        let sent = |end: usize| sides[end].filter(|_| ends[end].total_packets != 0);
        Self {
            protocol: u8::try_from(record.protocol).unwrap_or(u8::MAX),
            addresses: ends.map(|end| address(&end.addr)),
            ports: match ports {
                [Some(src), Some(dst)] => Some([src, dst]),
                _ => None,
            },
            sent: [sent(0), sent(1)],
        }
    }
}

/// An address of 4 or 16 bytes in network byte order. No agent sends another length.
fn address(bytes: &[u8]) -> IpAddr {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return bytes.into();
    }
    <[u8; 16]>::try_from(bytes).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rules;

    fn flow(src: &str, dst: &str, sent: [Option<Direction>; 2]) -> Facts {
        let end = |text: &str| text.parse::<std::net::SocketAddr>().unwrap();
        let (src, dst) = (end(src), end(dst));
        Facts {
            protocol: 6,
            addresses: [src.ip(), dst.ip()],
            ports: Some([src.port(), dst.port()]),
            sent,
        }
    }

    fn pass(rules: &str, facts: Facts) -> bool {
        passes(&rules.parse::<Rules>().unwrap().0, facts, "eth0")
    }

    #[test]
    fn a_record_passes_if_packets_of_either_direction_do() {
        use Direction::{Egress, Ingress};
        let answered = flow(
            "10.0.0.1:5000",
            "192.0.2.1:443",
            [Some(Egress), Some(Ingress)],
        );
        let asked = Facts {
            sent: [Some(Egress), None],
            ..answered
        };
        for (rules, answered_passes, asked_passes) in [
            ("", true, true),
            ("exclude all", false, false),
            ("exclude port 443", false, false),
            // The rule excludes the answers, but not the questions.
            ("exclude src port 443", true, true),
            ("exclude dst port 443", true, false),
            ("exclude src port 443; exclude dst port 443", false, false),
            ("include src net 192.0.2.0/24; exclude all", true, false),
            ("include ingress; exclude all", true, false),
            ("include egress on eth*; exclude all", true, true),
            ("include egress on eth1; exclude all", false, false),
            ("include ingress dst port 443; exclude all", false, false),
            ("include proto udp; exclude net 10.0.0.0/8", false, false),
        ] {
            assert_eq!(pass(rules, answered), answered_passes, "{rules}, answered");
            assert_eq!(pass(rules, asked), asked_passes, "{rules}, unanswered");
        }
    }

    #[test]
    fn what_has_no_ports_matches_no_port_and_what_has_no_name_no_interface() {
        let fragment = Facts {
            ports: None,
            ..flow("[::1]:0", "[::2]:0", [Some(Direction::Ingress), None])
        };
        assert!(pass("exclude port 0-65535", fragment));
        assert!(!pass("exclude net ::/0", fragment));
        let rules = "exclude on *".parse::<Rules>().unwrap().0;
        assert!(!passes(&rules, fragment, "eth0"));
    }
}
