//! Runs the tests of `agent/tests/soak` as root, for as long as asked.

use std::{path::Path, process::ExitCode, time::Duration};

use anyhow::Result;

use crate::{
    setup::{Purpose, setup},
    workspace::{as_root, built, cargo, run, seconds, tests_among},
};

#[derive(clap::Args)]
pub struct Arguments {
    /// How long everything happens at once: interfaces, consumers, scans, traffic
    #[arg(long, default_value = "5m", value_parser = seconds)]
    duration: Duration,
    /// How long SYNs from random sources come at full speed
    #[arg(long, default_value = "30s", value_parser = seconds)]
    flood: Duration,
}

/// Runs each test alone and prints its figures on stdout.
pub fn soak(arguments: &Arguments) -> Result<ExitCode> {
    setup(Purpose::Test)?;
    let build = ["test", "--release", "--package", "agent", "--test", "soak"];
    let mut build = cargo(&build);
    build.arg("--no-run");
    let programs = built(build)?;
    let tests = tests_among(&programs)?;
    let mut command = as_root(Path::new("env"));
    for (name, time) in [
        ("FLOW_AGENT_SOAK_SECONDS", arguments.duration),
        ("FLOW_AGENT_FLOOD_SECONDS", arguments.flood),
    ] {
        command.arg(format!("{name}={}", time.as_secs()));
    }
    command
        .arg(tests)
        .args(["--test-threads", "1", "--nocapture"]);
    run(&mut command)?;
    Ok(ExitCode::SUCCESS)
}
