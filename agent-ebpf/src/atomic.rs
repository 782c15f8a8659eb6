//! The atomic operations that the programs use.

#[cfg(target_arch = "bpf")]
use core::arch::asm;

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
    // Never run; lets the host's compiler check the crate.
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU64, Ordering};
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(counter) }.fetch_add(value, Ordering::Relaxed);
    }
}

/// `lock *(u64 *)word |= bits`.
///
/// This and the following operations need kernel 5.12. They are assembly because LLVM emits them only for processor
/// `v3`, whose 32-bit registers lose bounds: kernel 6.1 forgets the bounds of a 32-bit number that was spilled to the
/// stack.
///
/// # Safety
///
/// `word` must point into a live map value.
#[inline(always)]
pub unsafe fn or(word: *mut u64, bits: u64) {
    #[cfg(target_arch = "bpf")]
    {
        // SAFETY: the caller's promise; the field is an aligned u64.
        unsafe {
            asm!(
                "lock *(u64 *)({word} + 0) |= {bits}",
                word = in(reg) word,
                bits = in(reg) bits,
                options(nostack),
            );
        }
    }
    // Never run.
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(word) }.fetch_or(bits, Relaxed);
    }
}

/// Replaces `expected` by `value`. Returns whether it did. The kernel's JITs for x86-64 and arm64 make it a full
/// barrier, like [`swap`].
///
/// # Safety
///
/// `word` must point into a live map value.
#[inline(always)]
pub unsafe fn swap_if(word: *mut u64, expected: u64, value: u64) -> bool {
    #[cfg(target_arch = "bpf")]
    {
        let found: u64;
        // SAFETY: the caller's promise; the field is an aligned u64.
        unsafe {
            asm!(
                "r0 = cmpxchg_64({word} + 0, r0, {value})",
                word = in(reg) word,
                value = in(reg) value,
                inlateout("r0") expected => found,
                options(nostack),
            );
        }
        found == expected
    }
    // Never run.
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
        // SAFETY: as above.
        let word = unsafe { AtomicU64::from_ptr(word) };
        word.compare_exchange(expected, value, SeqCst, SeqCst)
            .is_ok()
    }
}

/// Stores `value` after all earlier stores.
///
/// # Safety
///
/// `word` must point into a live map value.
#[inline(always)]
pub unsafe fn swap(word: *mut u64, value: u64) {
    #[cfg(target_arch = "bpf")]
    {
        // SAFETY: the caller's promise; the field is an aligned u64.
        unsafe {
            asm!(
                "{value} = xchg_64({word} + 0, {value})",
                word = in(reg) word,
                value = inout(reg) value => _,
                options(nostack),
            );
        }
    }
    // Never run.
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(word) }.swap(value, SeqCst);
    }
}
