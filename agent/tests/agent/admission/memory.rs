//! The memory of the agent's process.

use std::fs;

pub const MIB: u64 = 1 << 20;

/// In bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub resident: u64,
    /// The highest value since the process started, or since [`reset_peak`].
    pub peak: u64,
}

impl Memory {
    pub fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| {
            let mut lines = status.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)).unwrap();
            let kib = value.trim().strip_suffix(" kB").unwrap();
            kib.parse::<u64>().unwrap() * 1024
        };
        Self {
            resident: field("VmRSS:"),
            peak: field("VmHWM:"),
        }
    }
}

/// Sets the peak to what is resident at this moment.
pub fn reset_peak(pid: u32) {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
}
