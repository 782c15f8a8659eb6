//! Applies the rules to a packet that a user describes, and to its answer.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use agent_common::{
    Direction, FlowKey, L4Kind, Packet,
    direction::hook_number,
    filter::{Match, first_match},
};
use anyhow::{Context as _, Result, bail};
use proto::protocols;
use serde::Serialize;

use super::{CompileError, Compiled, Rule};
use crate::{link_names::LinkNames, pattern::Pattern};

const FORM: &str = "as in '192.0.2.1:1234 > [2001:db8::1]:53 udp on eth0 ingress', ports, interface \
                    and direction where they matter";

/// Protocols whose ports the programs read: TCP, UDP, DCCP, SCTP and UDP-Lite.
pub(super) const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];

/// The interface in a verdict about packets on an interface that no rule names.
const ELSEWHERE: &str = "any other interface";

/// The properties of a packet that rules test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Sender and receiver.
    pub ends: [(IpAddr, u16); 2],
    /// `false` for a protocol without ports, and for fragments whose ports are unknown.
    pub has_ports: bool,
    pub protocol: u8,
    pub interface: Option<String>,
    /// `None` means both.
    pub direction: Option<Direction>,
}

/// The result of the rules for one packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Sender, receiver and direction.
    pub packet: String,
    /// `None` if the rules name interfaces by a glob and the result depends on the interface.
    pub is_counted: Option<bool>,
    /// Counts from 1; `None` if no rule matches.
    pub rule: Option<u32>,
}

impl FromStr for Probe {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [src, ">", dst, protocol, rest @ ..] = &words[..] else {
            bail!("'{text}' is not a packet; expected SENDER > RECEIVER PROTOCOL, {FORM}");
        };
        let (src, src_port) = end(src)?;
        let (dst, dst_port) = end(dst)?;
        if src.is_ipv4() != dst.is_ipv4() {
            bail!("'{text}' has addresses of two IP versions");
        }
        let protocol = protocols::number(protocol)
            .or_else(|| protocol.parse().ok())
            .with_context(|| {
                format!("'{protocol}' is not a protocol; expected a name or number")
            })?;
        let may_have_ports = WITH_PORTS.contains(&protocol);
        let has_ports = match (src_port, dst_port) {
            (Some(_), Some(_)) if !may_have_ports => {
                bail!("'{text}' has ports, but its protocol has none")
            }
            (Some(_), Some(_)) => true,
            (None, None) => false,
            _ => bail!("'{text}' has one port; expected both, or none as in a later fragment"),
        };
        let mut probe = Self {
            ends: [
                (src, src_port.unwrap_or_default()),
                (dst, dst_port.unwrap_or_default()),
            ],
            has_ports,
            protocol,
            interface: None,
            direction: None,
        };
        let mut rest = rest.iter();
        while let Some(&word) = rest.next() {
            match word {
                "ingress" => probe.direction = Some(Direction::Ingress),
                "egress" => probe.direction = Some(Direction::Egress),
                "on" => {
                    let name = rest
                        .next()
                        .context("expected an interface's name after on")?;
                    probe.interface = Some((*name).to_owned());
                }
                _ => bail!("'{word}' is unexpected in '{text}'; it is {FORM}"),
            }
        }
        Ok(probe)
    }
}

/// Parses `192.0.2.1`, `192.0.2.1:53`, `2001:db8::1` or `[2001:db8::1]:53`.
fn end(text: &str) -> Result<(IpAddr, Option<u16>)> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((address, None));
    }
    let socket: SocketAddr = text
        .parse()
        .with_context(|| format!("'{text}' is not an address; expected it {FORM}"))?;
    Ok((socket.ip(), Some(socket.port())))
}

impl Probe {
    /// The packet as the kernel's parser would describe it.
    pub fn packet(&self) -> Packet {
        let [src, dst] = self.ends;
        let is_reversed = src > dst;
        let [a, b] = if is_reversed { [dst, src] } else { [src, dst] };
        let kind = if self.has_ports {
            L4Kind::Ports
        } else {
            L4Kind::None
        };
        Packet {
            key: FlowKey {
                addr_a: bytes(a.0),
                addr_b: bytes(b.0),
                port_a: a.1,
                port_b: b.1,
                ip_version: if src.0.is_ipv4() { 4 } else { 6 },
                protocol: self.protocol,
                l4_kind: kind as u8,
                ..FlowKey::default()
            },
            direction: is_reversed.into(),
            ..Packet::default()
        }
    }

    /// The packet in the other direction.
    #[must_use]
    pub fn answer(&self) -> Self {
        let [src, dst] = self.ends;
        Self {
            ends: [dst, src],
            direction: self.direction.map(Direction::opposite),
            ..self.clone()
        }
    }

    /// Applies the rules to the packet and then to its answer, in both directions if none was given. Without an
    /// interface, the verdicts cover each interface that a rule names, and any other.
    pub fn verdicts(&self, rules: &[Rule]) -> Result<Vec<Verdict>, CompileError> {
        let mut interfaces = Vec::new();
        if self.interface.is_none() {
            interfaces = named(rules);
        }
        let is_one = interfaces.is_empty();
        let mut names: Vec<Option<LinkNames>> = interfaces
            .iter()
            .map(|pattern| match pattern {
                Pattern::Name(name) => Some(name.as_str().into()),
                Pattern::Glob(_) | Pattern::Regex(_) => None,
            })
            .collect();
        names.push(self.interface.as_deref().map(Into::into));
        let compiled = Compiled::new(rules, &names)?;
        let directions = match self.direction {
            Some(direction) => vec![direction],
            None => Direction::BOTH.to_vec(),
        };
        let mut verdicts = Vec::new();
        for slot in 0..names.len() {
            let pattern = interfaces.get(slot);
            let on = match pattern {
                Some(pattern) => Some(pattern.to_string()),
                None if is_one => self.interface.clone(),
                None => Some(ELSEWHERE.to_owned()),
            };
            for direction in &directions {
                let asked = Self {
                    interface: on.clone(),
                    direction: Some(*direction),
                    ..self.clone()
                };
                for packet in [asked.clone(), asked.answer()] {
                    verdicts.push(if matches!(pattern, None | Some(Pattern::Name(_))) {
                        packet.verdict(&compiled, slot as u32)
                    } else {
                        packet.undecided()
                    });
                }
            }
        }
        Ok(verdicts)
    }

    fn verdict(&self, compiled: &Compiled, slot: u32) -> Verdict {
        let matched = self.first_match(compiled, slot);
        Verdict {
            packet: self.to_string(),
            is_counted: Some(matched.is_none_or(|matched| !matched.is_excluded)),
            rule: matched.map(|matched| matched.rule + 1),
        }
    }

    fn undecided(&self) -> Verdict {
        Verdict {
            packet: self.to_string(),
            is_counted: None,
            rule: None,
        }
    }

    fn first_match(&self, compiled: &Compiled, slot: u32) -> Option<Match> {
        if compiled.is_empty() {
            return None;
        }
        let direction = self.direction.unwrap_or(Direction::Ingress);
        let hook = hook_number(slot, direction as u32);
        first_match(compiled, &self.packet(), hook)
    }
}

/// The interfaces that rules name, in order, without duplicates.
fn named(rules: &[Rule]) -> Vec<Pattern> {
    let mut seen = HashSet::new();
    let patterns = rules.iter().flat_map(|rule| &rule.interfaces);
    patterns
        .filter(|pattern| seen.insert(pattern.to_string()))
        .cloned()
        .collect()
}

impl std::fmt::Display for Probe {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [src, dst] = self.ends.map(|(address, port)| {
            if self.has_ports {
                SocketAddr::new(address, port).to_string()
            } else {
                address.to_string()
            }
        });
        write!(formatter, "{src} > {dst}")?;
        match protocols::name(self.protocol) {
            Some(name) => write!(formatter, " {name}")?,
            None => write!(formatter, " {}", self.protocol)?,
        }
        if let Some(interface) = &self.interface {
            write!(formatter, " on {interface}")?;
        }
        match self.direction {
            Some(direction) => write!(formatter, " {}", direction.name()),
            None => Ok(()),
        }
    }
}

fn bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
        IpAddr::V6(address) => address.octets(),
    }
}
