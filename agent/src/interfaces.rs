//! Patterns and the namespace's links come in, the links to attach to go out.
//!
//! An exact name is a promise that the interface is there and can be read; a glob or a regex takes
//! what fits of what is there.

use std::{collections::BTreeSet, fmt, str::FromStr};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use regex::Regex;
use tracing::warn;

use crate::kernel::links::Link;

const ALLOWED: &str = "a name as in eth0, a glob as in 'veth*' (with *, ? or [...]), \
                       or a regex between slashes as in '/^(eth|en)/'";

/// The longest interface name in bytes: `IFNAMSIZ` less its NUL.
const NAME_MAX_LEN_BYTES: usize = 15;

/// A name as similar as this is worth asking about (Jaro-Winkler, 1 is equal).
const SIMILAR: f64 = 0.75;

/// What `--interface` and `--exclude-interface` take.
#[derive(Debug, Clone)]
pub enum Pattern {
    Name(String),
    Glob(glob::Pattern),
    /// Matches anywhere in the name unless it is anchored.
    Regex(Regex),
}

impl Pattern {
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Name(exact) => exact == name,
            Self::Glob(glob) => glob.matches(name),
            Self::Regex(regex) => regex.is_match(name),
        }
    }

    /// Takes no regex. The error says what the text is that it should not be.
    pub fn name_or_glob(text: &str) -> Result<Self, String> {
        if text.contains(['*', '?', '[']) {
            let glob = glob::Pattern::new(text).map_err(|error| {
                let (message, position) = (error.msg, error.pos + 1);
                format!("is no glob: {message} at character {position}")
            })?;
            return Ok(Self::Glob(glob));
        }
        let fault = match text {
            "" => "is empty",
            "." | ".." => "is no name that an interface can have",
            _ if text.contains(|character: char| character == '/' || character.is_whitespace()) => {
                "has a slash or a space, which no interface's name has"
            }
            _ if text.len() > NAME_MAX_LEN_BYTES => {
                "is longer than the 15 bytes of an interface's name"
            }
            _ => return Ok(Self::Name(text.to_owned())),
        };
        Err(fault.to_owned())
    }
}

impl FromStr for Pattern {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(rest) = text.strip_prefix('/') {
            let regex = rest.strip_suffix('/').filter(|regex| !regex.is_empty());
            let regex = regex.with_context(|| {
                format!("'{text}' begins a regex and does not end it; allowed are {ALLOWED}")
            })?;
            let regex = Regex::new(regex).map_err(|error| {
                let reason = error.to_string();
                // The last line is the reason, those before it draw an arrow.
                let reason = reason.lines().next_back().unwrap_or_default();
                let reason = reason.trim_start_matches("error: ");
                anyhow!("'{text}' is no regex: {reason}; allowed are {ALLOWED}")
            })?;
            return Ok(Self::Regex(regex));
        }
        Self::name_or_glob(text).map_err(|fault| anyhow!("'{text}' {fault}; allowed are {ALLOWED}"))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => formatter.write_str(name),
            Self::Glob(glob) => glob.fmt(formatter),
            Self::Regex(regex) => write!(formatter, "/{regex}/"),
        }
    }
}

/// Patterns separated by commas, as one argument or one variable holds them.
///
/// A regex has commas of its own, as in `/^eth{1,2}$/`: it goes on to the slash that ends it.
#[derive(Debug, Clone)]
pub struct Patterns(Vec<Pattern>);

impl FromStr for Patterns {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut patterns = Vec::new();
        let mut rest = Some(text);
        while let Some(text) = rest {
            let text = text.trim_start();
            let comma = if text.starts_with('/') {
                text.find("/,").map(|slash| slash + 1)
            } else {
                text.find(',')
            };
            let (pattern, behind) = match comma {
                Some(comma) => (&text[..comma], Some(&text[comma + 1..])),
                None => (text, None),
            };
            patterns.push(pattern.trim_end().parse()?);
            rest = behind;
        }
        Ok(Self(patterns))
    }
}

/// What several arguments hold together.
pub fn all(lists: &[Patterns]) -> Vec<Pattern> {
    let patterns = lists.iter().flat_map(|list| &list.0);
    patterns.cloned().collect()
}

/// The links that `include` names and `exclude` does not, by ifindex.
///
/// Without `include`, those that carry a default route. Fails where a pattern matches nothing, where
/// nothing is left, and where a link that is named exactly has a link type that the agent cannot read.
pub fn select(
    links: &[Link],
    include: &[Pattern],
    exclude: &[Pattern],
    default_route: &BTreeSet<u32>,
) -> Result<Vec<Link>> {
    let included = if include.is_empty() {
        with_default_route(links, default_route)?
    } else {
        matching(links, include)?
    };
    warn_of_idle_exclusions(links, exclude);
    let is_excluded = |link: &&Link| exclude.iter().any(|pattern| pattern.matches(&link.name));
    let (excluded, left): (Vec<_>, Vec<_>) = included.into_iter().partition(is_excluded);
    ensure!(
        !left.is_empty(),
        "every selected interface is excluded ({}); take an --exclude-interface away",
        names(excluded)
    );
    let mut selected = Vec::new();
    for link in left {
        if link.link_type().is_some() {
            selected.push(link.clone());
            continue;
        }
        let is_named = include
            .iter()
            .any(|pattern| matches!(pattern, Pattern::Name(name) if *name == link.name));
        ensure!(!is_named, "{}; name another one", unsupported(link));
        warn!(interface = link.name, "skipped: {}", unsupported(link));
    }
    ensure!(
        !selected.is_empty(),
        "no selected interface has a link type that the agent can read; interfaces here: {}",
        names(links)
    );
    selected.sort_by_key(|link| link.ifindex);
    Ok(selected)
}

fn with_default_route<'a>(
    links: &'a [Link],
    default_route: &BTreeSet<u32>,
) -> Result<Vec<&'a Link>> {
    let carriers = links
        .iter()
        .filter(|link| default_route.contains(&link.ifindex));
    let carriers: Vec<_> = carriers.collect();
    ensure!(
        !carriers.is_empty(),
        "no interface carries a default route; name one with --interface NAME; \
         interfaces here: {}",
        names(links)
    );
    Ok(carriers)
}

fn matching<'a>(links: &'a [Link], include: &[Pattern]) -> Result<Vec<&'a Link>> {
    for pattern in include {
        if links.iter().any(|link| pattern.matches(&link.name)) {
            continue;
        }
        let here = names(links);
        match pattern {
            Pattern::Name(name) => {
                let hint = did_you_mean(name, links);
                bail!("there is no interface '{name}'{hint}; interfaces here: {here}")
            }
            Pattern::Glob(_) | Pattern::Regex(_) => {
                bail!("no interface matches '{pattern}'; interfaces here: {here}")
            }
        }
    }
    let included = links
        .iter()
        .filter(|link| include.iter().any(|pattern| pattern.matches(&link.name)));
    Ok(included.collect())
}

/// A glob that excludes what may come is common; a name that is not there may be misspelt.
fn warn_of_idle_exclusions(links: &[Link], exclude: &[Pattern]) {
    for pattern in exclude {
        if let Pattern::Name(name) = pattern
            && !links.iter().any(|link| link.name == *name)
        {
            let hint = did_you_mean(name, links);
            warn!(
                interface = name,
                "excluded, but there is no such interface{hint}"
            );
        }
    }
}

fn unsupported(link: &Link) -> String {
    let Link {
        name,
        hardware_type,
        ..
    } = link;
    format!(
        "{name} has the link type ARPHRD {hardware_type}, which the agent cannot read \
         (it reads Ethernet and bare IP)"
    )
}

fn names<'a>(links: impl IntoIterator<Item = &'a Link>) -> String {
    let names: Vec<_> = links.into_iter().map(|link| link.name.as_str()).collect();
    names.join(", ")
}

fn did_you_mean(name: &str, links: &[Link]) -> String {
    let similar = links
        .iter()
        .map(|link| (strsim::jaro_winkler(name, &link.name), &link.name))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .max_by(|(a, _), (b, _)| a.total_cmp(b));
    similar.map_or_else(String::new, |(_, name)| format!(" (did you mean {name}?)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::links::{AttachedXdp, Counters};

    fn link(ifindex: u32, name: &str, hardware_type: u16) -> Link {
        Link {
            ifindex,
            name: name.to_owned(),
            hardware_type,
            is_up: true,
            is_loopback: name == "lo",
            mtu_bytes: 1500,
            kind: String::new(),
            peer_ifindex: None,
            master_ifindex: None,
            has_lower: false,
            xdp: AttachedXdp::None,
            counters: Counters::default(),
        }
    }

    fn links() -> Vec<Link> {
        vec![
            link(1, "lo", 772),
            link(5, "veth1", 1),
            link(2, "eth0", 1),
            link(3, "tun0", 0xfffe),
            link(4, "ib0", 32),
        ]
    }

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn selected(include: &[&str], exclude: &[&str], routes: &[u32]) -> Result<Vec<String>> {
        let routes = routes.iter().copied().collect();
        let links = select(&links(), &patterns(include), &patterns(exclude), &routes)?;
        Ok(links.into_iter().map(|link| link.name).collect())
    }

    fn refusal(include: &[&str], exclude: &[&str], routes: &[u32]) -> String {
        selected(include, exclude, routes).unwrap_err().to_string()
    }

    #[test]
    fn default_routes_select_where_nothing_is_named() {
        assert_eq!(selected(&[], &[], &[5, 2]).unwrap(), ["eth0", "veth1"]);
    }

    #[test]
    fn without_a_default_route_the_error_lists_what_is_here() {
        assert_eq!(
            refusal(&[], &[], &[]),
            "no interface carries a default route; name one with --interface NAME; \
             interfaces here: lo, veth1, eth0, tun0, ib0"
        );
    }

    #[test]
    fn names_globs_and_regexes_add_up_and_sort_by_ifindex() {
        assert_eq!(
            selected(&["veth?", "/^t.n/", "eth0", "[e]th*"], &[], &[]).unwrap(),
            ["eth0", "tun0", "veth1"]
        );
    }

    #[test]
    fn a_misspelt_name_gets_a_suggestion() {
        let refusal = refusal(&["eht0"], &[], &[]);
        assert!(
            refusal.starts_with("there is no interface 'eht0' (did you mean eth0?); interfaces"),
            "{refusal}"
        );
    }

    #[test]
    fn a_pattern_that_matches_nothing_is_an_error() {
        for pattern in ["wlan*", "/^wlan/"] {
            let refusal = refusal(&["eth0", pattern], &[], &[]);
            assert!(refusal.contains(&format!("'{pattern}'")), "{refusal}");
        }
    }

    #[test]
    fn exclusion_wins_and_must_leave_something() {
        assert_eq!(selected(&["*eth*"], &["veth*"], &[]).unwrap(), ["eth0"]);
        assert_eq!(selected(&["eth0"], &["absent0"], &[]).unwrap(), ["eth0"]);
        let refusal = refusal(&["eth0"], &["/eth/"], &[]);
        assert!(refusal.contains("excluded (eth0)"), "{refusal}");
    }

    #[test]
    fn an_unreadable_link_type_fails_by_name_and_is_skipped_by_pattern() {
        assert!(refusal(&["ib0"], &[], &[]).contains("ARPHRD 32"));
        assert_eq!(
            selected(&["*"], &[], &[]).unwrap(),
            ["lo", "eth0", "tun0", "veth1"]
        );
        assert!(refusal(&["ib*"], &[], &[]).contains("no selected interface"));
        assert!(refusal(&[], &[], &[4]).contains("no selected interface"));
    }

    #[test]
    fn a_bad_pattern_names_itself_and_what_is_allowed() {
        for text in [
            "",
            "/",
            "//",
            "/eth",
            "/(/",
            "eth[",
            "a b",
            "a/b",
            "..",
            "sixteen-bytes-xx",
        ] {
            let error = text.parse::<Pattern>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("'{text}' ")), "{error}");
            assert!(error.contains("allowed are"), "{error}");
        }
    }

    #[test]
    fn commas_separate_patterns_and_stay_within_a_regex() {
        let displayed = |texts: &[&str]| -> Vec<String> {
            let lists: Vec<Patterns> = texts.iter().map(|text| text.parse().unwrap()).collect();
            all(&lists).iter().map(Pattern::to_string).collect()
        };
        assert_eq!(
            displayed(&["eth0,veth*, lo", "/a/"]),
            ["eth0", "veth*", "lo", "/a/"]
        );
        assert_eq!(
            displayed(&["/^e{1,2}$/,lo", "lo,/^(a|b{2,})/ "]),
            ["/^e{1,2}$/", "lo", "lo", "/^(a|b{2,})/"]
        );
        for text in ["", "eth0,", ",eth0", "/a,b"] {
            assert!(text.parse::<Patterns>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_pattern_displays_as_it_was_written() {
        for text in ["eth0", "veth*", "/^en/"] {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
    }
}
