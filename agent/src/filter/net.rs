//! Networks: CIDR text comes in, a prefix that knows what it covers goes out.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// A prefix of either IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Net {
    pub is_v6: bool,
    /// The address from the highest bit on; what is behind the prefix is zero.
    pub bits: u128,
    pub len: u8,
}

/// What is wrong with a network's text.
#[derive(Debug, PartialEq, Eq)]
pub enum BadNet {
    NotAnAddress,
    /// The prefix length is no number up to this one.
    BadLength(u8),
    /// The prefix that was probably meant.
    HostBits(Net),
}

impl Net {
    /// `10.0.0.0/8`, `2001:db8::/32`, or an address alone.
    pub fn parse(text: &str) -> Result<Self, BadNet> {
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| BadNet::NotAnAddress)?;
        let whole = Self::of(address);
        let Some(len) = len else { return Ok(whole) };
        // Not `parse` alone, which takes a sign.
        let is_number = len.bytes().all(|byte| byte.is_ascii_digit());
        let len = len
            .parse()
            .ok()
            .filter(|len| is_number && *len <= whole.len)
            .ok_or(BadNet::BadLength(whole.len))?;
        let net = Self {
            bits: whole.bits & mask(len),
            len,
            ..whole
        };
        if net.bits == whole.bits {
            Ok(net)
        } else {
            Err(BadNet::HostBits(net))
        }
    }

    /// An address alone.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self {
                is_v6: false,
                bits: u128::from(address.to_bits()) << 96,
                len: 32,
            },
            IpAddr::V6(address) => Self {
                is_v6: true,
                bits: address.to_bits(),
                len: 128,
            },
        }
    }

    /// Every address of the version.
    pub const fn everything(is_v6: bool) -> Self {
        Self {
            is_v6,
            bits: 0,
            len: 0,
        }
    }

    pub fn covers(&self, other: &Self) -> bool {
        self.is_v6 == other.is_v6
            && self.len <= other.len
            && other.bits & mask(self.len) == self.bits
    }

    /// The words of the address in memory order, IPv4 in the first one.
    pub fn address_ne(&self) -> [u32; 4] {
        agent_common::filter::words(&self.bits.to_be_bytes())
    }
}

fn mask(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

impl fmt::Display for Net {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_v6 {
            write!(formatter, "{}/{}", Ipv6Addr::from_bits(self.bits), self.len)
        } else {
            let address = Ipv4Addr::from_bits((self.bits >> 96) as u32);
            write!(formatter, "{address}/{}", self.len)
        }
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
