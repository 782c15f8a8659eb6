//! The live benches: arguments come in, progress goes to stderr, results to a file and to stdout.

#![expect(clippy::print_stdout, reason = "figures are what this program is for")]

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use benches::live::{
    compare, diff, difference::Difference, filters, http, ladder, newflows, overhead, pages,
    report, result::Run, rounds::Interrupt, sweep, table,
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
    #[arg(long, global = true, default_value = "target/release/flow-agent")]
    agent: PathBuf,

    /// Fewer packets and three rounds: to see that it works, not to publish
    #[arg(long, global = true)]
    quick: bool,

    /// How often each arm is measured [default: 5, http 6, with --quick 3; newflows 1]
    #[arg(long, global = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,

    /// Of each measurement that is taken over a time, which those of `overhead` and `table` are not
    /// [default: 5s, sweep 2s, http 7s, and 30s where the agent is stopped; with --quick 2s]
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
    /// Nanoseconds, allocations and memory of a flow behind the hook
    Userspace,
    /// Nanoseconds a packet of our programs, packets a second, TCP throughput
    Overhead {
        /// Only these sections
        #[arg(value_enum)]
        sections: Vec<overhead::Section>,
    },
    /// CPU, memory and loss from one flow to a million, beside a packet capture
    Sweep {
        /// Only these sections
        #[arg(value_enum)]
        sections: Vec<sweep::Section>,
    },
    /// What filter rules cost a packet: none, 1, 100 and 1,000 networks
    Filters,
    /// New flows a second until the table loses one, with and without early scans; a round takes
    /// some minutes
    Newflows,
    /// CPU and memory of each thing that the agent is asked to do
    Ladder,
    /// Latency of HTTP requests with and without the agent, and with one that gets no CPU
    Http {
        /// Instead of 10,000, or what the machine holds
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        requests_per_second: Option<u32>,
    },
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
    /// A flow table of our own against the kernel's hash map: a prototype
    Table,
    /// What the table's pages are made of: memory in advance or a flow at a time, one for all CPUs or
    /// one for each
    Pages,
    /// Make the pages and plots from the result files
    #[command(hide = true)]
    Report,
    #[command(flatten)]
    HttpPart(http::Part),
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
    let counts_packets = matches!(cli.bench, Some(Bench::Overhead { .. } | Bench::Table));
    ensure!(
        cli.duration.is_none() || !counts_packets,
        "--duration: this bench sends a number of packets and not for a time; --rounds makes it longer"
    );
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
        Some(bench) => live(cli, &[bench]),
        None => live(
            cli,
            &[
                &Bench::Userspace,
                &Bench::Overhead {
                    sections: Vec::new(),
                },
                &Bench::Sweep {
                    sections: Vec::new(),
                },
                &Bench::Ladder,
                &Bench::Http {
                    requests_per_second: None,
                },
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
    let interrupt = Interrupt::install()?;
    for bench in benches {
        if matches!(bench, Bench::Userspace) {
            interrupt.check()?;
            userspace(cli)?;
            continue;
        }
        let mut run = one(cli, bench, &agent, &interrupt)?;
        run.agent_version = version_of(&agent)?;
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

/// By a program of its own, whose allocator counts.
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

fn version_of(agent: &Path) -> Result<String> {
    let output = Command::new(agent)
        .arg("--version")
        .output()
        .with_context(|| format!("start {}", agent.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split_whitespace().next_back();
    Ok(version.context("the agent says no version")?.to_owned())
}

fn one(cli: &Cli, bench: &Bench, agent: &Path, interrupt: &Interrupt) -> Result<Run> {
    let rounds = cli.rounds.unwrap_or(if cli.quick {
        3
    } else if matches!(bench, Bench::Http { .. }) {
        // Fewer do not give an interval that covers 95 %.
        6
    } else {
        5
    });
    let quick = cli.quick;
    let window = cli.window(Duration::from_secs(5));
    match bench {
        Bench::Overhead { sections } => {
            let settings = overhead::Settings {
                agent,
                rounds,
                quick,
                sections,
            };
            overhead::run(&settings, interrupt)
        }
        Bench::Sweep { sections } => {
            let settings = sweep::Settings {
                agent,
                rounds,
                quick,
                window: cli.window(Duration::from_secs(2)),
                sections,
            };
            sweep::run(&settings, interrupt)
        }
        Bench::Filters => filters::run(
            &filters::Settings {
                agent,
                rounds,
                quick,
            },
            interrupt,
        ),
        Bench::Newflows => newflows::run(
            &newflows::Settings {
                agent,
                rounds: cli.rounds.unwrap_or(1),
                quick,
            },
            interrupt,
        ),
        Bench::Ladder => {
            let settings = ladder::Settings {
                agent,
                rounds,
                quick,
                window,
            };
            ladder::run(&settings, interrupt)
        }
        Bench::Http {
            requests_per_second,
        } => {
            let settings = http::Settings {
                agent,
                rounds,
                quick,
                window: cli.window(Duration::from_secs(7)),
                stopped_window: cli.window(Duration::from_secs(30)),
                requests_per_second: *requests_per_second,
            };
            http::run(&settings, interrupt)
        }
        Bench::Compare {
            name,
            settle,
            command,
        } => {
            let settings = compare::Settings {
                agent,
                rounds,
                quick,
                window,
                name,
                settle: *settle,
                command,
            };
            compare::run(&settings, interrupt)
        }
        Bench::Table => table::run(rounds, quick, interrupt),
        Bench::Pages => pages::run(rounds, quick, interrupt),
        Bench::Userspace | Bench::Report | Bench::HttpPart(_) => bail!("this is no live bench"),
    }
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
