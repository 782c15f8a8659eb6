//! Pauses between the steps of a program in a build for tests, so that races with other CPUs and userspace
//! really happen. In every other build these functions are empty.

#[cfg(feature = "pauses")]
use core::ffi::c_void;

#[cfg(feature = "pauses")]
use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_loop};

/// Before the program reads the page's number. Long enough for an agent that stops, even a slow one, to detach and flip
/// first.
#[inline(always)]
pub fn before_the_page() {
    #[cfg(feature = "pauses")]
    for_ns(3_000_000);
}

/// After the program has read the page's number and counted `seen`, so that a scan can flip and drain
/// before the rest is counted.
#[inline(always)]
pub fn on_the_page() {
    #[cfg(feature = "pauses")]
    for_ns(200_000);
}

/// Between a look-up that found no flow and the insert, so that another CPU inserts the flow first. Long
/// enough for a CPU that is behind to catch up soon with the one that makes the flows.
#[inline(always)]
pub fn before_the_insert() {
    #[cfg(feature = "pauses")]
    for_ns(5_000_000);
}

/// Between finding a slot empty and taking it, so that another CPU finds it empty as well.
#[inline(always)]
pub fn before_it_takes() {
    #[cfg(feature = "pauses")]
    for_ns(1_000_000);
}

/// Between taking a slot and publishing it.
#[inline(always)]
pub fn before_it_is_published() {
    #[cfg(feature = "pauses")]
    for_ns(200_000);
}

/// Between finding no sender stored for a flow and storing one, so that another CPU stores another sender first.
#[inline(always)]
pub fn before_it_is_noted() {
    #[cfg(feature = "pauses")]
    for_ns(2_000_000);
}

/// Far more rounds than the longest pause takes.
#[cfg(feature = "pauses")]
const MOST_ROUNDS: u32 = 1 << 20;

#[cfg(feature = "pauses")]
#[inline(always)]
fn for_ns(pause_ns: u64) {
    // SAFETY: the helper takes no argument.
    let mut end_ns = unsafe { bpf_ktime_get_ns() } + pause_ns;
    // SAFETY: the callback has the signature that the helper (kernel 5.17) expects, and the value that it
    // reads outlives the call.
    unsafe {
        bpf_loop(
            MOST_ROUNDS,
            is_over as *mut c_void,
            (&raw mut end_ns).cast(),
            0,
        );
    }
}

/// 1 ends the loop.
#[cfg(feature = "pauses")]
unsafe extern "C" fn is_over(_round: u32, end_ns: *mut c_void) -> u64 {
    // SAFETY: `for_ns` passes a u64 that lives on its stack.
    let end_ns = unsafe { end_ns.cast::<u64>().read() };
    // SAFETY: the helper takes no argument.
    u64::from(unsafe { bpf_ktime_get_ns() } >= end_ns)
}
