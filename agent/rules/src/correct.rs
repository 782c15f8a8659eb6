//! Guesses what a line with a mistake should say. A guess counts only if it leads to a line without a mistake.

use std::{cmp::Reverse, net::SocketAddr, ops::Range};

use proto::protocols;

use super::{Action, Parts, Rule, parse::Mistake, services};
use crate::similar;

/// Mistakes that are corrected in one line at most.
const MOST_MISTAKES: usize = 12;
/// Longer lines are not corrected.
const MOST_CHARS: usize = 300;

const KEYWORDS: [&str; 12] = [
    "include", "exclude", "src", "dst", "net", "host", "port", "proto", "on", "ingress", "egress",
    "all",
];

/// Words of other languages, with their counterparts here.
const SYNONYMS: &[(&str, &str)] = &[
    ("drop", "exclude"),
    ("deny", "exclude"),
    ("block", "exclude"),
    ("reject", "exclude"),
    ("ignore", "exclude"),
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

/// Words of tcpdump's language without a counterpart here. Do not guess a similar word for them.
const FOREIGN: &[&str] = &[
    "arp",
    "broadcast",
    "ether",
    "gateway",
    "greater",
    "len",
    "less",
    "link",
    "llc",
    "mpls",
    "multicast",
    "pppoed",
    "pppoes",
    "rarp",
    "vlan",
    "wlan",
];

/// Words that join terms or negate them.
const LOGIC: [&str; 4] = ["and", "&&", "or", "||"];
const NEGATIONS: [&str; 6] = ["not", "!", "no", "non", "except", "without"];

pub(super) const CANNOT_NEGATE: &str =
    "a rule cannot negate a part of it: write `exclude …` as a rule of its own";

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

/// The line without its mistakes, if all of them can be corrected and the meaning is certain.
pub(super) fn corrected(
    line: &str,
    parse: &dyn Fn(&str) -> Result<Parts, Mistake>,
) -> Option<String> {
    if line.chars().count() > MOST_CHARS
        || line.chars().any(char::is_control)
        || line.contains(['(', ')'])
        || line.split(';').any(is_ambiguous)
    {
        return None;
    }
    if is_negated(line) {
        return without_negation(line, parse);
    }
    let (mut line, mut had_and) = (line.trim().to_owned(), false);
    for _ in 0..=MOST_MISTAKES {
        let mistake = match parse(&line) {
            Ok(parts) => return (!parts.is_empty()).then_some(line),
            Err(mistake) => mistake,
        };
        had_and |= mistake.is_and;
        let edits = match mistake.edits_after_and {
            Some(edits) if had_and => edits,
            _ => mistake.edits,
        };
        if edits.is_empty() {
            return None;
        }
        line = apply(&line, edits);
    }
    None
}

/// Whether an `and` follows an `or`: tcpdump joins from the left, and most other languages join `and` first.
fn is_ambiguous(rule: &str) -> bool {
    let mut words = rule.split_whitespace().map(str::to_ascii_lowercase);
    words.any(|word| matches!(&*word, "or" | "||"))
        && words.any(|word| matches!(&*word, "and" | "&&"))
}

pub(super) fn is_logic(word: &str) -> bool {
    let lower = word.to_ascii_lowercase();
    LOGIC.contains(&&*lower) || is_negation(word)
}

/// Whether a word negates the following words, or begins with a negation.
pub(super) fn is_negation(word: &str) -> bool {
    word.starts_with('!') || NEGATIONS.contains(&&*word.to_ascii_lowercase())
}

fn is_negated(line: &str) -> bool {
    line.contains('!') || line.split_whitespace().any(is_negation)
}

/// `exclude Y` for `not Y`, and `exclude Y; X` for `X and not Y`, if Y is one term.
fn without_negation(line: &str, parse: &dyn Fn(&str) -> Result<Parts, Mistake>) -> Option<String> {
    let line = line.trim();
    let start = line
        .split_whitespace()
        .find(|word| is_negation(word))
        .map(|word| word.as_ptr() as usize - line.as_ptr() as usize)?;
    let (before, rest) = line.split_at(start);
    let (negation, after) = match rest.strip_prefix('!') {
        Some(after) => ("!", after),
        None => rest.split_once(char::is_whitespace)?,
    };
    let is_joined = |word: &str| word.eq_ignore_ascii_case("or") || word == "||";
    let acts = |word: &str| matches!(meant(word).as_deref(), Some("include" | "exclude"));
    let mut words = before.split_whitespace().chain(after.split_whitespace());
    if line.contains(';') || is_negated(after) || words.any(|word| is_joined(word) || acts(word)) {
        return None;
    }
    let read = |text: &str| {
        let text = corrected(text, parse)?;
        let parts = parse(&text).ok()?;
        parts.rules.is_empty().then_some((text, parts.conditions))
    };
    let (excluded, conditions) = read(after)?;
    let [rule] = &conditions[..] else {
        return None;
    };
    if terms(rule) != 1 || after.split_whitespace().any(is_logic) {
        return None;
    }
    if before.is_empty() {
        return Some(format!("exclude {excluded}"));
    }
    let before = before.trim_end();
    let has_own_and = matches!(&*negation.to_ascii_lowercase(), "except" | "without");
    let before = match before.rsplit_once(char::is_whitespace) {
        Some((before, and)) if and.eq_ignore_ascii_case("and") || and == "&&" => before,
        _ if has_own_and => before,
        _ => return None,
    };
    let (included, _) = read(before)?;
    Some(format!("exclude {excluded}; {included}"))
}

fn terms(rule: &Rule) -> usize {
    debug_assert_eq!(rule.action, Action::Include);
    let (nets, names) = (&rule.nets, &rule.names);
    let is_there = [
        !nets.src.is_empty() || !names.src.is_empty(),
        !nets.dst.is_empty() || !names.dst.is_empty(),
        !nets.either.is_empty() || !names.either.is_empty(),
        !rule.ports.src.is_empty(),
        !rule.ports.dst.is_empty(),
        !rule.ports.either.is_empty(),
        !rule.protocols.is_empty(),
        !rule.interfaces.is_empty(),
        rule.direction.is_some(),
    ];
    is_there.into_iter().filter(|is_there| *is_there).count()
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

/// The replacement for a word that begins no term. An empty text if it can be left out.
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
    if is_logic(&lower) || FOREIGN.contains(&&*lower) {
        return None;
    }
    let language = KEYWORDS.into_iter().chain(protocols::names());
    let nearest = is_plain(&lower).then(|| similar::nearest(&lower, language));
    let is_near = |known: &&str| {
        let most = if lower.len() > 4 { 2 } else { 1 };
        strsim::osa_distance(&lower, known) <= most
    };
    match nearest.flatten().filter(is_near) {
        Some(nearest) => Some(nearest.to_owned()),
        None => service(&lower).map(|service| format!("port {service}")),
    }
}

/// The service whose name was misspelt by one letter. Names of three letters are too similar to each other.
pub(super) fn service(lower: &str) -> Option<&'static str> {
    if lower.len() < 4 || !is_plain(lower) || is_keyword(lower) || is_logic(lower) {
        return None;
    }
    services::names().find(|known| strsim::osa_distance(lower, known) == 1)
}

/// Whether it is one word: a sign may be an operator of another language.
fn is_plain(text: &str) -> bool {
    let is_of_a_word = |letter: char| letter.is_alphanumeric() || "-_".contains(letter);
    text.len() > 2 && text.starts_with(char::is_alphanumeric) && text.chars().all(is_of_a_word)
}

/// The protocol that was misspelt.
pub(super) fn protocol(lower: &str) -> Option<&'static str> {
    let mut synonyms = SYNONYMS.iter().map(|(known, here)| (*known, *here));
    let synonym =
        synonyms.find(|(known, here)| *known == lower && protocols::number(here).is_some());
    synonym.map(|(_, here)| here).or_else(|| {
        let is_word = is_plain(lower) && !is_logic(lower);
        is_word.then(|| similar::nearest(lower, protocols::names()))?
    })
}

/// `443 tcp` for `443/tcp`, as `top` shows services, for `tcp/443` and for `tcp:443`.
pub(super) fn port_of_protocol(text: &str) -> Option<String> {
    let (first, second) = text.split_once(['/', ':'])?;
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
    let (_, top) = without_root(text).rsplit_once('.').unwrap_or_default();
    text.starts_with(|first: char| first.is_alphanumeric() || "_*".contains(first))
        && text.chars().all(is_of_a_name)
        && top.chars().any(char::is_alphabetic)
}

/// A name without the dot that may end it in the DNS.
pub(super) fn without_root(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
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
