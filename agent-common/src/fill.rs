//! How full a page of the flow table is, as the programs count it.

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
