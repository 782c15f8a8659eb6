//! The host's fingerprint: what figures depend on, so that those of two hosts are not mixed up. No
//! name and no address is in it.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    pub kernel: String,
    pub cpu: String,
    pub cpus: usize,
    pub memory_bytes: u64,
    /// What `/sys/hypervisor` or the CPU flags say: `none` for bare metal.
    pub virtualization: String,
    /// `n/a` where the kernel does not scale the frequency.
    pub governor: String,
    pub bpf_jit: String,
    /// Spectre v2 mitigation, which decides what an indirect call costs.
    pub spectre_v2: String,
}

impl Host {
    pub fn read() -> Result<Self> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").context("read /proc/cpuinfo")?;
        let field = |name: &str| {
            cpuinfo
                .lines()
                .find(|line| line.starts_with(name))
                .and_then(|line| line.split_once(':'))
                .map(|(_, value)| value.trim().to_owned())
        };
        let is_guest =
            field("flags").is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor"));
        Ok(Self {
            kernel: line("/proc/sys/kernel/osrelease"),
            cpu: field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_bytes()?,
            virtualization: if is_guest { "guest" } else { "none" }.to_owned(),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            bpf_jit: line("/proc/sys/net/core/bpf_jit_enable"),
            spectre_v2: line("/sys/devices/system/cpu/vulnerabilities/spectre_v2"),
        })
    }

    /// For file names: CPU and number of CPUs, in lower case.
    pub fn slug(&self) -> String {
        let words = self
            .cpu
            .to_lowercase()
            .replace("(r)", "")
            .replace("(tm)", "")
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| !word.is_empty() && *word != "cpu" && *word != "processor")
            .take(4)
            .collect::<Vec<_>>()
            .join("-");
        format!("{words}-{}cpu", self.cpus)
    }
}

fn memory_bytes() -> Result<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
    let kib: u64 = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"))
        .context("/proc/meminfo has MemTotal")?
        .parse()
        .context("read MemTotal")?;
    Ok(kib * 1024)
}

fn line(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).map_or_else(|_| "n/a".to_owned(), |text| text.trim().to_owned())
}
