//! Counts flows by packet capture, for comparison with the agent. Writes a line of JSON to stdout after each interval
//! and at the end.

#![expect(
    clippy::print_stdout,
    reason = "the counts are what this program is for"
)]

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use benches::{
    capture::{Account, Capture, Settings},
    exit_code,
};
use clap::Parser;

/// Bounds how long a signal goes unnoticed.
const SLICE: Duration = Duration::from_millis(100);

/// Counts the flows of an interface from an `AF_PACKET` ring
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[arg(long)]
    interface: String,

    /// How often the table is drained
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    scan_interval: Duration,

    /// Size of the ring
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=4096))]
    ring_mib: u32,

    #[arg(long, default_value_t = 1_000_000)]
    max_tracked_flows: usize,

    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    idle_timeout: Duration,
}

fn main() -> ExitCode {
    exit_code(run(&Cli::parse()))
}

fn run(cli: &Cli) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("listen for signals")?;
    }
    let settings = Settings {
        ring_bytes: (cli.ring_mib as usize) << 20,
        max_tracked_flows: cli.max_tracked_flows,
        idle_timeout: cli.idle_timeout,
        ..Settings::default()
    };
    let mut capture = Capture::open(&cli.interface, settings)?;
    // Tells the reader that counting has begun.
    print(&Account {
        ring_bytes: settings.ring_bytes as u64,
        ..Account::default()
    })?;
    let mut drain_at = Instant::now() + cli.scan_interval;
    while !stop.load(Ordering::Relaxed) {
        capture.count_until(drain_at.min(Instant::now() + SLICE))?;
        if Instant::now() >= drain_at {
            print(&capture.drain()?)?;
            drain_at += cli.scan_interval;
        }
    }
    print(&capture.finish()?)
}

fn print(account: &Account) -> Result<()> {
    let line = serde_json::to_string(account).context("encode the account")?;
    println!("{line}");
    Ok(())
}
