//! A batch that waits for an acknowledgement, in memory, and its place on the stream.

use bytes::Bytes;

use crate::{hub::Volume, proto::RecordSum};

/// Numbers that are left out where the system may have ended before all was on disk: a collector may have batches whose
/// numbers are not known any more.
const LEAP: u64 = 1_000_000;

#[derive(Clone, Debug)]
pub(super) struct Waiting {
    /// Its number on the stream.
    pub(super) seq: u64,
    /// When it came.
    pub(super) unix_ns: u64,
    /// What it reports.
    pub(super) own: RecordSum,
    /// What all batches with lower numbers report, whatever became of them.
    pub(super) before: RecordSum,
    /// The encoded batch.
    pub(super) parts: [Bytes; 2],
    pub(super) is_on_disk: bool,
}

impl Waiting {
    pub(super) fn len_bytes(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// The point that it brings the stream to.
    pub(super) fn through(&self) -> Point {
        let mut sum = self.before;
        sum += self.own;
        Point { seq: self.seq, sum }
    }

    /// The point that it follows.
    pub(super) fn preceding(&self) -> Point {
        Point {
            seq: self.seq - 1,
            sum: self.before,
        }
    }
}

/// A number on the stream, and what batches up to it report.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Point {
    pub(super) seq: u64,
    pub(super) sum: RecordSum,
}

impl Point {
    /// What lies between the points.
    pub(super) fn since(self, earlier: Self) -> Volume {
        let numbers = self.seq.saturating_sub(earlier.seq);
        let (more, less) = (self.sum, earlier.sum);
        Volume {
            batches: numbers % LEAP,
            records: more.records.saturating_sub(less.records),
            packets: more.packets.saturating_sub(less.packets),
            bytes: more.bytes.saturating_sub(less.bytes),
        }
    }

    /// Leaves out numbers that may be known elsewhere.
    pub(super) fn leap(self) -> Self {
        Self {
            seq: self.seq + LEAP,
            ..self
        }
    }
}
