//! Logs once that an output fails, once that it recovers, and at shutdown what was lost.

use std::sync::Arc;

use proto::RecordSum;
use sys::log_limit::LogLimit;

use super::{spell::Spell, tally::Tally, transport::Failure};

pub(super) struct Telling {
    output: String,
    tally: Arc<Tally>,
    /// The spool fault logged last.
    told_spool: String,
    spool_losses: Spell,
    given_up: LogLimit,
}

impl Telling {
    pub(super) fn of(output: &str, tally: &Arc<Tally>) -> Self {
        Self {
            output: output.to_owned(),
            tally: Arc::clone(tally),
            told_spool: String::new(),
            spool_losses: Spell::default(),
            given_up: LogLimit::default(),
        }
    }

    /// `lost` is what was sent before and lost with this failure.
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

    /// Logs a batch that was given up because every collector rejects it.
    pub(super) fn gives_up(&mut self, seq: u64, why: &str, flows: RecordSum) {
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

    pub(super) fn token_is_plain(&self) {
        tracing::warn!(
            output = self.output,
            "the token is sent as it is, and without TLS everyone on the way can read it: say https://",
        );
    }

    /// Logs what an earlier run left in the spool.
    pub(super) fn spool_has(&self, waits: RecordSum) {
        self.in_the_spool(waits, "since before the start, and go first");
    }

    /// Logs what is left in the spool for the next start.
    pub(super) fn spool_keeps(&self, waits: RecordSum) {
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

    pub(super) fn spool_is_damaged(&self, fault: &str) {
        tracing::warn!(
            output = self.output,
            fault,
            "a part of the spool cannot be read, and what it had counts as lost",
        );
    }

    /// Logs a spool fault once until the spool recovers.
    pub(super) fn spool_is(&mut self, fault: &str) {
        if fault == self.told_spool {
            return;
        }
        if fault.is_empty() {
            tracing::info!(output = self.output, "the spool is written again");
        } else if self.told_spool.is_empty() {
            self.spool_fails(fault);
        }
        fault.clone_into(&mut self.told_spool);
    }

    pub(super) fn spool_fails(&self, fault: &str) {
        tracing::warn!(
            output = self.output,
            fault,
            "the spool cannot be used; meanwhile batches wait in memory, as long as there is room",
        );
    }

    pub(super) fn spool_loses(&mut self, lost: RecordSum) {
        if self.spool_losses.begins() {
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
        self.tally.status().lost.unwrap_or_default()
    }
}
