//! Bounds that the verifier can see.

#[cfg(target_arch = "bpf")]
use core::arch::asm;

/// `number & MASK`, also where the compiler knows that this is the number: it would leave the instruction out, and the
/// verifier, which may have lost the bounds on the way, would refuse the number as an index.
#[inline(always)]
pub fn masked<const MASK: u64>(number: u64) -> usize {
    #[cfg(target_arch = "bpf")]
    {
        let mut number = number;
        // SAFETY: it does what it says.
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

/// `number`, or `LAST` if it is greater, also where the compiler knows that it is not.
#[inline(always)]
pub fn at_most<const LAST: u64>(number: u64) -> usize {
    #[cfg(target_arch = "bpf")]
    {
        let mut number = number;
        // SAFETY: it does what it says.
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

/// `number`, or the bound that it passes, also where the compiler knows that it does not.
#[inline(always)]
pub fn within<const FIRST: u64, const LAST: u64>(number: u64) -> usize {
    #[cfg(target_arch = "bpf")]
    {
        let mut number = number;
        // SAFETY: it does what it says.
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
