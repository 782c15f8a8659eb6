//! Atomic operations that return what was there before, on a word that several CPUs change at once. They
//! need kernel 5.12 and LLVM's BPF processor `v3` or later. All are full barriers in the kernel's JITs.

/// Replaces `expected` by `value`. Returns whether it did.
///
/// # Safety
///
/// `word` points into a live map value.
#[inline(always)]
pub unsafe fn swap_if(word: *mut u64, expected: u64, value: u64) -> bool {
    #[cfg(target_arch = "bpf")]
    {
        use core::intrinsics::{AtomicOrdering::SeqCst, atomic_cxchg};
        // SAFETY: the caller's promise; the field is an aligned u64.
        unsafe { atomic_cxchg::<u64, { SeqCst }, { SeqCst }>(word, expected, value) }.1
    }
    // Never run: so that the crate can be checked by the host's compiler.
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
        // SAFETY: as above.
        let word = unsafe { AtomicU64::from_ptr(word) };
        word.compare_exchange(expected, value, SeqCst, SeqCst)
            .is_ok()
    }
}

/// Stores `value` after everything that was stored before.
///
/// # Safety
///
/// `word` points into a live map value.
#[inline(always)]
pub unsafe fn publish(word: *mut u64, value: u64) {
    #[cfg(target_arch = "bpf")]
    {
        use core::intrinsics::{AtomicOrdering::SeqCst, atomic_xchg};
        // A plain store is no barrier where the processor reorders stores.
        // SAFETY: the caller's promise; the field is an aligned u64.
        unsafe {
            atomic_xchg::<u64, { SeqCst }>(word, value);
        }
    }
    // Never run: so that the crate can be checked by the host's compiler.
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(word) }.swap(value, SeqCst);
    }
}
