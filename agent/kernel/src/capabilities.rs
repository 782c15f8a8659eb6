//! The capabilities of this process.

use std::fs;

use anyhow::{Context as _, Result};

const STATUS: &str = "/proc/self/status";

// linux/capability.h.
pub const CAP_NET_ADMIN: u32 = 12;
pub const CAP_SYS_ADMIN: u32 = 21;
pub const CAP_PERFMON: u32 = 38;
pub const CAP_BPF: u32 = 39;

/// The effective set of capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    pub fn of_this_process() -> Result<Self> {
        let status = fs::read_to_string(STATUS).with_context(|| format!("read {STATUS}"))?;
        Self::parse(&status).with_context(|| format!("find CapEff in {STATUS}"))
    }

    /// Reads them from the text of `/proc/PID/status`.
    pub fn parse(status: &str) -> Option<Self> {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(line.trim(), 16).ok().map(Self)
    }

    pub fn has(self, capability: u32) -> bool {
        self.0 & (1 << capability) != 0
    }

    /// Whether it has `capability` or `CAP_SYS_ADMIN`, which includes `CAP_BPF` (`bpf_capable`) and `CAP_PERFMON` since
    /// 5.8.
    pub fn has_or_is_admin(self, capability: u32) -> bool {
        self.has(capability) || self.has(CAP_SYS_ADMIN)
    }

    pub fn may_load_programs(self) -> bool {
        self.has_or_is_admin(CAP_BPF)
    }
}
