//! A record in the form that a query uses, whatever file it comes from.

use std::ops::Range;

use rules::Facts;

pub(super) struct Row<'a> {
    /// Unix time in microseconds.
    pub window_us: Range<i64>,
    /// Empty if unknown.
    pub hostname: &'a str,
    pub interface: &'a str,
    pub netns_name: &'a str,
    /// The systemd units of source and destination. Empty if unknown or not asked for.
    pub units: [&'a str; 2],
    /// The names of the processes that created their sockets; empty likewise.
    pub processes: [&'a str; 2],
    /// The names of their addresses; empty likewise.
    pub names: [&'a str; 2],
    pub facts: Facts,
    /// From the source and from the destination, since the flow's previous record.
    pub packets: [u64; 2],
    pub bytes: [u64; 2],
    /// It is the flow's first record.
    pub begins: bool,
    /// It is the flow's last record.
    pub ends: bool,
    /// One in this many flows is counted; 0 is every flow.
    pub sample_rate: u32,
}
