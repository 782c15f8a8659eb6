//! The figures of several rounds: samples come in, the median and the spread of each figure go out,
//! as JSON for programs or a table for people.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
};

use serde::Serialize;

use crate::{
    sample::{Case, Table},
    stage::Figures,
};

/// Grows by one where a figure changes its meaning or goes away.
const FORMAT: u32 = 1;

#[derive(Debug, Serialize)]
pub struct Report {
    pub format: u32,
    pub rounds: u32,
    pub cases: Vec<CaseReport>,
    /// Cases that could not be measured, each with the reason.
    pub skipped: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
pub struct CaseReport {
    pub name: String,
    /// `synthetic` or `kernel`.
    pub table: &'static str,
    pub profile: &'static str,
    pub flows: u32,
    pub figures: BTreeMap<String, Spread>,
}

/// A figure over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Report {
    pub fn new(
        rounds: u32,
        samples: &[(Case, Vec<Figures>)],
        skipped: BTreeMap<String, String>,
    ) -> Self {
        Self {
            format: FORMAT,
            rounds,
            cases: samples
                .iter()
                .map(|(case, samples)| CaseReport::new(case, samples))
                .collect(),
            skipped,
        }
    }
}

impl CaseReport {
    fn new(case: &Case, samples: &[Figures]) -> Self {
        let mut by_name: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (name, &figure) in samples.iter().flatten() {
            by_name.entry(name.clone()).or_default().push(figure);
        }
        Self {
            name: case.name(),
            table: case.table.name(),
            profile: case.profile.name,
            flows: case.profile.flows,
            figures: by_name
                .into_iter()
                .filter_map(|(name, figures)| Some((name, Spread::of(figures)?)))
                .collect(),
        }
    }

    fn median(&self, name: &str) -> Option<f64> {
        Some(self.figures.get(name)?.median)
    }
}

impl Spread {
    fn of(mut figures: Vec<f64>) -> Option<Self> {
        figures.sort_unstable_by(f64::total_cmp);
        Some(Self {
            median: *figures.get(figures.len() / 2)?,
            min: *figures.first()?,
            max: *figures.last()?,
        })
    }
}

const STAGES: [(Table, &[&str]); 2] = [
    (
        Table::Synthetic,
        &["insert", "update", "encode", "end_scan", "cycle"],
    ),
    (Table::Kernel, &["drain", "first_cycle", "drain_and_cycle"]),
];

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (table, stages) in STAGES {
            let of_table = |case: &&CaseReport| case.table == table.name();
            for case in self.cases.iter().filter(of_table) {
                case.write_stages(f, stages)?;
                case.write_memory(f)?;
                writeln!(f)?;
            }
        }
        for (case, reason) in &self.skipped {
            writeln!(f, "skipped: {case}: {reason}")?;
        }
        writeln!(
            f,
            "medians of {} rounds (lowest to highest); CPU of this thread, allocations of its heap",
            self.rounds
        )
    }
}

impl CaseReport {
    fn write_stages(&self, f: &mut fmt::Formatter<'_>, stages: &[&str]) -> fmt::Result {
        writeln!(
            f,
            "{:<18}{:>13}{:>14}{:>21}{:>16}{:>14}",
            self.name, "flows/s", "CPU ns/flow", "(low to high)", "CPU µs/scan", "allocs/scan",
        )?;
        for stage in stages {
            let of = |name: &str| self.figures.get(&format!("{stage}.{name}"));
            let (Some(rate), Some(cpu), Some(scan), Some(allocations)) = (
                of("flows_per_second"),
                of("cpu_ns_per_flow"),
                of("cpu_ns_per_scan"),
                of("allocations_per_scan"),
            ) else {
                continue;
            };
            let spread = format!("({:.1} to {:.1})", cpu.min, cpu.max);
            writeln!(
                f,
                "  {stage:<16}{:>13.0}{:>14.1}{spread:>21}{:>16.1}{:>14.1}",
                rate.median,
                cpu.median,
                scan.median / 1e3,
                allocations.median,
            )?;
        }
        Ok(())
    }

    fn write_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, name, unit, divisor) in [
            ("replica, heap", "heap_bytes_per_flow", "bytes/flow", 1.0),
            ("resident", "resident_bytes_per_flow", "bytes/flow", 1.0),
            (
                "resident at most",
                "resident_peak_bytes",
                "MiB",
                1_048_576.0,
            ),
            ("kernel memory", "kernel_memory_bytes", "MiB", 1_048_576.0),
            ("grace period", "flip.wall_ns_per_scan", "ms/scan", 1e6),
            ("on the wire", "encoded_bytes_per_flow", "bytes/flow", 1.0),
        ] {
            if let Some(figure) = self.median(name) {
                writeln!(f, "  {what:<16}{:>13.1} {unit}", figure / divisor)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_its_median_with_the_extremes() {
        let spread = Spread::of(vec![3.0, 1.0, 9.0]);
        assert_eq!(
            spread,
            Some(Spread {
                median: 3.0,
                min: 1.0,
                max: 9.0
            })
        );
    }
}
