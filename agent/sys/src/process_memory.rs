//! The memory of this process: what it has, and what was freed and the C library or the kernel keeps for it.

/// Gives it back to the system. glibc keeps what was freed for the thread that had taken it, and whatever lies below
/// something that is still in use: some 13 MB of what loading the programs takes, and 26 MB after a Parquet file.
pub fn give_back() {
    // SAFETY: it only takes the C library's own locks.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has the kernel give this process memory in small pages from now on. Where it gives huge ones to all (`always` in
/// `/sys/kernel/mm/transparent_hugepage/enabled`, as on Debian), one of which a part is used takes 2 MiB, and what was given back comes
/// again with its neighbours: an idle agent had 12 to 15 MB of its own instead of 5.
pub fn in_small_pages() {
    // SAFETY: it changes a flag of the process. Kernels that do not know it have no such pages.
    unsafe {
        libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
    }
}

/// `VmRSS` of this process; 0 if /proc does not have it.
pub fn resident_bytes() -> u64 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .map_or(0, |kib| kib * 1024)
}
