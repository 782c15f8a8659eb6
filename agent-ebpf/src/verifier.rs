//! What is kept from the verifier, so that it walks what is common to all packets once.

/// The same value, which the verifier takes for any: it does not see that two exclusive ors with the
/// same `noise`, which it must not know either, are none (`tnum_xor`).
///
/// Each way through the parser ends in constants of its own, such as a header's length. Where a later
/// branch depends on them, each is another walk of all that follows: 6.1 gave up at a million
/// instructions, and takes 700,000 without these constants.
#[inline(always)]
pub fn forgotten(value: u32, noise: u32) -> u32 {
    #[cfg(target_arch = "bpf")]
    {
        let mut value = u64::from(value);
        // SAFETY: two instructions on registers, which leave the value as it is.
        unsafe {
            core::arch::asm!(
                "{value} ^= {noise}",
                "{value} ^= {noise}",
                value = inout(reg) value,
                noise = in(reg) u64::from(noise),
                options(pure, nomem, nostack),
            );
        }
        value as u32
    }
    // Never run: so that the crate can be checked by the host's compiler.
    #[cfg(not(target_arch = "bpf"))]
    {
        let _ = noise;
        value
    }
}
