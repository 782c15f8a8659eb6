//! The time that rates cover. A window is the time between two scans, or between several that follow each other closely:
//! other consumers ask for scans, too, and a rate over a fifth of a second says little.

use std::{collections::VecDeque, time::Duration};

/// Windows with figures kept for the sparkline.
pub const HISTORY: usize = 60;

#[derive(Clone, Debug, Default)]
pub struct Windows {
    /// A shorter window is shown together with the one before it, and goes on with the next scan.
    least: Duration,
    /// The number of the last window; 0 before the first.
    last: u64,
    /// The lengths of the last windows, the latest last.
    lengths: VecDeque<Duration>,
}

impl Windows {
    /// For scans that are asked for this often. Zero makes each scan a window.
    pub fn of(every: Duration) -> Self {
        Self {
            // Requests are not exactly on time.
            least: every * 3 / 4,
            ..Self::default()
        }
    }

    /// The same, before the first window.
    #[must_use]
    pub fn renewed(&self) -> Self {
        Self {
            least: self.least,
            ..Self::default()
        }
    }

    /// Adds the time up to a scan. It is zero if the clock was set back, so that no other time may be added to it.
    pub fn add(&mut self, time: Duration) {
        let is_short = self.is_short();
        match self.lengths.back_mut() {
            Some(last) if is_short && !time.is_zero() => *last += time,
            Some(_) | None => {
                self.last += 1;
                self.lengths.push_back(time);
                let surplus = self.lengths.len().saturating_sub(HISTORY);
                self.lengths.drain(..surplus);
            }
        }
    }

    pub fn last(&self) -> u64 {
        self.last
    }

    /// Whether the last window is too short for a rate.
    pub fn is_short(&self) -> bool {
        let last = self.lengths.back();
        last.is_some_and(|last| !last.is_zero() && *last < self.least)
    }

    /// The length of the window to show together with the last one, which is short.
    fn joined(&self) -> Option<Duration> {
        let before = self.lengths.iter().nth_back(1).copied();
        before.filter(|before| self.is_short() && !before.is_zero())
    }

    /// Whether the last two windows are shown as one.
    pub fn are_joined(&self) -> bool {
        self.joined().is_some()
    }

    /// The time that rates cover. `None` as long as there is too little of it.
    pub fn length(&self) -> Option<Duration> {
        let last = *self.lengths.back()?;
        if self.last == 1 && self.is_short() {
            return None;
        }
        Some(last + self.joined().unwrap_or_default())
    }

    /// The lengths of the windows in the sparkline, the latest first. One that is still too short comes later.
    pub fn lengths(&self) -> impl Iterator<Item = Duration> {
        let skipped = usize::from(self.are_joined());
        self.lengths.iter().rev().skip(skipped).copied()
    }
}
