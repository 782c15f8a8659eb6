//! Bounds on numbers that the verifier can see.

#[cfg(target_arch = "bpf")]
use core::arch::asm;

/// `number & MASK`, even if the compiler can prove that the mask changes nothing. It would then drop the instruction,
/// and the verifier, which may have lost the bounds by then, would refuse the number as an index.
#[inline(always)]
pub fn masked<const MASK: u64>(number: u64) -> usize {
    #[cfg(target_arch = "bpf")]
    {
        let mut number = number;
        // SAFETY: the instruction changes one register only.
        unsafe {
            asm!(
                "{number} &= {mask}",
                number = inlateout(reg) number,
                mask = const MASK,
                options(pure, nomem, nostack),
            );
        }
        number as usize
    }
    // Never run.
    #[cfg(not(target_arch = "bpf"))]
    {
        (number & MASK) as usize
    }
}

/// `number`, or `LAST` if it is greater, even if the compiler can prove that it is not.
#[inline(always)]
pub fn at_most<const LAST: u64>(number: u64) -> usize {
    #[cfg(target_arch = "bpf")]
    {
        let mut number = number;
        // SAFETY: the instructions change one register only.
        unsafe {
            asm!(
                "if {number} <= {last} goto +1",
                "{number} = {last}",
                number = inlateout(reg) number,
                last = const LAST,
                options(pure, nomem, nostack),
            );
        }
        number as usize
    }
    // Never run.
    #[cfg(not(target_arch = "bpf"))]
    {
        number.min(LAST) as usize
    }
}

/// `number` clamped to `FIRST` and `LAST`, even if the compiler can prove that it lies between them.
#[inline(always)]
pub fn within<const FIRST: u64, const LAST: u64>(number: u64) -> usize {
    #[cfg(target_arch = "bpf")]
    {
        let mut number = number;
        // SAFETY: the instructions change one register only.
        unsafe {
            asm!(
                "if {number} >= {first} goto +1",
                "{number} = {first}",
                "if {number} <= {last} goto +1",
                "{number} = {last}",
                number = inlateout(reg) number,
                first = const FIRST,
                last = const LAST,
                options(pure, nomem, nostack),
            );
        }
        number as usize
    }
    // Never run.
    #[cfg(not(target_arch = "bpf"))]
    {
        number.clamp(FIRST, LAST) as usize
    }
}
