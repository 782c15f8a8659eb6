//! The numbers of IP protocols (IANA, "Protocol Numbers") that the parser knows.

pub const ICMP: u8 = 1;
pub const IPV4_IN_IP: u8 = 4;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const DCCP: u8 = 33;
pub const IPV6_IN_IP: u8 = 41;
pub const GRE: u8 = 47;
pub const ICMPV6: u8 = 58;
pub const SCTP: u8 = 132;
pub const UDP_LITE: u8 = 136;
