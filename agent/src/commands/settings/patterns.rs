//! Regular expressions for the texts of settings, so that an editor marks what `run` would refuse. They are coarser
//! than the parsers: a text that matches may still be refused.
//!
//! They use only syntax that ECMA-262 (for JSON Schema) and the regex crate (for the tests) share.

use std::{any::TypeId, path::PathBuf, sync::LazyLock, time::Duration};

use clap::builder::ValueParser;
use exporters::settings::OutputArgs;
use kernel::netns::Netns;
use rules::{PacketRules, pattern::Patterns};
use server::{ListenAddr, metrics::MetricsAddress};

use crate::{commands::run::ReportInterval, log_filter::LogFilter};

/// humantime's units.
pub(super) const TIME: &str = concat!(
    r"^(0|( *[0-9]+(\.[0-9]+)? *(nanos|nsec|ns|usec|us|µs|millis|msec|ms|seconds|second|secs|sec|s|",
    "minutes|minute|mins|min|m|hours|hour|hrs|hr|h|days|day|d|weeks|week|wks|wk|w|months|month|M|",
    "years|year|yrs|yr|y))+ *)$",
);
/// A time, or `auto`.
static REPORT_INTERVAL: LazyLock<String> = LazyLock::new(|| TIME.replacen("(0|", "(auto|0|", 1));
const LISTEN: &str = concat!(
    r"^(unix:.{1,107}|(localhost|[0-9]{1,3}(\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:.]+(%[0-9]+)?\]):",
    "[0-9]{1,5})$",
);
const METRICS: &str = concat!(
    r"^(none|[0-9]{1,5}|(localhost|[0-9]{1,3}(\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:.]+(%[0-9]+)?\]):",
    "[0-9]{1,5})$",
);
/// Names, globs and regular expressions, separated by commas.
const INTERFACES: &str = concat!(
    r"^\s*(/.+/|[^/,\s]+|[^,]*[*?\[][^,]*)",
    r"(\s*,\s*(/.+/|[^/,\s]+|[^,]*[*?\[][^,]*))*\s*$",
);
const NETNS: &str = "^(/.*|[^/]+)$";
/// A term's first word, or addresses, or names of protocols.
static FILTER: LazyLock<String> = LazyLock::new(|| {
    let protocols: Vec<String> = proto::protocols::names().map(in_either_case).collect();
    let protocols = protocols.join("|");
    format!(
        r"^[\s;]*(((include|exclude)\s+)?(all|ingress|egress|((src|dst|net|host|port|proto|on)\s+\S+|[0-9A-Fa-f]*[.:][0-9A-Fa-f.:/,]*|({protocols})(,\S*)?))([\s;].*)?)?$"
    )
});

/// A pattern for a word in upper or lower case.
fn in_either_case(word: &str) -> String {
    let letter = |letter: char| {
        if letter.is_ascii_alphabetic() {
            format!("[{}{letter}]", letter.to_ascii_uppercase())
        } else {
            letter.to_string()
        }
    };
    word.chars().map(letter).collect()
}
/// A level, or any text that is not a lone word.
const LOG: &str = concat!(
    "^([Oo][Ff][Ff]|[Ee][Rr][Rr][Oo][Rr]|[Ww][Aa][Rr][Nn]|[Ii][Nn][Ff][Oo]|",
    "[Dd][Ee][Bb][Uu][Gg]|[Tt][Rr][Aa][Cc][Ee]|.*[^A-Za-z].*)$",
);
const PATH: &str = "^.+$";
/// A table may replace it; see [`exporters::settings`].
const OUTPUT: &str = "^(none|table|json|[a-z0-9]+=[^,]+)(,(none|table|json|[a-z0-9]+=[^,]+))*$";

/// The pattern for the texts of this parser.
pub(super) fn of(parser: &ValueParser) -> Option<&'static str> {
    let known = [
        (TypeId::of::<Duration>(), TIME),
        (TypeId::of::<ReportInterval>(), REPORT_INTERVAL.as_str()),
        (TypeId::of::<ListenAddr>(), LISTEN),
        (TypeId::of::<MetricsAddress>(), METRICS),
        (TypeId::of::<Patterns>(), INTERFACES),
        (TypeId::of::<Netns>(), NETNS),
        (TypeId::of::<PacketRules>(), &FILTER),
        (TypeId::of::<LogFilter>(), LOG),
        (TypeId::of::<PathBuf>(), PATH),
        (TypeId::of::<OutputArgs>(), OUTPUT),
    ];
    let parsed = parser.type_id();
    let mut known = known.into_iter();
    known.find_map(|(id, pattern)| (parsed == id).then_some(pattern))
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::super::{
        command,
        declared::{Declared, Kind},
    };

    /// Per setting: texts that the option takes, and texts that it refuses.
    const TEXTS: [(&str, &[&str], &[&str]); 10] = [
        (
            "scan_interval",
            &[
                "10ms",
                "1m 30s",
                "1h30m",
                "1.5h",
                "2 days",
                "1M",
                "20 µs 1s",
            ],
            &["banana", "10", "", "-1s", "1.s", "10 lightyears", "s"],
        ),
        (
            "listen",
            &["unix:/run/a.sock", "0.0.0.0:1", "[::1]:0", "localhost:80"],
            &["unix:", "a.example:1", "127.0.0.1", "50051", "::1:1", ""],
        ),
        (
            "metrics",
            &["none", "0", "9100", "127.0.0.1:1", "[::]:0"],
            &["", "off", "unix:/a", "a.example:1", "127.0.0.1"],
        ),
        (
            "interface",
            &["eth0", "veth*", "/^e{1,2}$/", "lo, /a/,[bc]?", "e[!/]"],
            &["", "a b", "a/b", "/eth", "eth0,"],
        ),
        ("netns", &["self", "pid:7", "/run/netns/a"], &["", "a/b"]),
        (
            "filter",
            &[
                "exclude all",
                "include port 1; exclude all;",
                " include all",
                "port https; exclude host 10.0.0.1",
                "10.0.0.0/8,::1 TCP,udp",
                "exclude icmp6",
                "dst fd00::1",
                "ingress;",
            ],
            &["banana", "include", "excluded all", "port", "443", "alls"],
        ),
        ("filter_file", &["/a b"], &[""]),
        (
            "log",
            &["info", "OFF", "warn,agent::scan=debug", "agent=trace"],
            &["banana", ""],
        ),
        ("linger", &["0s", "0"], &["0x", "00"]),
        (
            "output",
            &[
                "none",
                "json",
                "jsonl=/a=b",
                "table,jsonl=a b",
                "ipfix=udp://[::1]:1",
                "otlp=http://a/b",
            ],
            &["", "jsonl", "jsonl=", "table,", "tables"],
        ),
    ];

    #[test]
    fn every_text_has_a_pattern_that_its_default_matches() {
        let command = command();
        for setting in Declared::all(&command) {
            let pattern = setting.pattern();
            assert_eq!(
                pattern.is_some(),
                setting.kind() == Kind::Text,
                "{}",
                setting.name()
            );
            let Some(pattern) = pattern else { continue };
            let pattern = Regex::new(pattern).unwrap();
            for default in setting.defaults() {
                assert!(pattern.is_match(&default), "{}: {default}", setting.name());
            }
        }
    }

    #[test]
    fn patterns_take_what_options_take_and_refuse_what_they_refuse() {
        let command = command();
        for (name, taken, refused) in TEXTS {
            let setting = Declared::named(&command, name).unwrap();
            let pattern = Regex::new(setting.pattern().unwrap()).unwrap();
            let texts = taken.iter().map(|text| (text, true));
            for (text, is_taken) in texts.chain(refused.iter().map(|text| (text, false))) {
                let is_accepted = setting.refusal(text).is_none();
                let matches = pattern.is_match(text);
                assert_eq!(
                    (is_accepted, matches),
                    (is_taken, is_taken),
                    "{name}: '{text}'"
                );
            }
        }
    }
}
