//! The figures that decide whether one wants the agent: all of them for the page about overhead, a few for the README.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    markdown::{line, origin, ratio_of},
    units,
};
use crate::live::result::{Row, Run};

/// A line of the table. A bench that comes later adds its own.
struct Headline {
    bench: &'static str,
    /// What is measured, in words.
    title: &'static str,
    /// Labels of the scenario that decide.
    scenario: &'static [(&'static str, &'static str)],
    measure: &'static str,
    arm: &'static str,
    against: Against,
}

enum Against {
    /// Another arm of the same run, with what it is in words.
    Arm(&'static str, &'static str),
    /// What we promise, in words.
    Promise(&'static str),
    /// A figure in the measure's own unit that somebody else published.
    Published(f64, &'static str),
}

use Against::{Arm, Promise, Published};

const BARE: Against = Arm(
    "bare",
    "the least that a flow table in a kernel hash map takes",
);
const NOTHING: Against = Arm("nothing", "no agent");
const CAPTURE: Against = Arm("capture", "a packet capture (TPACKET_V3)");
const ON_TIME: Against = Arm("interval", "`--early-scan 0`");

const fn hit(
    title: &'static str,
    scenario: &'static [(&'static str, &'static str)],
    measure: &'static str,
    against: Against,
) -> Headline {
    Headline {
        bench: "overhead",
        title,
        scenario,
        measure,
        arm: "agent",
        against,
    }
}

const fn filtered(title: &'static str, arm: &'static str) -> Headline {
    Headline {
        bench: "filters",
        title,
        scenario: &[("hook", "tc"), ("flows", "10000")],
        measure: "program_ns_per_packet",
        arm,
        against: Arm("no rules", "no rules"),
    }
}

const HEADLINES: &[Headline] = &[
    hit(
        "a packet of the only flow, over an empty program on TC",
        &[
            ("hook", "tc"),
            ("path", "hit"),
            ("flows", "1"),
            ("frame_bytes", "64"),
        ],
        "net_ns_per_packet",
        BARE,
    ),
    hit(
        "a packet of one of 10,000 flows",
        &[("hook", "tc"), ("path", "hit"), ("flows", "10000")],
        "net_ns_per_packet",
        BARE,
    ),
    hit(
        "a packet of one of 500,000 flows, at random",
        &[("hook", "tc"), ("path", "hit"), ("flows", "500000")],
        "net_ns_per_packet",
        BARE,
    ),
    hit(
        "the first packet of a flow",
        &[("hook", "tc"), ("path", "insert")],
        "net_ns_per_packet",
        BARE,
    ),
    hit(
        "packets a second through one CPU, 64 bytes, TC",
        &[
            ("hook", "tc"),
            ("path", "hit"),
            ("flows", "1"),
            ("frame_bytes", "64"),
        ],
        "packets_per_second",
        NOTHING,
    ),
    hit(
        "one TCP stream",
        &[("traffic", "one TCP stream")],
        "tcp_bytes_per_second",
        NOTHING,
    ),
    filtered(
        "a packet held against 1 network of filter rules",
        "1 network",
    ),
    filtered("the same with 100 networks", "100 networks"),
    filtered("the same with 1,000 networks", "1000 networks"),
    Headline {
        bench: "sweep",
        title: "CPU, kernel and process, 10,000 flows at 250,000 packets/s",
        scenario: &[("section", "flows"), ("flows", "10000")],
        measure: "cpu_percent",
        arm: "agent",
        against: CAPTURE,
    },
    Headline {
        bench: "sweep",
        title: "the same with 500,000 flows",
        scenario: &[("section", "flows"), ("flows", "500000")],
        measure: "cpu_percent",
        arm: "agent",
        against: CAPTURE,
    },
    Headline {
        bench: "sweep",
        title: "the same with 1,000,000 flows",
        scenario: &[("section", "flows"), ("flows", "1000000")],
        measure: "cpu_percent",
        arm: "agent",
        against: CAPTURE,
    },
    Headline {
        bench: "sweep",
        title: "CPU of the process, 500,000 flows every 10 s",
        scenario: &[
            ("section", "table"),
            ("table", "500000"),
            ("scan_interval", "10s"),
        ],
        measure: "process_cpu_percent",
        arm: "agent",
        against: Published(50.0, "Skydive: at most half a core"),
    },
    Headline {
        bench: "sweep",
        title: "resident memory a flow, 500,000 flows",
        scenario: &[("section", "flows"), ("flows", "500000")],
        measure: "resident_bytes_per_flow",
        arm: "agent",
        against: CAPTURE,
    },
    Headline {
        bench: "newflows",
        title: "new flows a second without a loss, table of 65,536, every 10 s, no consumer",
        scenario: &[("table", "65536"), ("scan_interval", "10s")],
        measure: "lossless_flows_per_second",
        arm: "early",
        against: ON_TIME,
    },
    Headline {
        bench: "newflows",
        title: "the same with a table of 500,000",
        scenario: &[("table", "500000"), ("scan_interval", "10s")],
        measure: "lossless_flows_per_second",
        arm: "early",
        against: ON_TIME,
    },
    Headline {
        bench: "userspace",
        title: "a flow in userspace, 500,000 flows: drain, replica, encoding",
        scenario: &[("table", "kernel"), ("profile", "500k")],
        measure: "cpu_ns_per_flow",
        arm: "drain_and_cycle",
        against: Published(9000.0, "a peer at 500,000 flows"),
    },
    Headline {
        bench: "userspace",
        title: "a flow in userspace, 50 peers on 8 ports: replica, encoding",
        scenario: &[("table", "synthetic"), ("profile", "probectl")],
        measure: "cpu_ns_per_flow",
        arm: "cycle",
        against: Published(1750.0, "probectl, the part that it measures"),
    },
    Headline {
        bench: "http",
        title: "99th percentile of HTTP requests that take 5 ms",
        scenario: &[],
        measure: "latency_p99_us",
        arm: "agent",
        against: NOTHING,
    },
    Headline {
        bench: "http",
        title: "programs' time an HTTP request",
        scenario: &[],
        measure: "program_ns_per_request",
        arm: "agent",
        against: Published(500.0, "Beyla, which sees requests and not packets"),
    },
    Headline {
        bench: "http",
        title: "packets lost while the agent was stopped for 30 s",
        scenario: &[],
        measure: "unseen_packets",
        arm: "stopped",
        against: Promise("none is unaccounted for"),
    },
];

/// Which of them the README shows, by their titles.
const IN_README: [&str; 5] = [
    "a packet of one of 10,000 flows",
    "packets a second through one CPU, 64 bytes, TC",
    "CPU, kernel and process, 10,000 flows at 250,000 packets/s",
    "CPU of the process, 500,000 flows every 10 s",
    "resident memory a flow, 500,000 flows",
];

/// What was not measured on a host says n/a.
pub fn text(runs: &[Run]) -> String {
    tables(runs, |out, runs| {
        table(out, runs, |_| true);
        out.push('\n');
        for run in runs {
            // A string takes everything.
            let _ = writeln!(out, "- {}: {}", run.bench, origin(run));
        }
    })
}

/// As [`text`], the few.
pub fn brief(runs: &[Run]) -> String {
    tables(runs, |out, runs| {
        table(out, runs, |headline| IN_README.contains(&headline.title));
    })
}

/// One for each host.
fn tables(runs: &[Run], write: impl Fn(&mut String, &[&Run])) -> String {
    let mut hosts: BTreeMap<String, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        hosts.entry(run.host.slug()).or_default().push(run);
    }
    let mut out = String::new();
    for runs in hosts.values() {
        write(&mut out, runs);
    }
    out
}

fn table(out: &mut String, runs: &[&Run], is_wanted: impl Fn(&Headline) -> bool) {
    line(
        out,
        &["what", "flow-agent", "against", "ratio"].map(str::to_owned),
    );
    line(out, &vec!["---".to_owned(); 4]);
    for headline in HEADLINES.iter().filter(|headline| is_wanted(headline)) {
        let run = runs.iter().find(|run| run.bench == headline.bench);
        line(out, &headline.cells(run.copied()));
    }
}

impl Headline {
    fn cells(&self, run: Option<&Run>) -> [String; 4] {
        let none = || "n/a".to_owned();
        let by_arm = run.map(|run| self.rows(run)).unwrap_or_default();
        let measured = by_arm.get(self.arm).copied();
        let text = |row: &Row| Some(units::figure_with_unit(self.measure, row.figure()?));
        let ours = measured.and_then(text).unwrap_or_else(none);
        let (against, ratio) = match self.against {
            Arm(arm, words) => {
                let theirs = by_arm.get(arm).copied().and_then(text).unwrap_or_else(none);
                let ratio = ratio_of(&by_arm, self.arm, arm);
                (format!("{theirs}: {words}"), ratio)
            }
            Promise(words) => (words.to_owned(), none()),
            Published(figure, words) => {
                let median = measured.and_then(Row::figure).map(|figure| figure.median);
                let ratio =
                    median.map_or_else(none, |median| format!("**{:.2}**", median / figure));
                (
                    format!(
                        "published by others: {}, {words}",
                        units::with_unit(self.measure, figure)
                    ),
                    ratio,
                )
            }
        };
        [self.title.to_owned(), ours, against, ratio]
    }

    fn rows<'a>(&self, run: &'a Run) -> BTreeMap<&'a str, &'a Row> {
        run.rows
            .iter()
            .filter(|row| {
                row.measure == self.measure
                    && self.scenario.iter().all(|(name, value)| {
                        row.scenario.get(*name).is_some_and(|other| other == value)
                    })
            })
            .map(|row| (row.arm.as_str(), row))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_stands_against_what_it_is_to_be_held_against() {
        let mut run = Run::new("overhead", false, 1).unwrap();
        let labels = BTreeMap::from(
            [
                ("hook", "tc"),
                ("path", "hit"),
                ("flows", "10000"),
                ("frame_bytes", "64"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        run.add(&labels, "agent", "net_ns_per_packet", 90.0);
        run.add(&labels, "bare", "net_ns_per_packet", 100.0);
        let text = text(&[run]);
        let mut of_hits = text.lines().filter(|line| line.contains("10,000 flows"));
        let line = of_hits.next().unwrap();
        assert!(
            line.contains("90.0") && line.contains("100.0") && line.contains("**0.90**"),
            "{line}"
        );
        assert!(of_hits.next().unwrap().contains("n/a"));
    }

    #[test]
    fn the_readme_shows_five_of_the_figures() {
        let known = |title: &&str| HEADLINES.iter().any(|headline| headline.title == *title);
        assert!(IN_README.iter().all(known));
        let run = Run::new("overhead", false, 1).unwrap();
        assert_eq!(brief(&[run]).lines().count(), 2 + IN_README.len());
    }
}
