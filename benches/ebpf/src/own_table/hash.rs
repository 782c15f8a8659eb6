//! The hash of a key: 64 bits that nobody can predict without knowing the seed.
//!
//! Multilinear-HM (Lemire and Kaser, Strongly universal string hashing is fast, 2014) over 32-bit
//! words with random 64-bit factors. Two keys that were chosen without knowing the factors collide in
//! the upper half with probability 2⁻³². A mixer follows, since the lower bits of the sum are weak.

/// Random numbers that are set when the programs are loaded: two factors for each word, and the start of
/// the sum.
#[unsafe(no_mangle)]
static SEED: [u64; 15] = [0; 15];

/// The factor of `MurmurHash3`'s 64-bit finaliser: odd, with half of its bits set.
const MIX: u64 = 0xff51_afd7_ed55_8ccd;

#[inline(always)]
pub fn of(words: &[u64; 7]) -> u64 {
    let mut sum = seed(14);
    for (index, word) in words.iter().enumerate() {
        let low = seed(2 * index).wrapping_add(word & u64::from(u32::MAX));
        let high = seed(2 * index + 1).wrapping_add(word >> 32);
        sum = sum.wrapping_add(low.wrapping_mul(high));
    }
    again(sum)
}

/// Another 64 bits, derived from the ones given.
#[inline(always)]
pub fn again(bits: u64) -> u64 {
    let mixed = (bits ^ (bits >> 33)).wrapping_mul(MIX);
    mixed ^ (mixed >> 33)
}

#[inline(always)]
fn seed(index: usize) -> u64 {
    // SAFETY: a static lives as long as the program; volatile, since its value here is not the one
    // that the compiler sees.
    unsafe { (&raw const SEED[index]).read_volatile() }
}
