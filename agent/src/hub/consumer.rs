//! A consumer as the agent sees it: who it is, and what became of its batches.

use std::{
    ops::AddAssign,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::{clock, proto::ConsumerStatus};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Volume {
    pub batches: u64,
    pub records: u64,
}

impl AddAssign for Volume {
    fn add_assign(&mut self, other: Self) {
        self.batches += other.batches;
        self.records += other.records;
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
        self.delivered += consumer.delivered.get();
        self.lost += consumer.lost.get();
    }
}

/// A volume that one thread counts while others read it.
#[derive(Default)]
pub(super) struct Tally {
    batches: AtomicU64,
    records: AtomicU64,
}

impl Tally {
    pub(super) fn get(&self) -> Volume {
        Volume {
            batches: self.batches.load(Relaxed),
            records: self.records.load(Relaxed),
        }
    }

    /// Adds a batch with this many records.
    pub(super) fn add(&self, records: u64) {
        self.batches.fetch_add(1, Relaxed);
        self.records.fetch_add(records, Relaxed);
    }

    /// Takes a batch with this many records away.
    pub(super) fn sub(&self, records: u64) {
        self.batches.fetch_sub(1, Relaxed);
        self.records.fetch_sub(records, Relaxed);
    }
}

pub(super) struct Consumer {
    pub(super) name: String,
    pub(super) peer: String,
    since_boot_ns: u64,
    pub(super) queued: Tally,
    /// The bytes of the batches in the queue and in the transport.
    pub(super) held_bytes: AtomicU64,
    pub(super) delivered: Tally,
    pub(super) lost: Tally,
}

impl Consumer {
    pub(super) fn new(name: &str, peer: &str) -> Self {
        Self {
            name: name.to_owned(),
            peer: peer.to_owned(),
            since_boot_ns: clock::boot_now_ns(),
            queued: Tally::default(),
            held_bytes: AtomicU64::new(0),
            delivered: Tally::default(),
            lost: Tally::default(),
        }
    }

    pub(super) fn status(&self) -> ConsumerStatus {
        let (delivered, lost) = (self.delivered.get(), self.lost.get());
        ConsumerStatus {
            name: self.name.clone(),
            peer: self.peer.clone(),
            since_unix_ns: clock::unix_of_boot_ns(self.since_boot_ns),
            queued_batches: self.queued.get().batches,
            delivered_batches: delivered.batches,
            delivered_records: delivered.records,
            lost_batches: lost.batches,
            lost_records: lost.records,
        }
    }
}
