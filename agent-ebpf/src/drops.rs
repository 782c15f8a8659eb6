//! Counts the packets that the kernel drops, by reason. See [`agent_common::drops`].

use agent_common::drops::{REASONS, place};
use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};

#[btf_map]
static DROPS: PerCpuArray<u64, { REASONS as usize }> = PerCpuArray::new();

#[inline(always)]
pub fn note(reason: u32) {
    if let Some(count) = DROPS.get_ptr_mut(place(reason)) {
        // SAFETY: elements of an array stay where they are. Only this CPU writes it: the kernel does not run a
        // tracepoint program again on a CPU before its first run is over, and counts the runs it skips
        // (`recursion_misses`).
        unsafe { *count += 1 };
    }
}
