//! Guesses what a line with a mistake should say. A guess counts only if it leads to a line without a mistake.

use std::{cmp::Reverse, net::SocketAddr, ops::Range};

use proto::protocols;

use super::{Parts, parse::Mistake, services};
use crate::similar;

/// Mistakes that are corrected in one line at most.
const MOST_MISTAKES: usize = 12;
/// Longer lines are not corrected.
const MOST_CHARS: usize = 300;

const KEYWORDS: [&str; 12] = [
    "include", "exclude", "src", "dst", "net", "host", "port", "proto", "on", "ingress", "egress",
    "all",
];

/// Words of other languages, and what they are here.
const SYNONYMS: &[(&str, &str)] = &[
    ("drop", "exclude"),
    ("deny", "exclude"),
    ("block", "exclude"),
    ("reject", "exclude"),
    ("ignore", "exclude"),
    ("except", "exclude"),
    ("without", "exclude"),
    ("allow", "include"),
    ("accept", "include"),
    ("permit", "include"),
    ("only", ""),
    ("show", ""),
    ("where", ""),
    ("source", "src"),
    ("from", "src"),
    ("destination", "dst"),
    ("dest", "dst"),
    ("to", "dst"),
    ("network", "net"),
    ("subnet", "net"),
    ("cidr", "net"),
    ("ip", "host"),
    ("addr", "host"),
    ("address", "host"),
    ("hostname", "host"),
    ("name", "host"),
    ("ports", "port"),
    ("portrange", "port"),
    ("service", "port"),
    ("sport", "src port"),
    ("dport", "dst port"),
    ("protocol", "proto"),
    ("interface", "on"),
    ("iface", "on"),
    ("dev", "on"),
    ("in", "ingress"),
    ("inbound", "ingress"),
    ("incoming", "ingress"),
    ("rx", "ingress"),
    ("out", "egress"),
    ("outbound", "egress"),
    ("outgoing", "egress"),
    ("tx", "egress"),
    ("any", "all"),
    ("everything", "all"),
    ("*", "all"),
    ("ipv4", "net 0.0.0.0/0"),
    ("ip4", "net 0.0.0.0/0"),
    ("ipv6", "net ::/0"),
    ("ip6", "net ::/0"),
    ("icmpv6", "icmp6"),
    ("ipv6-icmp", "icmp6"),
];

/// How the names of interfaces begin that a number follows.
const INTERFACES: [&str; 11] = [
    "eth", "en", "wl", "veth", "br", "docker", "wg", "tun", "tap", "bond", "vlan",
];

/// Replaces these characters of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Edit {
    place: Range<usize>,
    text: String,
}

impl Edit {
    pub fn new(place: Range<usize>, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { place, text }
    }
}

/// The line without its mistakes, if all of them can be corrected.
pub(super) fn corrected(
    line: &str,
    mistake: Mistake,
    parse: impl Fn(&str) -> Result<Parts, Mistake>,
) -> Option<String> {
    if line.chars().count() > MOST_CHARS || line.chars().any(char::is_control) {
        return None;
    }
    let (mut line, mut edits) = (line.trim().to_owned(), shifted(line, mistake.edits));
    for _ in 0..MOST_MISTAKES {
        if edits.is_empty() {
            return None;
        }
        line = apply(&line, edits);
        match parse(&line) {
            Ok(parts) => return (!parts.is_empty()).then_some(line),
            Err(mistake) => edits = mistake.edits,
        }
    }
    None
}

/// The edits, for the line without white space in front.
fn shifted(line: &str, mut edits: Vec<Edit>) -> Vec<Edit> {
    let by = line.chars().count() - line.trim_start().chars().count();
    for edit in &mut edits {
        edit.place = edit.place.start.saturating_sub(by)..edit.place.end.saturating_sub(by);
    }
    edits
}

fn apply(line: &str, mut edits: Vec<Edit>) -> String {
    let mut chars: Vec<char> = line.chars().collect();
    edits.sort_by_key(|edit| Reverse((edit.place.start, edit.place.end)));
    for Edit { place, text } in edits {
        let end = place.end.min(chars.len());
        chars.splice(place.start.min(end)..end, text.chars());
    }
    chars.into_iter().collect()
}

pub(super) fn is_keyword(text: &str) -> bool {
    KEYWORDS.contains(&text) || protocols::number(text).is_some()
}

/// What a word stands for that begins no term. An empty text if it can be left out.
pub(super) fn meant(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    if let Some((_, here)) = SYNONYMS.iter().find(|(known, _)| *known == lower) {
        return Some((*here).to_owned());
    }
    if is_keyword(&lower) {
        return Some(lower);
    }
    if are_ports(&lower) {
        return Some(format!("port {lower}"));
    }
    if let Some(port) = port_of_protocol(&lower) {
        return Some(format!("port {port}"));
    }
    if let Ok(socket) = lower.parse::<SocketAddr>() {
        return Some(format!("host {} port {}", socket.ip(), socket.port()));
    }
    if let Some((keyword, value)) = lower.split_once(['=', ':'])
        && KEYWORDS.contains(&keyword)
    {
        return Some(format!("{keyword} {}", value.trim_start_matches('=')));
    }
    if is_interface(&lower) {
        return Some(format!("on {text}"));
    }
    if may_be_a_name(&lower) {
        return Some(format!("host {lower}"));
    }
    let known = KEYWORDS.into_iter().chain(protocols::names());
    let nearest = similar::nearest(&lower, known.chain(services::names()))?;
    Some(if services::port(nearest).is_some() {
        format!("port {nearest}")
    } else {
        nearest.to_owned()
    })
}

/// What a misspelt protocol stands for.
pub(super) fn protocol(lower: &str) -> Option<&'static str> {
    let mut synonyms = SYNONYMS.iter().map(|(known, here)| (*known, *here));
    let synonym =
        synonyms.find(|(known, here)| *known == lower && protocols::number(here).is_some());
    synonym
        .map(|(_, here)| here)
        .or_else(|| similar::nearest(lower, protocols::names()))
}

/// `443 tcp` for `443/tcp`, as `top` shows services, and for `tcp/443`.
pub(super) fn port_of_protocol(text: &str) -> Option<String> {
    let (first, second) = text.split_once('/')?;
    let pairs = [(first, second), (second, first)];
    let mut pairs = pairs
        .into_iter()
        .filter(|(port, protocol)| are_ports(port) && protocols::number(protocol).is_some());
    pairs
        .next()
        .map(|(port, protocol)| format!("{port} {protocol}"))
}

/// Whether it looks like the name of a host and not like that of something else.
pub(super) fn may_be_a_name(text: &str) -> bool {
    let is_of_a_name = |letter: char| letter.is_alphanumeric() || "-_.*".contains(letter);
    let (_, top) = text.rsplit_once('.').unwrap_or_default();
    text.chars().all(is_of_a_name) && top.chars().any(char::is_alphabetic)
}

fn are_ports(text: &str) -> bool {
    text.split(',').all(|value| {
        let (first, last) = value.split_once('-').unwrap_or((value, value));
        let is_port = |text: &str| text.parse::<u16>().is_ok();
        services::port(value).is_some() || is_port(first) && is_port(last)
    })
}

fn is_interface(lower: &str) -> bool {
    let has_number = lower.ends_with(|last: char| last.is_ascii_digit());
    let begins = INTERFACES.iter().any(|begin| lower.starts_with(begin));
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '.';
    lower == "lo" || has_number && begins && lower.chars().all(is_plain)
}
