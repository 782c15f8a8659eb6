//! Logs once that an output fails, once that it recovers, and losses at shutdown.

use std::sync::Arc;

use proto::RecordSum;
use sys::log_limit::LogLimit;

use super::{counters::Counters, log_once::LogOnce, transport::Failure};

pub(super) struct OutputLog {
    output: String,
    counters: Arc<Counters>,
    /// The spool fault logged last.
    spool_fault: String,
    spool_losses: LogOnce,
    given_up: LogLimit,
}

impl OutputLog {
    pub(super) fn new(output: &str, counters: &Arc<Counters>) -> Self {
        Self {
            output: output.to_owned(),
            counters: Arc::clone(counters),
            spool_fault: String::new(),
            spool_losses: LogOnce::default(),
            given_up: LogLimit::default(),
        }
    }

    /// `lost` are the records that had been sent and were lost with this failure.
    pub(super) fn failed(&self, address: &str, failure: &Failure, lost: RecordSum) {
        let error = failure.to_string();
        if self.counters.failed(&error) {
            tracing::warn!(
                output = self.output,
                lost_records = lost.records,
                lost_packets = lost.packets,
                lost_bytes = lost.bytes,
                "cannot deliver flows to {address}: {error}; retrying, new flows are queued while there is room",
            );
        }
    }

    /// Logs a batch that was given up because every collector rejects it.
    pub(super) fn refused_batch(&mut self, seq: u64, why: &str, flows: RecordSum) {
        if let Some(times) = self.given_up.event() {
            tracing::warn!(
                output = self.output,
                stream_seq = seq,
                times,
                refused_records = flows.records,
                refused_packets = flows.packets,
                refused_bytes = flows.bytes,
                "dropped a batch that every collector rejects: {why}",
            );
        }
    }

    pub(super) fn recovered(&self, address: &str) {
        if self.counters.succeeded() {
            let lost = self.lost();
            tracing::info!(
                output = self.output,
                lost_records = lost.records,
                lost_packets = lost.packets,
                lost_bytes = lost.bytes,
                "delivering flows to {address} again",
            );
        }
    }

    pub(super) fn plain_token(&self) {
        tracing::warn!(
            output = self.output,
            "the token is sent unencrypted, and anyone on the path can read it: use https://",
        );
    }

    /// Logs what an earlier run left in the spool.
    pub(super) fn spool_found(&self, waits: RecordSum) {
        self.in_the_spool(waits, "an earlier run left them, and they go first");
    }

    /// Logs how much the spool still holds for the next start.
    pub(super) fn spool_left(&self, waits: RecordSum) {
        self.in_the_spool(waits, "the next start sends them");
    }

    fn in_the_spool(&self, waits: RecordSum, why: &str) {
        if waits != RecordSum::default() {
            tracing::info!(
                output = self.output,
                records = waits.records,
                packets = waits.packets,
                bytes = waits.bytes,
                "flows wait in the spool: {why}",
            );
        }
    }

    pub(super) fn spool_damaged(&self, fault: &str) {
        tracing::warn!(
            output = self.output,
            fault,
            "cannot read a part of the spool; its records count as lost",
        );
    }

    /// Logs a spool fault once until the spool recovers.
    pub(super) fn spool_state(&mut self, fault: &str) {
        if fault == self.spool_fault {
            return;
        }
        if fault.is_empty() {
            tracing::info!(output = self.output, "writing to the spool again");
        } else if self.spool_fault.is_empty() {
            self.spool_failed(fault);
        }
        fault.clone_into(&mut self.spool_fault);
    }

    pub(super) fn spool_failed(&self, fault: &str) {
        tracing::warn!(
            output = self.output,
            fault,
            "cannot use the spool; batches wait in memory while there is room",
        );
    }

    pub(super) fn spool_lost(&mut self, lost: RecordSum) {
        if self.spool_losses.event() {
            tracing::warn!(
                output = self.output,
                lost_records = lost.records,
                lost_packets = lost.packets,
                lost_bytes = lost.bytes,
                "the spool loses flows: it was full, or a part of it cannot be read; logged once while this lasts",
            );
        }
    }

    /// Logs the losses at shutdown, if there are any.
    pub(super) fn ended(&self, address: &str) {
        let lost = self.lost();
        if lost != RecordSum::default() {
            tracing::warn!(
                output = self.output,
                lost_records = lost.records,
                lost_packets = lost.packets,
                lost_bytes = lost.bytes,
                "flows were not delivered to {address} before shutdown",
            );
        }
    }

    fn lost(&self) -> RecordSum {
        self.counters.status().lost.unwrap_or_default()
    }
}
