//! The results of a run, and the JSON file from which the report and the comparison read them.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::{bench::Labels, host::Host};

/// Increment it when a field is removed or changes its meaning.
const FORMAT: u32 = 1;

/// One run of one bench.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    pub format: u32,
    /// The bench's name on the command line, such as `overhead`.
    pub bench: String,
    /// UTC, such as `2026-01-31T12:00:00Z`.
    pub started: String,
    /// The measured agent's output of `--version`.
    pub agent_version: String,
    /// The commit of the source tree in which the bench was started; `n/a` outside a tree.
    #[serde(default)]
    pub commit: String,
    pub host: Host,
    pub quick: bool,
    /// The sections that were measured; empty for all.
    #[serde(default)]
    pub sections: Vec<String>,
    pub rounds: u32,
    pub rows: Vec<Row>,
    /// Notes for the reader of this run, a sentence each.
    pub notes: Vec<String>,
}

/// One measure of one arm in one scenario, with a value for each round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub scenario: Labels,
    pub arm: String,
    /// The name ends in the unit, such as `program_ns_per_packet`, `packets_per_second`, `resident_bytes`.
    pub measure: String,
    /// One value per round, in order, so that two arms can be compared round by round.
    pub values: Vec<f64>,
}

/// The median and the extremes over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Figure {
    /// `None` if there are no values.
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

    /// Divides its values by another row's, round by round.
    pub fn ratio_to(&self, other: &Self) -> Option<Figure> {
        let rounds = self.values.iter().zip(&other.values);
        let ratios: Vec<f64> = rounds.map(|(over, under)| over / under).collect();
        Figure::of(&ratios)
    }
}

impl Run {
    pub fn new(bench: &str, quick: bool, rounds: u32) -> Result<Self> {
        Ok(Self {
            format: FORMAT,
            bench: bench.to_owned(),
            started: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
            agent_version: "n/a".to_owned(),
            commit: commit(),
            host: Host::read()?,
            quick,
            sections: Vec::new(),
            rounds,
            rows: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// Adds a round's value to the row. Creates the row if it does not exist.
    pub fn add(&mut self, scenario: &Labels, arm: &str, measure: &str, value: f64) {
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

    pub fn row(&self, scenario: &Labels, arm: &str, measure: &str) -> Option<&Row> {
        self.rows
            .iter()
            .find(|row| row.scenario == *scenario && row.arm == arm && row.measure == measure)
    }

    /// Groups the rows by scenario, and within it by arm, in the order in which each first appeared.
    pub fn arrange(&mut self) {
        let mut scenarios = Vec::new();
        let mut arms = Vec::new();
        for row in &self.rows {
            if !scenarios.contains(&row.scenario) {
                scenarios.push(row.scenario.clone());
            }
            if !arms.contains(&row.arm) {
                arms.push(row.arm.clone());
            }
        }
        self.rows.sort_by_key(|row| {
            (
                scenarios.iter().position(|other| *other == row.scenario),
                arms.iter().position(|other| *other == row.arm),
            )
        });
    }

    /// Writes `FOLDER/DATE-TIME-HOST-BENCH.json` and returns its path. Never overwrites an existing file.
    pub fn save(&self, folder: &Path) -> Result<PathBuf> {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let path = folder.join(self.file_name());
        let mut text = serde_json::to_string_pretty(self).context("encode the results")?;
        text.push('\n');
        fs::File::create_new(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    /// Of the file that [`Self::save`] writes.
    pub fn file_name(&self) -> String {
        let time = self.started.replace(':', "");
        let time = time.trim_end_matches('Z').replace('T', "-");
        let parts = self.sections.iter().map(|section| format!("-{section}"));
        let parts: String = parts
            .chain(self.quick.then(|| "-quick".to_owned()))
            .collect();
        format!("{time}-{}-{}{parts}.json", self.host.slug(), self.bench)
    }

    /// Orders runs by how much they cover: all sections before some, full before quick, then the later one first.
    pub fn worth(&self) -> (bool, bool, &str) {
        (self.sections.is_empty(), !self.quick, &self.started)
    }

    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))
    }
}

/// Ends in `-dirty` if the tree has uncommitted changes.
fn commit() -> String {
    Command::new("git")
        .args(["describe", "--always", "--dirty", "--exclude", "*"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .map_or_else(|| "n/a".to_owned(), |text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_partial_or_quick_run_takes_no_other_runs_name_nor_place() {
        let mut full = Run::new("overhead", false, 5).unwrap();
        full.started = "2026-01-31T12:00:00Z".to_owned();
        let mut partial = full.clone();
        partial.sections = vec!["parts".to_owned()];
        partial.quick = true;
        partial.started = "2026-01-31T13:00:00Z".to_owned();
        assert!(full.file_name().starts_with("2026-01-31-120000-"));
        assert!(partial.file_name().ends_with("-overhead-parts-quick.json"));
        assert!(full.worth() > partial.worth());
    }

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
    fn rows_of_a_scenario_and_of_an_arm_come_together() {
        let mut run = Run::new("test", true, 3).unwrap();
        for (flows, arm, measure) in [
            ("2", "nothing", "a"),
            ("2", "agent", "a"),
            ("1", "agent", "a"),
            ("2", "nothing", "b"),
            ("1", "nothing", "a"),
        ] {
            let scenario = BTreeMap::from([("flows".to_owned(), flows.to_owned())]);
            run.add(&scenario, arm, measure, 1.0);
        }
        run.arrange();
        let order = run.rows.iter();
        let order: Vec<_> = order
            .map(|row| format!("{} {}", row.scenario["flows"], row.arm))
            .collect();
        let expected = ["2 nothing", "2 nothing", "2 agent", "1 nothing", "1 agent"];
        assert_eq!(order, expected);
    }

    #[test]
    fn an_even_number_of_values_has_its_median_between_two() {
        let figure = Figure::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(figure.median.to_bits(), 2.5_f64.to_bits());
        assert_eq!(Figure::of(&[]), None);
    }
}
