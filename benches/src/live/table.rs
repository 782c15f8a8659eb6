//! A flow table of our own in mapped memory against the kernel's hash map: what a packet costs in
//! either, how many packets find no slot, and what a scan costs. See `docs/table-of-our-own.md`.

mod scan;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use lab::Variety;

use super::{
    cost::{Statistics, program_cost},
    reference,
    result::Run,
    rounds::{Interrupt, Progress, order},
    wire::Wire,
};
use crate::own_table::{Size, TablePrograms};

type Labels = BTreeMap<String, String>;

const ARMS: [&str; 4] = ["empty", "parsed", "hash_map", "own"];
/// The sizes that the hits have, so that half of our slots are in use by the most flows.
const ROOM: u32 = 1_000_000;
const HIT_FLOWS: [u32; 3] = [1, 10_000, 500_000];
const LOADS_PERCENT: [u32; 3] = [25, 50, 75];
const WINDOWS: [u32; 3] = [1, 2, 3];
/// Those of our table in all but the rows about packets without a slot.
const USUAL_WINDOWS: u32 = 2;

pub fn run(rounds: u32, quick: bool, interrupt: &Interrupt) -> Result<Run> {
    let a_round = ARMS.len() * (HIT_FLOWS.len() + 1) + LOADS_PERCENT.len() * WINDOWS.len();
    let mut bench = Bench {
        run: Run::new("table", quick, rounds)?,
        rounds,
        packets: if quick { 300_000 } else { 1_000_000 },
        new_flows: if quick { 100_000 } else { 400_000 },
        progress: Progress::new(rounds as usize * a_round),
        interrupt,
    };
    bench.hits()?;
    bench.inserts()?;
    bench.unplaced()?;
    scan::measure(&mut bench.run, rounds, interrupt)?;
    let mut run = bench.run;
    run.notes.extend([
        "hash_map and own are programs of one object, for a processor with compare-and-swap (v3); \
         both read the tick counter only. program_ns_per_packet is the kernel's run_time_ns over \
         run_cnt, with what the statistics themselves cost."
            .to_owned(),
        "program_over_hash_map_ratio is (own - empty) / (hash_map - empty); \
         table_over_hash_map_ratio is (own - parsed) / (hash_map - parsed): the tables alone."
            .to_owned(),
        "unplaced_per_million: packets of as many different flows fill the table to its load; those \
         that found all slots of their windows taken are counted, and placed and unplaced together \
         are what the interface received."
            .to_owned(),
        "In a drain the other arm's memory is not in use; both hand on the same batches."
            .to_owned(),
    ]);
    Ok(run)
}

/// An arm on a wire of its own.
struct Station {
    wire: Wire,
    programs: TablePrograms,
    id: u32,
}

impl Station {
    fn new(arm: &str, window_starts: u32, windows: u32) -> Result<Self> {
        let wire = Wire::new()?;
        let mut programs = TablePrograms::load(Size {
            hash_map_flows: if arm == "hash_map" { ROOM } else { 1 },
            window_starts: if arm == "own" { window_starts } else { 1 },
            windows,
        })?;
        let id = programs.attach(arm, &wire.lab.agent)?;
        Ok(Self { wire, programs, id })
    }

    /// Of a table with room for all.
    fn usual(arm: &str) -> Result<Self> {
        Self::new(arm, ROOM, USUAL_WINDOWS)
    }

    fn flood(&self, variety: Variety, count: u32, interrupt: &Interrupt) -> Result<u64> {
        let frame = self.wire.frame(64)?;
        let passage = self.wire.flood(&frame, variety, count, interrupt)?;
        Ok(passage.packets)
    }

    fn ns_per_packet(&self, variety: Variety, count: u32, interrupt: &Interrupt) -> Result<f64> {
        let ids = BTreeSet::from([self.id]);
        let _statistics = Statistics::enable()?;
        let before = program_cost(&ids)?;
        self.flood(variety, count, interrupt)?;
        (program_cost(&ids)? - before)
            .ns_per_run()
            .context("the program did not run")
    }
}

struct Bench<'a> {
    run: Run,
    rounds: u32,
    packets: u32,
    new_flows: u32,
    progress: Progress,
    interrupt: &'a Interrupt,
}

impl Bench<'_> {
    fn hits(&mut self) -> Result<()> {
        let stations = ARMS
            .into_iter()
            .map(Station::usual)
            .collect::<Result<Vec<_>>>()?;
        for flows in HIT_FLOWS {
            let variety = match flows {
                1 => Variety::Same,
                flows => Variety::Sources(flows),
            };
            for station in stations.iter().filter(|_| flows > 1) {
                station.flood(variety, flows.saturating_mul(5), self.interrupt)?;
            }
            let labels = labels("hit", &[("flows", flows)]);
            for round in 0..self.rounds {
                let mut taken = BTreeMap::new();
                for index in order(ARMS.len(), round) {
                    let arm = ARMS[index];
                    self.step(&format!("{flows} flows, {arm}"));
                    let ns =
                        stations[index].ns_per_packet(variety, self.packets, self.interrupt)?;
                    taken.insert(arm, ns);
                }
                self.record(&labels, &taken);
            }
        }
        Ok(())
    }

    /// Every round has tables of its own, which are empty.
    fn inserts(&mut self) -> Result<()> {
        let labels = labels("insert", &[("flows", self.new_flows)]);
        for round in 0..self.rounds {
            let mut taken = BTreeMap::new();
            for index in order(ARMS.len(), round) {
                let arm = ARMS[index];
                self.step(&format!("every packet a new flow, {arm}"));
                let station = Station::usual(arm)?;
                let each_new = Variety::Sources(0);
                let ns = station.ns_per_packet(each_new, self.new_flows, self.interrupt)?;
                taken.insert(arm, ns);
            }
            self.record(&labels, &taken);
        }
        Ok(())
    }

    fn unplaced(&mut self) -> Result<()> {
        for windows in WINDOWS {
            for load in LOADS_PERCENT {
                let labels = labels("unplaced", &[("load_percent", load), ("windows", windows)]);
                for _ in 0..self.rounds {
                    self.step(&format!("load {load} %, {windows} windows"));
                    let starts = self.new_flows / load * 100;
                    let station = Station::new("own", starts, windows)?;
                    let sent =
                        station.flood(Variety::Sources(0), self.new_flows, self.interrupt)?;
                    let (_, placed) = station.programs.slots()?.drain_sum();
                    let unplaced = station.programs.unplaced()?;
                    ensure!(
                        placed.packets + unplaced.packets == sent,
                        "{sent} packets came, {placed:?} and {unplaced:?} were counted"
                    );
                    let per_million = unplaced.packets as f64 / sent as f64 * 1e6;
                    self.run
                        .add(&labels, "own", "unplaced_per_million", per_million);
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, what: &str) {
        self.progress.step(what);
    }

    /// A round's figures, and the ratios between them.
    fn record(&mut self, labels: &Labels, taken: &BTreeMap<&str, f64>) {
        self.run
            .add(labels, "reference", "step_ns", reference::step_ns());
        for (arm, ns) in taken {
            self.run.add(labels, arm, "program_ns_per_packet", *ns);
        }
        for (measure, floor) in [
            ("program_over_hash_map_ratio", "empty"),
            ("table_over_hash_map_ratio", "parsed"),
        ] {
            let floor = taken[floor];
            let ratio = (taken["own"] - floor) / (taken["hash_map"] - floor);
            self.run.add(labels, "own", measure, ratio);
        }
    }
}

fn labels(path: &str, others: &[(&str, u32)]) -> Labels {
    let path = [("path".to_owned(), path.to_owned())];
    let others = others
        .iter()
        .map(|(name, number)| ((*name).to_owned(), number.to_string()));
    path.into_iter().chain(others).collect()
}
