//! How many new flows a second the table takes before it loses the first one: with and without early
//! scans, by the table's size and the scan interval.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context as _, Result};

use self::{
    search::search,
    station::{Setting, Station},
};
use super::{
    affinity, reference,
    result::Run,
    rounds::{Interrupt, Progress},
};

mod inside;
mod search;
mod sender;
mod station;

/// Off, and the agent's default.
const ARMS: [(&str, u32); 2] = [("interval", 0), ("early", 50)];
const TABLES: [u32; 2] = [65_536, 500_000];

pub struct Settings<'a> {
    pub agent: &'a Path,
    pub rounds: u32,
    pub quick: bool,
}

impl Settings<'_> {
    fn intervals(&self) -> &'static [u64] {
        if self.quick { &[1] } else { &[1, 10] }
    }
}

pub fn run(settings: &Settings, interrupt: &Interrupt) -> Result<Run> {
    let _hurry = affinity::Hurry::begin()?;
    let mut run = Run::new("newflows", settings.quick, settings.rounds)?;
    let scenarios = TABLES.len() * settings.intervals().len();
    let mut progress = Progress::new(settings.rounds as usize * scenarios * ARMS.len());
    for _ in 0..settings.rounds {
        for &seconds in settings.intervals() {
            for table in TABLES {
                let labels = labels(table, seconds);
                run.add(&labels, "reference", "step_ns", reference::step_ns());
                for (arm, early_scan) in ARMS {
                    progress.step(&format!("table of {table}, every {seconds} s: {arm}"));
                    let setting = Setting {
                        table,
                        interval: Duration::from_secs(seconds),
                        early_scan,
                    };
                    let mut station = Station::new(settings.agent, setting, interrupt)?;
                    let found = search(station.first_rate(), |rate| station.step(rate, interrupt))
                        .with_context(|| format!("search with a table of {table}, {arm}"))?;
                    station.end()?;
                    let rates = [
                        ("lossless_flows_per_second", Some(found.lossless)),
                        ("lossy_flows_per_second", found.lossy),
                    ];
                    for (measure, rate) in rates {
                        if let Some(rate) = rate {
                            run.add(&labels, arm, measure, rate as f64);
                        }
                    }
                }
            }
        }
    }
    run.notes.extend(NOTES.map(str::to_owned));
    Ok(run)
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

fn labels(table: u32, seconds: u64) -> BTreeMap<String, String> {
    BTreeMap::from([
        ("table".to_owned(), table.to_string()),
        ("scan_interval".to_owned(), format!("{seconds}s")),
    ])
}
