//! Which flows an output wants. What it does not want of a flow at first it still gets when the flow turns out to be
//! wanted, so that the sums of a flow that it got are whole.

use crate::proto::{FlowRecord, RecordSum};

use super::tally;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// One record for each flow, when it has ended.
    pub only_ended: bool,
    /// No flow that has fewer bytes than this, of both directions together.
    pub min_bytes: u64,
}

impl Wanted {
    /// Takes what is not wanted out of the records. Returns what it was of flows that are not coming any more.
    pub(super) fn keep(&self, records: &mut Vec<FlowRecord>) -> RecordSum {
        let mut left_out = RecordSum::default();
        if *self == Self::default() {
            return left_out;
        }
        records.retain_mut(|record| {
            let total_bytes = record.total_bytes + record.total_reverse_bytes;
            let is_large = total_bytes >= self.min_bytes;
            let has_ended = record.end_reason.is_some();
            if has_ended && !is_large {
                with_totals(record);
                left_out += tally::sum([&*record]);
            }
            if !is_large || self.only_ended && !has_ended {
                return false;
            }
            let delta_bytes = record.delta_bytes + record.delta_reverse_bytes;
            // Nothing of it was sent before.
            if self.only_ended || total_bytes - delta_bytes < self.min_bytes {
                with_totals(record);
            }
            true
        });
        left_out
    }
}

/// Makes it report the flow from its first packet on.
fn with_totals(record: &mut FlowRecord) {
    record.delta_packets = record.total_packets;
    record.delta_bytes = record.total_bytes;
    record.delta_reverse_packets = record.total_reverse_packets;
    record.delta_reverse_bytes = record.total_reverse_bytes;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::EndReason;

    /// A flow's record after this many packets of 100 bytes each way, `more` of them since the last one.
    fn record(packets: u64, more: u64, ended: bool) -> FlowRecord {
        FlowRecord {
            total_packets: packets,
            total_bytes: packets * 100,
            total_reverse_packets: packets,
            total_reverse_bytes: packets * 100,
            delta_packets: more,
            delta_bytes: more * 100,
            delta_reverse_packets: more,
            delta_reverse_bytes: more * 100,
            end_reason: ended.then_some(EndReason::IdleTimeout.into()),
            ..FlowRecord::default()
        }
    }

    /// The forward packets that each record reports, and those that were left out.
    fn kept(wanted: &Wanted, records: &[FlowRecord]) -> (Vec<u64>, u64) {
        let mut kept = Vec::new();
        let mut left_out = 0;
        for record in records {
            let mut one = vec![record.clone()];
            left_out += wanted.keep(&mut one).packets / 2;
            kept.extend(one.iter().map(|record| record.delta_packets));
        }
        (kept, left_out)
    }

    fn flow() -> [FlowRecord; 4] {
        [
            record(2, 2, false),
            record(5, 3, false),
            record(6, 1, false),
            record(6, 0, true),
        ]
    }

    #[test]
    fn without_a_wish_everything_is_wanted_as_it_is() {
        assert_eq!(kept(&Wanted::default(), &flow()), (vec![2, 3, 1, 0], 0));
    }

    #[test]
    fn an_ended_flow_alone_has_all_its_packets() {
        let wanted = Wanted {
            only_ended: true,
            min_bytes: 0,
        };
        assert_eq!(kept(&wanted, &flow()), (vec![6], 0));
    }

    #[test]
    fn a_flow_that_grows_beyond_the_least_bytes_comes_with_what_it_had_before() {
        let wanted = |min_bytes| Wanted {
            only_ended: false,
            min_bytes,
        };
        // Both directions together have 400, 1,000 and 1,200 bytes.
        assert_eq!(kept(&wanted(400), &flow()), (vec![2, 3, 1, 0], 0));
        assert_eq!(kept(&wanted(401), &flow()), (vec![5, 1, 0], 0));
        assert_eq!(kept(&wanted(1_200), &flow()), (vec![6, 0], 0));
        assert_eq!(kept(&wanted(1_201), &flow()), (vec![], 6));
        let both = Wanted {
            only_ended: true,
            min_bytes: 1_200,
        };
        assert_eq!(kept(&both, &flow()), (vec![6], 0));
        let both = Wanted {
            only_ended: true,
            min_bytes: 1_201,
        };
        assert_eq!(kept(&both, &flow()), (vec![], 6));
    }
}
