//! Writes a frame found by a test as an entry in the format of the corpus.

use std::{
    fmt::{Display, Formatter, Result},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use agent_common::{L4Kind, LinkType};

use crate::{ENCAPSULATIONS, Entry, KINDS, Meaning, OUTCOMES};

const BYTES_PER_LINE: usize = 16;
/// The shortest run of equal bytes that is written as a repetition.
const SHORTEST_RUN: usize = 12;

impl Display for Entry {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "frame {}\nwhy   {}", self.name, self.why)?;
        let link = match self.frame.link_type {
            LinkType::Ethernet => "ethernet",
            LinkType::Ip => "ip",
        };
        writeln!(f, "link  {link}")?;
        if let Some(tag) = self.frame.tag {
            writeln!(f, "tag   {tag:04x}")?;
        }
        if self.frame.decapsulate {
            writeln!(f, "decapsulate")?;
        }
        if self.frame.is_super_frame {
            writeln!(f, "super")?;
        }
        writeln!(f, "bytes")?;
        write_bytes(f, &self.frame.bytes)?;
        match &self.expected {
            Ok(meaning) => write_meaning(f, meaning),
            Err(reason) => writeln!(f, "unparsed {}", reason.name()),
        }
    }
}

fn write_bytes(f: &mut Formatter<'_>, bytes: &[u8]) -> Result {
    let mut words: Vec<(String, usize)> = Vec::new();
    for run in bytes.chunk_by(|one, other| one == other) {
        if run.len() < SHORTEST_RUN {
            words.extend(run.iter().map(|byte| (format!("{byte:02x}"), 1)));
        } else {
            words.push((format!("{:02x}*{}", run[0], run.len()), run.len()));
        }
    }
    let mut offset = 0;
    for line in words.chunks(BYTES_PER_LINE) {
        let text: Vec<&str> = line.iter().map(|(text, _)| &**text).collect();
        writeln!(f, "  {offset:04x}  {}", text.join(" "))?;
        offset += line.iter().map(|(_, len)| len).sum::<usize>();
    }
    Ok(())
}

fn write_meaning(f: &mut Formatter<'_>, meaning: &Meaning) -> Result {
    let packet = &meaning.packet;
    let key = &packet.key;
    let kind = key.kind();
    writeln!(
        f,
        "flow  {} {}",
        key.protocol,
        KINDS.get(usize::from(key.l4_kind)).unwrap_or(&"?")
    )?;
    for (name, address, port) in [
        ("a", &key.addr_a, key.port_a),
        ("b", &key.addr_b, key.port_b),
    ] {
        write!(f, "  {name:<10} {}", address_of(key.ip_version, address))?;
        if kind == Some(L4Kind::Ports) {
            write!(f, " {port}")?;
        }
        writeln!(f)?;
    }
    if matches!(kind, Some(L4Kind::Icmp | L4Kind::IcmpQuery)) {
        let [icmp_type, code] = key.port_a.to_be_bytes();
        writeln!(f, "  icmp       {icmp_type} {code}")?;
    }
    if kind == Some(L4Kind::IcmpQuery) {
        writeln!(f, "  identifier {}", key.port_b)?;
    }
    let name = |direction| if direction == 0 { "a" } else { "b" };
    writeln!(f, "  sender     {}", name(packet.direction))?;
    if packet.initiator != packet.direction {
        writeln!(f, "  initiator  {}", name(packet.initiator))?;
    }
    if key.vlan_ids != [0, 0] {
        let [outer, inner] = key.vlan_ids;
        writeln!(f, "  vlans      {outer} {inner}")?;
    }
    if let Some(name) = ENCAPSULATIONS
        .get(usize::from(key.encapsulation))
        .filter(|_| key.encapsulation != 0)
    {
        writeln!(f, "  within     {name} {}", key.tunnel_id)?;
    }
    if let Some(outer) = &meaning.outer {
        let [a, b] = [outer.addr_a, outer.addr_b].map(|it| address_of(outer.ip_version, &it));
        writeln!(f, "  outer      {a} {b}")?;
        if outer.vlan_ids != [0, 0] {
            let [vlan, inner] = outer.vlan_ids;
            writeln!(f, "  outer_vlans {vlan} {inner}")?;
        }
        if outer.has_pppoe_session != 0 {
            writeln!(f, "  outer_pppoe {}", outer.pppoe_session)?;
        }
    }
    for (name, bit) in OUTCOMES {
        if meaning.outcome & bit != 0 {
            writeln!(f, "  outcome    {name}")?;
        }
    }
    if !packet.part.is_whole() {
        let more = if packet.part.has_more() { " more" } else { "" };
        let offset_bytes = packet.part.offset_bytes();
        writeln!(
            f,
            "  fragment   {} {offset_bytes}{more}",
            packet.datagram_id
        )?;
    }
    writeln!(f, "  tcp_flags  {:02x}", packet.tcp_flags)?;
    writeln!(f, "  dscp       {}", packet.dscp)?;
    if packet.jumbo_len_bytes != 0 {
        writeln!(f, "  jumbo      {}", packet.jumbo_len_bytes)?;
    }
    let (start, end) = (packet.ip_start_bytes, packet.ip_end_bytes);
    writeln!(f, "  ip         {start} {end}")?;
    writeln!(f, "  repeats    {}", packet.segment_header_len_bytes)
}

fn address_of(ip_version: u8, bytes: &[u8; 16]) -> IpAddr {
    if ip_version == 4 {
        Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()
    } else {
        Ipv6Addr::from(*bytes).into()
    }
}
