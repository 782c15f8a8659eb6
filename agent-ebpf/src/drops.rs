//! Counts what the kernel drops, by reason. See [`agent_common::drops`].

use agent_common::drops::{REASONS, place};
use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};

#[btf_map]
static DROPS: PerCpuArray<u64, { REASONS as usize }> = PerCpuArray::new();

#[inline(always)]
pub fn note(reason: u32) {
    if let Some(count) = DROPS.get_ptr_mut(place(reason)) {
        // SAFETY: elements of an array stay where they are. Only this CPU writes it: the kernel runs a program of a tracepoint no second
        // time on a CPU before the first run is over, and counts that it did not (`recursion_misses`).
        unsafe { *count += 1 };
    }
}
