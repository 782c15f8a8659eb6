//! The page behind the page: every measure of every experiment, in tables.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use super::{
    markdown::{head, line},
    units,
};
use crate::live::{
    difference::Difference,
    host::Host,
    http,
    result::{Row, Run},
};

/// Bench, measure, and which arm is shown over which.
const RATIOS: &[(&str, &str, &str, &str)] = &[
    ("overhead", "net_ns_per_packet", "agent", "bare"),
    ("overhead", "packets_per_second", "agent", "nothing"),
    ("overhead", "tcp_bytes_per_second", "agent", "nothing"),
    ("sweep", "cpu_percent", "agent", "capture"),
    ("sweep", "process_cpu_percent", "agent", "capture"),
    ("sweep", "resident_bytes", "agent", "capture"),
    ("sweep", "memory_bytes", "agent", "capture"),
    ("http", "latency_p50_us", "agent", "nothing"),
    ("http", "latency_p99_us", "agent", "nothing"),
    ("http", "latency_p999_us", "agent", "nothing"),
    ("compare", "packets_per_second", "agent", "nothing"),
    ("peers", "cpu_percent", "agent", "softflowd"),
    ("peers", "cpu_percent", "agent", "pmacct"),
    ("filters", "program_ns_per_packet", "1 network", "no rules"),
    (
        "filters",
        "program_ns_per_packet",
        "100 networks",
        "no rules",
    ),
    (
        "filters",
        "program_ns_per_packet",
        "1000 networks",
        "no rules",
    ),
    ("filters", "packets_per_second", "1000 networks", "no rules"),
    ("newflows", "lossless_flows_per_second", "early", "interval"),
];

/// Each function writes into a `String`, which cannot fail.
pub fn page(runs: &[Run]) -> String {
    let mut out = String::from(
        "# Overhead: all that was measured\n\n\
         Made by `cargo xtask report` from the result files beside it, for [the page](README.md) that says\n\
         what it means. A figure is the median of the rounds, with the lowest and the highest in\n\
         parentheses. Arms are measured by turns; a ratio is taken round by round, so that a machine whose\n\
         speed swings slows both sides of it.\n",
    );
    for run in runs {
        section(&mut out, run);
    }
    out
}

fn section(out: &mut String, run: &Run) {
    let _ = write!(out, "\n## {}\n\n{}\n", run.bench, origin(run));
    let measures: BTreeSet<&str> = lines(run).keys().map(|(measure, _)| *measure).collect();
    for measure in measures {
        table(out, run, measure);
    }
    if run.bench == "http" {
        differences(out, run);
    }
    if !run.notes.is_empty() {
        out.push('\n');
    }
    for note in &run.notes {
        let _ = writeln!(out, "- {note}");
    }
    if run.rows.iter().any(|row| row.arm == "reference") {
        out.push_str(
            "- A reference step is work that never changes, timed in every round: a figure in such steps \
             does not depend on how fast the machine was at the moment.\n",
        );
    }
}

/// Where, when and of what the figures are.
fn origin(run: &Run) -> String {
    format!(
        "{}, governor {}, load {} before the run; agent {} ({}); {} rounds{}; {}",
        machine(&run.host),
        run.host.governor,
        run.host.load,
        run.agent_version,
        run.commit,
        run.rounds,
        reservation(run),
        run.started,
    )
}

pub fn machine(host: &Host) -> String {
    format!(
        "{}, {} CPUs, {:.0} GiB, kernel {}, {}",
        host.cpu,
        host.cpus,
        host.memory_bytes as f64 / f64::from(1 << 30),
        host.kernel,
        if host.virtualization == "none" {
            "bare metal"
        } else {
            "virtual machine"
        },
    )
}

/// Why a run says less than others; empty for most.
pub fn reservation(run: &Run) -> String {
    let part = if run.sections.is_empty() {
        String::new()
    } else {
        format!(", only {}", run.sections.join(", "))
    };
    let quick = if run.quick {
        ", quick: to see that it works, not to publish"
    } else {
        ""
    };
    format!("{part}{quick}")
}

fn table(out: &mut String, run: &Run, measure: &str) {
    let arms = arms(run, measure);
    let ratios: Vec<_> = RATIOS
        .iter()
        .filter(|(bench, of, _, _)| *bench == run.bench && *of == measure)
        .collect();
    let mut header = vec!["scenario".to_owned()];
    header.extend(arms.iter().map(|arm| (*arm).to_owned()));
    header.extend(ratios.iter().map(|(_, _, arm, to)| format!("{arm} / {to}")));
    // The stage or the arm that is ours, where it is a time.
    let in_steps = units::nanoseconds(measure).zip(arms.iter().find(|arm| **arm == "agent"));
    header.extend(in_steps.map(|(_, arm)| format!("{arm}, reference steps")));
    let _ = write!(out, "\n### {}\n\n", units::title(measure));
    head(out, &header);
    for ((_, scenario), by_arm) in lines(run).iter().filter(|((of, _), _)| *of == measure) {
        let mut cells = vec![words(scenario)];
        for arm in &arms {
            let figure = by_arm.get(arm).and_then(|row| row.figure());
            cells.push(
                figure.map_or_else(|| "n/a".to_owned(), |figure| units::figure(measure, figure)),
            );
        }
        for (_, _, arm, to) in &ratios {
            cells.push(ratio_of(by_arm, arm, to));
        }
        if let Some((unit_ns, arm)) = in_steps {
            let steps = by_arm.get(arm).and_then(|row| {
                let reference = run.row(&row.scenario, "reference", "step_ns")?;
                Some(row.ratio_to(reference)?.median * unit_ns)
            });
            cells.push(steps.map_or_else(|| "n/a".to_owned(), |steps| format!("{steps:.0}")));
        }
        line(out, &cells);
    }
}

/// What each arm adds to the latency without an agent.
fn differences(out: &mut String, run: &Run) {
    let header = ["measure", "arm", "over nothing", "confidence interval"].map(str::to_owned);
    out.push_str("\n### difference\n\n");
    head(out, &header);
    for (row, difference) in http::differences(run) {
        let Difference {
            median,
            low,
            high,
            coverage_percent,
        } = difference;
        let cells = [
            units::title(&row.measure),
            row.arm.clone(),
            format!("{median:+.0}"),
            format!("{low:+.0} to {high:+.0} ({coverage_percent:.0} %)"),
        ];
        line(out, &cells);
    }
}

fn ratio_of(by_arm: &BTreeMap<&str, &Row>, arm: &str, to: &str) -> String {
    let ratio = by_arm
        .get(arm)
        .zip(by_arm.get(to))
        .and_then(|(over, under)| over.ratio_to(under));
    ratio.map_or_else(|| "n/a".to_owned(), units::ratio)
}

fn words(scenario: &[(&str, Sortable<'_>)]) -> String {
    let words: Vec<String> = scenario
        .iter()
        .map(|(name, value)| {
            let name = name.replace('_', " ");
            match value {
                Sortable::Number(number) => format!("{name} {number}"),
                Sortable::Text(text) => format!("{name} {text}"),
            }
        })
        .collect();
    words.join(", ")
}

/// Rows of the same scenario and measure stand together: a line of a table, by arm.
type Lines<'a> = BTreeMap<(&'a str, Vec<(&'a str, Sortable<'a>)>), BTreeMap<&'a str, &'a Row>>;

/// Sorts as a number where it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sortable<'a> {
    Number(u64),
    Text(&'a str),
}

impl<'a> Sortable<'a> {
    fn new(text: &'a str) -> Self {
        text.parse().map_or(Self::Text(text), Self::Number)
    }
}

fn lines(run: &Run) -> Lines<'_> {
    let mut lines = Lines::new();
    for row in run.rows.iter().filter(|row| row.arm != "reference") {
        let scenario = row
            .scenario
            .iter()
            .map(|(name, value)| (name.as_str(), Sortable::new(value)))
            .collect();
        lines
            .entry((row.measure.as_str(), scenario))
            .or_default()
            .insert(row.arm.as_str(), row);
    }
    lines
}

/// Arms in the order in which they were measured first.
fn arms<'a>(run: &'a Run, measure: &str) -> Vec<&'a str> {
    let mut arms: Vec<&str> = Vec::new();
    for row in run.rows.iter().filter(|row| row.measure == measure) {
        if row.arm != "reference" && !arms.contains(&row.arm.as_str()) {
            arms.push(&row.arm);
        }
    }
    arms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_their_order_and_before_words() {
        let mut values = ["10000", "insert", "9", "500000"].map(Sortable::new);
        values.sort();
        assert_eq!(
            values,
            ["9", "10000", "500000", "insert"].map(Sortable::new)
        );
    }
}
