//! Applies rules to records, outside the kernel.
//!
//! Rules are about packets, and a record counts the packets of both directions. So a record passes if the rules would
//! count at least one packet of its flow: a packet from the source or one from the destination, if that end has sent
//! any since the flow began. Packets match like in the kernel programs: `src` is the packet's sender, and `ingress`
//! the side where it was seen. Counts never change.
//!
//! A flow that has passed once keeps passing, since its packets only become more. It may begin to pass when the first
//! packet of the other direction arrives, or when the name of an end is learned.

use std::net::IpAddr;

use agent_common::Direction;
use proto::FlowRecord;

use super::{Action, Net, Ports, Rule, Sides};
use crate::pattern::Pattern;

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

/// The names of a flow. An empty name is unknown, and matches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    pub interface: &'a str,
    /// Of the source and of the destination, in lower case.
    pub hosts: [&'a str; 2],
}

/// Whether rules let a record pass. The first rule that matches a packet decides; a packet that no rule matches passes.
pub fn passes(rules: &[Rule], record: impl Into<Facts>, known: Known<'_>) -> bool {
    if rules.is_empty() {
        return true;
    }
    let [forward, reverse] = record.into().packets();
    let [src, dst] = known.hosts;
    let packets = [(forward, [src, dst]), (reverse, [dst, src])];
    packets.into_iter().any(|(packet, hosts)| {
        let Some(packet) = packet else { return false };
        let known = Known { hosts, ..known };
        let decides = first_match(rules, &packet, known);
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

/// The index of the first rule that matches. The first host is the sender.
pub(super) fn first_match(rules: &[Rule], packet: &Sent, known: Known<'_>) -> Option<usize> {
    rules.iter().position(|rule| {
        (rule.protocols.is_empty() || rule.protocols.contains(&packet.protocol))
            && rule.direction.is_none_or(|side| side == packet.direction)
            && ends_hold(rule, packet.addresses, known.hosts)
            && (rule.ports.is_empty() || packet.ports.is_some_and(|ports| ports_hold(rule, ports)))
            && (rule.interfaces.is_empty()
                || rule
                    .interfaces
                    .iter()
                    .any(|pattern| pattern.matches(known.interface)))
    })
}

/// Whether the terms for sender, receiver and either of them hold.
fn ends_hold(rule: &Rule, addresses: [IpAddr; 2], hosts: [&str; 2]) -> bool {
    let (nets, names) = (&rule.nets, &rule.names);
    let holds = |nets: &[Net], names: &[Pattern], end: usize| {
        let has_name = |name: &Pattern| !hosts[end].is_empty() && name.matches(hosts[end]);
        nets.is_empty() && names.is_empty()
            || nets.iter().any(|net| net.has(&addresses[end]))
            || names.iter().any(has_name)
    };
    holds(&nets.src, &names.src, 0)
        && holds(&nets.dst, &names.dst, 1)
        && (holds(&nets.either, &names.either, 0) || holds(&nets.either, &names.either, 1))
}

fn ports_hold(rule: &Rule, [src, dst]: [u16; 2]) -> bool {
    let holds = |ports: &[Ports], port: u16| {
        ports.is_empty() || ports.iter().any(|ports| ports.contains(&port))
    };
    let Sides {
        src: from,
        dst: to,
        either,
    } = &rule.ports;
    holds(from, src) && holds(to, dst) && (holds(either, src) || holds(either, dst))
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
    use crate::set;

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
        pass_named(rules, facts, ["", ""])
    }

    fn pass_named(rules: &str, facts: Facts, hosts: [&str; 2]) -> bool {
        let known = Known {
            interface: "eth0",
            hosts,
        };
        passes(&set(&[rules.parse().unwrap()]), facts, known)
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
        assert!(!pass("exclude on *", fragment));
    }

    #[test]
    fn a_host_is_an_address_or_a_name_of_one_end() {
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
        let named = ["", "www.example.com"];
        for (rules, answered_passes, asked_passes) in [
            ("host www.example.com", true, true),
            ("host WWW.Example.com tcp port https", true, true),
            ("host *.example.com,*.example.org", true, true),
            ("host 10.0.0.1,example.org", true, true),
            ("dst host www.example.com", true, true),
            ("src host www.example.com", true, false),
            ("host example.com", false, false),
            ("host *", true, true),
            ("src host *", true, false),
            ("exclude host www.example.com", false, false),
            ("host www.example.com udp", false, false),
        ] {
            let passes = |facts| pass_named(rules, facts, named);
            assert_eq!(passes(answered), answered_passes, "{rules}, answered");
            assert_eq!(passes(asked), asked_passes, "{rules}, unanswered");
        }
        assert!(!pass("host www.example.com", answered));
        assert!(!pass("host *", answered));
        assert!(pass("exclude host *", answered));
    }

    #[test]
    fn conditions_come_last_and_let_nothing_else_pass() {
        let both = [Some(Direction::Egress), Some(Direction::Ingress)];
        let https = flow("10.0.0.1:5000", "192.0.2.1:443", both);
        let ssh = flow("10.0.0.1:5000", "192.0.2.1:22", both);
        for (rules, https_passes, ssh_passes) in [
            ("port 443", true, false),
            ("port 443; port 22", true, true),
            ("tcp", true, true),
            ("udp", false, false),
            ("10.0.0.1", true, true),
            ("10.0.0.2", false, false),
            ("src 10.0.0.0/8 tcp port ssh", false, true),
            ("all", true, true),
            // Wherever they stand, rules decide first.
            ("exclude port 22; tcp", true, false),
            ("tcp; exclude port 22", true, false),
            ("port 443; include port 22", true, true),
        ] {
            assert_eq!(pass(rules, https), https_passes, "{rules}, https");
            assert_eq!(pass(rules, ssh), ssh_passes, "{rules}, ssh");
        }
    }
}
