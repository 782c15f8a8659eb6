//! Decides when to scan: when the interval has passed, or when the programs report that a page is filling up.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use kernel::filled::FilledPages;
use sys::log_limit::LogLimit;
use tokio::{
    sync::Notify,
    time::{Instant, Interval, MissedTickBehavior},
};

/// The reason for a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The interval ended; the scan was due at this time.
    Interval(Instant),
    /// The active page passed its early-scan mark.
    Filled,
    /// An interface waits for a departed one to be drained.
    Departed,
    /// A client asked for a scan.
    Asked,
    End,
}

pub struct Wakes {
    interval: Duration,
    ticks: Interval,
    filled: FilledPages,
    departed: Arc<Notify>,
    early: LogLimit,
}

impl Wakes {
    /// The first interval begins with this call. `departed` is notified when a scan should drain interfaces that have
    /// left.
    pub fn new(interval: Duration, filled: FilledPages, departed: Arc<Notify>) -> Self {
        Self {
            interval,
            ticks: ticks(interval),
            filled,
            departed,
            early: LogLimit::default(),
        }
    }

    /// If the interval changes, the first interval of the new length begins with this call.
    pub fn set_interval(&mut self, interval: Duration) {
        if interval != self.interval {
            self.interval = interval;
            self.ticks = ticks(interval);
        }
    }

    /// Waits for the next reason to scan, which is never [`Wake::End`]. Cancel safe.
    pub async fn next(&mut self, active_page: u32) -> Result<Wake> {
        tokio::select! {
            due = self.ticks.tick() => return Ok(Wake::Interval(due)),
            () = self.departed.notified() => return Ok(Wake::Departed),
            passed = self.filled.passed(active_page) => {
                passed.context("listen for pages that fill early")?;
            }
        }
        if let Some(scans) = self.early.event() {
            tracing::info!(
                scans,
                "new flows fill the table before the interval is over; it is drained early"
            );
        }
        Ok(Wake::Filled)
    }
}

fn ticks(interval: Duration) -> Interval {
    let mut ticks = tokio::time::interval_at(Instant::now() + interval, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}
