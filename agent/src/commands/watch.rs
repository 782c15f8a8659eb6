//! `flow-agent watch`: an agent's address comes in, its flows go out as a table or JSON Lines, across
//! restarts of the agent.

use std::{
    io::{self, Write as _},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::{
    client::{self, Event, Observer, Target},
    output::{self, Format, Printer},
};

/// Show the flows that a running agent sees.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where the agent listens: unix:PATH or HOST:PORT.
    #[arg(long, value_name = "ADDRESS", env = "FLOW_AGENT_CONNECT", default_value = client::DEFAULT_TARGET)]
    pub connect: Target,

    /// A table, or JSON Lines on stdout.
    #[arg(
        long,
        value_name = "FORMAT",
        env = "FLOW_AGENT_WATCH_OUTPUT",
        value_enum,
        default_value = "table"
    )]
    pub output: Format,

    /// Stop after this time, as in 10s or 2m.
    #[arg(long, value_name = "TIME", env = "FLOW_AGENT_WATCH_DURATION", value_parser = humantime::parse_duration)]
    pub duration: Option<Duration>,

    /// The most rows of a table [default: what the terminal holds, 50 elsewhere].
    #[arg(long, value_name = "ROWS", env = "FLOW_AGENT_WATCH_LIMIT")]
    pub limit: Option<usize>,
}

pub async fn run(args: Args) -> Result<ExitCode> {
    let end = async {
        match args.duration {
            Some(duration) => tokio::time::sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        watched = watch(&args) => watched?,
        () = end => {}
        interrupted = tokio::signal::ctrl_c() => interrupted.context("wait for SIGINT")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends when nobody reads stdout.
async fn watch(args: &Args) -> Result<()> {
    let consumer = format!("watch pid={}", std::process::id());
    let mut observer = Observer::connect(args.connect.clone(), &consumer).await?;
    let mut printer = Printer::on_stdout(args.output, args.limit);
    loop {
        match observer.next().await? {
            Event::Batch(batch) => match printer.batch(&batch) {
                Err(error) if output::is_broken_pipe(&error) => return Ok(()),
                written => written.context("write to stdout")?,
            },
            Event::Disconnected { reason } => {
                notice(&format!(
                    "{reason}; waiting for the agent at {} to come back",
                    args.connect
                ));
            }
            Event::Reconnected {
                restarted: true, ..
            } => {
                notice("an agent is there again; it is another process, so totals begin anew");
            }
            Event::Reconnected {
                restarted: false,
                missed_scans,
            } => {
                notice(&format!(
                    "connected again; {missed_scans} scans went by unseen"
                ));
            }
            Event::Gap { batches } => {
                notice(&format!("{batches} batches are missing on the stream"));
            }
        }
    }
}

/// Stdout is for flows. Where stderr is closed, nobody is there to be told.
fn notice(text: &str) {
    let _ = writeln!(io::stderr(), "flow-agent: {text}");
}
