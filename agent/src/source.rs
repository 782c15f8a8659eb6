//! Where a peer comes from, as far as it cannot choose that itself. What one source may take is counted by it.

use std::net::{IpAddr, Ipv6Addr};

/// A source of connections. Clients that share an address (NAT, a proxy) are one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// An IPv4 address, or the first 64 bits of an IPv6 address: any host has all addresses of such a network.
    Ip(IpAddr),
    /// A user of this host, on a Unix socket.
    User(u32),
    Unknown,
}

impl Source {
    pub fn of_ip(address: IpAddr) -> Self {
        Self::Ip(host(address))
    }
}

/// The first address of all that the host of this one has: an IPv4 address is alone, and an IPv6 network has a /64.
pub fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.into(),
        IpAddr::V6(v6) if v6.is_loopback() => v6.into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
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
