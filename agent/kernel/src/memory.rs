//! The kernel memory that maps take.
//!
//! Asking takes six system calls per map, so it is done once when a map is created and not in every scan.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use aya::maps::MapData;

pub fn map_memory_bytes(map: &MapData) -> u64 {
    memory_bytes(map.fd().as_fd())
}

/// The memory that the kernel charges for a map, in bytes: `memlock` in its fdinfo, or 0 if that is missing.
pub fn memory_bytes(map: BorrowedFd<'_>) -> u64 {
    let path = format!("/proc/self/fdinfo/{}", map.as_raw_fd());
    std::fs::read_to_string(path)
        .ok()
        .and_then(|info| {
            let line = info.lines().find(|line| line.starts_with("memlock:"))?;
            line.split_whitespace().nth(1)?.parse().ok()
        })
        .unwrap_or(0)
}
