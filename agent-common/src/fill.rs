//! How full a page of the flow table is: what the programs count of its new flows.

/// Of one page; userspace zeroes it when it has emptied the page.
///
/// As long as a cache line, so that one page's is on none with the other's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageFill {
    /// Flows that were put into the page, to the step in which each CPU adds its own.
    pub inserted: u64,
    /// Not 0 once userspace was told that the page passed its mark.
    pub told: u64,
    pub reserved: [u64; 6],
}

const _: () = assert!(size_of::<PageFill>() == 64);
