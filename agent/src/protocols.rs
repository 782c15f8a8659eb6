//! Names of IP protocols.

/// Well-known protocols by IANA number, with the names that people know.
const NAMES: &[(u8, &str)] = &[
    (1, "icmp"),
    (2, "igmp"),
    (4, "ipip"),
    (6, "tcp"),
    (17, "udp"),
    (33, "dccp"),
    (41, "ipv6"),
    (47, "gre"),
    (50, "esp"),
    (51, "ah"),
    (58, "icmp6"),
    (89, "ospf"),
    (103, "pim"),
    (112, "vrrp"),
    (132, "sctp"),
    (136, "udplite"),
];

/// The protocol's well-known name, if it has one.
pub fn name(number: u8) -> Option<&'static str> {
    NAMES
        .iter()
        .find(|(known, _)| *known == number)
        .map(|(_, name)| *name)
}

/// The number for a name, in upper or lower case.
pub fn number(name: &str) -> Option<u8> {
    NAMES
        .iter()
        .find(|(_, known)| known.eq_ignore_ascii_case(name))
        .map(|(number, _)| *number)
}
