//! A consumer as the agent sees it: its name and peer, and the outcome of its batches.

use std::ops::{AddAssign, SubAssign};

use agent_common::Pair;
use proto::{ConsumerStatus, RecordSum, batch::Batch};
use serde::{Deserialize, Serialize};
use sys::clock;

use super::queue::Queue;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    pub batches: u64,
    pub records: u64,
    /// The sum of the records, both directions.
    pub packets: u64,
    pub bytes: u64,
}

/// Wraps like the kernel's counters, and like the sums in a batch.
impl AddAssign for Volume {
    fn add_assign(&mut self, other: Self) {
        self.batches = self.batches.wrapping_add(other.batches);
        self.records = self.records.wrapping_add(other.records);
        self.packets = self.packets.wrapping_add(other.packets);
        self.bytes = self.bytes.wrapping_add(other.bytes);
    }
}

impl SubAssign for Volume {
    fn sub_assign(&mut self, other: Self) {
        self.batches = self.batches.wrapping_sub(other.batches);
        self.records = self.records.wrapping_sub(other.records);
        self.packets = self.packets.wrapping_sub(other.packets);
        self.bytes = self.bytes.wrapping_sub(other.bytes);
    }
}

impl Volume {
    /// The volume of one record.
    pub fn of_record(reported: Pair) -> Self {
        Self {
            batches: 0,
            records: 1,
            packets: reported.packets,
            bytes: reported.bytes,
        }
    }
}

impl From<&Batch> for Volume {
    fn from(batch: &Batch) -> Self {
        Self {
            batches: 1,
            records: u64::from(batch.records),
            packets: batch.delta.packets,
            bytes: batch.delta.bytes,
        }
    }
}

impl From<Volume> for RecordSum {
    fn from(volume: Volume) -> Self {
        Self {
            records: volume.records,
            packets: volume.packets,
            bytes: volume.bytes,
        }
    }
}

/// Batches by outcome, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fate {
    pub queued: Volume,
    /// Handed to the transport, without the records that are left out.
    pub delivered: Volume,
    pub lost: Volume,
    /// Records that the consumer's own filter left out.
    pub left_out: Volume,
}

impl AddAssign for Fate {
    fn add_assign(&mut self, other: Self) {
        self.queued += other.queued;
        self.delivered += other.delivered;
        self.lost += other.lost;
        self.left_out += other.left_out;
    }
}

pub(super) struct Consumer {
    pub(super) name: String,
    pub(super) peer: String,
    /// Whether it is listed as a consumer. Outputs have a status of their own.
    pub(super) is_listed: bool,
    since_boot_ns: u64,
    pub(super) queue: Queue,
}

impl Consumer {
    pub(super) fn new(name: &str, peer: &str, is_listed: bool) -> Self {
        Self {
            name: name.to_owned(),
            peer: peer.to_owned(),
            is_listed,
            since_boot_ns: clock::boot_now_ns(),
            queue: Queue::default(),
        }
    }

    pub(super) fn status(&self) -> ConsumerStatus {
        let fate = self.queue.fate();
        ConsumerStatus {
            name: self.name.clone(),
            peer: self.peer.clone(),
            since_unix_ns: clock::unix_of_boot_ns(self.since_boot_ns),
            queued_batches: fate.queued.batches,
            delivered_batches: fate.delivered.batches,
            delivered_records: fate.delivered.records,
            lost_batches: fate.lost.batches,
            lost_records: fate.lost.records,
            left_out_records: fate.left_out.records,
        }
    }
}
