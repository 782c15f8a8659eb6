//! The identity of a collector's caller, and its roles there.

use std::{fmt, net::IpAddr, ops::RangeInclusive, sync::Arc};

use clap::ValueEnum;

use crate::source;

/// A caller as the collector itself identifies it, whatever it claims.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// The name of a token or of a client certificate, in lower case.
    Named(Arc<str>),
    /// A user of this host, as reported by the kernel.
    User(u32),
    /// An address, if no credential is required.
    Address(IpAddr),
}

/// The longest DNS name.
const MOST_NAME_BYTES: usize = 253;

impl Identity {
    /// The identity of a credential with this name: a host's name, or another one of letters, digits and `.`, `-` and
    /// `_`. No such name can be confused with one of the other identities.
    pub fn named(name: &str) -> Option<Self> {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let name = name.strip_suffix('.').unwrap_or(name);
        let is_name = name.starts_with(|first: char| first.is_ascii_alphanumeric())
            && name.len() <= MOST_NAME_BYTES
            && name.bytes().all(is_of_name);
        is_name.then(|| Self::Named(name.to_ascii_lowercase().into()))
    }

    /// Parses the output of [`Display`](fmt::Display).
    pub fn read(text: &str) -> Option<Self> {
        match text.split_once(':') {
            Some(("uid", uid)) => uid.parse().ok().map(Self::User),
            Some(("ip", address)) => address.parse().ok().map(Self::Address),
            Some(_) => None,
            None => Self::named(text),
        }
    }

    /// All identities that the host with this one may have: without a credential, a whole IPv6 /64.
    pub fn of_host(&self) -> RangeInclusive<Self> {
        match self {
            Self::Address(address) => {
                let (first, last) = source::of_host(*address).into_inner();
                Self::Address(first)..=Self::Address(last)
            }
            Self::Named(_) | Self::User(_) => self.clone()..=self.clone(),
        }
    }

    /// Whether an agent that claims this hostname may have this identity. A credential must have the host's name;
    /// either of the two names may lack the domain. Without a credential, a name is only a claim.
    pub fn may_be_host(&self, hostname: &str) -> bool {
        let Self::Named(name) = self else {
            return true;
        };
        let hostname = hostname.to_ascii_lowercase();
        let hostname = hostname.strip_suffix('.').unwrap_or(&hostname);
        let is_short = |short: &str, long: &str| {
            let domain = long.strip_prefix(short);
            !short.contains('.') && domain.is_some_and(|domain| domain.starts_with('.'))
        };
        **name == *hostname || is_short(name, hostname) || is_short(hostname, name)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => formatter.write_str(name),
            Self::User(uid) => write!(formatter, "uid:{uid}"),
            Self::Address(address) => write!(formatter, "ip:{address}"),
        }
    }
}

/// What a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Send the flows of one agent.
    Send,
    /// Observe the flows of all agents.
    Observe,
    /// Read the status of the collector and of all agents.
    Status,
    /// Bring what another collector has stored, under the identities that it has there.
    Relay,
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Send, Self::Observe, Self::Status, Self::Relay];

    /// The name in a file of tokens.
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Observe => "observe",
            Self::Status => "status",
            Self::Relay => "relay",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Roles(u8);

impl Roles {
    pub fn all() -> Self {
        Role::ALL.into_iter().collect()
    }

    pub fn has(self, role: Role) -> bool {
        self.0 & role.bit() != 0
    }

    /// Parses comma-separated role names. `None` if one of them is unknown or there is none.
    pub fn read(text: &str) -> Option<Self> {
        let role = |name: &str| Role::ALL.into_iter().find(|role| role.name() == name);
        text.split(',').map(role).collect()
    }
}

impl FromIterator<Role> for Roles {
    fn from_iter<T: IntoIterator<Item = Role>>(roles: T) -> Self {
        let bits = roles.into_iter().map(Role::bit);
        Self(bits.fold(0, |all, bit| all | bit))
    }
}

/// The format that [`Roles::read`] parses.
impl fmt::Display for Roles {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Role::ALL
            .into_iter()
            .filter(|role| self.has(*role))
            .map(Role::name)
            .collect();
        formatter.write_str(&names.join(","))
    }
}

/// A caller's identity and roles, as a collector knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub identity: Identity,
    pub roles: Roles,
}

impl Grant {
    /// Whether it only brings the batches of other collectors.
    pub fn is_relay(&self) -> bool {
        self.roles.has(Role::Relay) && !self.roles.has(Role::Send)
    }

    /// Whether it is the credential of one host or reader, which can have a share of its own.
    pub fn has_share(&self) -> bool {
        matches!(self.identity, Identity::Named(_)) && !self.is_relay()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_stands_for_the_host_of_its_name_and_for_no_other() {
        for (name, hostname, is_it) in [
            ("web01", "web01", true),
            ("web01", "WEB01.example.com", true),
            ("Web01.example.com", "web01", true),
            ("web01.example.com", "web01.example.com", true),
            ("web01.example.com", "web01.example.org", false),
            ("web01.example.com", "web01.example", false),
            ("web01.example.com.", "web01.example.com", true),
            ("web01.example.com", "WEB01.example.com.", true),
            ("web01", "web0", false),
            ("web0", "web01", false),
            ("web01", "", false),
            ("web01", "db01", false),
        ] {
            let identity = Identity::named(name).unwrap();
            assert_eq!(identity.may_be_host(hostname), is_it, "{name} {hostname}");
        }
        assert!(Identity::User(7).may_be_host("anything"));
    }

    #[test]
    fn no_name_of_a_credential_is_that_of_another_kind() {
        for name in ["", "uid:0", "ip:::1", ".a", "-a", "*.a", "a b", "ä", "a/b"] {
            assert_eq!(Identity::named(name), None, "{name}");
        }
        assert_eq!(Identity::named(&"a".repeat(254)), None);
        assert_eq!(Identity::named("A.b-c_1").unwrap().to_string(), "a.b-c_1");
        for text in ["a", "uid:7", "ip:192.0.2.1", "ip:2001:db8::1"] {
            assert_eq!(Identity::read(text).unwrap().to_string(), text);
        }
        for text in ["", "uid:x", "ip:1", "a:1", "uid:-1"] {
            assert_eq!(Identity::read(text), None, "{text}");
        }
    }

    #[test]
    fn roles_are_read_as_they_are_written() {
        for text in ["send", "observe,status", "send,observe,status,relay"] {
            assert_eq!(Roles::read(text).unwrap().to_string(), text);
        }
        for text in ["", "all", "send,", "Send", "send status"] {
            assert_eq!(Roles::read(text), None, "{text}");
        }
        let readers = Roles::read("observe,status").unwrap();
        assert_eq!(
            Role::ALL.map(|role| readers.has(role)),
            [false, true, true, false]
        );
    }
}
