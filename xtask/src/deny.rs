//! Checks the dependencies against `deny.toml`: licences, duplicate versions, sources.

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::workspace::{root, run, tool};

const VERSION: &str = "0.20.2";

/// The workspace, and the eBPF crates outside it.
const MANIFESTS: [&str; 3] = [
    "Cargo.toml",
    "agent-ebpf/Cargo.toml",
    "benches/ebpf/Cargo.toml",
];

/// Needs no network, since it does not check advisories.
pub fn deny() -> Result<ExitCode> {
    let program = tool("deny", VERSION, "looks at the dependencies")?;
    for manifest in MANIFESTS {
        let mut check = Command::new(&program);
        check
            .current_dir(root())
            .args(["--offline", "--config", "deny.toml"])
            .args(["--manifest-path", manifest])
            .args(["check", "bans", "licenses", "sources"]);
        run(&mut check)?;
    }
    Ok(ExitCode::SUCCESS)
}
