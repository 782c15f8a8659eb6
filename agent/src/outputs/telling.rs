//! Tells the log once that an output's flows do not get there, once that they do again, and at the end what did not.

use std::sync::Arc;

use super::{tally::Tally, transport::Failure};
use crate::proto::RecordSum;

pub(super) struct Telling {
    output: String,
    tally: Arc<Tally>,
}

impl Telling {
    pub(super) fn of(output: &str, tally: &Arc<Tally>) -> Self {
        Self {
            output: output.to_owned(),
            tally: Arc::clone(tally),
        }
    }

    /// What was sent before may be `lost` with it.
    pub(super) fn failed(&self, address: &str, failure: &Failure, lost: RecordSum) {
        let error = failure.to_string();
        if self.tally.failed(&error) {
            tracing::warn!(
                output = self.output,
                lost_records = lost.records,
                lost_packets = lost.packets,
                lost_bytes = lost.bytes,
                "flows do not get to {address}: {error}; it is tried again, and further flows wait as long as there is room",
            );
        }
    }

    pub(super) fn works(&self, address: &str) {
        if self.tally.succeeded() {
            let lost = self.lost();
            tracing::info!(
                output = self.output,
                lost_records = lost.records,
                lost_packets = lost.packets,
                lost_bytes = lost.bytes,
                "flows get to {address} again",
            );
        }
    }

    /// What was lost, if there is any.
    pub(super) fn ended(&self, address: &str) {
        let lost = self.lost();
        if lost != RecordSum::default() {
            tracing::warn!(
                output = self.output,
                lost_records = lost.records,
                lost_packets = lost.packets,
                lost_bytes = lost.bytes,
                "flows did not get to {address} before the end",
            );
        }
    }

    fn lost(&self) -> RecordSum {
        self.tally.status().lost.unwrap_or_default()
    }
}
