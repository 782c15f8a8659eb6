//! Compiles the eBPF programs, which the crate embeds.

use std::process::ExitCode;

#[path = "build/ebpf.rs"]
mod ebpf;

fn main() -> ExitCode {
    ebpf::exit_code(ebpf::build(&ebpf::AGENT))
}
