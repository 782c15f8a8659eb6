//! The rate of new flows at which the table loses the first one: with and without early scans, by table size and scan
//! interval.

use std::time::Duration;

use anyhow::{Context as _, Result};

use self::{
    search::{Found, search},
    table::Table,
};
use super::bench::{Bench, Group, Labels, Lifetime, Plan, Setup, Station, labels, notes, station};

mod inside;
mod search;
mod table;

/// Early scans off, and the agent's default mark.
const ARMS: [(&str, u32); 2] = [("interval", 0), ("early", 50)];
const TABLES: [u32; 2] = [65_536, 500_000];

#[derive(clap::Args)]
pub struct NewFlows;

#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The size of the table in flows.
    table: u32,
    interval: Duration,
}

impl Bench for NewFlows {
    const NAME: &'static str = "newflows";

    const IS_URGENT: bool = true;

    type Load = Load;

    /// A round takes several minutes.
    fn rounds(_: bool) -> u32 {
        1
    }

    fn plan(&self, setup: &Setup) -> Result<Plan<Load>> {
        let intervals: &[u64] = if setup.is_quick { &[1] } else { &[1, 10] };
        let group = |seconds, table| {
            let interval = Duration::from_secs(seconds);
            let arms = ARMS.map(|(arm, _)| arm);
            Group::new(Lifetime::Turn, arms, &Load { table, interval })
        };
        Ok(Plan {
            groups: intervals
                .iter()
                .flat_map(|&seconds| TABLES.map(|table| group(seconds, table)))
                .collect(),
            notes: notes(&NOTES),
        })
    }

    fn labels(load: &Load) -> Labels {
        let interval = format!("{}s", load.interval.as_secs());
        labels([("table", &load.table), ("scan_interval", &interval)])
    }

    fn station(&self, arm: &str, &load: &Load, setup: &Setup) -> Result<Box<dyn Station>> {
        let (_, early_scan) = ARMS
            .into_iter()
            .find(|(name, _)| *name == arm)
            .with_context(|| format!("no arm is called {arm}"))?;
        let mut table = Table::new(load, early_scan, setup)?;
        Ok(station(move |setup| {
            let rates = search(table.first_rate(), |rate| {
                table.step(rate, &setup.interrupt)
            });
            let Found { lossless, lossy } = rates?;
            table.check_account()?;
            let mut measures = vec![("lossless_flows_per_second", lossless as f64)];
            measures.extend(lossy.map(|rate| ("lossy_flows_per_second", rate as f64)));
            Ok(measures)
        }))
    }
}

const NOTES: [&str; 4] = [
    "One thread on a CPU of its own sends UDP frames of 64 bytes over a veth pair, each of them a flow \
     of its own that never comes again; the agent runs on the other CPUs, with its default settings but \
     table, scan interval and early scan, and without consumers. early is its default, interval is \
     --early-scan 0.",
    "lossless_flows_per_second is the highest rate at which every packet got into a flow, \
     lossy_flows_per_second the lowest one at which the table refused one: rates that the sender \
     reached, found by doubling and then halving the gap until they are at most 10 % apart. Without \
     a lossy rate the sender could go no faster.",
    "A step without early scans lasts from one flip of the page to the next; one with them until four \
     pages have filled up to their mark, and between two and eight seconds.",
    "Every packet of a step is in the agent's account, or the bench fails.",
];
