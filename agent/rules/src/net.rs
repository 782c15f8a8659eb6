//! The networks that rules name, in CIDR notation.

use std::{fmt, net::IpAddr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// A prefix of either IP version. All bits after the prefix are zero. A network sorts after the networks that cover it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Net(IpNet);

/// Why a text is not a network.
#[derive(Debug, PartialEq, Eq)]
pub enum BadNet {
    NotAnAddress,
    /// The prefix length is not a number from 0 to this one.
    BadLength(u8),
    /// The address has bits after the prefix. The network that was probably meant.
    HostBits(Net),
}

impl Net {
    /// Parses `10.0.0.0/8`, `2001:db8::/32`, or a single address.
    pub fn parse(text: &str) -> Result<Self, BadNet> {
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| BadNet::NotAnAddress)?;
        let whole = Self::of(address);
        let Some(len) = len else { return Ok(whole) };
        let bad_length = || BadNet::BadLength(whole.0.max_prefix_len());
        // `parse` alone would accept a sign.
        if !len.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad_length());
        }
        let len = len.parse().map_err(|_| bad_length())?;
        let net = IpNet::new(address, len).map_err(|_| bad_length())?;
        if net == net.trunc() {
            Ok(Self(net))
        } else {
            Err(BadNet::HostBits(Self(net.trunc())))
        }
    }

    /// The network of a single address.
    pub fn of(address: IpAddr) -> Self {
        Self(address.into())
    }

    /// All addresses of an IP version.
    pub fn everything(is_v6: bool) -> Self {
        Self(if is_v6 {
            Ipv6Net::default().into()
        } else {
            Ipv4Net::default().into()
        })
    }

    pub fn is_v6(&self) -> bool {
        matches!(self.0, IpNet::V6(_))
    }

    /// The length of the prefix, in bits.
    pub fn prefix_len(&self) -> u8 {
        self.0.prefix_len()
    }

    /// Its first address.
    pub fn address(&self) -> IpAddr {
        self.0.addr()
    }

    /// Whether the address is in it.
    pub fn has(&self, address: &IpAddr) -> bool {
        self.0.contains(address)
    }

    pub fn covers(&self, other: &Self) -> bool {
        self.0.contains(&other.0)
    }

    /// The words of the address in memory order; an IPv4 address is in the first.
    pub fn address_ne(&self) -> [u32; 4] {
        match self.0.addr() {
            IpAddr::V4(address) => [u32::from_ne_bytes(address.octets()), 0, 0, 0],
            IpAddr::V6(address) => agent_common::filter::words(&address.octets()),
        }
    }
}

impl fmt::Display for Net {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_covers_what_is_in_it_and_nothing_of_the_other_version() {
        let net = |text| Net::parse(text).unwrap();
        let ten = net("10.0.0.0/8");
        for inside in ["10.0.0.0/8", "10.255.0.0/16", "10.1.2.3"] {
            assert!(ten.covers(&net(inside)), "{inside}");
        }
        for outside in ["11.0.0.0/8", "0.0.0.0/0", "a00::/8", "::/0"] {
            assert!(!ten.covers(&net(outside)), "{outside}");
        }
        assert!(net("::/0").covers(&net("2001:db8::1")));
        assert!(!net("0.0.0.0/0").covers(&net("::1")));
    }

    #[test]
    fn what_is_no_network_is_told_with_its_reason() {
        assert_eq!(Net::parse("10.0.0/8"), Err(BadNet::NotAnAddress));
        assert_eq!(Net::parse("10.0.0.0/33"), Err(BadNet::BadLength(32)));
        assert_eq!(Net::parse("::/+8"), Err(BadNet::BadLength(128)));
        let Err(BadNet::HostBits(meant)) = Net::parse("10.1.2.3/8") else {
            panic!("host bits are taken");
        };
        assert_eq!(meant.to_string(), "10.0.0.0/8");
    }
}
