//! Tables: runs come in, Markdown goes out.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use super::{RATIOS, Sortable, arms, lines, units};
use crate::live::{
    difference::Difference,
    http,
    result::{Figure, Row, Run},
};

/// Plots by bench and host.
type Plots = BTreeMap<(String, String), Vec<String>>;

/// Each function writes into a `String`, which cannot fail.
pub fn page(runs: &[Run], plots: &Plots) -> String {
    let mut out = String::from(
        "# Overhead, measured\n\n\
         Made by `cargo xtask report` from the result files beside it; `cargo xtask bench` makes those.\n\
         A figure is the median of the rounds, with the lowest and the highest in parentheses. Arms are\n\
         measured by turns; a ratio is taken round by round, so that a machine whose speed swings\n\
         slows both sides of it.\n",
    );
    out.push_str("\n## What decides\n\n");
    out.push_str(&super::summary::text(runs));
    for run in runs {
        let none = Vec::new();
        let of_run = plots
            .get(&(run.bench.clone(), run.host.slug()))
            .unwrap_or(&none);
        section(&mut out, run, of_run);
    }
    out
}

fn section(out: &mut String, run: &Run, plots: &[String]) {
    let _ = write!(out, "\n## {}\n\n{}\n", run.bench, origin(run));
    for plot in plots {
        let _ = write!(out, "\n![{}]({plot})\n", plot.trim_end_matches(".svg"));
    }
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
            "- A reference step is one of work that never changes, timed in every round: what a figure \
             is in such steps does not depend on how fast the machine was at the moment.\n",
        );
    }
}

/// Where, when and of what the figures are.
pub(super) fn origin(run: &Run) -> String {
    let host = &run.host;
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
    format!(
        "{}, {} CPUs, {:.0} GiB, kernel {}, {}, governor {}, load {} before the run; agent {} ({}); {} \
         rounds{part}{quick}; {}",
        host.cpu,
        host.cpus,
        host.memory_bytes as f64 / f64::from(1 << 30),
        host.kernel,
        if host.virtualization == "none" {
            "bare metal"
        } else {
            "virtual machine"
        },
        host.governor,
        host.load,
        run.agent_version,
        run.commit,
        run.rounds,
        run.started,
    )
}

fn table(out: &mut String, run: &Run, measure: &str) {
    let arms = arms(run, measure);
    let ratios: Vec<_> = RATIOS
        .iter()
        .filter(|ratio| ratio.bench == run.bench && ratio.measure == measure)
        .collect();
    let mut header = vec!["scenario".to_owned()];
    header.extend(arms.iter().map(|arm| (*arm).to_owned()));
    header.extend(
        ratios
            .iter()
            .map(|ratio| format!("{} / {}", ratio.arm, ratio.to)),
    );
    // The stage or the arm that is ours, where it is a time.
    let in_steps = units::nanoseconds(measure).zip(arms.iter().find(|arm| **arm == "agent"));
    header.extend(in_steps.map(|(_, arm)| format!("{arm}, reference steps")));
    let _ = write!(out, "\n### {}\n\n", units::title(measure));
    line(out, &header);
    line(out, &vec!["---".to_owned(); header.len()]);
    for ((_, scenario), by_arm) in lines(run).iter().filter(|((of, _), _)| *of == measure) {
        let mut cells = vec![words(scenario)];
        for arm in &arms {
            let figure = by_arm.get(arm).and_then(|row| row.figure());
            cells.push(
                figure.map_or_else(|| "n/a".to_owned(), |figure| units::figure(measure, figure)),
            );
        }
        for ratio in &ratios {
            cells.push(ratio_of(by_arm, ratio.arm, ratio.to));
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
    line(out, &header);
    line(out, &vec!["---".to_owned(); header.len()]);
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

pub(super) fn ratio_of(by_arm: &BTreeMap<&str, &Row>, arm: &str, to: &str) -> String {
    let ratio = by_arm
        .get(arm)
        .zip(by_arm.get(to))
        .and_then(|(over, under)| over.ratio_to(under));
    match ratio {
        Some(Figure { median, low, high }) => format!("**{median:.2}** ({low:.2}–{high:.2})"),
        None => "n/a".to_owned(),
    }
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

pub(super) fn line(out: &mut String, cells: &[String]) {
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}
