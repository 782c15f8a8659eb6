//! Measures CPU time, allocations and memory per flow, which criterion does not: runs each case of `flow-bench` once.

use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let status = Command::new(env!("CARGO_BIN_EXE_flow-bench"))
        .args(["--rounds", "1"])
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            eprintln!("flow-bench: {status}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("start flow-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
