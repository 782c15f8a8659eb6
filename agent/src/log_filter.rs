//! What is logged: a level, and levels of modules. They may change while the process runs.
//!
//! A module begins with the name of its crate, as in `kernel::attach`. `agent` stands for all crates of the agent that the filter
//! does not name.

use std::{fmt, str::FromStr};

use anyhow::{Result as Outcome, bail};
use rules::similar;
use tracing_subscriber::filter::{LevelFilter, Targets};

/// The crates of the agent beside `agent` itself.
const CRATES: [&str; 13] = [
    "collector",
    "enrich",
    "exporters",
    "flows",
    "formats",
    "hub",
    "kernel",
    "proto",
    "rules",
    "server",
    "sys",
    "tls",
    "view",
];

/// A filter that can be parsed, such as `info` or `warn,agent::scan=debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

impl LogFilter {
    /// The filter for the process's log.
    pub fn for_the_log(&self) -> Targets {
        let filter: Targets = self.0.parse().expect("it was parsed before");
        let filter = with_all_crates(filter);
        // Only --bpf-log-level decides what the kernel programs log.
        let filter = filter.with_target("flow_agent_ebpf", LevelFilter::TRACE);
        // These crates log each malformed frame or answer, and a peer may send millions. Our own lines are
        // rate-limited.
        ["h2", "rskafka"].into_iter().fold(filter, |filter, name| {
            let is_named = filter
                .iter()
                .any(|(target, _)| target.split(':').next() == Some(name));
            if is_named {
                filter
            } else {
                filter.with_target(name, LevelFilter::OFF)
            }
        })
    }
}

/// Gives the level of `agent` to its crates that have none of their own.
fn with_all_crates(filter: Targets) -> Targets {
    let named: Vec<_> = filter.iter().map(|(target, _)| target.to_owned()).collect();
    let of_agent = filter.iter().find(|(target, _)| *target == "agent");
    let Some((_, level)) = of_agent else {
        return filter;
    };
    let others = CRATES
        .into_iter()
        .filter(|name| named.iter().all(|one| one != name));
    others.fold(filter, |filter, name| filter.with_target(name, level))
}

impl Default for LogFilter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const ALLOWED: &str = "error, warn, info, debug, trace or off, or a filter such as \
                               warn,agent::scan=debug";
        if text.trim().is_empty() {
            return Err(format!("expected {ALLOWED}"));
        }
        // tracing would take some of these for module names.
        if let Some(odd) = text.split(',').find(|part| !is_directive(part)) {
            return Err(format!(
                "'{odd}' is neither a level nor a level of a module; expected {ALLOWED}"
            ));
        }
        text.parse::<Targets>()
            .map_err(|error| format!("{error}; expected {ALLOWED}"))?;
        // tracing takes a word that is no level for a module name, and would then log that module only.
        let is_word = text.chars().all(char::is_alphabetic);
        if is_word && text.parse::<LevelFilter>().is_err() {
            let levels = ["error", "warn", "info", "debug", "trace", "off"];
            let hint = similar::hint(&text.to_lowercase(), levels);
            return Err(format!(
                "there is no level '{text}'{hint} (a module of this name is {text}=trace); expected {ALLOWED}"
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

/// Whether this is a level, a module, or `module=level`.
fn is_directive(part: &str) -> bool {
    let (module, level) = part
        .split_once('=')
        .map_or((part, None), |(module, level)| (module, Some(level)));
    let is_name = |name: &str| {
        let is_odd = |letter: char| !letter.is_alphanumeric() && !"_:-".contains(letter);
        !name.is_empty() && !name.contains(is_odd)
    };
    is_name(module) && level.is_none_or(|level| !level.is_empty())
}

impl fmt::Display for LogFilter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Changes the log filter of the process.
pub struct LogControl(Box<dyn Fn(Targets) -> Outcome<()> + Send + Sync>);

impl LogControl {
    /// `change` applies a filter.
    pub fn new(change: impl Fn(Targets) -> Outcome<()> + Send + Sync + 'static) -> Self {
        Self(Box::new(change))
    }

    /// For a process whose log filter is fixed.
    pub fn fixed() -> Self {
        Self::new(|_| bail!("this program cannot change what it logs"))
    }

    pub fn set(&self, filter: &LogFilter) -> Outcome<()> {
        (self.0)(filter.for_the_log())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn libraries_that_a_peer_can_make_log_do_so_where_they_are_named_alone() {
        let enables = |text: &str| {
            let filter: LogFilter = text.parse().unwrap();
            let log = tracing_subscriber::registry().with(filter.for_the_log());
            tracing::subscriber::with_default(log, || {
                [
                    tracing::enabled!(target: "h2::proto::ping_pong", tracing::Level::WARN),
                    tracing::enabled!(target: "server::calls", tracing::Level::WARN),
                ]
            })
        };
        for text in ["info", "trace", "warn,agent::scan=debug", "info,h2o=debug"] {
            assert_eq!(enables(text), [false, true], "{text}");
        }
        for text in ["info,h2=warn", "info,h2::proto=debug"] {
            assert_eq!(enables(text), [true, true], "{text}");
        }
        assert_eq!(enables("h2"), [true, false]);
    }

    #[test]
    fn agent_stands_for_all_its_crates_that_are_not_named() {
        let folders = std::fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap();
        let folders = folders.map(|folder| folder.unwrap().path());
        let crates = folders.filter(|folder| folder.join("Cargo.toml").is_file());
        let crates: BTreeSet<_> = crates
            .map(|folder| folder.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(crates, CRATES.map(str::to_owned).into());
        let levels = |text: &str| -> BTreeMap<String, LevelFilter> {
            let filter = text.parse::<LogFilter>().unwrap().for_the_log();
            let levels = filter
                .iter()
                .map(|(target, level)| (target.to_owned(), level));
            levels.collect()
        };
        let told = levels("warn,agent=debug,kernel=info");
        for (name, level) in [
            ("agent", LevelFilter::DEBUG),
            ("server", LevelFilter::DEBUG),
            ("kernel", LevelFilter::INFO),
        ] {
            assert_eq!(told[name], level, "{name}");
        }
        assert!(!levels("warn,agent::scan=debug").contains_key("server"));
    }

    #[test]
    fn a_filter_is_a_level_or_directives_and_no_misspelt_level() {
        for text in [
            "info",
            "DEBUG",
            "off",
            "warn,agent::scan=debug",
            "agent=trace",
        ] {
            assert_eq!(text.parse::<LogFilter>().unwrap().to_string(), text);
        }
        for (text, meant) in [("inof", "info"), ("WARNING", "warn"), ("eror", "error")] {
            let error = text.parse::<LogFilter>().unwrap_err();
            assert!(
                error.contains(&format!("(did you mean {meant}?)")),
                "{error}"
            );
        }
        for text in [
            "",
            " ",
            "inof",
            "agent=loud",
            "agent::scan=debug=info",
            "info,",
            "warn, agent=debug",
            "agent=",
            "agent[scan]=debug",
            "agent[{peer}]=debug",
        ] {
            let error = text.parse::<LogFilter>().unwrap_err();
            assert!(
                error.contains("expected error, warn, info"),
                "{text}: {error}"
            );
        }
    }
}
