//! Runs the tests that take minutes, or whose set-up does, and that CI therefore skips. They are the agent's tests
//! marked `#[ignore = "cargo xtask test-consumers"]`, which use third-party programs, or `#[ignore = "cargo xtask
//! test-delivery"]`.

use std::process::ExitCode;

use anyhow::Result;

use crate::{
    clients,
    count::Count,
    setup::{Purpose, setup},
    test::{self, THREADS_PER_CPU},
    workspace::{cargo, run},
};

/// The module with the tests marked `test-delivery`.
const DELIVERY: &str = "collect::delivery";

#[derive(clap::Args)]
pub struct Arguments {
    /// A part of the names of the tests to run
    name: Option<String>,
}

/// Installs the clients, runs their tests and prints the count as the last line. If a client cannot be installed, its
/// tests skip themselves, with the reason.
pub fn test(arguments: &Arguments) -> Result<ExitCode> {
    setup(Purpose::Test)?;
    clients::set_up();
    clients::set_up_slow();
    let mut tests = vec!["test", "--package", "agent", "--test", "agent", "--"];
    tests.extend(["--ignored", "--test-threads", "1", "--skip", DELIVERY]);
    tests.extend(arguments.name.as_deref());
    let mut count = Count::default();
    test::tests(&tests, THREADS_PER_CPU, &mut count)?;
    Ok(count.report())
}

/// Runs fifty agents, two collectors and a broker for three minutes, killing them at random. Prints the delivered records.
pub fn test_delivery() -> Result<ExitCode> {
    setup(Purpose::Test)?;
    clients::set_up();
    let simulated = ["build", "--workspace", "--example", "simulated_agent"];
    run(&mut cargo(&simulated))?;
    let mut tests = vec!["test", "--workspace", "--test", "agent", "--"];
    tests.extend(["--ignored", "--nocapture", DELIVERY]);
    let mut count = Count::default();
    test::tests(&tests, THREADS_PER_CPU, &mut count)?;
    Ok(count.report())
}
