//! The parts of `flow-agent status --output json` that the benches use.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    pub account: Account,
    pub consumers: Vec<Consumer>,
    #[serde(default)]
    pub outputs: Vec<Output>,
    pub replica: Replica,
    pub scans: Scans,
    pub table: Table,
}

/// Packets between the agent's attach and its last scan.
#[derive(Clone, Debug, Deserialize)]
pub struct Account {
    pub seen: Count,
    pub flows: Count,
    pub filtered: Count,
    #[serde(default)]
    pub sampled_out: Count,
    pub unparsed: BTreeMap<String, Count>,
    /// Packets that the table refused, by reason.
    pub not_inserted: BTreeMap<String, Count>,
    pub beside: BTreeMap<String, Count>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Count {
    pub packets: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Consumer {
    pub lost_records: u64,
}

/// An output's account of its reports.
#[derive(Clone, Debug, Deserialize)]
pub struct Output {
    pub sent: Reports,
    pub lost: Reports,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Reports {
    pub records: u64,
    pub packets: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Replica {
    /// Flows in the replica.
    pub tracked: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Scans {
    pub count: u64,
    #[serde(default)]
    pub durations: Durations,
    #[serde(default)]
    pub lateness: Durations,
}

/// The durations of all scans since the agent started.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Durations {
    counts: Vec<u64>,
    sum_ns: u64,
}

impl Durations {
    /// The mean duration of the scans since `earlier`. Fails if there are none.
    pub fn mean_since(&self, earlier: &Self) -> Result<Duration> {
        let count = |durations: &Self| durations.counts.iter().sum::<u64>();
        let scans = count(self) - count(earlier);
        ensure!(scans > 0, "no scan came in the window");
        Ok(Duration::from_nanos((self.sum_ns - earlier.sum_ns) / scans))
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct Table {
    /// Flows in the last scan.
    pub occupancy: u64,
}

/// Packets for all reasons.
pub fn sum(reasons: &BTreeMap<String, Count>) -> u64 {
    reasons.values().map(|count| count.packets).sum()
}

/// Packets for one reason. Fails for an unknown reason: the agent lists every reason, even those without packets.
pub fn packets(reasons: &BTreeMap<String, Count>, reason: &str) -> Result<u64> {
    let count = reasons.get(reason);
    let count = count.with_context(|| format!("the agent's account has no {reason}"))?;
    Ok(count.packets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_of_the_scans_since() {
        let durations = |counts: &[u64], sum_ns| Durations {
            counts: counts.to_vec(),
            sum_ns,
        };
        let earlier = durations(&[3, 1], 5_000);
        let later = durations(&[4, 2], 8_000);
        let mean = later.mean_since(&earlier).unwrap();
        assert_eq!(mean, Duration::from_nanos(1_500));
        assert!(later.mean_since(&later).is_err());
    }
}
