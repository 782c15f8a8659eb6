//! A record as a query sees it, from whatever file it comes.

use std::ops::Range;

use rules::Facts;

pub(super) struct Row<'a> {
    /// Unix time in microseconds.
    pub window_us: Range<i64>,
    /// Empty if it is not known.
    pub hostname: &'a str,
    pub interface: &'a str,
    pub netns_name: &'a str,
    /// The systemd units of source and destination. Empty if they are not known, or if nobody asks.
    pub units: [&'a str; 2],
    /// The names of the processes that made their sockets, likewise.
    pub processes: [&'a str; 2],
    /// What their addresses were called, likewise.
    pub names: [&'a str; 2],
    pub facts: Facts,
    /// From the source and from the destination, since the flow's last record.
    pub packets: [u64; 2],
    pub bytes: [u64; 2],
    /// It is the flow's first record.
    pub begins: bool,
    /// It is the flow's last record.
    pub ends: bool,
    /// One in this many flows is counted; 0 is every flow.
    pub sample_rate: u32,
}
