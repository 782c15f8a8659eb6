//! Runs the tests against foreign programs that take minutes, or whose set-up does, so that CI does without them. They are those
//! tests of the agent that are marked `#[ignore = "cargo xtask test-consumers"]`.

use std::process::ExitCode;

use anyhow::Result;

use crate::{
    apt::Apt,
    clients,
    count::Count,
    setup::{Purpose, setup},
    test,
};

#[derive(clap::Args)]
pub struct Arguments {
    /// A part of the names of the tests to run
    name: Option<String>,
}

/// Installs what they need, runs them, and prints the count as the last line. What cannot be installed makes its tests
/// skip themselves, with the reason.
pub fn test(arguments: &Arguments) -> Result<ExitCode> {
    setup(Purpose::Test)?;
    clients::set_up_slow(Apt::find().as_ref());
    let mut tests = vec!["test", "--package", "agent", "--test", "agent", "--"];
    tests.extend(["--ignored", "--test-threads", "1"]);
    tests.extend(arguments.name.as_deref());
    let mut count = Count::default();
    test::tests(&tests, &mut count)?;
    Ok(count.report())
}
