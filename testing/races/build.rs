//! Compiles the programs with pauses.

use std::process::ExitCode;

#[path = "../../agent/kernel/build/ebpf.rs"]
mod ebpf;

fn main() -> ExitCode {
    let object = ebpf::Object {
        features: &["pauses"],
        ..ebpf::AGENT
    };
    ebpf::exit_code(ebpf::build(&object))
}
