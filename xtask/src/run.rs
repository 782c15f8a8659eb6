//! Runs the agent on a terminal. It replaces this process.

use std::{env, os::unix::process::CommandExt as _, process::ExitCode};

use anyhow::{Context as _, Result};

use crate::{
    setup::{Purpose, setup},
    workspace::{as_root, build_agent},
};

/// Settings suited to a terminal, unless the user sets others.
const DEFAULTS: &[(&str, &str, &str)] = &[
    ("--output", "FLOW_AGENT_OUTPUT", "table"),
    ("--scan-interval", "FLOW_AGENT_SCAN_INTERVAL", "2s"),
];

#[derive(clap::Args)]
pub struct Arguments {
    /// Arguments of `flow-agent run`
    #[arg(last = true)]
    agent: Vec<String>,
}

/// Returns only if the agent could not be started.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    setup(Purpose::Run)?;
    let agent = build_agent("dev")?;
    let mut command = as_root(&agent);
    command.arg("run");
    for (option, variable, value) in DEFAULTS {
        let given = |argument: &String| {
            argument
                .strip_prefix(option)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        if env::var_os(variable).is_none() && !arguments.agent.iter().any(given) {
            command.args([option, value]);
        }
    }
    let error = command.args(&arguments.agent).exec();
    Err(error).with_context(|| format!("start {}", agent.display()))
}
