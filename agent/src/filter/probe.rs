//! A packet that somebody asks about: text comes in, what the rules say of it and of its answer goes
//! out.

use std::{
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use agent_common::{
    FlowKey, L4Kind, Packet,
    filter::{Match, first_match},
};
use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use super::{CompileError, Compiled, Direction, Rule};
use crate::protocols;

const FORM: &str = "as in '192.0.2.1:1234 > [2001:db8::1]:53 udp on eth0 ingress', ports, interface \
                    and direction where they matter";

/// Protocols whose ports the programs read.
const WITH_PORTS: [&str; 5] = ["tcp", "udp", "sctp", "dccp", "udplite"];

/// What rules look at in a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Sender and receiver.
    pub ends: [(IpAddr, u16); 2],
    /// `false` for a protocol without ports, and for fragments whose ports nobody knows.
    pub has_ports: bool,
    pub protocol: u8,
    pub interface: Option<String>,
    /// None asks for both.
    pub direction: Option<Direction>,
}

/// What the rules do to a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Sender, receiver and direction.
    pub packet: String,
    pub is_counted: bool,
    /// From 1, none where no rule matches.
    pub rule: Option<u32>,
}

impl FromStr for Probe {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [src, ">", dst, protocol, rest @ ..] = &words[..] else {
            bail!("'{text}' is no packet; expected SENDER > RECEIVER PROTOCOL, {FORM}");
        };
        let (src, src_port) = end(src)?;
        let (dst, dst_port) = end(dst)?;
        if src.is_ipv4() != dst.is_ipv4() {
            bail!("'{text}' has addresses of two IP versions");
        }
        let protocol = protocols::number(protocol)
            .or_else(|| protocol.parse().ok())
            .with_context(|| format!("'{protocol}' is no protocol; expected a name or number"))?;
        let may_have_ports =
            protocols::name(protocol).is_some_and(|name| WITH_PORTS.contains(&name));
        let has_ports = match (src_port, dst_port) {
            (Some(_), Some(_)) if !may_have_ports => {
                bail!("'{text}' has ports, which its protocol has not")
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

/// `192.0.2.1`, `192.0.2.1:53`, `2001:db8::1` or `[2001:db8::1]:53`.
fn end(text: &str) -> Result<(IpAddr, Option<u16>)> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((address, None));
    }
    let socket: SocketAddr = text
        .parse()
        .with_context(|| format!("'{text}' is no address; expected it {FORM}"))?;
    Ok((socket.ip(), Some(socket.port())))
}

impl Probe {
    /// What the kernel's parser would say of the packet.
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

    /// The packet that goes the other way.
    #[must_use]
    pub fn answer(&self) -> Self {
        let [src, dst] = self.ends;
        Self {
            ends: [dst, src],
            direction: self.direction.map(|direction| match direction {
                Direction::Ingress => Direction::Egress,
                Direction::Egress => Direction::Ingress,
            }),
            ..self.clone()
        }
    }

    /// What the rules say of the packet and then of its answer, in each direction that was not given.
    pub fn verdicts(&self, rules: &[Rule]) -> Result<Vec<Verdict>, CompileError> {
        let interfaces = [self.interface.clone()];
        let compiled = Compiled::new(rules, &interfaces)?;
        let directions = match self.direction {
            Some(direction) => vec![direction],
            None => vec![Direction::Ingress, Direction::Egress],
        };
        let mut verdicts = Vec::new();
        for direction in directions {
            let asked = Self {
                direction: Some(direction),
                ..self.clone()
            };
            verdicts.push(asked.verdict(&compiled));
            verdicts.push(asked.answer().verdict(&compiled));
        }
        Ok(verdicts)
    }

    fn verdict(&self, compiled: &Compiled) -> Verdict {
        let matched = self.first_match(compiled);
        Verdict {
            packet: self.to_string(),
            is_counted: matched.is_none_or(|matched| !matched.is_excluded),
            rule: matched.map(|matched| matched.rule + 1),
        }
    }

    /// On an interface in slot 0.
    pub fn first_match(&self, compiled: &Compiled) -> Option<Match> {
        if compiled.is_empty() {
            return None;
        }
        let hook = u32::from(self.direction == Some(Direction::Egress));
        first_match(compiled, &self.packet(), hook)
    }
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
            Some(Direction::Ingress) => formatter.write_str(" ingress"),
            Some(Direction::Egress) => formatter.write_str(" egress"),
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
