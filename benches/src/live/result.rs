//! Results: measurements come in, a JSON file that the report and the comparison read goes out.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::{difference::Difference, host::Host};

/// Grows by one where a field changes its meaning or goes away.
const FORMAT: u32 = 1;

/// One run of one bench.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    pub format: u32,
    /// `overhead`, `sweep`, `http`, `ladder` or `compare`.
    pub bench: String,
    /// UTC, as `2026-01-31T12:00:00Z`.
    pub started: String,
    pub agent_version: String,
    pub host: Host,
    pub quick: bool,
    pub rounds: u32,
    pub rows: Vec<Row>,
    /// What a reader has to know of this run, a sentence each.
    pub notes: Vec<String>,
}

/// One measure of one arm in one scenario, a value for each round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What all arms have in common, such as `hook: tc`, `frame_bytes: 64`.
    pub scenario: BTreeMap<String, String>,
    pub arm: String,
    /// The name ends in the unit, as `program_ns_per_packet`, `packets_per_second`, `resident_bytes`.
    pub measure: String,
    /// In order of the rounds, so that values of two arms can be held against each other round by
    /// round.
    pub values: Vec<f64>,
}

/// A figure over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Figure {
    /// `None` for no values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Some(Self { median, low, high })
    }
}

impl Row {
    pub fn figure(&self) -> Option<Figure> {
        Figure::of(&self.values)
    }

    /// Its values over another's, round by round.
    pub fn ratio_to(&self, other: &Self) -> Option<Figure> {
        let rounds = self.values.iter().zip(&other.values);
        let ratios: Vec<f64> = rounds.map(|(over, under)| over / under).collect();
        Figure::of(&ratios)
    }

    /// What it has over another, round by round.
    pub fn difference_to(&self, other: &Self) -> Option<Difference> {
        Difference::of(&self.values, &other.values)
    }
}

impl Run {
    pub fn new(bench: &str, quick: bool, rounds: u32) -> Result<Self> {
        Ok(Self {
            format: FORMAT,
            bench: bench.to_owned(),
            started: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            host: Host::read()?,
            quick,
            rounds,
            rows: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// Adds a round's value to the row, which is made where it is not there.
    pub fn add(
        &mut self,
        scenario: &BTreeMap<String, String>,
        arm: &str,
        measure: &str,
        value: f64,
    ) {
        let same =
            |row: &&mut Row| row.scenario == *scenario && row.arm == arm && row.measure == measure;
        if let Some(row) = self.rows.iter_mut().find(same) {
            row.values.push(value);
            return;
        }
        self.rows.push(Row {
            scenario: scenario.clone(),
            arm: arm.to_owned(),
            measure: measure.to_owned(),
            values: vec![value],
        });
    }

    pub fn row(
        &self,
        scenario: &BTreeMap<String, String>,
        arm: &str,
        measure: &str,
    ) -> Option<&Row> {
        self.rows
            .iter()
            .find(|row| row.scenario == *scenario && row.arm == arm && row.measure == measure)
    }

    /// Writes `FOLDER/DATE-HOST-BENCH.json` and returns its path.
    pub fn save(&self, folder: &Path) -> Result<PathBuf> {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let date = self.started.get(..10).unwrap_or(&self.started);
        let path = folder.join(format!("{date}-{}-{}.json", self.host.slug(), self.bench));
        let mut text = serde_json::to_string_pretty(self).context("encode the results")?;
        text.push('\n');
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_round_by_round() {
        let mut run = Run::new("test", true, 3).unwrap();
        let scenario = BTreeMap::from([("hook".to_owned(), "tc".to_owned())]);
        // The machine is twice as fast in the second round.
        for (ours, theirs) in [(30.0, 20.0), (15.0, 10.0), (33.0, 20.0)] {
            run.add(&scenario, "agent", "ns", ours);
            run.add(&scenario, "bare", "ns", theirs);
        }
        let row = |arm| run.row(&scenario, arm, "ns").unwrap();
        let ratio = row("agent").ratio_to(row("bare")).unwrap();
        assert_eq!((ratio.median, ratio.low, ratio.high), (1.5, 1.5, 1.65));
    }

    #[test]
    fn an_even_number_of_values_has_its_median_between_two() {
        let figure = Figure::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(figure.median.to_bits(), 2.5_f64.to_bits());
        assert_eq!(Figure::of(&[]), None);
    }
}
