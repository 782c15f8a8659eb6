//! The command line: arguments come in, one subcommand runs, the chain of an error goes to stderr.

use std::{
    io::{IsTerminal as _, Write as _},
    process::ExitCode,
};

use agent::{commands, filter};
use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Keeps the network flow table inside the kernel and streams exact flow records over gRPC.
#[derive(Parser)]
#[command(name = "flow-agent", version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Count the flows of interfaces and stream them.
    Run(commands::run::Args),
    /// Show the flows that a running agent sees.
    Watch(commands::watch::Args),
    /// Show how a running agent is doing.
    Status(commands::status::Args),
    /// Hold a running agent's account against the interfaces' own counters.
    Audit(commands::audit::Args),
    /// Show or change the filter rules of a running agent.
    Filter(commands::filter::Args),
    /// Say what works on this kernel for this user, and what is missing.
    Check(commands::check::Args),
}

fn main() -> ExitCode {
    forget_empty_settings();
    let cli = Cli::parse();
    let (filter, refused) = log_filter();
    // What the kernel programs log is chosen by --bpf-log-level alone.
    let programs = "flow_agent_ebpf=trace".parse().expect("a directive");
    tracing_subscriber::fmt()
        .with_env_filter(filter.add_directive(programs))
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .with_writer(std::io::stderr)
        // It would tell stderr of a write to stderr that failed, and panic where that fails too.
        .log_internal_errors(false)
        .init();
    if let Some(error) = refused {
        tracing::warn!("RUST_LOG is no log filter, info is taken: {error}");
    }
    match execute(cli.command) {
        Ok(code) => code,
        Err(error) => {
            // The exit status says it where nobody reads stderr.
            let _ = writeln!(std::io::stderr(), "flow-agent: {}", shown(&error));
            ExitCode::FAILURE
        }
    }
}

/// `FLOW_AGENT_X=` in an environment file means that X is not set.
fn forget_empty_settings() {
    for (name, value) in std::env::vars_os() {
        if value.is_empty() && name.as_encoded_bytes().starts_with(b"FLOW_AGENT_") {
            // SAFETY: the process has no other thread yet.
            unsafe { std::env::remove_var(name) };
        }
    }
}

/// What `RUST_LOG` says, or why it says nothing that can be understood; `info` where it is unset or
/// empty.
fn log_filter() -> (EnvFilter, Option<impl std::error::Error>) {
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    if wanted.is_empty() {
        return (EnvFilter::new("info"), None);
    }
    match EnvFilter::try_new(wanted) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new("info"), Some(error)),
    }
}

/// One line, but for a fault in a rule, which points at its place in a line of its own.
fn shown(error: &anyhow::Error) -> String {
    match error.downcast_ref::<filter::Fault>() {
        Some(fault) => fault.to_string(),
        None => one_line(error),
    }
}

/// The error with its causes. Some libraries repeat a cause in the text of what it caused.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        let cause = cause.replace('\n', " ");
        if line.is_empty() {
            line = cause;
        } else if !line.ends_with(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

fn execute(command: Command) -> anyhow::Result<ExitCode> {
    if let Command::Check(args) = command {
        return commands::check::run(args);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(async {
        match command {
            Command::Run(args) => Box::pin(commands::run::run(args)).await,
            Command::Watch(args) => commands::watch::run(args).await,
            Command::Status(args) => commands::status::run(args).await,
            Command::Audit(args) => commands::audit::run(args).await,
            Command::Filter(args) => commands::filter::run(args).await,
            Command::Check(args) => commands::check::run(args),
        }
    });
    // A thread may be stuck in a write to a stdout that nobody reads.
    runtime.shutdown_background();
    outcome
}
