//! The known differences between the two parsers, each with the reason why both may be right.

use agent_common::Reason;

use crate::{Meaning, Parsed};

/// Why our parser and etherparse may read the same frame differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    VersionAgainstEtherType,
    Macsec,
    OneByte,
    FirstOfTwoFaults,
    Ipv4Authentication,
    HopByHopNotFirst,
    TcpOptionsCut,
    TimestampLength,
    InsideATunnel,
}

impl Difference {
    pub const ALL: &'static [Self] = &[
        Self::VersionAgainstEtherType,
        Self::Macsec,
        Self::OneByte,
        Self::FirstOfTwoFaults,
        Self::Ipv4Authentication,
        Self::HopByHopNotFirst,
        Self::TcpOptionsCut,
        Self::TimestampLength,
        Self::InsideATunnel,
    ];

    /// Why our parser is right for a flow table, or why the difference does not matter.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::VersionAgainstEtherType => {
                "etherparse goes by the version nibble; we go by the EtherType, as the kernel's \
                 receive path does, and call a header of another version malformed"
            }
            Self::Macsec => {
                "etherparse looks behind an unencrypted MACsec header; to us protected frames are \
                 not IP, whichever mode they are in"
            }
            Self::OneByte => {
                "etherparse reads the version of a packet of one byte; we call it truncated IPv4, \
                 since the verifier learns nothing from a check of one byte"
            }
            Self::FirstOfTwoFaults => {
                "an IPv4 header that is both cut and malformed: we look for its first twenty bytes, \
                 then at its fields, then for its options; etherparse looks at the header length \
                 first and at the total length last"
            }
            Self::Ipv4Authentication => {
                "etherparse walks an Authentication header behind IPv4; we count the protocol that \
                 the IPv4 header names (IPFIX element 4), as for ESP"
            }
            Self::HopByHopNotFirst => {
                "RFC 8200 wants hop-by-hop options first and etherparse refuses others; a packet \
                 that went over the wire with them elsewhere still belongs to its flow"
            }
            Self::TcpOptionsCut => {
                "etherparse wants the whole TCP header; ports and flags stand in its first twenty \
                 bytes, which are there"
            }
            Self::TimestampLength => {
                "etherparse wants ICMP timestamp messages to be exactly twenty bytes; type, code \
                 and identifier stand in the first eight"
            }
            Self::InsideATunnel => {
                "one of the reasons above holds for a packet that a tunnel carries: the parser that \
                 refuses it stays with the tunnel's own flow"
            }
        }
    }

    /// Whether this difference explains the results of the two parsers.
    pub fn explains(self, ours: &Parsed, theirs: &Parsed) -> bool {
        let is = |parsed: &Parsed, protocol| matches!(parsed, Ok(meaning) if meaning.packet.key.protocol == protocol);
        match self {
            Self::VersionAgainstEtherType => matches!(
                ours,
                Err(Reason::MalformedIpv4
                    | Reason::MalformedIpv6
                    | Reason::TruncatedIpv4
                    | Reason::TruncatedIpv6)
            ),
            Self::Macsec => *ours == Err(Reason::NotIp),
            Self::OneByte => *ours == Err(Reason::TruncatedIpv4),
            Self::FirstOfTwoFaults => [ours, theirs]
                .into_iter()
                .all(|parsed| matches!(parsed, Err(Reason::TruncatedIpv4 | Reason::MalformedIpv4))),
            Self::Ipv4Authentication => is(ours, IPV4_AUTHENTICATION) && same_ip(ours, theirs),
            Self::HopByHopNotFirst => *theirs == Err(Reason::TruncatedExtension),
            Self::TcpOptionsCut => is(ours, TCP),
            Self::TimestampLength => is(ours, ICMP),
            Self::InsideATunnel => ours.is_ok() && theirs.is_ok(),
        }
    }
}

const ICMP: u8 = 1;
const TCP: u8 = 6;
const IPV4_AUTHENTICATION: u8 = 51;

/// Whether two packets have the same tags and the same facts from the IP header. True if at least one parser found no
/// packet.
fn same_ip(ours: &Parsed, theirs: &Parsed) -> bool {
    let facts = |Meaning { packet, .. }: &Meaning| {
        let key = &packet.key;
        let mut addresses = [key.addr_a, key.addr_b];
        addresses.sort_unstable();
        (key.vlan_ids, key.ip_version, packet.dscp, addresses)
    };
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => facts(ours) == facts(theirs),
        (Ok(_), Err(_)) | (Err(_), Ok(_) | Err(_)) => true,
    }
}
