//! Where a build for tests waits between two steps of a program, so that what other CPUs and userspace
//! may do meanwhile does happen. Every other build has nothing here.

#[cfg(feature = "pauses")]
use core::ffi::c_void;

#[cfg(feature = "pauses")]
use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_loop};

/// In front of the page's number: an agent that ends detaches and flips before it is read, also a slow
/// one.
#[inline(always)]
pub fn before_the_page() {
    #[cfg(feature = "pauses")]
    for_ns(3_000_000);
}

/// Behind the page's number and what is counted first: a scan flips and drains before the rest.
#[inline(always)]
pub fn on_the_page() {
    #[cfg(feature = "pauses")]
    for_ns(200_000);
}

/// Between a look-up that found no flow and its insert: another CPU inserts it first. So
/// long that a CPU that is behind soon catches up with one that makes the flows.
#[inline(always)]
pub fn before_the_insert() {
    #[cfg(feature = "pauses")]
    for_ns(5_000_000);
}

/// Far more rounds than there are in the longest pause.
#[cfg(feature = "pauses")]
const MOST_ROUNDS: u32 = 1 << 20;

#[cfg(feature = "pauses")]
#[inline(always)]
fn for_ns(pause_ns: u64) {
    // SAFETY: the helper takes no argument.
    let mut end_ns = unsafe { bpf_ktime_get_ns() } + pause_ns;
    // SAFETY: the callback has the signature that the helper calls (kernel 5.17), and what it reads
    // outlives the call.
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
    // SAFETY: `for_ns` hands over a u64 that lives on its stack.
    let end_ns = unsafe { end_ns.cast::<u64>().read() };
    // SAFETY: the helper takes no argument.
    u64::from(unsafe { bpf_ktime_get_ns() } >= end_ns)
}
