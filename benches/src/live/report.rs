//! The pages about overhead: result files come in; a page, plots and the README's table go out, so
//! that no figure in them is typed by hand.

mod markdown;
mod plot;
mod summary;
pub mod units;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use super::result::{Row, Run};

/// In the README, around the table that is made here.
const TABLE_START: &str = "<!-- overhead: made by cargo xtask report -->";
const TABLE_END: &str = "<!-- overhead: end -->";

/// What is shown against what, in which bench.
struct Ratio {
    bench: &'static str,
    measure: &'static str,
    arm: &'static str,
    to: &'static str,
}

impl Ratio {
    const fn new(
        bench: &'static str,
        measure: &'static str,
        arm: &'static str,
        to: &'static str,
    ) -> Self {
        Self {
            bench,
            measure,
            arm,
            to,
        }
    }
}

/// A bench that comes later adds its line.
const RATIOS: &[Ratio] = &[
    Ratio::new("overhead", "net_ns_per_packet", "agent", "bare"),
    Ratio::new("overhead", "packets_per_second", "agent", "nothing"),
    Ratio::new("overhead", "tcp_bytes_per_second", "agent", "nothing"),
    Ratio::new("sweep", "cpu_percent", "agent", "capture"),
    Ratio::new("sweep", "process_cpu_percent", "agent", "capture"),
    Ratio::new("sweep", "resident_bytes", "agent", "capture"),
    Ratio::new("http", "latency_p50_us", "agent", "nothing"),
    Ratio::new("http", "latency_p99_us", "agent", "nothing"),
    Ratio::new("http", "latency_p999_us", "agent", "nothing"),
    Ratio::new("compare", "packets_per_second", "agent", "nothing"),
    Ratio::new("filters", "program_ns_per_packet", "1 network", "no rules"),
    Ratio::new(
        "filters",
        "program_ns_per_packet",
        "100 networks",
        "no rules",
    ),
    Ratio::new(
        "filters",
        "program_ns_per_packet",
        "1000 networks",
        "no rules",
    ),
    Ratio::new("filters", "packets_per_second", "1000 networks", "no rules"),
    Ratio::new("newflows", "lossless_flows_per_second", "early", "interval"),
    Ratio::new("pages", "program_ns_per_packet", "growing", "preallocated"),
    Ratio::new("pages", "program_ns_per_packet", "by_cpu", "preallocated"),
    Ratio::new("pages", "drain_cpu_ns_per_flow", "growing", "preallocated"),
    Ratio::new("pages", "memory_empty_bytes", "growing", "preallocated"),
    Ratio::new("pages", "memory_full_bytes", "growing", "preallocated"),
    Ratio::new("table", "drain_cpu_us", "own", "hash_map"),
];

/// Reads all result files of `folder`, writes its `README.md` and plots, and the table in `readme`.
pub fn write(folder: &Path, readme: &Path) -> Result<Vec<PathBuf>> {
    let runs = latest(folder)?;
    ensure!(
        !runs.is_empty(),
        "{} has no result file: run `cargo xtask bench overhead` first",
        folder.display()
    );
    let mut written = Vec::new();
    let mut put = |path: PathBuf, text: String| -> Result<()> {
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        written.push(path);
        Ok(())
    };
    let mut plots = BTreeMap::new();
    for run in &runs {
        for (name, svg) in plot::all(run)? {
            let file = format!("{}-{}-{name}.svg", run.host.slug(), run.bench);
            put(folder.join(&file), svg)?;
            plots
                .entry((run.bench.clone(), run.host.slug()))
                .or_insert_with(Vec::new)
                .push(file);
        }
    }
    put(folder.join("README.md"), markdown::page(&runs, &plots))?;
    let text = fs::read_to_string(readme).with_context(|| format!("read {}", readme.display()))?;
    let text = between_marks(&text, &summary::brief(&runs))
        .with_context(|| format!("{} has no place for the table", readme.display()))?;
    put(readme.to_owned(), text)?;
    Ok(written)
}

/// The newest run of each bench on each host; a partial or a quick one only where there is no other.
fn latest(folder: &Path) -> Result<Vec<Run>> {
    let mut newest: BTreeMap<(String, String), Run> = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let run = Run::load(&path)?;
        let key = (run.host.slug(), run.bench.clone());
        let is_better = newest
            .get(&key)
            .is_none_or(|other| run.worth() > other.worth());
        if is_better {
            newest.insert(key, run);
        }
    }
    Ok(newest.into_values().collect())
}

fn between_marks(text: &str, table: &str) -> Option<String> {
    let start = text.find(TABLE_START)? + TABLE_START.len();
    let end = start + text[start..].find(TABLE_END)?;
    Some(format!("{}\n\n{table}\n{}", &text[..start], &text[end..]))
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
    fn the_table_replaces_what_stood_between_the_marks() {
        let text = format!("a\n{TABLE_START}\nold\n{TABLE_END}\nb\n");
        let once = between_marks(&text, "| new |\n").unwrap();
        assert_eq!(
            once,
            format!("a\n{TABLE_START}\n\n| new |\n\n{TABLE_END}\nb\n")
        );
        assert_eq!(between_marks(&once, "| new |\n").unwrap(), once);
        assert_eq!(between_marks("no marks", "x"), None);
    }

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
