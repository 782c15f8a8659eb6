//! Patterns that select interfaces: a name, a glob, or a regular expression.

use std::{fmt, str::FromStr};

use anyhow::{Context as _, Result, anyhow};
use regex_lite::Regex;

use crate::link_names::LinkNames;

const ALLOWED: &str = "a name as in eth0, a glob as in 'veth*' (with *, ? or [...]), \
                       or a regex between slashes as in '/^(eth|en)/'";

/// The longest alternative name of an interface in bytes: `ALTIFNAMSIZ` less its NUL.
const NAME_MAX_LEN_BYTES: usize = 127;

/// A value of `--interface` or `--exclude-interface`.
#[derive(Debug, Clone)]
pub enum Pattern {
    Name(String),
    Glob(glob::Pattern),
    /// Matches anywhere in the name unless it is anchored.
    Regex(Regex),
}

impl Pattern {
    /// Whether it matches one of an interface's names.
    pub fn matches_any(&self, names: &LinkNames) -> bool {
        names.all().any(|name| self.matches(name))
    }

    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Name(exact) => exact == name,
            Self::Glob(glob) => glob.matches(name),
            Self::Regex(regex) => regex.is_match(name),
        }
    }

    /// Parses a name or a glob, but no regex. The error completes a sentence that begins with the text.
    pub fn name_or_glob(text: &str) -> Result<Self, String> {
        if text.contains(['*', '?', '[']) {
            let glob = glob::Pattern::new(text).map_err(|error| {
                let (message, position) = (error.msg, error.pos + 1);
                format!("is not a glob: {message} at character {position}")
            })?;
            return Ok(Self::Glob(glob));
        }
        let fault = match text {
            "" => "is empty",
            "." | ".." => "is not a valid name of an interface",
            _ if text.contains(|character: char| character == '/' || character.is_whitespace()) => {
                "has a slash or a space, which no interface's name has"
            }
            _ if text.contains([':', '\0']) => {
                "has a colon or a zero byte, which no interface's name has"
            }
            _ if text.len() > NAME_MAX_LEN_BYTES => {
                "is longer than the 127 bytes of an interface's alternative name"
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
                format!("'{text}' begins a regex but does not end it; allowed are {ALLOWED}")
            })?;
            let regex = Regex::new(regex).map_err(|error| {
                anyhow!("'{text}' is not a regex: {error}; allowed are {ALLOWED}")
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

/// Patterns separated by commas, from one argument or variable.
///
/// A regex may contain commas, like `/^eth{1,2}$/`, so it ends only at a slash before a comma or at the end.
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

/// The patterns of several arguments together.
pub fn all(lists: &[Patterns]) -> Vec<Pattern> {
    let patterns = lists.iter().flat_map(|list| &list.0);
    patterns.cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_pattern_names_itself_and_what_is_allowed() {
        let long = "l".repeat(NAME_MAX_LEN_BYTES + 1);
        assert!(long[1..].parse::<Pattern>().is_ok());
        for text in [
            "", "/", "//", "/eth", "/(/", "eth[", "a b", "a/b", "..", "eth0:1", "eth\0", &long,
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
