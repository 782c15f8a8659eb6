//! Reads the files of the corpus. README.md describes the format.

use std::{net::IpAddr, str::FromStr};

use agent_common::{L4Kind, LinkType, Outer, Packet, Part, Reason, tunnel::outcome};
use anyhow::{Context as _, Result, bail, ensure};

use crate::{ENCAPSULATIONS, Entry, KINDS, Meaning, OUTCOMES, Parsed, RawFrame};

pub fn entries(text: &str) -> Result<Vec<Entry>> {
    let mut drafts: Vec<Draft> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim_end();
        let Some((word, rest)) = first_word(line) else {
            continue;
        };
        let added = if word == "frame" {
            drafts.push(Draft::new(rest));
            Ok(())
        } else {
            match drafts.last_mut() {
                Some(draft) => draft.add(word, rest),
                None => Err(anyhow::anyhow!("a line before the first `frame`")),
            }
        };
        added.with_context(|| format!("line {number}: {line}"))?;
    }
    drafts.into_iter().map(Draft::finish).collect()
}

/// Splits a line into its first word and the rest.
fn first_word(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    if line.is_empty() {
        return None;
    }
    Some(match line.split_once(char::is_whitespace) {
        Some((word, rest)) => (word, rest.trim()),
        None => (line, ""),
    })
}

/// A partially read entry.
struct Draft {
    name: String,
    why: Vec<String>,
    link_type: Option<LinkType>,
    tag: Option<u16>,
    decapsulate: bool,
    is_super_frame: bool,
    bytes: Option<Vec<u8>>,
    expected: Option<Parsed>,
    initiator: Option<u8>,
}

impl Draft {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            why: Vec::new(),
            link_type: None,
            tag: None,
            decapsulate: false,
            is_super_frame: false,
            bytes: None,
            expected: None,
            initiator: None,
        }
    }

    fn add(&mut self, word: &str, rest: &str) -> Result<()> {
        match word {
            "why" => self.why.push(rest.to_owned()),
            "link" => {
                self.link_type = Some(match rest {
                    "ethernet" => LinkType::Ethernet,
                    "ip" => LinkType::Ip,
                    _ => bail!("a link type is `ethernet` or `ip`"),
                });
            }
            "decapsulate" => self.decapsulate = true,
            "super" => self.is_super_frame = true,
            "tag" => self.tag = Some(u16::from_str_radix(rest, 16)?),
            "bytes" => self.bytes = Some(Vec::new()),
            "flow" => self.expected = Some(Ok(flow(rest)?)),
            "unparsed" => self.expected = Some(Err(reason(rest)?)),
            "initiator" => self.initiator = Some(endpoint(rest)?),
            _ => match &mut self.expected {
                None => self.add_bytes(word, rest)?,
                Some(Ok(meaning)) => add_fact(meaning, word, rest)?,
                Some(Err(_)) => bail!("nothing follows `unparsed`"),
            },
        }
        Ok(())
    }

    fn add_bytes(&mut self, offset: &str, rest: &str) -> Result<()> {
        let bytes = self
            .bytes
            .as_mut()
            .with_context(|| format!("`{offset}` is no word of the format"))?;
        let offset = usize::from_str_radix(offset, 16).context("an offset in hex")?;
        ensure!(offset == bytes.len(), "the offset is {:04x}", bytes.len());
        for word in rest.split_whitespace() {
            let (byte, times) = word.split_once('*').unwrap_or((word, "1"));
            ensure!(byte.len() == 2, "`{word}` is no byte");
            let byte = u8::from_str_radix(byte, 16)?;
            bytes.resize(bytes.len() + times.parse::<usize>()?, byte);
        }
        Ok(())
    }

    fn finish(self) -> Result<Entry> {
        let parts = || -> Option<_> { Some((self.link_type?, self.bytes?, self.expected?)) };
        let (link_type, bytes, mut expected) =
            parts().with_context(|| format!("{} lacks a line", self.name))?;
        ensure!(!self.why.is_empty(), "{} has no reason", self.name);
        if let Ok(Meaning { packet, .. }) = &mut expected {
            ensure!(packet.key.ip_version != 0, "{} has no address", self.name);
            packet.initiator = self.initiator.unwrap_or(packet.direction);
        }
        Ok(Entry {
            name: self.name,
            why: self.why.join(" "),
            frame: RawFrame {
                link_type,
                tag: self.tag,
                decapsulate: self.decapsulate,
                is_super_frame: self.is_super_frame,
                bytes,
            },
            expected,
        })
    }
}

fn flow(rest: &str) -> Result<Meaning> {
    let (protocol, kind) = rest.split_once(' ').context("a protocol and a kind")?;
    let kind = KINDS
        .iter()
        .position(|&name| name == kind)
        .and_then(|index| L4Kind::from_u8(index as u8))
        .context("a kind")?;
    let mut packet = Packet::default();
    packet.key.protocol = protocol.parse()?;
    packet.key.l4_kind = kind as u8;
    Ok(Meaning {
        packet,
        ..Meaning::default()
    })
}

fn reason(name: &str) -> Result<Reason> {
    let found = Reason::UNPARSED.iter().find(|reason| reason.name() == name);
    found.copied().context("a reason of the account")
}

fn add_fact(meaning: &mut Meaning, word: &str, rest: &str) -> Result<()> {
    let packet = &mut meaning.packet;
    let key = &mut packet.key;
    match word {
        "a" => (key.ip_version, key.addr_a, key.port_a) = address(rest)?,
        "b" => (key.ip_version, key.addr_b, key.port_b) = address(rest)?,
        "icmp" => {
            let [icmp_type, code] = numbers::<u8>(rest)?[..] else {
                bail!("a type and a code")
            };
            key.port_a = u16::from_be_bytes([icmp_type, code]);
        }
        "identifier" => key.port_b = rest.parse()?,
        "sender" => packet.direction = endpoint(rest)?,
        "vlans" => vlans(rest, &mut key.vlan_ids)?,
        "within" => {
            let (name, id) = rest.split_once(' ').unwrap_or((rest, "0"));
            let kind = ENCAPSULATIONS.iter().position(|&it| it == name);
            key.encapsulation = kind.context("an encapsulation")? as u8;
            key.tunnel_id = id.parse()?;
        }
        "outer" => {
            meaning.outer = Some(outer(rest)?);
            meaning.outcome |= outcome::DECAPSULATED;
        }
        "outer_vlans" => {
            let outer = meaning.outer.as_mut().context("`outer` comes first")?;
            vlans(rest, &mut outer.vlan_ids)?;
        }
        "outer_pppoe" => {
            let outer = meaning.outer.as_mut().context("`outer` comes first")?;
            (outer.has_pppoe_session, outer.pppoe_session) = (1, rest.parse()?);
        }
        "outcome" => {
            let found = OUTCOMES.iter().find(|(name, _)| *name == rest);
            meaning.outcome |= found.context("`unopened` or `deeper`")?.1;
        }
        "tcp_flags" => packet.tcp_flags = u8::from_str_radix(rest, 16)?,
        "dscp" => packet.dscp = rest.parse()?,
        "fragment" => {
            let (rest, more) = match rest.strip_suffix(" more") {
                Some(rest) => (rest, true),
                None => (rest, false),
            };
            let [id, offset_bytes] = numbers(rest)?[..] else {
                bail!("an identification and an offset")
            };
            packet.datagram_id = id;
            packet.part = Part::new(offset_bytes.try_into()?, more);
        }
        "jumbo" => packet.jumbo_len_bytes = rest.parse()?,
        "repeats" => packet.segment_header_len_bytes = rest.parse()?,
        "ip" => {
            let [start, end] = numbers::<u32>(rest)?[..] else {
                bail!("where the IP packet begins and ends")
            };
            (packet.ip_start_bytes, packet.ip_end_bytes) = (start.try_into()?, end);
        }
        _ => bail!("`{word}` is no word of the format"),
    }
    Ok(())
}

fn vlans(rest: &str, into: &mut [u16; 2]) -> Result<()> {
    let ids = numbers(rest)?;
    ensure!(matches!(ids.len(), 1 | 2), "one or two VLAN ids");
    into[..ids.len()].copy_from_slice(&ids);
    Ok(())
}

/// Parses a tunnel's endpoints, in the order of the packet's a and b.
fn outer(rest: &str) -> Result<Outer> {
    let (a, b) = rest.split_once(' ').context("two addresses")?;
    let (ip_version, addr_a, _) = address(a)?;
    let (version_b, addr_b, _) = address(b.trim_start())?;
    ensure!(ip_version == version_b, "addresses of one version");
    Ok(Outer {
        addr_a,
        addr_b,
        ip_version,
        ..Outer::default()
    })
}

fn numbers<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    rest: &str,
) -> Result<Vec<T>> {
    Ok(rest
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?)
}

fn endpoint(rest: &str) -> Result<u8> {
    match rest {
        "a" => Ok(0),
        "b" => Ok(1),
        _ => bail!("an endpoint is `a` or `b`"),
    }
}

/// Parses an address and port into the IP version, the address as in a key, and the port.
fn address(rest: &str) -> Result<(u8, [u8; 16], u16)> {
    let (address, port) = rest.split_once(' ').unwrap_or((rest, "0"));
    let mut bytes = [0; 16];
    let version = match address.parse()? {
        IpAddr::V4(address) => {
            bytes[..4].copy_from_slice(&address.octets());
            4
        }
        IpAddr::V6(address) => {
            bytes = address.octets();
            6
        }
    };
    Ok((version, bytes, port.parse()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = "frame x\nwhy   none\nlink  ip\nbytes\n  0000  45 00*2  # comment\n";

    #[test]
    fn an_offset_that_is_not_where_the_bytes_are_is_refused() {
        let read = |line| entries(&format!("{ENTRY}{line}\nunparsed truncated_ipv4\n"));
        assert_eq!(
            read("  0003  ff").unwrap()[0].frame.bytes,
            [0x45, 0, 0, 0xff]
        );
        assert!(read("  0004  ff").is_err());
    }

    #[test]
    fn an_entry_without_an_expectation_is_refused() {
        assert!(entries(ENTRY).is_err());
        assert!(entries(&format!("{ENTRY}unparsed seen\n")).is_err());
    }
}
