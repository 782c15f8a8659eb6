//! Compiles the programs that the agent's are held against.

use std::process::ExitCode;

#[path = "../agent/kernel/build/ebpf.rs"]
mod ebpf;

const PACKAGE: &str = "benches/ebpf";

fn main() -> ExitCode {
    let object = ebpf::Object {
        package: PACKAGE,
        name: "flow-agent-ebpf-bench",
        ..ebpf::AGENT
    };
    ebpf::exit_code(ebpf::build(&object))
}
