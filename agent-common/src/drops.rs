//! Packets that the kernel drops.

/// How many reasons are told apart. Kernels have some hundred (`enum skb_drop_reason`); those beyond, and those of a subsystem, such as
/// Wi-Fi, are one: the last.
pub const REASONS: u32 = 256;
pub const OTHER: u32 = REASONS - 1;

/// Where a reason is counted.
#[inline(always)]
#[must_use]
pub const fn place(reason: u32) -> u32 {
    if reason < OTHER { reason } else { OTHER }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_place() {
        let places = [0, 1, OTHER - 1, OTHER, REASONS, 0x1_0003, u32::MAX].map(place);
        assert_eq!(places, [0, 1, OTHER - 1, OTHER, OTHER, OTHER, OTHER]);
    }
}
