//! Starts the live benches, which measure the cost of the agent. They replace this process.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::ExitCode};

use anyhow::{Context as _, Result};

use crate::{
    clients,
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
    // What users get.
    let agent = build_agent("packaged")?;
    let mut build = cargo(&["build", "--release", "--package", "benches", "--bins"]);
    // The bench of the userspace path is one of them, and incremental builds are slower code.
    run(build.env("CARGO_INCREMENTAL", "0"))?;
    let mut command = as_root(&target_dir()?.join("release/live-bench"));
    command.current_dir(root()).arg("--agent").arg(agent);
    let mut arguments = arguments.bench.clone();
    if wants_peers(&arguments) {
        let packages = clients::set_up_peers()?;
        tell_peers(&mut arguments, packages.into());
    }
    let error = command.args(arguments).exec();
    Err(error).context("start the live benches")
}

/// Whether these arguments select the bench that needs third-party programs.
fn wants_peers(arguments: &[OsString]) -> bool {
    let has = |word| arguments.iter().any(|argument| argument == word);
    has("peers") && !has("--help") && !has("-h")
}

/// Inserts the folder with those programs after the bench's name.
fn tell_peers(arguments: &mut Vec<OsString>, packages: OsString) {
    if let Some(index) = arguments.iter().position(|argument| argument == "peers") {
        arguments.splice(index + 1..=index, ["--packages".into(), packages]);
    }
}

/// Generates the pages about overhead from the result files.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn only_the_bench_of_peers_wants_their_packages() {
        assert!(wants_peers(&words("--quick peers --flows 1000")));
        for arguments in ["--quick sweep", "peers --help", "peers -h", "--quick"] {
            assert!(!wants_peers(&words(arguments)), "{arguments}");
        }
    }

    #[test]
    fn the_packages_folder_comes_behind_the_name_of_the_bench() {
        let mut arguments = words("--quick peers --flows 1000");
        tell_peers(&mut arguments, "folder".into());
        assert_eq!(
            arguments,
            words("--quick peers --packages folder --flows 1000")
        );
    }
}
