//! Compiles the programs that the benches compare the agent's with.

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
