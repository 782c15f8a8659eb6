//! Runs the tests that take minutes, or whose set-up does, so that CI does without them: those of the agent that are marked
//! `#[ignore = "cargo xtask test-consumers"]`, with foreign programs, or `#[ignore = "cargo xtask test-delivery"]`.

use std::process::ExitCode;

use anyhow::Result;

use crate::{
    clients,
    count::Count,
    setup::{Purpose, setup},
    test,
    workspace::{cargo, run},
};

/// The module of the second kind.
const DELIVERY: &str = "collect::delivery";

#[derive(clap::Args)]
pub struct Arguments {
    /// A part of the names of the tests to run
    name: Option<String>,
}

/// Installs what they need, runs them, and prints the count as the last line. What cannot be installed makes its tests
/// skip themselves, with the reason.
pub fn test(arguments: &Arguments) -> Result<ExitCode> {
    setup(Purpose::Test)?;
    clients::set_up();
    clients::set_up_slow();
    let mut tests = vec!["test", "--package", "agent", "--test", "agent", "--"];
    tests.extend(["--ignored", "--test-threads", "1", "--skip", DELIVERY]);
    tests.extend(arguments.name.as_deref());
    let mut count = Count::default();
    test::tests(&tests, &mut count)?;
    Ok(count.report())
}

/// Runs fifty agents, two collectors and a broker, and kills them for three minutes. Prints what was delivered.
pub fn test_delivery() -> Result<ExitCode> {
    setup(Purpose::Test)?;
    clients::set_up();
    let simulated = ["build", "--workspace", "--example", "simulated_agent"];
    run(&mut cargo(&simulated))?;
    let mut tests = vec!["test", "--workspace", "--test", "agent", "--"];
    tests.extend(["--ignored", "--nocapture", DELIVERY]);
    let mut count = Count::default();
    test::tests(&tests, &mut count)?;
    Ok(count.report())
}
