//! Logs once that an output fails, once that it recovers, and at shutdown what was lost.

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

    /// `lost` is what was sent before and lost with this failure.
    pub(super) fn failed(&self, address: &str, failure: &Failure, lost: RecordSum) {
        let error = failure.to_string();
        if self.counters.failed(&error) {
            tracing::warn!(
                output = self.output,
                lost_records = lost.records,
                lost_packets = lost.packets,
                lost_bytes = lost.bytes,
                "flows do not get to {address}: {error}; it is tried again, and further flows wait as long as there is room",
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
                "a batch is given up, since no collector takes it: {why}",
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
                "flows get to {address} again",
            );
        }
    }

    pub(super) fn plain_token(&self) {
        tracing::warn!(
            output = self.output,
            "the token is sent as it is, and without TLS everyone on the way can read it: say https://",
        );
    }

    /// Logs what an earlier run left in the spool.
    pub(super) fn spool_found(&self, waits: RecordSum) {
        self.in_the_spool(waits, "since before the start, and go first");
    }

    /// Logs what is left in the spool for the next start.
    pub(super) fn spool_left(&self, waits: RecordSum) {
        self.in_the_spool(waits, "for the next start");
    }

    fn in_the_spool(&self, waits: RecordSum, why: &str) {
        if waits != RecordSum::default() {
            tracing::info!(
                output = self.output,
                records = waits.records,
                packets = waits.packets,
                bytes = waits.bytes,
                "flows wait in the spool {why}",
            );
        }
    }

    pub(super) fn spool_damaged(&self, fault: &str) {
        tracing::warn!(
            output = self.output,
            fault,
            "a part of the spool cannot be read, and what it had counts as lost",
        );
    }

    /// Logs a spool fault once until the spool recovers.
    pub(super) fn spool_state(&mut self, fault: &str) {
        if fault == self.spool_fault {
            return;
        }
        if fault.is_empty() {
            tracing::info!(output = self.output, "the spool is written again");
        } else if self.spool_fault.is_empty() {
            self.spool_failed(fault);
        }
        fault.clone_into(&mut self.spool_fault);
    }

    pub(super) fn spool_failed(&self, fault: &str) {
        tracing::warn!(
            output = self.output,
            fault,
            "the spool cannot be used; meanwhile batches wait in memory, as long as there is room",
        );
    }

    pub(super) fn spool_lost(&mut self, lost: RecordSum) {
        if self.spool_losses.event() {
            tracing::warn!(
                output = self.output,
                lost_records = lost.records,
                lost_packets = lost.packets,
                lost_bytes = lost.bytes,
                "the spool loses flows: it was full, or a part of it cannot be read; this is not told again while it goes on",
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
                "flows did not get to {address} before the end",
            );
        }
    }

    fn lost(&self) -> RecordSum {
        self.counters.status().lost.unwrap_or_default()
    }
}
