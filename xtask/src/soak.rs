//! Runs the tests of `agent/tests/soak` as root, for as long as asked.

use std::{
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    setup::{Purpose, setup},
    workspace::{as_root, cargo, run},
};

#[derive(clap::Args)]
pub struct Arguments {
    /// How long everything happens at once: interfaces, consumers, scans, traffic
    #[arg(long, default_value = "5m", value_parser = duration)]
    duration: Duration,
    /// How long SYNs from random sources come at full speed
    #[arg(long, default_value = "30s", value_parser = duration)]
    flood: Duration,
}

/// Parses whole seconds or minutes, as in 30s or 5m.
fn duration(text: &str) -> Result<Duration> {
    let (number, seconds) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60),
        None => (text.strip_suffix('s').unwrap_or(text), 1),
    };
    let number: u32 = number.parse().context("a time such as 30s or 5m")?;
    ensure!(number > 0, "at least a second");
    Ok(Duration::from_secs(u64::from(number) * seconds))
}

/// Runs each test alone and prints its figures on stdout.
pub fn soak(arguments: &Arguments) -> Result<ExitCode> {
    setup(Purpose::Test)?;
    let tests = build()?;
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

/// Builds the tests for release and returns the program.
fn build() -> Result<PathBuf> {
    let build = ["test", "--release", "--package", "agent", "--test", "soak"];
    let mut command = cargo(&build);
    command.args(["--no-run", "--message-format", "json-render-diagnostics"]);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .context("start cargo test")?;
    ensure!(output.status.success(), "the soak tests do not build");
    let text = String::from_utf8(output.stdout).context("read what cargo says")?;
    let executable = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "soak")
        .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)));
    executable.context("cargo names the soak tests' program")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_seconds_or_minutes() {
        let seconds = |text| duration(text).ok().map(|time| time.as_secs());
        assert_eq!(
            [seconds("30s"), seconds("30"), seconds("5m")],
            [Some(30), Some(30), Some(300)]
        );
        assert_eq!([seconds("0s"), seconds("1h"), seconds("")], [None; 3]);
    }
}
