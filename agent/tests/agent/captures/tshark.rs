//! The flow of each frame in a capture, according to tshark.
//!
//! tshark dissects each frame alone, without reassembling fragments, and prints its fields. A flow is made
//! from the fields of the outermost or of the innermost IP header. If packets lie inside each other, a field
//! has several values, with the outermost first.

use std::{collections::HashMap, net::IpAddr, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use super::flow::{Flow, Selector};

const FIELDS: &[&str] = &[
    "frame.len",
    "frame.protocols",
    "ieee8021ad.id",
    "vlan.id",
    "ip.src",
    "ip.dst",
    "ip.proto",
    "ip.frag_offset",
    "ip.id",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.nxt",
    "ipv6.hopopts.nxt",
    "ipv6.routing.nxt",
    "ipv6.fraghdr.nxt",
    "ipv6.fraghdr.offset",
    "ipv6.fraghdr.ident",
    "ipv6.dstopts.nxt",
    "ah.next_header",
    "tcp.srcport",
    "tcp.dstport",
    "tcp.urgent_pointer",
    "udp.srcport",
    "udp.dstport",
    "udp.checksum",
    "sctp.srcport",
    "sctp.dstport",
    "icmp.type",
    "icmp.code",
    "icmp.ident",
    "icmp.seq",
    "icmpv6.type",
    "icmpv6.code",
    "icmpv6.echo.identifier",
    "pppoe.session_id",
    "vxlan.vni",
    "geneve.vni",
    "gre.key",
];

/// Which IP header names the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    Outermost,
    /// Behind every tunnel.
    Innermost,
}

/// What tshark says about one frame.
pub struct Frame {
    fields: HashMap<&'static str, String>,
    headers: Headers,
}

pub fn dissect(capture: &Path, headers: Headers) -> Result<Vec<Frame>> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-n").arg("-r").arg(capture);
    for preference in ["ip.defragment:FALSE", "ipv6.defragment:FALSE"] {
        tshark.args(["-o", preference]);
    }
    // The port that Linux used before RFC 7348.
    tshark.args(["-d", "udp.port==8472,vxlan"]);
    tshark.args(["-T", "fields", "-E", "separator=;"]);
    tshark.args(["-E", "occurrence=a", "-E", "aggregator=,"]);
    for field in FIELDS {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().context("start tshark")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "tshark: {errors}");
    let lines = String::from_utf8(output.stdout).context("tshark writes UTF-8")?;
    lines
        .lines()
        .map(|line| Frame::read(line, headers))
        .collect()
}

impl Frame {
    fn read(line: &str, headers: Headers) -> Result<Self> {
        let values: Vec<&str> = line.split(';').collect();
        ensure!(values.len() == FIELDS.len(), "tshark says {line}");
        let fields = FIELDS
            .iter()
            .copied()
            .zip(values.iter().map(|value| (*value).to_owned()));
        Ok(Self {
            fields: fields.collect(),
            headers,
        })
    }

    /// The field's values, the outermost first.
    fn all(&self, field: &str) -> impl DoubleEndedIterator<Item = &str> {
        let values = self.fields[field].split(',');
        values.filter(|value| !value.is_empty())
    }

    /// The field's value in the header that names the flow.
    fn one(&self, field: &str) -> Option<&str> {
        match self.headers {
            Headers::Outermost => self.all(field).next(),
            Headers::Innermost => self.all(field).next_back(),
        }
    }

    /// The length on the wire.
    pub fn len_bytes(&self) -> u64 {
        self.number("frame.len").expect("every frame has a length")
    }

    /// A field with a decimal number, or a hexadecimal one that begins with `0x`.
    fn number<T: TryFrom<u64>>(&self, field: &str) -> Option<T> {
        number(self.one(field)?)?.try_into().ok()
    }

    fn has(&self, field: &str) -> bool {
        self.one(field).is_some()
    }

    fn protocols(&self) -> &str {
        self.one("frame.protocols").unwrap_or_default()
    }

    /// The protocols in front of the IP header, and the IP header's own.
    fn path(&self) -> Option<(Vec<&str>, &str)> {
        let protocols: Vec<&str> = self.protocols().split(':').collect();
        let is_ip = |protocol: &&str| matches!(*protocol, "ip" | "ipv6");
        let at = match self.headers {
            Headers::Outermost => protocols.iter().position(is_ip),
            Headers::Innermost => protocols.iter().rposition(is_ip),
        }?;
        Some((protocols[..at].to_vec(), protocols[at]))
    }

    fn ip_version(&self) -> Option<u8> {
        let (_, header) = self.path()?;
        Some(if header == "ip" { 4 } else { 6 })
    }

    /// The tags behind the Ethernet header that is next to the IP header.
    fn vlan_ids(&self) -> Option<Vec<u64>> {
        let (before, _) = self.path()?;
        let behind_link = before
            .iter()
            .rev()
            .take_while(|protocol| **protocol != "eth");
        let is_tag = |protocol: &&&str| matches!(**protocol, "vlan" | "ieee8021ad");
        let tags = behind_link.filter(is_tag).count();
        let ids: Vec<u64> = ["ieee8021ad.id", "vlan.id"]
            .into_iter()
            .flat_map(|field| self.all(field).filter_map(number))
            .collect();
        Some(match self.headers {
            Headers::Outermost => ids[..tags].to_vec(),
            Headers::Innermost => ids[ids.len() - tags..].to_vec(),
        })
    }

    /// What carries the IP packet.
    fn within(&self) -> Option<(String, u64)> {
        let (before, _) = self.path()?;
        let (name, id) = before.into_iter().rev().find_map(|protocol| {
            Some(match protocol {
                "pppoes" => ("pppoe", "pppoe.session_id"),
                "mpls" => ("mpls", ""),
                "vxlan" => ("vxlan", "vxlan.vni"),
                "geneve" => ("geneve", "geneve.vni"),
                "gre" => ("gre", "gre.key"),
                "ip" | "ipv6" => ("ip_in_ip", ""),
                _ => return None,
            })
        })?;
        let id = (!id.is_empty()).then(|| self.number(id)).flatten();
        Some((name.to_owned(), id.unwrap_or(0)))
    }

    /// `None` if tshark finds no IP header, or not all of the header behind it that names a flow.
    pub fn flow(&self) -> Option<Flow> {
        let protocol = if self.ip_version()? == 4 {
            self.number("ip.proto")?
        } else {
            self.ipv6_protocol()?
        };
        let selector = if self.is_later_fragment() {
            Selector::LaterFragment
        } else {
            self.selector(protocol)?
        };
        self.flow_of(protocol, selector)
    }

    /// A flow between the addresses of the IP header.
    fn flow_of(&self, protocol: u8, selector: Selector) -> Option<Flow> {
        let [src, dst] = if self.ip_version()? == 4 {
            ["ip.src", "ip.dst"]
        } else {
            ["ipv6.src", "ipv6.dst"]
        };
        let address = |field| self.one(field)?.parse::<IpAddr>().ok();
        Some(Flow {
            vlan_ids: self.vlan_ids()?,
            within: self.within(),
            protocol,
            src: address(src)?,
            dst: address(dst)?,
            selector,
        })
    }

    /// The protocol behind the extension headers. In captures for opened tunnels the outer headers have no
    /// extension headers.
    fn ipv6_protocol(&self) -> Option<u8> {
        let mut headers: HashMap<u8, _> = [
            (0, "ipv6.hopopts.nxt"),
            (43, "ipv6.routing.nxt"),
            (44, "ipv6.fraghdr.nxt"),
            (51, "ah.next_header"),
            (60, "ipv6.dstopts.nxt"),
        ]
        .into_iter()
        .map(|(protocol, field)| (protocol, self.all(field)))
        .collect();
        let mut next = self.number("ipv6.nxt")?;
        while let Some(header) = headers.get_mut(&next) {
            let is_fragment = next == 44;
            next = number(header.next()?)?.try_into().ok()?;
            if is_fragment && self.is_later_fragment() {
                break;
            }
        }
        Some(next)
    }

    fn is_later_fragment(&self) -> bool {
        ["ip.frag_offset", "ipv6.fraghdr.offset"]
            .into_iter()
            .any(|field| self.number(field).unwrap_or(0_u64) != 0)
    }

    /// What all fragments of the packet's datagram have in common.
    pub fn datagram(&self) -> Option<u64> {
        let field = if self.ip_version()? == 4 {
            "ip.id"
        } else {
            "ipv6.fraghdr.ident"
        };
        self.number(field)
    }

    fn selector(&self, protocol: u8) -> Option<Selector> {
        let ports = |transport: &str, last_field: &str| {
            self.one(last_field)?;
            Some(Selector::Ports(
                self.number(&format!("{transport}.srcport"))?,
                self.number(&format!("{transport}.dstport"))?,
            ))
        };
        let query = |reply: u8, request: u8, icmp: &str, identifier: &str| {
            let icmp_type: u8 = self.number(&format!("{icmp}.type"))?;
            let code = self.number(&format!("{icmp}.code"))?;
            Some(if icmp_type == reply || icmp_type == request {
                Selector::IcmpQuery(request, code, self.number(identifier)?)
            } else {
                Selector::Icmp(icmp_type, code)
            })
        };
        match protocol {
            1 => {
                let selector = query(0, 8, "icmp", "icmp.ident")?;
                let is_query = matches!(selector, Selector::IcmpQuery(..));
                (!is_query || self.has("icmp.seq")).then_some(selector)
            }
            58 => query(129, 128, "icmpv6", "icmpv6.echo.identifier"),
            6 => ports("tcp", "tcp.urgent_pointer"),
            17 => ports("udp", "udp.checksum"),
            132 => ports("sctp", "sctp.dstport"),
            _ => Some(Selector::None),
        }
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}
