//! This process's resident memory, as `/proc/self/status` (`proc_pid_status(5)`) gives it.

use std::fs;

use anyhow::{Context as _, Result};

/// Resident memory: `VmRSS`.
pub fn resident_bytes() -> Result<u64> {
    field("VmRSS:")
}

/// The most that was resident so far: `VmHWM`.
pub fn peak_resident_bytes() -> Result<u64> {
    field("VmHWM:")
}

fn field(name: &str) -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let kib: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"))
        .with_context(|| format!("/proc/self/status has {name}"))?
        .parse()
        .with_context(|| format!("read {name}"))?;
    Ok(kib * 1024)
}
