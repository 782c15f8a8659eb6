//! Two runs of one bench: both come in, what became better or worse goes out.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

use super::{
    report::units,
    result::{Figure, Row, Run},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Better,
    Worse,
    /// The rounds of both overlap.
    Same,
}

/// A line for each row that both have, and how many became worse.
pub fn text(before: &Run, after: &Run) -> Result<String> {
    ensure!(
        before.bench == after.bench,
        "one file is of {}, the other of {}: compare two of the same bench",
        before.bench,
        after.bench
    );
    let mut out = String::new();
    if before.host != after.host {
        out.push_str("the hosts differ: what follows may be theirs and not the agent's\n");
    }
    let (mut compared, mut worse) = (0, 0);
    for row in after.rows.iter().filter(|row| row.arm != "reference") {
        let earlier = before.row(&row.scenario, &row.arm, &row.measure);
        let Some((earlier, now)) = earlier.and_then(Row::figure).zip(row.figure()) else {
            continue;
        };
        compared += 1;
        let verdict = verdict(&row.measure, earlier, now);
        worse += u32::from(verdict == Verdict::Worse);
        line(&mut out, row, earlier, now, verdict);
    }
    ensure!(compared > 0, "the two files have no row in common");
    // A string takes everything.
    let _ = writeln!(out, "{compared} compared, {worse} worse");
    Ok(out)
}

fn line(out: &mut String, row: &Row, earlier: Figure, now: Figure, verdict: Verdict) {
    let scenario: Vec<&str> = row.scenario.values().map(String::as_str).collect();
    let mark = match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "WORSE",
        Verdict::Same => "same",
    };
    let _ = writeln!(
        out,
        "{mark:<7}{:+6.1} %  {} {}, {}: {} to {}",
        100.0 * (now.median / earlier.median - 1.0),
        row.arm,
        units::title(&row.measure),
        scenario.join(" "),
        units::figure(&row.measure, earlier),
        units::figure(&row.measure, now),
    );
}

/// A change counts where no round of the one lies among those of the other.
fn verdict(measure: &str, earlier: Figure, now: Figure) -> Verdict {
    let higher_is_better = measure.ends_with("per_second");
    if now.low <= earlier.high && earlier.low <= now.high {
        Verdict::Same
    } else if (now.low > earlier.high) == higher_is_better {
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
        assert!(text(&[118.0, 130.0, 140.0]).ends_with("1 compared, 0 worse\n"));
        assert!(text(&[121.0, 130.0, 140.0]).ends_with("1 compared, 1 worse\n"));
        assert!(text(&[70.0, 80.0, 99.0]).starts_with("better"));
    }

    #[test]
    fn a_rate_that_falls_is_worse() {
        let figure = |median| Figure {
            median,
            low: median,
            high: median,
        };
        let (slow, fast) = (figure(1.0), figure(2.0));
        assert_eq!(verdict("packets_per_second", fast, slow), Verdict::Worse);
        assert_eq!(verdict("packets_per_second", slow, fast), Verdict::Better);
    }

    #[test]
    fn files_of_different_benches_are_refused() {
        let mut other = run(&[1.0]);
        other.bench = "sweep".to_owned();
        assert!(text(&run(&[1.0]), &other).is_err());
    }
}
