//! What userspace and the programs tell each other about the pages of the flow table: userspace switches page
//! and filter rules, the programs say how full a page is.

/// The only static of the programs that changes, so that one load brings all of it into the cache.
/// Userspace writes it as a whole; a program reads each field once a packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// 0, 1 or [`Self::OFF`].
    pub page: u32,
    /// The slot of the rule set + 1; 0 without rules.
    pub rule_set: u32,
}

impl Switches {
    /// Stands for no page: the programs count nothing.
    pub const OFF: u32 = 2;

    pub const LEN_BYTES: usize = size_of::<Self>();

    /// The bytes as they lie in the programs' memory.
    pub fn to_bytes(self) -> [u8; Self::LEN_BYTES] {
        let mut bytes = [0; Self::LEN_BYTES];
        bytes[..4].copy_from_slice(&self.page.to_ne_bytes());
        bytes[4..].copy_from_slice(&self.rule_set.to_ne_bytes());
        bytes
    }
}

/// The fill of one page; userspace zeroes it when it has emptied the page.
///
/// It fills a cache line, so that the two pages never share one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageFill {
    /// Flows inserted into the page, without those that CPUs still count privately.
    pub inserted: u64,
    /// Non-zero once userspace was told that the page passed its mark.
    pub told: u64,
    pub reserved: [u64; 6],
}

const _: () = assert!(size_of::<PageFill>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_lies_in_front_of_the_rule_set() {
        let switches = Switches {
            page: 0x0102_0304,
            rule_set: 0x0506_0708,
        };
        let fields = [switches.page, switches.rule_set].map(u32::to_ne_bytes);
        assert_eq!(switches.to_bytes(), fields.concat()[..]);
    }
}
