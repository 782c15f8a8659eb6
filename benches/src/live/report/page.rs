//! The page for readers: for each experiment a question, an answer, a plot and a small table.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    iter::once,
};

use anyhow::{Result, ensure};

use super::{
    experiments::{self, Column},
    grid::{Cell, Grid},
    markdown::{head, line},
    plot, summary, units,
};
use crate::live::{host::Host, result::Run};

/// The page and its plots, by file name. The functions below write to a `String`, which cannot fail.
pub fn files(runs: &[Run]) -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    let mut page = opening(runs);
    for run in runs {
        ensure!(
            experiments::ALL
                .iter()
                .any(|experiment| experiment.bench == run.bench),
            "the page has no section for the bench {}: add it to report/experiments.rs",
            run.bench
        );
    }
    for experiment in experiments::ALL {
        let of_bench: Vec<&Run> = runs
            .iter()
            .filter(|run| run.bench == experiment.bench)
            .collect();
        for (index, run) in of_bench.iter().enumerate() {
            let grid = Grid::of(experiment, run)?;
            if index == 0 {
                let (name, heading) = (experiment.name, experiment.heading);
                let _ = write!(page, "\n<a id=\"{name}\"></a>\n\n## {heading}\n");
            }
            if of_bench.len() > 1 {
                let _ = write!(page, "\nOn {}:\n", machine(&run.host));
            }
            let plot = format!("{}-{}.svg", run.host.slug(), experiment.name);
            section(&mut page, &grid, run, &plot);
            files.insert(plot, plot::svg(&grid)?);
        }
    }
    published(&mut page, runs)?;
    files.insert("README.md".to_owned(), page);
    Ok(files)
}

fn opening(runs: &[Run]) -> String {
    let of_all = |what: fn(&Run) -> String| -> String {
        let all: BTreeSet<String> = runs.iter().map(what).collect();
        Vec::from_iter(all).join("; ")
    };
    format!(
        "# What flow-agent costs, measured\n\n\
         Measured on {} with flow-agent {} on {}.\n\
         `cargo xtask bench` measures your machine, or one experiment with its name; `cargo xtask report`\n\
         makes this page and its plots from the result files beside it. No number here is typed by hand.\n\n\
         A figure is the median of the rounds, with the lowest and the highest in parentheses. Ratios are\n\
         taken round by round, so that a machine whose speed swings slows both sides. The agent has the\n\
         strong colour. CPU is in percent of one core; a dash is what was not measured.\n",
        of_all(|run| run.started.split('T').next().unwrap_or_default().to_owned()),
        of_all(|run| run.agent_version.clone()),
        of_all(|run| machine(&run.host)),
    )
}

fn section(out: &mut String, grid: &Grid, run: &Run, plot: &str) {
    let experiment = grid.experiment;
    let (across, up) = experiment.axes;
    let [question, answer] =
        [experiment.question, experiment.answer].map(|text| filled(grid, text));
    let _ = write!(out, "\n**{question}**\n\n{answer}\n\n![{up}]({plot})\n\n");
    let titles = experiment
        .columns
        .iter()
        .map(|Column(title, ..)| (*title).to_owned());
    head(
        out,
        &once(across.to_owned()).chain(titles).collect::<Vec<_>>(),
    );
    for (title, cells) in &grid.rows {
        let cells = cells.iter().map(text);
        line(
            out,
            &once((*title).to_owned()).chain(cells).collect::<Vec<_>>(),
        );
    }
    let _ = write!(
        out,
        "\n`cargo xtask bench {}`, {} rounds{}. All figures: `{}`\n",
        run.bench,
        run.rounds,
        reservation(run),
        run.file_name(),
    );
}

fn machine(host: &Host) -> String {
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
fn reservation(run: &Run) -> String {
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

fn filled(grid: &Grid, sentence: &str) -> String {
    let text = grid.fill(sentence);
    text.unwrap_or_else(|| "What this sentence needs was not all measured.".to_owned())
}

fn text(cell: &Cell) -> String {
    match cell {
        Cell::NotMeasured => "–".to_owned(),
        Cell::Figure(row, figure) => units::figure_with_unit(&row.measure, *figure),
        Cell::Ratio(ratio) => units::ratio(*ratio),
        Cell::Added(row, of) => {
            let scaled = |value| units::scaled(&row.measure, value);
            let [median, low, high] = [of.median, of.low, of.high].map(|value| scaled(value).1);
            format!("{median:+.3} ({low:+.3} to {high:+.3}) {}", scaled(0.0).0)
        }
    }
}

fn published(out: &mut String, runs: &[Run]) -> Result<()> {
    out.push_str(
        "\n## Beside what others publish\n\n\
         They measured on machines of their own: the ratio says how far apart we are, and no more.\n\n",
    );
    out.push_str(&summary::published(runs)?);
    Ok(())
}
