//! Shows what improved or got worse between two runs of one bench.

use std::{collections::BTreeMap, fmt::Write as _};

use anyhow::{Result, ensure};

use super::{
    report::units,
    result::{Figure, Row, Run},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Better,
    Worse,
    /// The ranges of the two runs overlap.
    Same,
    /// The measure is neither good nor bad.
    Neutral,
}

/// How to read a measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Becomes longer on a slower machine.
    Time,
    /// Becomes lower on a slower machine.
    Rate,
    /// Bytes and lost packets: less is better, at any speed of the machine.
    Amount,
    /// Packets sent and seen.
    Neutral,
}

impl Kind {
    fn of(measure: &str) -> Self {
        const NEUTRAL: [&str; 6] = [
            "flows_seen",
            "seen_packets",
            "requests_per_second",
            "sent_packets_per_second",
            "program_runs_per_request",
            "program_runs_per_packet",
        ];
        if NEUTRAL.contains(&measure) {
            Self::Neutral
        } else if measure.ends_with("per_second") {
            Self::Rate
        } else if measure.ends_with("cpu_percent")
            || measure.contains("_ns")
            || measure.ends_with("_us")
            || measure.contains("_ms_")
        {
            Self::Time
        } else {
            Self::Amount
        }
    }

    /// Scales a figure to a machine that is slower by the factor `slowness`.
    fn at(self, slowness: f64, figure: Figure) -> Figure {
        let factor = match self {
            Self::Time => slowness,
            Self::Rate => 1.0 / slowness,
            Self::Amount | Self::Neutral => 1.0,
        };
        Figure {
            median: figure.median * factor,
            low: figure.low * factor,
            high: figure.high * factor,
        }
    }
}

/// One line for each row that is in either run, and the number of rows that got worse.
///
/// Scales times and rates of the earlier run to the machine's speed in the later one, as measured by each scenario's
/// reference.
pub fn text(before: &Run, after: &Run) -> Result<String> {
    ensure!(
        before.bench == after.bench,
        "one file is of {}, the other of {}: compare two of the same bench",
        before.bench,
        after.bench
    );
    ensure!(
        before.quick == after.quick,
        "one run is quick, the other full: they send different numbers of packets"
    );
    let mut out = String::new();
    if !before.host.is_like(&after.host) {
        out.push_str("the hosts differ: what follows may be theirs and not the agent's\n");
    }
    let (mut compared, mut worse) = (0, 0);
    for row in measured(after) {
        let earlier = before.row(&row.scenario, &row.arm, &row.measure);
        let Some((earlier, now)) = earlier.and_then(Row::figure).zip(row.figure()) else {
            line(&mut out, "new", "", row, "not in the earlier run");
            continue;
        };
        compared += 1;
        let kind = Kind::of(&row.measure);
        let earlier = kind.at(slowness(before, after, &row.scenario), earlier);
        let verdict = verdict(kind, earlier, now);
        worse += u32::from(verdict == Verdict::Worse);
        let mark = match verdict {
            Verdict::Better => "better",
            Verdict::Worse => "WORSE",
            Verdict::Same => "same",
            Verdict::Neutral => "",
        };
        let figures = format!(
            "{} to {}",
            units::figure(&row.measure, earlier),
            units::figure(&row.measure, now)
        );
        line(&mut out, mark, &change(earlier, now), row, &figures);
    }
    ensure!(compared > 0, "the two files have no row in common");
    for row in measured(before) {
        if after.row(&row.scenario, &row.arm, &row.measure).is_none() {
            line(&mut out, "gone", "", row, "not in the later run");
        }
    }
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{compared} compared, {worse} worse; times and rates of the earlier run are at the speed of the \
         later one"
    );
    Ok(out)
}

fn measured(run: &Run) -> impl Iterator<Item = &Row> {
    run.rows.iter().filter(|row| row.arm != "reference")
}

/// The factor by which the machine was slower in the later run; 1 if there is no reference.
fn slowness(before: &Run, after: &Run, scenario: &BTreeMap<String, String>) -> f64 {
    let step_ns = |run: &Run| {
        let row = run.row(scenario, "reference", "step_ns")?;
        Some(row.figure()?.median)
    };
    match (step_ns(before), step_ns(after)) {
        (Some(before), Some(after)) if before > 0.0 => after / before,
        _ => 1.0,
    }
}

fn change(earlier: Figure, now: Figure) -> String {
    if earlier.median == 0.0 {
        return String::new();
    }
    format!("{:+.1} %", 100.0 * (now.median / earlier.median - 1.0))
}

fn line(out: &mut String, mark: &str, change: &str, row: &Row, figures: &str) {
    let scenario: Vec<&str> = row.scenario.values().map(String::as_str).collect();
    let _ = writeln!(
        out,
        "{mark:<7}{change:>9}  {} {}, {}: {figures}",
        row.arm,
        units::title(&row.measure),
        scenario.join(" "),
    );
}

/// A change counts only if the values of the two runs do not overlap.
fn verdict(kind: Kind, earlier: Figure, now: Figure) -> Verdict {
    if kind == Kind::Neutral {
        Verdict::Neutral
    } else if now.low <= earlier.high && earlier.low <= now.high {
        Verdict::Same
    } else if (now.low > earlier.high) == (kind == Kind::Rate) {
        Verdict::Better
    } else {
        Verdict::Worse
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn run(values: &[f64]) -> Run {
        let mut run = Run::new("overhead", true, 3).unwrap();
        for &value in values {
            run.add(&BTreeMap::new(), "agent", "program_ns_per_packet", value);
        }
        run
    }

    #[test]
    fn only_a_change_beyond_the_spread_counts() {
        let before = run(&[100.0, 110.0, 120.0]);
        let text = |after: &[f64]| text(&before, &run(after)).unwrap();
        assert!(text(&[118.0, 130.0, 140.0]).contains("1 compared, 0 worse"));
        assert!(text(&[121.0, 130.0, 140.0]).contains("1 compared, 1 worse"));
        assert!(text(&[70.0, 80.0, 99.0]).starts_with("better"));
    }

    #[test]
    fn a_rate_that_falls_is_worse_and_what_was_sent_is_nothing() {
        let figure = |median| Figure {
            median,
            low: median,
            high: median,
        };
        let (slow, fast) = (figure(1.0), figure(2.0));
        let of = |measure, before, after| verdict(Kind::of(measure), before, after);
        assert_eq!(of("packets_per_second", fast, slow), Verdict::Worse);
        assert_eq!(of("packets_per_second", slow, fast), Verdict::Better);
        assert_eq!(of("seen_packets", slow, fast), Verdict::Neutral);
    }

    #[test]
    fn a_slow_hour_is_not_the_agents() {
        let at = |step_ns: f64| {
            let mut run = run(&[100.0 * step_ns, 110.0 * step_ns]);
            run.add(&BTreeMap::new(), "reference", "step_ns", step_ns);
            run
        };
        let text = text(&at(1.0), &at(2.0)).unwrap();
        assert!(text.contains("1 compared, 0 worse"), "{text}");
    }

    #[test]
    fn files_of_different_benches_and_lengths_are_refused() {
        let mut other = run(&[1.0]);
        other.bench = "sweep".to_owned();
        assert!(text(&run(&[1.0]), &other).is_err());
        let mut full = run(&[1.0]);
        full.quick = false;
        assert!(text(&run(&[1.0]), &full).is_err());
    }
}
