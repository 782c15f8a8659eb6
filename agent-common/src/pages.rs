//! The state of the flow table's pages that userspace and the programs exchange. Userspace selects the page and the
//! filter rules; the programs report how full a page is.

/// The only static of the programs that changes, so that one load brings all of it into the cache.
/// Userspace writes it as a whole; a program reads each field once a packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// 0, 1 or [`Self::OFF`].
    pub page: u32,
    /// The slot of the rule set + 1; 0 without rules.
    pub rule_set: u32,
    /// From this reading of the kernel's tick counter on, the programs count nothing.
    pub count_until_jiffies: u64,
    /// By page. The size of the page in use does not change.
    pub sizes: [PageSize; 2],
}

/// A page's size, and the share of flows that it counts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageSize {
    pub windows: u32,
    /// Flows at which the programs ask for a scan; 0 leaves scans to the interval.
    pub mark_flows: u32,
    /// How many new flows a CPU counts privately before it adds them to the page's [`PageFill`]; a power of two.
    pub fill_step: u32,
    /// [`sample::threshold`](crate::sample::threshold) of the flows that are counted on the page; 0 counts every flow.
    pub sample_below: u32,
}

impl Switches {
    /// Stands for no page: the programs count nothing.
    pub const OFF: u32 = 2;

    pub const LEN_BYTES: usize = size_of::<Self>();

    /// The bytes as they lie in the programs' memory.
    pub fn to_bytes(self) -> [u8; Self::LEN_BYTES] {
        let [first, second] = self.sizes;
        let of = |size: PageSize| {
            [
                size.windows,
                size.mark_flows,
                size.fill_step,
                size.sample_below,
            ]
        };
        let words = [self.page, self.rule_set].map(u32::to_ne_bytes);
        let until = self.count_until_jiffies.to_ne_bytes();
        let sizes = of(first).into_iter().chain(of(second));
        let all = words.into_iter().flatten().chain(until);
        let all = all.chain(sizes.flat_map(u32::to_ne_bytes));
        let mut bytes = [0; Self::LEN_BYTES];
        for (byte, one) in bytes.iter_mut().zip(all) {
            *byte = one;
        }
        bytes
    }
}

/// How full one page is. Userspace zeroes it when it has emptied the page.
///
/// It takes a whole cache line, so the two pages never share one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageFill {
    /// Flows inserted into the page, without the ones that each CPU still counts privately.
    pub inserted: u64,
    /// Non-zero once the programs have reported that the page passed its mark.
    pub told: u64,
    /// Flows that found no slot and went to the map behind the page.
    pub behind: u64,
    pub reserved: [u64; 5],
}

const _: () = assert!(size_of::<PageFill>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_in_the_order_of_the_fields() {
        let size = |first| PageSize {
            windows: first,
            mark_flows: first + 1,
            fill_step: first + 2,
            sample_below: first + 3,
        };
        let switches = Switches {
            page: 1,
            rule_set: 2,
            count_until_jiffies: 0x000c_0000_000b,
            sizes: [size(3), size(7)],
        };
        let until = if cfg!(target_endian = "little") {
            [11, 12]
        } else {
            [12, 11]
        };
        let words = [&[1, 2][..], &until, &[3, 4, 5, 6, 7, 8, 9, 10]].concat();
        let words: [_; 12] = core::array::from_fn(|at| u32::to_ne_bytes(words[at]));
        assert_eq!(switches.to_bytes(), words.concat()[..]);
        let at = |offset: usize| switches.to_bytes()[offset..][..4].to_vec();
        assert_eq!(at(core::mem::offset_of!(Switches, rule_set)), words[1]);
        assert_eq!(at(core::mem::offset_of!(Switches, sizes)), words[4]);
        let second = core::mem::offset_of!(Switches, sizes) + size_of::<PageSize>();
        assert_eq!(
            at(second + core::mem::offset_of!(PageSize, mark_flows)),
            words[9]
        );
    }
}
