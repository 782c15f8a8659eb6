//! Compiles the eBPF programs, which the agent embeds, and generates the gRPC code.

use std::{env, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};

#[path = "build/ebpf.rs"]
mod ebpf;
#[path = "build/proto.rs"]
mod proto;

fn main() -> ExitCode {
    ebpf::exit_code(build())
}

fn build() -> Result<()> {
    let manifest_dir = env::var_os("CARGO_MANIFEST_DIR").context("cargo names the package")?;
    proto::generate(&PathBuf::from(manifest_dir))?;
    // This is where `cargo xtask setup` installed what the tests start. root, who runs the tests, has another
    // cache.
    for name in ["XDG_CACHE_HOME", "HOME"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    if let Some(cache) = ebpf::ebpf_toolchain::cache_root() {
        println!("cargo::rustc-env=FLOW_AGENT_CACHE={}", cache.display());
    }
    ebpf::build(&ebpf::AGENT)
}
