//! Measures the cost per flow in user space and in the kernel's table. Prints a table, or JSON for other programs.
//!
//! Each sample runs in its own process, so that memory starts from zero. The cases alternate, so that a disturbance on
//! the machine does not hit only one of them.

#![expect(
    clippy::print_stdout,
    reason = "the figures are what this program is for"
)]

use std::{
    env,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use benches::{
    exit_code,
    heap::CountingAllocator,
    live::result::Run,
    report::{Report, Text},
    sample::{Case, Table},
    stage::Figures,
};
use clap::{Parser, ValueEnum};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// What a flow costs behind the hook: replica, encoding, and the drain of the kernel's table
#[derive(Parser)]
struct Arguments {
    /// How often each case is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    /// Measure only cases whose names contain this
    #[arg(long, default_value = "")]
    case: String,
    /// A folder that the result file goes to
    #[arg(long)]
    results: Option<PathBuf>,
    /// Measure one case once, here
    #[arg(long, hide = true)]
    sample: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

fn main() -> ExitCode {
    exit_code(run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<()> {
    if let Some(name) = &arguments.sample {
        let figures = Case::named(name)?.sample()?;
        println!("{}", serde_json::to_string(&figures)?);
        return Ok(());
    }
    let run = measure(arguments)?;
    if let Some(folder) = &arguments.results {
        eprintln!("written to {}", run.save(folder)?.display());
    }
    match arguments.output {
        Output::Table => print!("{}", Text(&run)),
        Output::Json => println!("{}", serde_json::to_string_pretty(&run)?),
    }
    Ok(())
}

fn measure(arguments: &Arguments) -> Result<Run> {
    let mut report = Report::new(arguments.rounds)?;
    let mut cases = Vec::new();
    for case in Case::all() {
        if !case.name().contains(&arguments.case) {
            continue;
        }
        if case.table != Table::Synthetic && !lab::privilege::is_root() {
            report.skipped(&case, "needs root");
        } else {
            cases.push(case);
        }
    }
    ensure!(
        !cases.is_empty(),
        "no case that can be measured here has {} in its name",
        arguments.case
    );
    for round in 1..=arguments.rounds {
        for case in &cases {
            eprintln!("round {round} of {}: {}", arguments.rounds, case.name());
            report.add(case, &sample(case)?);
        }
    }
    let mut run = report.into_run();
    if !arguments.case.is_empty() {
        run.sections = vec![arguments.case.replace('/', "-")];
    }
    Ok(run)
}

fn sample(case: &Case) -> Result<Figures> {
    let name = case.name();
    let output = Command::new(env::current_exe().context("find this program")?)
        .args(["--sample", &name])
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("start a process for {name}"))?;
    ensure!(output.status.success(), "{name}: {}", output.status);
    serde_json::from_slice(&output.stdout).with_context(|| format!("read the figures of {name}"))
}
