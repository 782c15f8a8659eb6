//! The values of terms: networks, hosts, ports, protocols and interfaces.

use proto::protocols;

use super::{Net, Ports, correct, net::BadNet, parse::Hosts, services};
use crate::pattern::Pattern;

/// Why a value cannot be read, and what corrects it.
pub(super) struct BadValue {
    pub message: String,
    /// What to write for the value.
    pub value: Option<String>,
    /// What to write for the term's keyword.
    pub keyword: Option<&'static str>,
}

impl BadValue {
    fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            value: None,
            keyword: None,
        }
    }

    fn instead(message: impl Into<String>, value: Option<impl Into<String>>) -> Self {
        Self {
            value: value.map(Into::into),
            ..Self::new(message)
        }
    }

    fn after(message: impl Into<String>, keyword: &'static str) -> Self {
        Self {
            keyword: Some(keyword),
            ..Self::new(message)
        }
    }
}

/// An end of a flow.
pub(super) enum End {
    Net(Net),
    Name(Pattern),
}

fn first_value(text: &str) -> &str {
    text.split(',')
        .find(|value| !value.is_empty())
        .unwrap_or("")
}

/// Whether a word without a keyword is one or more addresses or networks.
pub(super) fn is_addresses(text: &str) -> bool {
    !matches!(Net::parse(first_value(text)), Err(BadNet::NotAnAddress))
}

/// `ipv6` is the protocol of tunnels, which nobody means without `proto`.
pub(super) fn is_protocols(text: &str) -> bool {
    let first = first_value(text);
    protocols::number(first).is_some() && !first.eq_ignore_ascii_case("ipv6")
}

pub(super) fn net(text: &str) -> Result<Net, BadValue> {
    Net::parse(text).map_err(|error| match error {
        BadNet::NotAnAddress => {
            let message = "expected a network or an address, as 10.0.0.0/8 or 2001:db8::1";
            let is_name = correct::may_be_a_name(text);
            if is_name {
                BadValue::after(message, "host")
            } else {
                BadValue::new(message)
            }
        }
        BadNet::BadLength(most) => {
            BadValue::new(format!("the prefix length is a number from 0 to {most}"))
        }
        BadNet::HostBits(net) => BadValue::instead(
            format!("the address has bits behind its prefix; the network is {net}"),
            Some(net.to_string()),
        ),
    })
}

pub(super) fn host(text: &str, hosts: Hosts) -> Result<End, BadValue> {
    if text.contains('/') {
        return Err(BadValue::after(
            "host takes addresses and names; a network follows net",
            "net",
        ));
    }
    if let Ok(net) = Net::parse(text) {
        return Ok(End::Net(net));
    }
    if text.starts_with('!') {
        return Err(BadValue::new(correct::CANNOT_NEGATE));
    }
    if let Some(certain) = text.strip_prefix('~') {
        let message = "the tilde is not part of the name: it marks an uncertain name";
        return Err(BadValue::instead(message, Some(certain)));
    }
    let text = correct::without_root(text);
    let has_letter = text.chars().any(char::is_alphabetic);
    if text.contains(':') || !has_letter && !text.contains('*') {
        let message = "expected an address or a name, as 192.0.2.1 or example.com";
        let socket = text.parse::<std::net::SocketAddr>();
        let socket = socket.map(|socket| format!("{} port {}", socket.ip(), socket.port()));
        return Err(BadValue::instead(message, socket.ok()));
    }
    if hosts == Hosts::Unknown {
        return Err(BadValue::new(
            "packets have addresses but no names: give the address, as in host 192.0.2.1, or select flows by name \
             where they are shown: --filter of flows, watch, top and query, and filter of an output",
        ));
    }
    let name = Pattern::name_or_glob(&text.to_ascii_lowercase());
    name.map(End::Name)
        .map_err(|fault| BadValue::new(format!("this {fault}; expected a name, as example.com")))
}

pub(super) fn ports(text: &str) -> Result<Ports, BadValue> {
    const EXPECTED: &str =
        "expected a port, a service or a range of ports, as 443, https or 1024-65535";
    if let Some(port) = services::port(text) {
        return Ok(port..=port);
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text| decimal(text)?.try_into().ok();
    let (Some(first), Some(last)) = (port(first), port(last)) else {
        let lower = text.to_ascii_lowercase();
        let with_protocol = correct::port_of_protocol(text);
        let is_number = text.starts_with(|first: char| first.is_ascii_digit());
        let nearest = correct::service(&lower).filter(|_| !is_number);
        return Err(BadValue::instead(
            EXPECTED,
            with_protocol.or(nearest.map(str::to_owned)),
        ));
    };
    if first > last {
        let meant = format!("{last}-{first}");
        let message = format!("the range is empty; {meant} is not");
        return Err(BadValue::instead(message, Some(meant)));
    }
    Ok(first..=last)
}

pub(super) fn protocol(text: &str) -> Result<u8, BadValue> {
    let number = protocols::number(text).or_else(|| decimal(text)?.try_into().ok());
    number.ok_or_else(|| {
        let lower = text.to_ascii_lowercase();
        BadValue::instead(
            "unknown protocol; expected a protocol's name or number, as tcp or 47",
            correct::protocol(&lower),
        )
    })
}

pub(super) fn interface(text: &str) -> Result<Pattern, BadValue> {
    if let Some(rest) = text.strip_prefix('#') {
        let meant = Some(format!("[#]{rest}"));
        return Err(BadValue::instead(
            "# begins a comment: write [#] for it",
            meant,
        ));
    }
    Pattern::name_or_glob(text).map_err(|fault| {
        BadValue::new(format!(
            "this {fault}; expected an interface's name, or a glob such as veth*"
        ))
    })
}

/// Accepts digits only; `parse` alone would accept a sign.
fn decimal(text: &str) -> Option<u32> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}
