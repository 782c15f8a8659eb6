//! Halves that wait for their other half: what one side of a joined flow counted comes in, and goes
//! out when the other side's is there or the scan ends.

use agent_common::FlowCounters;

/// No half waits.
pub const NONE: u32 = u32::MAX;

/// Halves by number. It keeps its memory, so that a scan like the one before allocates nothing.
#[derive(Default)]
pub struct Waiting {
    halves: Vec<FlowCounters>,
    free: Vec<u32>,
}

impl Waiting {
    /// The number by which the half is taken back.
    pub fn put(&mut self, half: &FlowCounters) -> u32 {
        if let Some(number) = self.free.pop() {
            self.halves[number as usize] = *half;
            return number;
        }
        self.halves.push(*half);
        (self.halves.len() - 1) as u32
    }

    pub fn take(&mut self, number: u32) -> FlowCounters {
        self.free.push(number);
        self.halves[number as usize]
    }
}

/// What both halves of a flow counted; each has packets in one direction, and not in the same.
pub fn merged(one: &FlowCounters, other: &FlowCounters) -> FlowCounters {
    let (first, second) = if one.first_seen_ns <= other.first_seen_ns {
        (one, other)
    } else {
        (other, one)
    };
    let mut both = *first;
    for direction in [0, 1] {
        if second.packets[direction] != 0 {
            both.packets[direction] = second.packets[direction];
            both.bytes[direction] = second.bytes[direction];
            both.tcp_flags[direction] = second.tcp_flags[direction];
        }
    }
    both.last_seen_jiffies = both.last_seen_jiffies.max(second.last_seen_jiffies);
    both
}

/// The direction of all packets, where it is one.
pub fn only_direction(packets: [u64; 2]) -> Option<u8> {
    match packets.map(|packets| packets != 0) {
        [true, false] => Some(0),
        [false, true] => Some(1),
        [true, true] | [false, false] => None,
    }
}
