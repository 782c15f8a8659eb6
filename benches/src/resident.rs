//! A process's resident memory, from `proc_pid_status(5)`.

use std::fs;

use anyhow::{Context as _, Result};

/// Current resident memory (`VmRSS`) and its peak (`VmHWM`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Resident {
    pub now_bytes: u64,
    pub peak_bytes: u64,
}

impl Resident {
    pub fn of(pid: u32) -> Result<Self> {
        Self::read(&format!("/proc/{pid}/status"))
    }

    /// Reads the figures of the calling process.
    pub fn own() -> Result<Self> {
        Self::read("/proc/self/status")
    }

    fn read(path: &str) -> Result<Self> {
        let status = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
        let field = |name: &str| -> Result<u64> {
            let kib: u64 = status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"))
                .with_context(|| format!("{path} has {name}"))?
                .parse()
                .with_context(|| format!("read {name} of {path}"))?;
            Ok(kib * 1024)
        };
        Ok(Self {
            now_bytes: field("VmRSS:")?,
            peak_bytes: field("VmHWM:")?,
        })
    }
}
