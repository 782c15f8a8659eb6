//! The address to serve metrics on, parsed from the setting.

use std::{
    net::{Ipv4Addr, SocketAddr},
    str::FromStr,
};

use crate::address;

/// An IP address with a port, a port of 127.0.0.1, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsAddress(pub Option<SocketAddr>);

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected an IP address with a port, as in 127.0.0.1:9100, a port of 127.0.0.1, or none";
        if text == "none" {
            return Ok(Self(None));
        }
        let address = match text.parse() {
            Ok(port) => (Ipv4Addr::LOCALHOST, port).into(),
            Err(_) => address::tcp(text, EXPECTED)?,
        };
        Ok(Self(Some(address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_one_of_this_host() {
        let parsed = |text: &str| text.parse::<MetricsAddress>();
        assert_eq!(parsed("none"), Ok(MetricsAddress(None)));
        assert_eq!(parsed("9100"), parsed("127.0.0.1:9100"));
        assert_eq!(parsed("localhost:9100"), parsed("127.0.0.1:9100"));
        assert!(parsed("[::]:9100").is_ok());
        for (text, told) in [
            ("65536", "expected an IP address"),
            ("", "expected an IP address"),
            ("unix:/run/a", "expected an IP address"),
            ("a.example:1", "the name a.example is not looked up"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.starts_with(told), "{text}: {error}");
        }
    }
}
