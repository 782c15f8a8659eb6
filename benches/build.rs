//! Compiles the programs that the agent's are held against.

use std::process::ExitCode;

#[path = "../agent/build/ebpf.rs"]
mod ebpf;

const PACKAGE: &str = "benches/ebpf";

/// The generic one has no compare-and-swap.
const NEWER_PROCESSOR: &str = "-Ctarget-cpu=v3";

fn main() -> ExitCode {
    let objects = [
        ebpf::Object {
            package: PACKAGE,
            name: "flow-agent-ebpf-bench",
            ..ebpf::AGENT
        },
        ebpf::Object {
            package: PACKAGE,
            name: "flow-agent-ebpf-table",
            more_rust_flags: &[NEWER_PROCESSOR],
            ..ebpf::AGENT
        },
    ];
    ebpf::exit_code(objects.iter().try_for_each(ebpf::build))
}
