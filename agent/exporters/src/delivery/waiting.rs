//! A batch that waits for an acknowledgement, in memory, and its place on the stream.

use bytes::Bytes;
use hub::Volume;
use proto::RecordSum;
use serde::{Deserialize, Serialize};

/// Numbers that are left out where some may have been given that nobody wrote down: a collector may have their batches.
const LEAP: u64 = 1_000_000;

#[derive(Clone, Debug)]
pub(super) struct Waiting {
    /// Its number on the stream, 1 or more.
    pub(super) seq: u64,
    /// When it came.
    pub(super) unix_ns: u64,
    /// What it reports.
    pub(super) own: RecordSum,
    /// What all batches with lower numbers report, whatever became of them.
    pub(super) before: Volume,
    /// The encoded batch.
    pub(super) parts: [Bytes; 2],
    pub(super) is_on_disk: bool,
}

impl Waiting {
    pub(super) fn len_bytes(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// The point that it follows.
    pub(super) fn preceding(&self) -> Point {
        Point {
            seq: self.seq - 1,
            sum: self.before,
        }
    }

    /// The point that it brings the stream to.
    pub(super) fn through(&self) -> Point {
        self.preceding().with(self.seq, self.own)
    }
}

/// A number on the stream, and the batches up to it with what they report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Point {
    pub(super) seq: u64,
    pub(super) sum: Volume,
}

impl Point {
    /// The point behind a batch.
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

    /// What lies between the points.
    pub(super) fn since(self, earlier: Self) -> Volume {
        without(self.sum, earlier.sum)
    }

    /// Leaves out numbers that may be known elsewhere.
    pub(super) fn leap(self) -> Self {
        Self {
            seq: self.seq + LEAP,
            ..self
        }
    }
}

/// How far a volume goes beyond another one.
pub(super) fn without(volume: Volume, other: Volume) -> Volume {
    Volume {
        batches: volume.batches.saturating_sub(other.batches),
        records: volume.records.saturating_sub(other.records),
        packets: volume.packets.saturating_sub(other.packets),
        bytes: volume.bytes.saturating_sub(other.bytes),
    }
}

/// The larger one of each number.
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
