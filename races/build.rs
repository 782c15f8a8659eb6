//! Compiles the programs with pauses.

use std::process::ExitCode;

#[path = "../agent/build/ebpf.rs"]
mod ebpf;

fn main() -> ExitCode {
    match ebpf::build("flow-agent-ebpf", &[], &["pauses"]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            for line in format!("{error:#}").lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}
