//! The figures of an experiment that appear on the page. The table, the plot and the answer all use this grid, so they
//! cannot disagree.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};

use super::{
    experiments::{Column, Experiment, Shows},
    units, words,
};
use crate::live::{
    difference::Difference,
    result::{Figure, Row, Run},
};

pub struct Grid<'a> {
    pub experiment: &'a Experiment,
    /// Row titles and cells, one cell per column.
    pub rows: Vec<(&'a str, Vec<Cell<'a>>)>,
    /// Labels that all measurements share, such as the packets per second.
    settings: BTreeMap<&'a str, &'a str>,
}

#[derive(Clone, Copy)]
pub enum Cell<'a> {
    NotMeasured,
    Figure(&'a Row, Figure),
    Ratio(Figure),
    Added(&'a Row, Difference),
}

type Labels = BTreeMap<&'static str, &'static str>;

impl<'a> Grid<'a> {
    pub fn of(experiment: &'a Experiment, run: &'a Run) -> Result<Self> {
        let mut rows = Vec::new();
        for (title, labels) in experiment.rows {
            let cells = experiment
                .columns
                .iter()
                .map(|column| Cell::of(run, [experiment.labels, labels, column.1], column))
                .collect::<Result<_>>()
                .with_context(|| format!("{title:?} of the experiment {}", experiment.name))?;
            rows.push((*title, cells));
        }
        let mut found = rows
            .iter()
            .flat_map(|(_, cells)| cells)
            .filter_map(Cell::row);
        let mut settings = BTreeMap::new();
        if let Some(first) = found.next() {
            let first = first.scenario.iter();
            settings.extend(first.map(|(name, value)| (name.as_str(), value.as_str())));
        }
        for row in found {
            settings.retain(|name, value| row.scenario.get(*name).is_some_and(|of| of == *value));
        }
        Ok(Self {
            experiment,
            rows,
            settings,
        })
    }

    /// Fills the placeholders of a sentence. `None` if one of them was not measured.
    pub fn fill(&self, sentence: &str) -> Option<String> {
        let mut parts = sentence.split('{');
        let mut out = parts.next()?.to_owned();
        for part in parts {
            let (place, rest) = part.split_once('}')?;
            out += &self.at(place)?;
            out += rest;
        }
        Some(out)
    }

    fn at(&self, place: &str) -> Option<String> {
        if let Some((this, other)) = place.split_once(" | ") {
            let (row, _) = this.split_once(": ")?;
            let (this, other) = (self.cell(row, this)?, self.cell(row, other)?);
            let (Cell::Figure(this, _), Cell::Figure(other, figure)) = (this, other) else {
                return None;
            };
            let text = units::with_unit(&other.measure, figure.median);
            return Some(words::compared(this.ratio_to(other)?, &text));
        }
        if !place.contains(": ") {
            return self.settings.get(place).map(|text| units::count(text));
        }
        match self.cell("", place)? {
            Cell::Figure(row, figure) => Some(units::with_unit(&row.measure, figure.median)),
            Cell::Added(row, difference) => Some(words::added(&row.measure, difference)),
            Cell::NotMeasured | Cell::Ratio(_) => None,
        }
    }

    /// Finds a cell by `row: column`, or by a column of the given row.
    fn cell(&self, row: &str, place: &str) -> Option<Cell<'a>> {
        let (row, column) = place.split_once(": ").unwrap_or((row, place));
        let (_, cells) = self.rows.iter().find(|(title, _)| *title == row)?;
        let mut columns = self.experiment.columns.iter().zip(cells);
        let (_, cell) = columns.find(|(Column(title, ..), _)| *title == column)?;
        Some(*cell)
    }
}

impl<'a> Cell<'a> {
    fn of(run: &'a Run, labels: [&'static str; 3], column: &Column) -> Result<Self> {
        let other = |instead| row(run, &[labels.as_slice(), &[instead]].concat());
        let Some(row) = row(run, &labels)? else {
            return Ok(Self::NotMeasured);
        };
        let cell = match column.2 {
            Shows::Bar(_) | Shows::Figure => row.figure().map(|figure| Self::Figure(row, figure)),
            Shows::RatioTo(instead) => {
                let ratio = other(instead)?.and_then(|other| row.ratio_to(other));
                ratio.map(Self::Ratio)
            }
            Shows::DifferenceTo(instead) => {
                let difference = other(instead)?.and_then(|other| Difference::between(row, other));
                difference.map(|difference| Self::Added(row, difference))
            }
        };
        Ok(cell.unwrap_or(Self::NotMeasured))
    }

    fn row(&self) -> Option<&'a Row> {
        match self {
            Self::Figure(row, _) | Self::Added(row, _) => Some(row),
            Self::NotMeasured | Self::Ratio(_) => None,
        }
    }
}

/// Parses texts such as `hook=tc; flows=10000; arm=agent`. A later value of a label overrides an earlier one.
fn labels(texts: &[&'static str]) -> Result<Labels> {
    texts
        .iter()
        .flat_map(|text| text.split("; "))
        .filter(|label| !label.is_empty())
        .map(|label| {
            label
                .split_once('=')
                .with_context(|| format!("{label:?} has no `=`"))
        })
        .collect()
}

/// The measurement that has all the labels, including `arm` and `measure`; `None` if there is none. The arm `*` is the
/// one that is neither the agent, nor nothing, nor an empty program.
pub fn row<'a>(run: &'a Run, texts: &[&'static str]) -> Result<Option<&'a Row>> {
    let labels = labels(texts)?;
    let is_another = |arm: &str| !["nothing", "empty", "agent", "reference"].contains(&arm);
    let mut fitting = run.rows.iter().filter(|row| {
        labels.iter().all(|(name, value)| match *name {
            "measure" => row.measure == *value,
            "arm" if *value == "*" => is_another(&row.arm),
            "arm" => row.arm == *value,
            name => row.scenario.get(name).is_some_and(|of| of == value),
        })
    });
    let row = fitting.next();
    ensure!(
        fitting.next().is_none(),
        "several measurements fit {labels:?}: name more labels"
    );
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::{super::experiments, *};

    fn run() -> Run {
        let mut run = Run::new("overhead", false, 1).unwrap();
        for (flows, arm, value) in [
            ("1", "agent", 9.0),
            ("1", "bare", 10.0),
            ("2", "agent", 30.0),
        ] {
            let scenario = [("flows", flows), ("hook", "tc")];
            let scenario = scenario.map(|(name, value)| (name.to_owned(), value.to_owned()));
            run.add(&BTreeMap::from(scenario), arm, "cpu_percent", value);
        }
        run
    }

    #[test]
    fn labels_choose_one_measurement_or_none_and_never_one_of_several() {
        let run = run();
        let value = |labels| row(&run, labels).map(|row| Some(row?.values[0]));
        assert_eq!(value(&["flows=1", "arm=agent"]).unwrap(), Some(9.0));
        assert_eq!(
            value(&["flows=1; arm=agent", "arm=bare"]).unwrap(),
            Some(10.0)
        );
        assert_eq!(value(&["arm=*"]).unwrap(), Some(10.0));
        assert_eq!(value(&["flows=3"]).unwrap(), None);
        assert!(
            value(&["arm=agent"])
                .unwrap_err()
                .to_string()
                .contains("several")
        );
        assert!(
            value(&["flows"])
                .unwrap_err()
                .to_string()
                .contains("no `=`")
        );
    }

    #[test]
    fn a_sentence_has_what_was_measured_or_there_is_none() {
        let experiment = Experiment {
            labels: "measure=cpu_percent",
            rows: &[("one", "flows=1"), ("two", "flows=2")],
            columns: &[
                Column("agent", "arm=agent", Shows::Figure),
                Column("bare", "arm=bare", Shows::Figure),
            ],
            ..*experiments::ALL[0]
        };
        let run = run();
        let grid = Grid::of(&experiment, &run).unwrap();
        let fill = |sentence| grid.fill(sentence);
        assert_eq!(fill("on {hook}: {one: agent}.").unwrap(), "on tc: 9.0 %.");
        assert_eq!(
            fill("{one: agent | bare}").unwrap(),
            "10 % less than the 10.0 %"
        );
        assert_eq!(
            fill("{two: agent | one: agent}").unwrap(),
            "3.3 times the 9.0 %"
        );
        // A label that differs, a cell that was not measured, an unknown row or column.
        for sentence in [
            "{flows}",
            "{two: bare}",
            "{two: agent | bare}",
            "{six: agent}",
            "{one: x}",
        ] {
            assert_eq!(fill(sentence), None, "{sentence}");
        }
    }
}
