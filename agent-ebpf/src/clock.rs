//! The kernel's clocks.

use aya_ebpf::helpers::{bpf_jiffies64, bpf_ktime_get_boot_ns};

/// `CLOCK_BOOTTIME` in nanoseconds. Takes some 40 ns in a guest that reads the time-stamp counter.
#[inline(always)]
pub fn boot_ns() -> u64 {
    // SAFETY: the helper takes no argument.
    unsafe { bpf_ktime_get_boot_ns() }
}

/// The kernel's tick counter. The verifier replaces the call by a load (`do_misc_fixups`).
#[inline(always)]
pub fn jiffies() -> u64 {
    // SAFETY: the helper takes no argument.
    unsafe { bpf_jiffies64() }
}
