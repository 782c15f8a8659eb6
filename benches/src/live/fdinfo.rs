//! Reads `/proc/PID/fdinfo` for the BPF programs and maps behind a process's descriptors.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::fd::BorrowedFd,
};

use anyhow::{Context as _, Result, ensure};

/// Programs that a process holds by descriptor, directly or through a link.
pub fn program_ids(pid: u32) -> Result<BTreeSet<u32>> {
    let infos = infos(pid)?;
    Ok(infos
        .iter()
        .filter_map(|info| field(info, "prog_id:"))
        .collect())
}

/// Maps that a process holds by descriptor.
pub fn map_ids(pid: u32) -> Result<BTreeSet<u32>> {
    let infos = infos(pid)?;
    Ok(infos
        .iter()
        .filter_map(|info| field(info, "map_id:"))
        .collect())
}

/// Kernel memory of the maps that a process holds by descriptor. Counts each map once. An inner map counts only if the
/// process holds it too.
pub fn map_memory_bytes(pid: u32) -> Result<u64> {
    let infos = infos(pid)?;
    let maps: BTreeMap<u32, u64> = infos
        .iter()
        .filter_map(|info| Some((field(info, "map_id:")?, field(info, "memlock:")?)))
        .collect();
    Ok(maps.values().sum())
}

/// The memory that the kernel charges for a map of this process.
pub fn memory_bytes(map: BorrowedFd<'_>) -> Result<u64> {
    let bytes = kernel::memory::memory_bytes(map);
    ensure!(bytes > 0, "the kernel does not say what a map takes");
    Ok(bytes)
}

fn infos(pid: u32) -> Result<Vec<String>> {
    let folder = format!("/proc/{pid}/fdinfo");
    let mut infos = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("read {folder}"))? {
        // The descriptor may have been closed in the meantime.
        infos.extend(fs::read_to_string(entry?.path()));
    }
    Ok(infos)
}

fn field<T: std::str::FromStr>(info: &str, name: &str) -> Option<T> {
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}
