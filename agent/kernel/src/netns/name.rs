//! What `--netns` takes: the name of a network namespace, a path, or a process.

use std::{fmt, path::PathBuf, str::FromStr};

/// The word for the agent's own namespace.
const OWN: &str = "self";

const PROCESS: &str = "pid:";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Netns {
    /// The agent's own.
    Own,
    /// By its name for `ip netns`.
    Name(String),
    Path(PathBuf),
    /// That of a process, by its id.
    Process(u32),
}

impl FromStr for Netns {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == OWN {
            return Ok(Self::Own);
        }
        if text.starts_with('/') {
            return Ok(Self::Path(text.into()));
        }
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let pid = match text.strip_prefix(PROCESS) {
            Some(pid) => Some(pid),
            None => (is_number && !text.is_empty()).then_some(text),
        };
        if let Some(pid) = pid {
            return match pid.parse() {
                Ok(pid) if pid > 0 => Ok(Self::Process(pid)),
                _ => Err(format!("'{pid}' is not a process id")),
            };
        }
        if matches!(text, "" | "." | "..") || text.contains(['/', '\0']) {
            return Err(
                "expected a name as in `ip netns list`, a path that begins with a slash, a process \
                 as pid:N, or self"
                    .to_owned(),
            );
        }
        Ok(Self::Name(text.to_owned()))
    }
}

impl fmt::Display for Netns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str(OWN),
            Self::Name(name) => f.write_str(name),
            Self::Path(path) => path.display().fmt(f),
            Self::Process(pid) => write!(f, "{PROCESS}{pid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_named_in_four_ways() {
        for (text, expected) in [
            ("self", Netns::Own),
            ("blue", Netns::Name("blue".to_owned())),
            ("/run/netns/blue", Netns::Path("/run/netns/blue".into())),
            ("pid:12", Netns::Process(12)),
            ("12", Netns::Process(12)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        assert_eq!("12".parse::<Netns>().unwrap().to_string(), "pid:12");
        for text in [
            "",
            ".",
            "..",
            "a/b",
            "pid:",
            "pid:0",
            "pid:x",
            "0",
            "4294967296",
        ] {
            assert!(text.parse::<Netns>().is_err(), "{text}");
        }
    }
}
