//! Starts the live benches, which measure what the agent costs. They replace this process.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::ExitCode};

use anyhow::{Context as _, Result};

use crate::{
    setup::{Purpose, setup},
    workspace::{as_root, build_agent, cargo, root, run, target_dir},
};

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    /// Arguments of the live benches; see `cargo xtask bench --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    bench: Vec<OsString>,
}

/// Returns only if the benches could not be started.
pub fn bench(arguments: &Arguments) -> Result<ExitCode> {
    setup(Purpose::Demo)?;
    let agent = build_agent()?;
    run(&mut cargo(&[
        "build",
        "--release",
        "--package",
        "benches",
        "--bins",
    ]))?;
    let mut command = as_root(&target_dir()?.join("release/live-bench"));
    command.current_dir(root()).arg("--agent").arg(agent);
    let error = command.args(&arguments.bench).exec();
    Err(error).context("start the live benches")
}

/// Makes the pages about overhead from the result files.
pub fn report() -> Result<ExitCode> {
    setup(Purpose::Run)?;
    run(&mut cargo(&[
        "run",
        "--release",
        "--package",
        "benches",
        "--bin",
        "live-bench",
        "--",
        "report",
    ]))?;
    Ok(ExitCode::SUCCESS)
}
