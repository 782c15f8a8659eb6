//! The source of a connection, as far as the peer cannot choose it. Limits are counted per source.

use std::{
    net::{IpAddr, Ipv6Addr},
    ops::RangeInclusive,
};

/// A source of connections. Clients that share an address (NAT, a proxy) are one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// An IPv4 address, or the first 64 bits of an IPv6 address: a host can use every address of such a network.
    Ip(IpAddr),
    /// A user of this host, on a Unix socket.
    User(u32),
    Unknown,
}

impl Source {
    pub fn of_ip(address: IpAddr) -> Self {
        Self::Ip(*of_host(address).start())
    }
}

/// All addresses that the host with this one may use: one IPv4 address, or an IPv6 /64.
pub fn of_host(address: IpAddr) -> RangeInclusive<IpAddr> {
    const INTERFACE: u128 = u64::MAX as u128;
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            let [first, last] = [v6.to_bits() & !INTERFACE, v6.to_bits() | INTERFACE];
            Ipv6Addr::from_bits(first).into()..=Ipv6Addr::from_bits(last).into()
        }
        alone @ (IpAddr::V4(_) | IpAddr::V6(_)) => alone..=alone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_host_are_one_source() {
        let of = |text: &str| Source::of_ip(text.parse().unwrap());
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.1"));
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
    }
}
