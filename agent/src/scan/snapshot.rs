//! Encodes all flows of the replica between two scans, in steps, so that no scan waits long.

use std::{sync::Arc, time::Instant};

use agent_common::HookAccount;
use flows::encoder::{BatchEncoder, ScanHeader, ScanTrailer};
use proto::batch::Batch;
use server::scanner_requests::{RequestError, Snapshot, SnapshotBytes};
use sys::clock::ScanClock;

use super::Scanner;

/// Flows encoded between two looks at the clock: some tens of microseconds.
const FLOWS_AT_ONCE: u32 = 256;

/// A snapshot in progress.
pub(super) struct Taking {
    encoder: BatchEncoder,
    clock: ScanClock,
    account: HookAccount,
    occupancy: u64,
    tracked: u64,
    /// The next slot of the replica.
    next: u32,
    bytes: SnapshotBytes,
    taken: Result<Vec<Batch>, RequestError>,
}

impl Taking {
    fn keep(taken: &mut Result<Vec<Batch>, RequestError>, bytes: &SnapshotBytes, batch: Batch) {
        if let Ok(batches) = taken {
            match bytes.hold(batch.body) {
                Ok(body) => batches.push(Batch { body, ..batch }),
                Err(error) => *taken = Err(error),
            }
        }
    }
}

impl Scanner {
    /// Begins or continues a snapshot of the flows after the last scan. Returns it if it is complete before `until`.
    pub fn snapshot(
        &mut self,
        bytes: &SnapshotBytes,
        until: Instant,
    ) -> Option<Result<Snapshot, RequestError>> {
        if self.taking.is_none() {
            self.taking = Some(self.begin_snapshot(bytes));
        }
        while self.go_on_with_snapshot()? {
            if Instant::now() >= until {
                return None;
            }
        }
        self.end_snapshot()
    }

    /// Completes the snapshot in progress, before draining changes the flows.
    pub(super) fn complete_snapshot(&mut self) {
        while self.go_on_with_snapshot() == Some(true) {}
        self.completed = self.end_snapshot();
    }

    /// The snapshot that a scan had to complete.
    pub fn completed_snapshot(&mut self) -> Option<Result<Snapshot, RequestError>> {
        self.completed.take()
    }

    fn begin_snapshot(&self, bytes: &SnapshotBytes) -> Taking {
        let mut encoder = self.encoder.another();
        encoder.begin_snapshot(&ScanHeader {
            scan_id: self.stats.count,
            window_start_unix_ns: self.window_start_unix_ns,
            window_end_unix_ns: self.window_start_unix_ns,
            capacity: u64::from(self.kernel.pages.capacity()),
            refused_in_window: false,
            interfaces: Arc::clone(self.interfaces.messages()),
        });
        Taking {
            encoder,
            clock: self.last_clock,
            account: self.account,
            occupancy: self.stats.occupancy,
            tracked: self.replica.len() as u64,
            next: 0,
            bytes: bytes.clone(),
            taken: Ok(Vec::new()),
        }
    }

    /// Encodes some flows. Returns whether there are more, or `None` if no snapshot is in progress.
    fn go_on_with_snapshot(&mut self) -> Option<bool> {
        let taking = self.taking.as_mut()?;
        let Taking {
            encoder,
            bytes,
            taken,
            ..
        } = taking;
        let slots = taking.next..taking.next.saturating_add(FLOWS_AT_ONCE);
        taking.next = slots.end;
        let is_more = self.replica.flows(slots, taking.clock, &mut |record| {
            encoder.push(record, &mut |batch| Taking::keep(taken, bytes, batch));
        });
        Some(is_more && taken.is_ok())
    }

    fn end_snapshot(&mut self) -> Option<Result<Snapshot, RequestError>> {
        let Taking {
            mut encoder,
            bytes,
            mut taken,
            account,
            occupancy,
            tracked,
            ..
        } = self.taking.take()?;
        let trailer = ScanTrailer {
            occupancy,
            tracked,
            account: &account,
            is_final: false,
        };
        encoder.finish(&trailer, &mut |batch| {
            Taking::keep(&mut taken, &bytes, batch);
        });
        Some(taken.map(|batches| Snapshot { batches }))
    }
}
