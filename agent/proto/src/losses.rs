//! Sums of the losses and omissions that a batch reports for its stream.

use crate::{FlowBatch, RecordSum};

impl FlowBatch {
    /// A batch that reports only the losses since its stream began.
    pub fn of_lost(lost_batches: u64, lost: RecordSum) -> Self {
        let mut batch = Self {
            lost_batches,
            ..Self::default()
        };
        batch.add_lost(lost);
        batch
    }

    /// A batch that reports only what the consumer's filter has left out since the stream began.
    pub fn of_left_out(left_out: RecordSum) -> Self {
        let mut batch = Self::default();
        batch.set_left_out(left_out);
        batch
    }

    /// A batch with only this one's losses and omissions.
    #[must_use]
    pub fn losses(&self) -> Self {
        let mut batch = Self::of_lost(self.lost_batches, self.lost());
        batch.set_left_out(self.left_out());
        batch
    }

    /// The records in `lost_batches`.
    pub fn lost(&self) -> RecordSum {
        RecordSum {
            records: self.lost_records,
            packets: self.lost_packets,
            bytes: self.lost_bytes,
        }
    }

    pub fn left_out(&self) -> RecordSum {
        RecordSum {
            records: self.left_out_records,
            packets: self.left_out_packets,
            bytes: self.left_out_bytes,
        }
    }

    /// Adds records that were lost on their own, in no lost batch.
    pub fn add_lost(&mut self, lost: RecordSum) {
        self.lost_records += lost.records;
        self.lost_packets += lost.packets;
        self.lost_bytes += lost.bytes;
    }

    pub fn set_left_out(&mut self, left_out: RecordSum) {
        self.left_out_records = left_out.records;
        self.left_out_packets = left_out.packets;
        self.left_out_bytes = left_out.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sum_has_its_own_fields() {
        let [lost, left_out] = [1, 11].map(|records| RecordSum {
            records,
            packets: records + 1,
            bytes: records + 2,
        });
        let mut batch = FlowBatch::of_lost(7, lost);
        batch.set_left_out(left_out);
        let expected = FlowBatch {
            lost_batches: 7,
            lost_records: 1,
            lost_packets: 2,
            lost_bytes: 3,
            left_out_records: 11,
            left_out_packets: 12,
            left_out_bytes: 13,
            ..FlowBatch::default()
        };
        assert_eq!(batch, expected);
        assert_eq!((batch.lost(), batch.left_out()), (lost, left_out));
        batch.scan_id = 5;
        assert_eq!(batch.losses(), expected);
        assert_eq!(
            FlowBatch::of_left_out(left_out).lost(),
            RecordSum::default()
        );
        batch.add_lost(lost);
        assert_eq!((batch.lost_batches, batch.lost_bytes), (7, 6));
    }
}
