//! The only atomic operation that the programs use.

/// `lock *(u64 *)counter += value`. Uses the intrinsic, since `core` has no `AtomicU64::fetch_add` for this
/// target.
///
/// # Safety
///
/// `counter` must point into a live map value.
#[inline(always)]
pub unsafe fn add(counter: *mut u64, value: u64) {
    #[cfg(target_arch = "bpf")]
    {
        use core::intrinsics::{AtomicOrdering, atomic_xadd};
        // SAFETY: the caller's promise; the field is an aligned u64.
        unsafe {
            atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(counter, value);
        }
    }
    // Never run. It lets the host's compiler check the crate.
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU64, Ordering};
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(counter) }.fetch_add(value, Ordering::Relaxed);
    }
}
