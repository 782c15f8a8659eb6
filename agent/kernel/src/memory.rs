//! The kernel memory that maps take.
//!
//! To ask for it takes six system calls for each map. So it is asked for when a map is made, and not in every scan.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use aya::maps::MapData;

pub fn map_memory_bytes(map: &MapData) -> u64 {
    memory_bytes(map.fd().as_fd())
}

/// The memory that the kernel charges for a map: `memlock` in its fdinfo; 0 if it is not there.
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
