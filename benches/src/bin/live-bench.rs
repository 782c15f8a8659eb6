//! The command line of the live benches. Progress goes to stderr, results go to a file and to stdout.

#![expect(clippy::print_stdout, reason = "figures are what this program is for")]

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use benches::{
    exit_code,
    live::{
        bench::Setup,
        compare::Compare,
        diff,
        difference::Difference,
        filters::Filters,
        http::{self, Http},
        interrupt::Interrupt,
        ladder::Ladder,
        newflows::NewFlows,
        outputs::Outputs,
        overhead::Overhead,
        peers::Peers,
        priority::Priority,
        program::version_of,
        report,
        result::Run,
        rounds,
        sweep::Sweep,
    },
};
use clap::{Parser, Subcommand};

/// Measures the agent on real packets, in network namespaces of its own. Needs root.
#[derive(Parser)]
#[command(version, bin_name = "cargo xtask bench", args_override_self = true)]
struct Cli {
    /// Without one: userspace, overhead, sweep, ladder and http
    #[command(subcommand)]
    bench: Option<Bench>,

    /// Show what became better or worse between two result files
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"])]
    diff: Option<Vec<PathBuf>>,

    /// The agent that is measured
    #[arg(long, global = true, default_value = "target/packaged/flow-agent")]
    agent: PathBuf,

    /// Fewer packets and three rounds: to see that it works, not to publish
    #[arg(long, global = true)]
    quick: bool,

    /// How often each arm is measured [default: 5, http 6, with --quick 3; newflows 1]
    #[arg(long, global = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,

    /// How long each measurement of `sweep`, `ladder`, `http`, `compare`, `outputs`, `priority` and `peers` takes
    /// [default: 5s, outputs 8s, peers 20s, sweep 2s, http 7s, and 30s where the agent is stopped; with --quick 2s]
    #[arg(long, global = true, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,

    /// Where the result file goes
    #[arg(long, global = true, default_value = "docs/overhead")]
    results: PathBuf,

    /// Print the results as JSON too
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Bench {
    /// Nanoseconds, allocations and memory of a flow behind the hook
    Userspace,
    /// Nanoseconds a packet of our programs, packets a second, TCP throughput
    Overhead(Overhead),
    /// CPU, memory and loss from one flow to a million, beside a packet capture
    Sweep(Sweep),
    /// What filter rules cost a packet: none, 1, 100 and 1,000 networks
    Filters(Filters),
    /// New flows a second until the table loses one, with and without early scans; a round takes
    /// some minutes
    #[command(name = "newflows")]
    NewFlows(NewFlows),
    /// CPU and memory of each thing that the agent is asked to do
    Ladder(Ladder),
    /// Latency of HTTP requests with and without the agent, and with one that gets no CPU
    Http(Http),
    /// Another agent beside ours: CPU and memory of its processes, its programs, the traffic
    Compare(Compare),
    /// What each output adds to a flow's CPU time, and its bytes
    Outputs(Outputs),
    /// What a service loses on a machine whose CPUs are all taken, by its weight among the others
    Priority(Priority),
    /// softflowd and pmacct beside the agent: CPU, memory and loss, from a thousand flows to a million
    Peers(Peers),
    /// Make the pages and plots from the result files
    #[command(hide = true)]
    Report,
    #[command(flatten)]
    HttpPart(http::Part),
}

impl Bench {
    /// The other benches send a fixed number of packets, or search for a rate.
    fn measures_over_a_time(&self) -> bool {
        matches!(
            self,
            Self::Sweep(_)
                | Self::Ladder(_)
                | Self::Http(_)
                | Self::Compare(_)
                | Self::Outputs(_)
                | Self::Priority(_)
                | Self::Peers(_)
        )
    }

    fn run(&self, setup: &Setup) -> Result<Run> {
        match self {
            Self::Overhead(bench) => rounds::run(bench, setup),
            Self::Sweep(bench) => rounds::run(bench, setup),
            Self::Filters(bench) => rounds::run(bench, setup),
            Self::NewFlows(bench) => rounds::run(bench, setup),
            Self::Ladder(bench) => rounds::run(bench, setup),
            Self::Http(bench) => rounds::run(bench, setup),
            Self::Compare(bench) => rounds::run(bench, setup),
            Self::Outputs(bench) => rounds::run(bench, setup),
            Self::Priority(bench) => rounds::run(bench, setup),
            Self::Peers(bench) => rounds::run(bench, setup),
            Self::Userspace | Self::Report | Self::HttpPart(_) => bail!("this is no live bench"),
        }
    }
}

fn main() -> ExitCode {
    exit_code(bench(&Cli::parse()))
}

fn bench(cli: &Cli) -> Result<()> {
    if let Some([before, after]) = cli.diff.as_deref() {
        print!("{}", diff::text(&Run::load(before)?, &Run::load(after)?)?);
        return Ok(());
    }
    match &cli.bench {
        Some(Bench::Report) => {
            for path in report::write(&cli.results, Path::new("README.md"))? {
                println!("written {}", path.display());
            }
            Ok(())
        }
        Some(Bench::HttpPart(part)) => part.play(),
        Some(bench) => {
            ensure!(
                cli.duration.is_none() || bench.measures_over_a_time(),
                "--duration is for sweep, ladder, http, compare, outputs, priority and peers, which measure over a time; \
                 --rounds makes the others longer"
            );
            live(cli, &[bench])
        }
        None => live(
            cli,
            &[
                &Bench::Userspace,
                &Bench::Overhead(Overhead::default()),
                &Bench::Sweep(Sweep::default()),
                &Bench::Ladder(Ladder),
                &Bench::Http(Http::default()),
            ],
        ),
    }
}

fn live(cli: &Cli, benches: &[&Bench]) -> Result<()> {
    ensure!(
        lab::privilege::is_root(),
        "network namespaces and BPF need root"
    );
    let agent = cli
        .agent
        .canonicalize()
        .with_context(|| format!("find the agent {}", cli.agent.display()))?;
    let setup = Setup {
        agent,
        is_quick: cli.quick,
        rounds: cli.rounds,
        duration: cli.duration,
        interrupt: Interrupt::install()?,
    };
    for bench in benches {
        if matches!(bench, Bench::Userspace) {
            setup.interrupt.check()?;
            userspace(cli)?;
            continue;
        }
        let mut run = bench.run(&setup)?;
        run.agent_version = version_of(&setup.agent)?;
        let path = run.save(&cli.results)?;
        print(&run);
        println!("written to {}", path.display());
        if cli.json {
            let text = serde_json::to_string(&run).context("encode the results")?;
            println!("{text}");
        }
    }
    Ok(())
}

/// Runs `flow-bench`, a separate binary because it installs the counting allocator.
fn userspace(cli: &Cli) -> Result<()> {
    let program = std::env::current_exe()
        .context("find this program")?
        .with_file_name("flow-bench");
    let rounds = cli.rounds.unwrap_or(if cli.quick { 3 } else { 5 });
    let mut command = Command::new(&program);
    command
        .args(["--rounds", &rounds.to_string(), "--results"])
        .arg(&cli.results);
    if cli.quick {
        command.args(["--case", "10k"]);
    }
    if cli.json {
        command.args(["--output", "json"]);
    }
    let status = command
        .status()
        .with_context(|| format!("start {}", program.display()))?;
    ensure!(status.success(), "{}: {status}", program.display());
    Ok(())
}

fn print(run: &Run) {
    let mut scenario = None;
    for row in &run.rows {
        if scenario != Some(&row.scenario) {
            println!("\n{}", rounds::text(&row.scenario));
            scenario = Some(&row.scenario);
        }
        if let Some(figure) = row.figure() {
            let (title, text) = (
                report::units::title(&row.measure),
                report::units::figure(&row.measure, figure),
            );
            println!("  {:<16} {title:<32} {text}", row.arm);
        }
    }
    if run.bench == "http" {
        print_differences(run);
    }
    println!();
}

fn print_differences(run: &Run) {
    println!("\nover nothing, with a confidence interval of the rounds' median");
    for (row, difference) in http::differences(run) {
        let Difference {
            median,
            low,
            high,
            coverage_percent,
        } = difference;
        let title = report::units::title(&row.measure);
        let error = if difference.is_significant() {
            ""
        } else {
            "  within the error"
        };
        println!(
            "  {:<16} {title:<32} {median:+.0} ({low:+.0} to {high:+.0}, {coverage_percent:.0} %){error}",
            row.arm
        );
    }
}
