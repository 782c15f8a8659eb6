//! The lease: how long the programs count without a scan. If no agent comes any more, they only let packets pass.

use std::time::Duration;

use anyhow::Result;
use kernel::pages::Pages;
use sys::clock::{self, ScanClock};

use super::{Purpose, Scanner};
use crate::carry::Heritage;

/// How long the programs count after a scan was due.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// Zero never ends.
    pub length: Duration,
    pub scan_interval: Duration,
}

impl Lease {
    /// The shortest lease during a restart, which first delivers the last batches and then loads other programs.
    const OF_A_RESTART: Duration = Duration::from_mins(1);

    /// The reading of the tick counter at which a lease ends that is renewed now.
    pub fn end_jiffies(self, now: ScanClock) -> u64 {
        if self.length.is_zero() {
            return Pages::NO_LEASE;
        }
        let length = clock::nanos(self.length.saturating_add(self.scan_interval));
        let ticks = length / now.tick_ns.max(1) + 1;
        now.jiffies.saturating_add(ticks)
    }
}

impl Scanner {
    /// Changes the lease, and renews it now.
    pub fn set_lease(&mut self, lease: Lease) -> Result<()> {
        self.lease = lease;
        let now = clock::at(self.kernel.clocks()?, 0);
        self.note_lapse(now, self.kernel.pages.lease_jiffies());
        self.kernel.pages.set_lease(lease.end_jiffies(now))
    }

    /// Renews the lease with the next flip.
    pub(super) fn renew_lease(&mut self, now: ScanClock, purpose: Purpose) {
        self.note_lapse(now, self.kernel.pages.lease_jiffies());
        let mut lease = self.lease;
        if purpose == Purpose::HandOver && !lease.length.is_zero() {
            lease.length = lease.length.max(Lease::OF_A_RESTART);
        }
        let end = lease.end_jiffies(now);
        self.kernel.pages.renew_lease_with_flip(end);
    }

    /// Notes whether the programs of the earlier processes, the oldest first, had stopped counting before this one came.
    pub fn note_lapse_of(&mut self, heritages: &[Heritage]) -> Result<()> {
        // One that never scanned has perhaps not even attached its programs.
        let scanned = |heritage: &&Heritage| heritage.last_scan().id != 0;
        let last = heritages.iter().rfind(scanned).or(heritages.last());
        if let Some(last) = last {
            let now = clock::at(self.kernel.clocks()?, 0);
            self.note_lapse(now, last.lease_jiffies());
        }
        Ok(())
    }

    /// Notes that programs have counted nothing since this lease ended, if it has.
    fn note_lapse(&mut self, now: ScanClock, lease_jiffies: u64) {
        let ticks = now.jiffies.saturating_sub(lease_jiffies);
        let lapsed_ns = ticks.saturating_mul(now.tick_ns);
        if lapsed_ns == 0 {
            return;
        }
        self.stats.lapsed_ns += lapsed_ns;
        self.replica.note_gap();
        tracing::warn!(
            seconds = lapsed_ns as f64 / 1e9,
            "the programs counted nothing for about this long, since no scan had renewed their lease (--lease): these packets are \
             in no record"
        );
    }
}
