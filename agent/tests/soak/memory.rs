//! Samples an agent's memory over time and asserts that it stays within a bound.

use std::time::Instant;

use serde_json::Value;

/// Resident and kernel memory at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub at: Instant,
    pub resident_bytes: u64,
    pub kernel_bytes: u64,
}

#[derive(Debug, Default)]
pub struct Samples(Vec<Sample>);

const MIB: u64 = 1 << 20;

impl Samples {
    pub fn add(&mut self, status: &Value) {
        let number = |name: &str| status["memory"][name].as_u64().unwrap();
        self.0.push(Sample {
            at: Instant::now(),
            resident_bytes: number("resident_bytes"),
            kernel_bytes: number("kernel_map_bytes"),
        });
    }

    /// Asserts that neither kernel memory nor resident memory was ever above its bound.
    pub fn assert_bounded(&self, resident_bytes: u64, kernel_bytes: u64) {
        for sample in &self.0 {
            assert!(
                sample.kernel_bytes <= kernel_bytes,
                "{}",
                sample.kernel_bytes
            );
            assert!(sample.resident_bytes <= resident_bytes, "{}", self.text());
        }
    }

    /// Asserts that after `start` resident memory did not grow from the first half of the time to the second.
    pub fn assert_flat_since(&self, start: Instant) {
        const FEWEST: usize = 8;
        let later: Vec<u64> = self
            .0
            .iter()
            .filter(|sample| sample.at >= start)
            .map(|sample| sample.resident_bytes)
            .collect();
        assert!(later.len() >= FEWEST, "{} samples", later.len());
        let (before, after) = later.split_at(later.len() / 2);
        let (before, after) = (before.iter().max(), after.iter().max());
        let room = before.map(|before| before + before / 20 + MIB);
        assert!(after <= room.as_ref(), "{}", self.text());
    }

    pub fn peak_mib(&self) -> u64 {
        let peak = self.0.iter().map(|sample| sample.resident_bytes).max();
        peak.unwrap_or_default() / MIB
    }

    pub fn kernel_mib(&self) -> u64 {
        let peak = self.0.iter().map(|sample| sample.kernel_bytes).max();
        peak.unwrap_or_default() / MIB
    }

    fn text(&self) -> String {
        let start = self.0[0].at;
        let lines = self.0.iter().map(|sample| {
            let seconds = (sample.at - start).as_secs();
            let kib = sample.resident_bytes / 1024;
            format!("{seconds} s: {kib} KiB\n")
        });
        lines.collect()
    }
}
