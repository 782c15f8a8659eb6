//! Measures what a flow costs in user space and in the kernel's table: prints a table, or JSON for
//! programs.
//!
//! Every sample is a process of its own, so that memory is counted from a fresh start, and the cases
//! take turns, so that a disturbance of the machine does not fall on one of them alone.

#![expect(
    clippy::print_stdout,
    reason = "the figures are what this program is for"
)]

use std::{
    collections::BTreeMap,
    env,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use benches::{
    heap::CountingAllocator,
    report::Report,
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
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    if let Some(name) = &arguments.sample {
        let figures = Case::named(name)?.sample()?;
        println!("{}", serde_json::to_string(&figures)?);
        return Ok(());
    }
    let report = measure(arguments)?;
    match arguments.output {
        Output::Table => print!("{report}"),
        Output::Json => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    Ok(())
}

fn measure(arguments: &Arguments) -> Result<Report> {
    let mut skipped = BTreeMap::new();
    let mut samples = Vec::new();
    for case in Case::all() {
        if !case.name().contains(&arguments.case) {
            continue;
        }
        if case.table == Table::Kernel && !lab::privilege::is_root() {
            skipped.insert(case.name(), "needs root".to_owned());
        } else {
            samples.push((case, Vec::new()));
        }
    }
    for round in 1..=arguments.rounds {
        for (case, figures) in &mut samples {
            eprintln!("round {round} of {}: {}", arguments.rounds, case.name());
            figures.push(sample(case)?);
        }
    }
    Ok(Report::new(arguments.rounds, &samples, skipped))
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
