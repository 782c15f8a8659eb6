//! A batch in memory that waits for its acknowledgement, and its position on the stream.

use bytes::Bytes;
use hub::Volume;
use proto::RecordSum;
use serde::{Deserialize, Serialize};

/// How many sequence numbers to skip when the last one assigned is unknown: a collector may already have batches with
/// the next ones.
const LEAP: u64 = 1_000_000;

#[derive(Clone, Debug)]
pub(super) struct Waiting {
    /// Sequence number on the stream, 1 or more.
    pub(super) seq: u64,
    /// When it was queued.
    pub(super) unix_ns: u64,
    /// What it reports.
    pub(super) own: RecordSum,
    /// Total of all batches with lower sequence numbers, whether delivered or lost.
    pub(super) before: Volume,
    /// The encoded batch.
    pub(super) parts: [Bytes; 2],
    pub(super) is_on_disk: bool,
}

impl Waiting {
    pub(super) fn len_bytes(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// The stream's position before this batch.
    pub(super) fn preceding(&self) -> Point {
        Point {
            seq: self.seq - 1,
            sum: self.before,
        }
    }

    /// The stream's position after this batch.
    pub(super) fn through(&self) -> Point {
        self.preceding().with(self.seq, self.own)
    }
}

/// A position on the stream: a sequence number, and the total of all batches up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Point {
    pub(super) seq: u64,
    pub(super) sum: Volume,
}

impl Point {
    /// The position after one more batch.
    pub(super) fn with(mut self, seq: u64, own: RecordSum) -> Self {
        self.seq = seq;
        self.sum += Volume {
            batches: 1,
            records: own.records,
            packets: own.packets,
            bytes: own.bytes,
        };
        self
    }

    /// What lies between two points.
    pub(super) fn since(self, earlier: Self) -> Volume {
        without(self.sum, earlier.sum)
    }

    /// Skips sequence numbers that a collector may already have.
    pub(super) fn leap(self) -> Self {
        Self {
            seq: self.seq + LEAP,
            ..self
        }
    }
}

/// How much `volume` exceeds `other`, field by field.
pub(super) fn without(volume: Volume, other: Volume) -> Volume {
    Volume {
        batches: volume.batches.saturating_sub(other.batches),
        records: volume.records.saturating_sub(other.records),
        packets: volume.packets.saturating_sub(other.packets),
        bytes: volume.bytes.saturating_sub(other.bytes),
    }
}

/// The larger value of each field.
pub(super) fn larger(one: Volume, other: Volume) -> Volume {
    Volume {
        batches: one.batches.max(other.batches),
        records: one.records.max(other.records),
        packets: one.packets.max(other.packets),
        bytes: one.bytes.max(other.bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_leads_from_the_number_before_it_to_its_own() {
        let batch = Waiting {
            seq: 7,
            unix_ns: 1,
            own: RecordSum {
                packets: 5,
                ..RecordSum::default()
            },
            before: Volume {
                batches: 6,
                packets: 60,
                ..Volume::default()
            },
            parts: Default::default(),
            is_on_disk: false,
        };
        let (before, behind) = (batch.preceding(), batch.through());
        assert_eq!([before.seq, behind.seq], [6, 7]);
        assert_eq!([before.sum.packets, behind.sum.packets], [60, 65]);
        assert_eq!(behind.since(before).batches, 1);
    }
}
