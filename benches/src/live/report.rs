//! The page about overhead, its plots, and the README's table, made from the result files: no figure in them is typed by hand.

mod experiments;
mod grid;
mod markdown;
mod page;
mod plot;
mod summary;
pub mod units;
mod words;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use super::result::Run;

/// The markers in the README around the generated table.
const TABLE_START: &str = "<!-- overhead: made by cargo xtask report -->";
const TABLE_END: &str = "<!-- overhead: end -->";

/// Reads all result files in `folder`, writes the pages and plots there, and updates the table in `readme`.
pub fn write(folder: &Path, readme: &Path) -> Result<Vec<PathBuf>> {
    let files = files(folder, readme)?;
    for (path, text) in &files {
        fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(files.into_keys().collect())
}

/// The content of each file to write, by path.
fn files(folder: &Path, readme: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let runs = latest(folder)?;
    ensure!(
        !runs.is_empty(),
        "{} has no result file: run `cargo xtask bench overhead` first",
        folder.display()
    );
    let mut files: BTreeMap<PathBuf, String> = page::files(&runs)?
        .into_iter()
        .map(|(name, text)| (folder.join(name), text))
        .collect();
    let text = fs::read_to_string(readme).with_context(|| format!("read {}", readme.display()))?;
    let text = between_marks(&text, &summary::brief(&runs)?)
        .with_context(|| format!("{} has no place for the table", readme.display()))?;
    files.insert(readme.to_owned(), text);
    Ok(files)
}

/// The newest run of each bench on each host. A partial or quick run counts only if there is no other.
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

    /// The results folder and README of the repository.
    fn committed() -> (PathBuf, PathBuf) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        (root.join("docs/overhead"), root.join("README.md"))
    }

    #[test]
    fn the_committed_pages_are_what_the_committed_results_make() {
        let (folder, readme) = committed();
        let files = files(&folder, &readme).unwrap();
        for (path, text) in &files {
            let committed = fs::read_to_string(path).unwrap_or_default();
            assert!(
                committed == *text,
                "{} is stale: cargo xtask report",
                path.display()
            );
        }
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let is_result = path
                .extension()
                .is_some_and(|extension| extension == "json");
            assert!(
                is_result || files.contains_key(&path),
                "{} is made by nothing",
                path.display()
            );
        }
    }

    #[test]
    fn every_committed_experiment_has_its_section_answer_and_table() {
        let (folder, readme) = committed();
        let runs = latest(&folder).unwrap();
        let files = files(&folder, &readme).unwrap();
        let page = &files[&folder.join("README.md")];
        for run in &runs {
            let place = format!("<a id=\"{}\">", run.bench);
            assert!(page.contains(&place), "no section for {}", run.bench);
        }
        assert!(
            !page.contains("not all measured"),
            "an answer lacks a figure"
        );
        // Arms that send nothing, or whose data nobody reads, have no bytes.
        let lacks_some = |line: &&str| {
            let without_bytes = [
                "| no output |",
                "| one consumer |",
                "| IPFIX over TCP, unread |",
                "| OTLP, unanswered |",
            ];
            without_bytes.iter().any(|row| line.starts_with(row))
        };
        let rows = page.lines().filter(|line| line.starts_with("| "));
        for line in rows.filter(|line| !lacks_some(line)) {
            assert!(!line.contains(" – |") && !line.contains("n/a"), "{line}");
        }
        assert!(page.lines().count() < 350, "{} lines", page.lines().count());
    }

    #[test]
    fn a_bench_without_a_section_is_an_error_and_not_left_out() {
        let run = Run::new("unheard-of", false, 1).unwrap();
        let error = page::files(&[run]).unwrap_err().to_string();
        assert!(
            error.contains("no section for the bench unheard-of"),
            "{error}"
        );
    }

    #[test]
    fn what_was_not_measured_is_said_and_not_guessed() {
        let run = Run::new("sweep", true, 1).unwrap();
        let page = &page::files(&[run]).unwrap()["README.md"];
        assert!(
            page.contains("not all measured") && page.contains("| 10k | – | – |"),
            "{page}"
        );
        assert!(page.contains("quick: to see that it works"), "{page}");
    }

    #[test]
    fn each_machine_has_its_own_question_and_plot() {
        let runs = ["50000", "9000"].map(|rate| {
            let mut run = Run::new("ladder", false, 1).unwrap();
            run.host.cpu = format!("Fast {rate}");
            let scenario = [("flows", "1"), ("packets_per_second", rate)];
            let scenario = scenario.map(|(name, value)| (name.to_owned(), value.to_owned()));
            run.add(&scenario.into(), "scanning", "agent_cpu_percent", 1.0);
            run
        });
        let files = page::files(&runs).unwrap();
        let page = &files["README.md"];
        assert_eq!(page.matches("## What each feature adds").count(), 1);
        for (machine, rate) in [
            ("On Fast 50000", "at 50k packets"),
            ("On Fast 9000", "at 9k packets"),
        ] {
            assert!(page.contains(machine) && page.contains(rate), "{page}");
        }
        assert_eq!(
            files
                .keys()
                .filter(|name| name.ends_with("ladder.svg"))
                .count(),
            2
        );
    }
}
