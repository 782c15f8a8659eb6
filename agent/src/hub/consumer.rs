//! A consumer as the agent sees it: who it is, and what became of its batches.

use std::{
    ops::AddAssign,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use agent_common::Pair;

use crate::{batch::Batch, clock, proto::ConsumerStatus};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Volume {
    pub batches: u64,
    pub records: u64,
    /// What the records report of both directions.
    pub packets: u64,
    pub bytes: u64,
}

impl AddAssign for Volume {
    fn add_assign(&mut self, other: Self) {
        self.batches += other.batches;
        self.records += other.records;
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

impl Volume {
    /// One record that reports this.
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

/// What became of batches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fate {
    /// Handed to the transport.
    pub delivered: Volume,
    pub lost: Volume,
}

impl AddAssign<&Consumer> for Fate {
    fn add_assign(&mut self, consumer: &Consumer) {
        self.delivered += consumer.delivered();
        self.lost += consumer.lost.get();
    }
}

/// A volume that one thread counts while others read it.
#[derive(Default)]
pub(super) struct Tally {
    batches: AtomicU64,
    records: AtomicU64,
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Tally {
    pub(super) fn get(&self) -> Volume {
        Volume {
            batches: self.batches.load(Relaxed),
            records: self.records.load(Relaxed),
            packets: self.packets.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        }
    }

    pub(super) fn add(&self, volume: Volume) {
        self.batches.fetch_add(volume.batches, Relaxed);
        self.records.fetch_add(volume.records, Relaxed);
        self.packets.fetch_add(volume.packets, Relaxed);
        self.bytes.fetch_add(volume.bytes, Relaxed);
    }

    pub(super) fn sub(&self, volume: Volume) {
        self.batches.fetch_sub(volume.batches, Relaxed);
        self.records.fetch_sub(volume.records, Relaxed);
        self.packets.fetch_sub(volume.packets, Relaxed);
        self.bytes.fetch_sub(volume.bytes, Relaxed);
    }
}

pub(super) struct Consumer {
    pub(super) name: String,
    pub(super) peer: String,
    /// Counted among the consumers. Outputs have a status of their own.
    pub(super) is_listed: bool,
    since_boot_ns: u64,
    pub(super) queued: Tally,
    /// The bytes of the batches in the queue and in the transport.
    pub(super) held_bytes: AtomicU64,
    pub(super) delivered: Tally,
    pub(super) lost: Tally,
    /// What the consumer's own filter left out of `delivered`.
    pub(super) left_out: Tally,
}

impl Consumer {
    pub(super) fn new(name: &str, peer: &str, is_listed: bool) -> Self {
        Self {
            name: name.to_owned(),
            peer: peer.to_owned(),
            is_listed,
            since_boot_ns: clock::boot_now_ns(),
            queued: Tally::default(),
            held_bytes: AtomicU64::new(0),
            delivered: Tally::default(),
            lost: Tally::default(),
            left_out: Tally::default(),
        }
    }

    /// What was handed to the transport.
    pub(super) fn delivered(&self) -> Volume {
        let (delivered, left_out) = (self.delivered.get(), self.left_out.get());
        Volume {
            batches: delivered.batches,
            records: delivered.records.saturating_sub(left_out.records),
            packets: delivered.packets.saturating_sub(left_out.packets),
            bytes: delivered.bytes.saturating_sub(left_out.bytes),
        }
    }

    pub(super) fn status(&self) -> ConsumerStatus {
        let (delivered, lost) = (self.delivered(), self.lost.get());
        ConsumerStatus {
            name: self.name.clone(),
            peer: self.peer.clone(),
            since_unix_ns: clock::unix_of_boot_ns(self.since_boot_ns),
            queued_batches: self.queued.get().batches,
            delivered_batches: delivered.batches,
            delivered_records: delivered.records,
            lost_batches: lost.batches,
            lost_records: lost.records,
            left_out_records: self.left_out.get().records,
        }
    }
}
