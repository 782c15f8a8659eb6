//! The memory of processes, and of the kernel on their behalf.

use std::{fs, ops::AddAssign};

use anyhow::{Context as _, Result};

use super::fdinfo::map_memory_bytes;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Excludes kernel memory that the processes have mapped.
    pub resident_bytes: u64,
    /// Rings of packet sockets, and BPF maps.
    pub kernel_bytes: u64,
}

impl Memory {
    /// Everything that one process has resident, including pages that it shares with others.
    pub fn of(pid: u32) -> Result<Self> {
        read(pid, "Rss:")
    }

    /// Total for several processes of one program. A page that they share with each other counts once; a page shared
    /// with other processes counts in proportion (PSS).
    pub fn of_all<'a>(pids: impl IntoIterator<Item = &'a u32>) -> Self {
        let mut sum = Self::default();
        for pid in pids {
            // A process may have ended in the meantime.
            if let Ok(memory) = read(*pid, "Pss:") {
                sum += memory;
            }
        }
        sum
    }
}

impl AddAssign for Memory {
    fn add_assign(&mut self, other: Self) {
        self.resident_bytes += other.resident_bytes;
        self.kernel_bytes += other.kernel_bytes;
    }
}

fn read(pid: u32, field: &str) -> Result<Memory> {
    let path = format!("/proc/{pid}/smaps");
    let smaps = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let mut memory = mapped(&smaps, field);
    memory.kernel_bytes += map_memory_bytes(pid)?;
    Ok(memory)
}

/// Sums this field of `proc_pid_smaps(5)`. Leaves out BPF maps, for which the kernel reports the total itself. A map
/// appears as `anon_inode:bpf-map`, the ring of a packet socket as `socket:[INODE]`.
fn mapped(smaps: &str, field: &str) -> Memory {
    let mut memory = Memory::default();
    let mut path = "";
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else {
            continue;
        };
        if first == field {
            let kib: u64 = words.next().and_then(|kib| kib.parse().ok()).unwrap_or(0);
            let bytes = kib * 1024;
            if path.starts_with("socket:") {
                memory.kernel_bytes += bytes;
            } else if !path.contains("bpf-map") {
                memory.resident_bytes += bytes;
            }
        } else if !first.ends_with(':') {
            path = words.nth(4).unwrap_or_default();
        }
    }
    memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_and_maps_are_the_kernels_and_all_else_the_process_s() {
        let smaps = "\
55d5c8a00000-55d5c8a02000 r--p 00000000 fe:00 1234 /usr/sbin/softflowd
Size:                  8 kB
Rss:                   8 kB
Pss:                   4 kB
Pss_Dirty:             0 kB
7f0000000000-7f0000200000 rw-s 00000000 00:08 4321 socket:[4321]
Rss:                2048 kB
Pss:                2048 kB
7fa8c9a31000-7fa8c9a57000 rw-s 00000000 00:10 1038                       anon_inode:bpf-map
Rss:                 152 kB
Pss:                 152 kB
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]
Rss:                  12 kB
Pss:                  12 kB
VmFlags: rd wr mr mw me gd ac
7f0000300000-7f0000301000 rw-p 00000000 00:00 0
Rss:                   1 kB
Pss:                   1 kB
";
        for (field, resident_kib) in [("Pss:", 17), ("Rss:", 21)] {
            let expected = Memory {
                resident_bytes: resident_kib << 10,
                kernel_bytes: 2 << 20,
            };
            assert_eq!(mapped(smaps, field), expected);
        }
    }
}
