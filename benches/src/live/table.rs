//! A flow table of our own in mapped memory against the kernel's hash map: what a packet costs in
//! either, how many packets find no slot, and what a scan costs. See `docs/table-of-our-own.md`.

mod scan;

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};

use super::{
    bench::{Bench, Group, Labels, Lifetime, Plan, Setup, Station, Turns, labels, notes, station},
    flooded::Flooded,
    host::Host,
    wire::Flood,
};
use crate::{
    own_table::{Size, TablePrograms},
    profile::{KERNEL_PROFILES, Profile},
};

const ARMS: [&str; 4] = ["empty", "parsed", "hash_map", "own"];
const TABLES: [&str; 2] = ["hash_map", "own"];
/// The sizes that the hits have, so that half of our slots are in use by the most flows.
const ROOM: u32 = 1_000_000;
const HIT_FLOWS: [u32; 3] = [1, 10_000, 500_000];
const LOADS_PERCENT: [u32; 3] = [25, 50, 75];
/// Slots for the agent's default number of flows, at these loads.
const SCAN_LOADS_PERCENT: [u32; 2] = [50, 75];
const WINDOWS: [u32; 3] = [1, 2, 3];
/// Those of our table in all but the rows about packets without a slot.
const USUAL_WINDOWS: u32 = 2;

#[derive(clap::Args)]
pub struct Table;

#[derive(Clone, Copy)]
pub enum Load {
    Hit(Flood),
    Insert(Flood),
    Unplaced {
        flood: Flood,
        load_percent: u32,
        windows: u32,
    },
    Memory {
        load_percent: u32,
    },
    Drain {
        profile: Profile,
        load_percent: u32,
    },
}

impl Bench for Table {
    const NAME: &'static str = "table";

    type Load = Load;

    fn plan(&self, setup: &Setup) -> Result<Plan<Load>> {
        let [packets, new_flows] = if setup.is_quick {
            [300_000, 100_000]
        } else {
            [1_000_000, 400_000]
        };
        let flood = |flows, packets| Flood {
            frame_len_bytes: 64,
            flows,
            packets,
        };
        let mut groups = Vec::new();
        for flows in HIT_FLOWS {
            let load = Load::Hit(flood(flows, packets));
            groups.push(Group::new(Lifetime::Rounds, ARMS, &load));
        }
        let insert = Load::Insert(flood(0, new_flows));
        groups.push(Group::new(Lifetime::Turn, ARMS, &insert));
        for windows in WINDOWS {
            for load_percent in LOADS_PERCENT {
                let load = Load::Unplaced {
                    flood: flood(0, new_flows),
                    load_percent,
                    windows,
                };
                groups.push(Group::new(Lifetime::Turn, ["own"], &load));
            }
        }
        for load_percent in SCAN_LOADS_PERCENT {
            let memory = Load::Memory { load_percent };
            groups.push(Group::new(Lifetime::Turn, TABLES, &memory));
            for profile in KERNEL_PROFILES {
                let load = Load::Drain {
                    profile,
                    load_percent,
                };
                groups.push(Group::new(Lifetime::Rounds, TABLES, &load));
            }
        }
        Ok(Plan {
            groups,
            notes: notes(&NOTES),
        })
    }

    fn labels(load: &Load) -> Labels {
        match load {
            Load::Hit(flood) => labels([("path", &"hit"), ("flows", &flood.flows)]),
            Load::Insert(flood) => labels([("path", &"insert"), ("flows", &flood.packets)]),
            Load::Unplaced {
                load_percent,
                windows,
                ..
            } => labels([
                ("path", &"unplaced"),
                ("load_percent", load_percent),
                ("windows", windows),
            ]),
            Load::Memory { load_percent } => {
                labels([("path", &"memory"), ("load_percent", load_percent)])
            }
            Load::Drain {
                profile,
                load_percent,
            } => labels([
                ("path", &"drain"),
                ("flows", &profile.flows),
                ("load_percent", load_percent),
            ]),
        }
    }

    fn station(&self, arm: &str, load: &Load, setup: &Setup) -> Result<Box<dyn Station>> {
        match *load {
            Load::Hit(flood) | Load::Insert(flood) => {
                let flooded = flooded(arm, flood, ROOM, USUAL_WINDOWS)?;
                flooded.warm_up(&setup.interrupt)?;
                Ok(station(move |setup| {
                    let (ns, _) = flooded.program_ns(&setup.interrupt)?;
                    let ns = ns.context("the program did not run")?;
                    Ok(vec![("program_ns_per_packet", ns)])
                }))
            }
            Load::Unplaced {
                flood,
                load_percent,
                windows,
            } => {
                let starts = flood.packets / load_percent * 100;
                let flooded = flooded(arm, flood, starts, windows)?;
                Ok(station(move |setup| unplaced(&flooded, setup)))
            }
            Load::Memory { load_percent } => scan::memory(arm, load_percent),
            Load::Drain {
                profile,
                load_percent,
            } => scan::drain(arm, profile, load_percent),
        }
    }

    /// Ours over the hash map, both over what costs the same without a table.
    fn derive(turns: &Turns, _: &Host) -> Vec<(String, &'static str, f64)> {
        const NS: &str = "program_ns_per_packet";
        let ratio = |measure, floor: Option<f64>| {
            let own = turns.get("own", measure)? - floor?;
            Some(own / (turns.get("hash_map", measure)? - floor?))
        };
        let ratios = [
            ("program_over_hash_map_ratio", NS, turns.get("empty", NS)),
            ("table_over_hash_map_ratio", NS, turns.get("parsed", NS)),
            ("drain_over_hash_map_ratio", "drain_cpu_us", Some(0.0)),
        ];
        ratios
            .into_iter()
            .filter_map(|(name, measure, floor)| {
                Some(("own".to_owned(), name, ratio(measure, floor)?))
            })
            .collect()
    }
}

const NOTES: [&str; 4] = [
    "hash_map and own are programs of one object, for a processor with compare-and-swap (v3); \
     both read the tick counter only. program_ns_per_packet is the kernel's run_time_ns over \
     run_cnt, with what the statistics themselves cost.",
    "program_over_hash_map_ratio is (own - empty) / (hash_map - empty); \
     table_over_hash_map_ratio is (own - parsed) / (hash_map - parsed): the tables alone.",
    "unplaced_per_million: packets of as many different flows fill the table to its load; those \
     that found all slots of their windows taken are counted, and placed and unplaced together \
     are what the interface received.",
    "In a drain the other arm's memory is not in use; both hand on the same batches.",
];

fn flooded(
    arm: &str,
    flood: Flood,
    window_starts: u32,
    windows: u32,
) -> Result<Flooded<TablePrograms>> {
    Flooded::new(flood, |host| {
        let mut programs = TablePrograms::load(Size {
            hash_map_flows: if arm == "hash_map" { ROOM } else { 1 },
            window_starts: if arm == "own" { window_starts } else { 1 },
            windows,
        })?;
        let id = programs.attach(arm, host)?;
        Ok((programs, BTreeSet::from([id])))
    })
}

fn unplaced(flooded: &Flooded<TablePrograms>, setup: &Setup) -> Result<Vec<(&'static str, f64)>> {
    let (_, sent) = flooded.program_ns(&setup.interrupt)?;
    let (_, placed) = flooded.programs.slots()?.drain_sum();
    let unplaced = flooded.programs.unplaced()?;
    ensure!(
        placed.packets + unplaced.packets == sent,
        "{sent} packets came, {placed:?} and {unplaced:?} were counted"
    );
    let per_million = unplaced.packets as f64 / sent as f64 * 1e6;
    Ok(vec![("unplaced_per_million", per_million)])
}
