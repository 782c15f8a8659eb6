//! Logs which consumers fall behind, and which keep up again.

use sys::log_limit::LogLimit;
use tracing::{info, warn};

use super::consumer::Consumer;

/// Rate limits for log lines about consumers, which can come and go, or fall behind and catch up, at any moment.
#[derive(Default)]
pub(super) struct Logs {
    pub(super) left: LogLimit,
    losing: LogLimit,
    keeping_up: LogLimit,
}

/// Whether a consumer keeps up.
#[derive(Default)]
pub(super) struct Pace {
    /// Its losses when the last batch was published.
    lost_batches: u64,
    /// It has lost batches, and has not emptied its queue since.
    losing: bool,
}

impl Pace {
    /// Logs once that the consumer falls behind, and once that it has emptied its queue since. Call it for each
    /// published batch.
    pub(super) fn log_change(
        &mut self,
        consumer: &Consumer,
        scan_id: u64,
        took_all: bool,
        logs: &mut Logs,
    ) {
        let lost = consumer.queue.fate().lost;
        let lost_before = std::mem::replace(&mut self.lost_batches, lost.batches);
        if lost.batches > lost_before {
            let was_losing = std::mem::replace(&mut self.losing, true);
            if !was_losing && let Some(consumers) = logs.losing.event() {
                warn!(
                    name = consumer.name,
                    peer = consumer.peer,
                    scan_id,
                    consumers,
                    "a consumer reads too slowly and loses its oldest queued batches"
                );
            }
        } else if took_all
            && std::mem::take(&mut self.losing)
            && let Some(consumers) = logs.keeping_up.event()
        {
            info!(
                name = consumer.name,
                peer = consumer.peer,
                lost_batches = lost.batches,
                lost_records = lost.records,
                consumers,
                "a consumer keeps up again"
            );
        }
    }
}
