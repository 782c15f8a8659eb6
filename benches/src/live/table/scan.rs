//! What a scan costs: tables with flows in them are drained, the kernel's by its batch call and our
//! own by a walk, and what the kernel charges for either.

use agent_common::FlowCounters;
use anyhow::{Result, ensure};

use super::USUAL_WINDOWS;
use crate::{
    kernel_table::{CAPACITY, KernelTable},
    live::bench::{Station, station},
    own_table::{Size, TablePrograms},
    profile::Profile,
    stage::Cost,
    user_space::Source as _,
};

/// Our table has slots for the agent's default number of flows at this load.
fn tables(load_percent: u32) -> Result<TablePrograms> {
    TablePrograms::load(Size {
        hash_map_flows: CAPACITY,
        window_starts: (u64::from(CAPACITY) * 100 / u64::from(load_percent)) as u32,
        windows: USUAL_WINDOWS,
    })
}

pub fn memory(arm: &str, load_percent: u32) -> Result<Box<dyn Station>> {
    let [hash_map, own] = tables(load_percent)?.memory_bytes()?;
    let bytes = if arm == "own" { own } else { hash_map };
    Ok(station(move |_| {
        Ok(vec![("kernel_memory_bytes", bytes as f64)])
    }))
}

/// Filling and the wait for programs are not part of the time.
pub fn drain(arm: &str, profile: Profile, load_percent: u32) -> Result<Box<dyn Station>> {
    let flows = 0..profile.flows;
    let filled = flows.map(|number| packets(&[Profile::entry(number).1]));
    let filled: u64 = filled.sum();
    let measures = move |cost: Cost, drained| {
        ensure!(
            drained == filled,
            "{drained} packets were drained of {filled}"
        );
        let per_flow = cost.cpu_ns / f64::from(profile.flows);
        Ok(vec![
            ("drain_cpu_us", cost.cpu_ns / 1e3),
            ("drain_cpu_ns_per_flow", per_flow),
        ])
    };
    if arm == "own" {
        let table = tables(load_percent)?;
        return Ok(station(move |_| {
            let mut slots = table.slots()?;
            slots.fill(profile);
            let mut drained = 0;
            let (cost, _) =
                Cost::of(|| Ok(slots.drain(|_, counters| drained += packets(counters))))?;
            measures(cost, drained)
        }));
    }
    let mut table = KernelTable::load()?;
    Ok(station(move |_| {
        table.fill(profile)?;
        let page = table.flip()?;
        let mut drained = 0;
        let (cost, _) = Cost::of(|| page.drain(|_, counters| drained += packets(counters)))?;
        measures(cost, drained)
    }))
}

fn packets(counters: &[FlowCounters]) -> u64 {
    counters.iter().flat_map(|counters| counters.packets).sum()
}
