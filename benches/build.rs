//! Compiles the programs that the agent's are held against.

use std::process::ExitCode;

#[path = "../agent/build/ebpf.rs"]
mod ebpf;

/// The generic one has no compare-and-swap.
const NEWER_PROCESSOR: &str = "-Ctarget-cpu=v3";

fn main() -> ExitCode {
    let built = ebpf::build("flow-agent-ebpf-bench", &[], &[])
        .and_then(|()| ebpf::build("flow-agent-ebpf-table", &[NEWER_PROCESSOR], &[]));
    match built {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            for line in format!("{error:#}").lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}
