//! Keeps the counters of one side of a joined flow until the other half comes or the scan ends.

use agent_common::FlowCounters;

use super::senders::{BySlot, PendingSenders};

/// Stands for no waiting half.
pub const NONE: u32 = u32::MAX;

/// Halves by number. It keeps its memory, so that a scan like the previous one allocates nothing.
#[derive(Default)]
pub struct Waiting {
    halves: Vec<FlowCounters>,
    /// The senders that came with each half.
    senders: BySlot<PendingSenders>,
    free: Vec<u32>,
}

impl Waiting {
    /// Keeps a half and returns the number with which to take it back.
    pub fn put(&mut self, half: &FlowCounters, senders: PendingSenders) -> u32 {
        let number = if let Some(number) = self.free.pop() {
            self.halves[number as usize] = *half;
            number
        } else {
            self.halves.push(*half);
            (self.halves.len() - 1) as u32
        };
        self.senders.begin(number, senders);
        number
    }

    pub fn take(&mut self, number: u32) -> (FlowCounters, PendingSenders) {
        self.free.push(number);
        (self.halves[number as usize], self.senders.get(number))
    }
}

/// The sum of both halves of a flow. Each half has packets in one direction only, opposite to the other half's.
pub fn merged(one: &FlowCounters, other: &FlowCounters) -> FlowCounters {
    let mut both = *one;
    both.unite(other);
    both
}

/// The direction of the packets, if all have the same.
pub fn only_direction(packets: [u64; 2]) -> Option<u8> {
    match packets.map(|packets| packets != 0) {
        [true, false] => Some(0),
        [false, true] => Some(1),
        [true, true] | [false, false] => None,
    }
}
