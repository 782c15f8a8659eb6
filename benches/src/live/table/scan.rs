//! What a scan costs: tables with flows in them are drained, the kernel's by its batch call and our
//! own by a walk, and what the kernel charges for either.

use anyhow::Result;

use super::{Labels, USUAL_WINDOWS, labels};
use crate::{
    kernel_table::{CAPACITY, KernelTable},
    live::{
        reference,
        result::Run,
        rounds::{Interrupt, Progress},
    },
    own_table::{Size, TablePrograms},
    profile::{KERNEL_PROFILES, Profile},
    stage::Cost,
    user_space::Source as _,
};
use agent_common::FlowCounters;

/// Slots for the agent's default number of flows, at these loads.
const LOADS_PERCENT: [u32; 2] = [50, 75];

pub fn measure(run: &mut Run, rounds: u32, interrupt: &Interrupt) -> Result<()> {
    let mut progress = Progress::new(LOADS_PERCENT.len() * rounds as usize);
    for load in LOADS_PERCENT {
        let mut tables = Tables::new(load)?;
        let memory = labels("memory", &[("load_percent", load)]);
        let [hash_map, own] = tables.own.memory_bytes()?;
        run.add(&memory, "hash_map", "kernel_memory_bytes", hash_map as f64);
        run.add(&memory, "own", "kernel_memory_bytes", own as f64);
        for _ in 0..rounds {
            progress.step(&format!("drain, load {load} %"));
            for profile in KERNEL_PROFILES {
                interrupt.check()?;
                let flows = ("flows", profile.flows);
                let labels = labels("drain", &[flows, ("load_percent", load)]);
                tables.drain(run, &labels, profile)?;
            }
        }
    }
    Ok(())
}

struct Tables {
    hash_map: KernelTable,
    own: TablePrograms,
}

impl Tables {
    fn new(load_percent: u32) -> Result<Self> {
        Ok(Self {
            hash_map: KernelTable::load()?,
            own: TablePrograms::load(Size {
                hash_map_flows: CAPACITY,
                window_starts: (u64::from(CAPACITY) * 100 / u64::from(load_percent)) as u32,
                windows: USUAL_WINDOWS,
            })?,
        })
    }

    /// One drain of each; filling and the wait for programs are not part of the time.
    fn drain(&mut self, run: &mut Run, labels: &Labels, profile: Profile) -> Result<()> {
        run.add(labels, "reference", "step_ns", reference::step_ns());
        self.hash_map.fill(profile)?;
        let page = self.hash_map.flip()?;
        let mut packets = 0;
        let (batch, _) =
            Cost::of(|| page.drain(|_, counters| packets += sum_of_packets(counters)))?;

        let mut slots = self.own.slots()?;
        slots.fill(profile);
        let mut packets_of_walk = 0;
        let (walk, _) =
            Cost::of(
                || Ok(slots.drain(|_, counters| packets_of_walk += sum_of_packets(counters))),
            )?;
        anyhow::ensure!(packets == packets_of_walk, "the drains differ");
        for (arm, cost) in [("hash_map", batch), ("own", walk)] {
            let per_flow = cost.cpu_ns / f64::from(profile.flows);
            run.add(labels, arm, "drain_cpu_us", cost.cpu_ns / 1e3);
            run.add(labels, arm, "drain_cpu_ns_per_flow", per_flow);
        }
        let ratio = walk.cpu_ns / batch.cpu_ns;
        run.add(labels, "own", "drain_over_hash_map_ratio", ratio);
        Ok(())
    }
}

fn sum_of_packets(counters: &[FlowCounters]) -> u64 {
    counters.iter().flat_map(|counters| counters.packets).sum()
}
