//! The cost per flow of a stage of the flow path.

use std::{collections::BTreeMap, time::Instant};

use anyhow::Result;
use sys::clock;

use crate::heap::heap;

/// Figures of one case by name. A stage's figures are named STAGE.FIGURE.
pub type Figures = BTreeMap<String, f64>;

/// CPU time, allocations and wall-clock time of some work on this thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub wall_ns: f64,
    pub cpu_ns: f64,
    pub allocations: f64,
}

impl Cost {
    /// Runs `work`, and returns its cost and its result.
    pub fn of<T>(work: impl FnOnce() -> Result<T>) -> Result<(Self, T)> {
        let allocations = heap().allocations;
        let cpu = clock::thread_cpu();
        let wall = Instant::now();
        let answer = work()?;
        let cost = Self {
            wall_ns: wall.elapsed().as_nanos() as f64,
            cpu_ns: clock::thread_cpu().saturating_sub(cpu).as_nanos() as f64,
            allocations: (heap().allocations - allocations) as f64,
        };
        Ok((cost, answer))
    }

    pub fn add(&mut self, other: Self) {
        self.wall_ns += other.wall_ns;
        self.cpu_ns += other.cpu_ns;
        self.allocations += other.allocations;
    }

    /// Records the cost per flow and scan under the stage's name.
    pub fn put(self, figures: &mut Figures, stage: &str, flows: u32, scans: u32) {
        let scans = f64::from(scans);
        let all = f64::from(flows) * scans;
        for (name, figure) in [
            ("flows_per_second", all / self.wall_ns * 1e9),
            ("cpu_ns_per_flow", self.cpu_ns / all),
            ("cpu_ns_per_scan", self.cpu_ns / scans),
            ("allocations_per_flow", self.allocations / all),
            ("allocations_per_scan", self.allocations / scans),
        ] {
            figures.insert(format!("{stage}.{name}"), figure);
        }
    }
}
