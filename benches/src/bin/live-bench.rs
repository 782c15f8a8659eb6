//! The live benches: arguments come in, progress goes to stderr, results to a file and to stdout.

#![expect(clippy::print_stdout, reason = "figures are what this program is for")]

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, ensure};
use benches::live::{
    compare, ladder, overhead,
    result::{Figure, Run},
    rounds::Interrupt,
};
use clap::{Parser, Subcommand};

/// Measures the agent on real packets, in network namespaces of its own. Needs root.
#[derive(Parser)]
#[command(version, bin_name = "cargo xtask bench", args_override_self = true)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,

    /// The agent that is measured
    #[arg(long, global = true, default_value = "target/release/flow-agent")]
    agent: PathBuf,

    /// Fewer packets and three rounds: to see that it works, not to publish
    #[arg(long, global = true)]
    quick: bool,

    /// How often each arm is measured [default: 5, with --quick 3]
    #[arg(long, global = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,

    /// Of each measurement that is taken over a time [default: 5s, with --quick 2s]
    #[arg(long, global = true, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,

    /// Where the result file goes
    #[arg(long, global = true, default_value = "docs/overhead")]
    results: PathBuf,

    /// Print the results as JSON too
    #[arg(long, global = true)]
    json: bool,
}

impl Cli {
    fn window(&self, usual: Duration) -> Duration {
        let quick = Duration::from_secs(2);
        self.duration
            .unwrap_or(if self.quick { quick } else { usual })
    }
}

#[derive(Subcommand)]
enum Bench {
    /// Nanoseconds a packet of our programs, packets a second, TCP throughput
    Overhead {
        /// Only these sections
        #[arg(value_enum)]
        sections: Vec<overhead::Section>,
    },
    /// CPU and memory of each thing that the agent is asked to do
    Ladder,
    /// Another agent beside ours: CPU and memory of its processes, its programs, the traffic
    Compare {
        /// What its rows are called
        #[arg(long, default_value = "other")]
        name: String,
        /// How long it takes to come up
        #[arg(long, default_value = "3s", value_parser = humantime::parse_duration)]
        settle: Duration,
        /// Its command; `{interface}` becomes the name of the interface that it shall watch
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

fn main() -> ExitCode {
    match bench(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn bench(cli: &Cli) -> Result<()> {
    ensure!(
        lab::privilege::is_root(),
        "network namespaces and BPF need root"
    );
    let agent = cli
        .agent
        .canonicalize()
        .with_context(|| format!("find the agent {}", cli.agent.display()))?;
    let rounds = cli.rounds.unwrap_or(if cli.quick { 3 } else { 5 });
    let interrupt = Interrupt::install()?;
    let run = match &cli.bench {
        Bench::Overhead { sections } => overhead::run(
            &overhead::Settings {
                agent: &agent,
                rounds,
                quick: cli.quick,
                sections,
            },
            &interrupt,
        )?,
        Bench::Ladder => ladder::run(
            &ladder::Settings {
                agent: &agent,
                rounds,
                quick: cli.quick,
                window: cli.window(Duration::from_secs(5)),
            },
            &interrupt,
        )?,
        Bench::Compare {
            name,
            settle,
            command,
        } => compare::run(
            &compare::Settings {
                agent: &agent,
                rounds,
                quick: cli.quick,
                window: cli.window(Duration::from_secs(5)),
                name,
                settle: *settle,
                command,
            },
            &interrupt,
        )?,
    };
    let path = run.save(&cli.results)?;
    print(&run);
    println!("written to {}", path.display());
    if cli.json {
        println!(
            "{}",
            serde_json::to_string(&run).context("encode the results")?
        );
    }
    Ok(())
}

fn print(run: &Run) {
    let mut scenario = None;
    for row in &run.rows {
        if scenario != Some(&row.scenario) {
            let words: Vec<String> = row
                .scenario
                .iter()
                .map(|(name, value)| format!("{name} {value}"))
                .collect();
            println!("\n{}", words.join(", "));
            scenario = Some(&row.scenario);
        }
        if let Some(Figure { median, low, high }) = row.figure() {
            println!(
                "  {:<10} {:<24} {median:>14.1}  ({low:.1} to {high:.1})",
                row.arm, row.measure
            );
        }
    }
    println!();
}
