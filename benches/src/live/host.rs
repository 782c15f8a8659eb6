//! The host's fingerprint: everything that figures depend on, so that results of different hosts are not mixed up. It
//! contains no names and no addresses.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    pub kernel: String,
    pub cpu: String,
    pub cpus: usize,
    pub memory_bytes: u64,
    /// From `/sys/hypervisor` or the CPU flags: `none` for bare metal.
    pub virtualization: String,
    /// `n/a` if the kernel does not scale the frequency.
    pub governor: String,
    pub bpf_jit: String,
    /// The Spectre v2 mitigation, which determines the cost of an indirect call.
    pub spectre_v2: String,
    /// Determines the cost of reading the time.
    #[serde(default)]
    pub clocksource: String,
    /// `CONFIG_IRQ_TIME_ACCOUNTING`: `y`, `n`, or `n/a` if the kernel's configuration cannot be read. With it no
    /// process is charged for the time of soft interrupts.
    #[serde(default)]
    pub irq_time_accounting: String,
    /// The one-minute load average before the run.
    #[serde(default)]
    pub load: String,
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
            clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            irq_time_accounting: irq_time_accounting(),
            load: first_word(&line("/proc/loadavg")),
        })
    }

    /// Compares hardware and kernel, but not the load.
    pub fn is_like(&self, other: &Self) -> bool {
        let without_load = |host: &Self| Self {
            load: String::new(),
            ..host.clone()
        };
        without_load(self) == without_load(other)
    }

    /// CPU and number of CPUs in lower case, for file names.
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

/// Reads the configuration from the kernel itself or from its package.
fn irq_time_accounting() -> String {
    let release = line("/proc/sys/kernel/osrelease");
    let packed = Command::new("gzip")
        .args(["-dc", "/proc/config.gz"])
        .output();
    let packed = packed.ok().filter(|output| output.status.success());
    let text = packed
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .or_else(|| fs::read_to_string(format!("/boot/config-{release}")).ok());
    match text {
        None => "n/a".to_owned(),
        Some(text) if text.contains("CONFIG_IRQ_TIME_ACCOUNTING=y") => "y".to_owned(),
        Some(_) => "n".to_owned(),
    }
}

fn first_word(text: &str) -> String {
    text.split(' ').next().unwrap_or_default().to_owned()
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
