//! Validates hosts in addresses. A host that no resolver or request accepts is rejected when the settings are read, not
//! when flows are sent.

use std::net::{IpAddr, Ipv6Addr};

use super::{HostPort, Kind, Refused, Table, tls::Way};

/// The fault of the host in `SCHEME://HOST...`, for any scheme. Paths have no host.
pub(super) fn fault(address: &str) -> Option<String> {
    let (_, rest) = address.split_once("://")?;
    fault_of(rest)
}

/// The same for an address without its scheme.
pub(super) fn fault_of(rest: &str) -> Option<String> {
    let host = rest.split('/').next().unwrap_or_default();
    // The text may contain a password, so do not repeat it.
    if host.contains('@') {
        let message = "outputs send no user and no password: leave out everything up to the @";
        return Some(message.to_owned());
    }
    // An IPv6 address may include its interface, as in [fe80::1%eth0].
    let special = if host.starts_with('[') {
        "[]:.%_-"
    } else {
        ":._-"
    };
    let is_odd = |letter: &char| !letter.is_ascii_alphanumeric() && !special.contains(*letter);
    let odd = host.chars().find(is_odd)?;
    Some(format!("the name of a host cannot have {odd:?}"))
}

/// What to write instead if the address looks like a host, or a host and port, and lacks its scheme. A file with such a name
/// needs a slash in its path.
pub(super) fn without_scheme(kind: Kind, address: &str) -> Option<String> {
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    let is_host = bare.parse::<IpAddr>().is_ok() || address.contains(':');
    if address.contains('/') || !is_host {
        return None;
    }
    let meant = HostPort::read(address).and_then(|host| kind.at(&host));
    let hint = match meant {
        Some(meant) => format!(" (did you mean {meant}?)"),
        None if kind.has_paths() => {
            format!("; a file with such a name needs a slash, as ./{address}")
        }
        None => String::new(),
    };
    Some(format!("expected {}{hint}", kind.addresses()))
}

/// Whether the text is a valid IPv6 address for brackets.
pub(super) fn is_ipv6(text: &str) -> bool {
    let (address, interface) = text.split_once('%').unwrap_or((text, "any"));
    address.parse::<Ipv6Addr>().is_ok() && !interface.is_empty()
}

/// The host of the address, followed by the hosts of `failover`.
pub(super) fn with_failover(
    table: &Table,
    way: &Way,
    first: HostPort,
) -> Result<Vec<HostPort>, Refused> {
    let mut all = vec![first];
    let failover = table.text("failover")?;
    let failover = failover.filter(|others| !others.trim().is_empty());
    let others = failover.iter().flat_map(|others| others.split(','));
    for other in others.map(str::trim) {
        let refused = |message: String| Refused::at("failover", message);
        if let Some(fault) = fault_of(other) {
            return Err(refused(fault));
        }
        let other = HostPort::read(other)
            .ok_or_else(|| refused("expected HOST:PORT, or several with commas".to_owned()))?;
        way.refuse_host(&other.host)
            .map_err(|error| refused(error.to_string()))?;
        if all.contains(&other) {
            return Err(refused(format!("{other} is there twice")));
        }
        all.push(other);
    }
    Ok(all)
}
