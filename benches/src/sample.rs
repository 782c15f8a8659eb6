//! Measures one case once, in this process. Run nothing else in it: freed memory stays resident.

use agent_common::senders::Kinds;
use anyhow::{Context as _, Result};

use crate::{
    heap::{heap, reset_peak},
    kernel_table::KernelTable,
    profile::{KERNEL_PROFILES, PROFILES, Page, Profile},
    resident::Resident,
    stage::{Cost, Figures},
    user_space::{Source as _, UserSpace},
};

/// Scans are repeated until this many flows have been processed, so that small profiles run long enough to measure.
const FLOWS_PER_STAGE: u32 = 2_000_000;
/// For the kernel's table, where each scan must be prepared and waits for the programs.
const SCANS_OF_FEW_FLOWS: u32 = 20;
const SCANS_OF_MANY_FLOWS: u32 = 4;

/// The source of a case's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Synthetic,
    Kernel,
    /// The kernel's table with every enrichment.
    Enriched,
}

/// A profile with the table that it is drained from.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub table: Table,
    pub profile: Profile,
}

impl Case {
    pub fn all() -> Vec<Self> {
        let of = |table, profiles: &[Profile]| -> Vec<Self> {
            let case = |&profile| Self { table, profile };
            profiles.iter().map(case).collect()
        };
        let mut cases = of(Table::Synthetic, &PROFILES);
        cases.extend(of(Table::Kernel, &KERNEL_PROFILES));
        cases.extend(of(Table::Enriched, &KERNEL_PROFILES[1..]));
        cases
    }

    pub fn name(&self) -> String {
        format!("{}/{}", self.table.name(), self.profile.name)
    }

    pub fn named(name: &str) -> Result<Self> {
        Self::all()
            .into_iter()
            .find(|case| case.name() == name)
            .with_context(|| format!("no case is called {name}"))
    }

    pub fn sample(&self) -> Result<Figures> {
        match self.table {
            Table::Synthetic => synthetic(self.profile),
            Table::Kernel => kernel(self.profile, Kinds::NONE),
            Table::Enriched => kernel(self.profile, Kinds::ALL),
        }
    }
}

impl Table {
    pub fn name(self) -> &'static str {
        match self {
            Self::Synthetic => "synthetic",
            Self::Kernel => "kernel",
            Self::Enriched => "enriched",
        }
    }
}

fn synthetic(profile: Profile) -> Result<Figures> {
    let mut figures = Figures::new();
    let pages = profile.pages();
    let mut user_space = UserSpace::default();
    let mut memory = Memory::before()?;
    let (cost, ()) = Cost::of(|| {
        user_space.update(&pages[0]);
        Ok(())
    })?;
    cost.put(&mut figures, "insert", profile.flows, 1);
    memory.put(&mut figures, profile)?;

    let scans = (FLOWS_PER_STAGE / profile.flows).max(2).next_multiple_of(2);
    let mut stage = |name: &str, pages: &[Page; 2], work: &mut dyn FnMut(&Page) -> Result<()>| {
        let flows = (pages[0].keys.len() + pages[1].keys.len()) as u32 / 2;
        // An uncounted run first, so that buffers have grown to their size.
        work(&pages[1])?;
        let (cost, ()) = Cost::of(|| {
            for scan in 0..scans {
                work(&pages[scan as usize % 2])?;
            }
            Ok(())
        })?;
        cost.put(&mut figures, name, flows, scans);
        anyhow::Ok(())
    };
    stage("update", &pages, &mut |page| {
        user_space.update(page);
        Ok(())
    })?;
    stage("end_scan", &pages, &mut |_| {
        user_space.end_scan();
        Ok(())
    })?;
    user_space.take_delivered();
    stage("cycle", &pages, &mut |page| {
        user_space.cycle(page).map(drop)
    })?;
    let delivered = user_space.take_delivered();
    let records = user_space.records(&pages[0]);
    stage("encode", &pages, &mut |_| {
        user_space.encode(&records);
        Ok(())
    })?;

    let few = [0, 1].map(|page| pages[page as usize].thinned(page));
    stage("sparse", &few, &mut |page| user_space.cycle(page).map(drop))?;

    let batches_per_scan = delivered.batches as f64 / f64::from(scans + 1);
    figures.insert("batches_per_scan".into(), batches_per_scan);
    let encoded_bytes_per_flow = delivered.encoded_bytes as f64 / delivered.records as f64;
    figures.insert("encoded_bytes_per_flow".into(), encoded_bytes_per_flow);
    Ok(figures)
}

fn kernel(profile: Profile, senders: Kinds) -> Result<Figures> {
    let mut figures = Figures::new();
    let mut table = KernelTable::load(profile.flows, senders)?;
    let mut user_space = UserSpace::default();
    if senders != Kinds::NONE {
        user_space = user_space.naming(profile);
    }
    figures.insert("kernel_memory_bytes".into(), table.memory_bytes() as f64);

    let mut memory = Memory::before()?;
    table.fill(profile)?;
    let page = table.flip()?;
    let (cost, _) = Cost::of(|| user_space.cycle(page))?;
    cost.put(&mut figures, "first_cycle", profile.flows, 1);

    let scans = if profile.flows > 100_000 {
        SCANS_OF_MANY_FLOWS
    } else {
        SCANS_OF_FEW_FLOWS
    };
    let [mut flip, mut drain, mut cycle] = [Cost::default(); 3];
    for _ in 0..scans {
        table.fill(profile)?;
        let (cost, page) = Cost::of(|| table.flip())?;
        flip.add(cost);
        let (cost, _) = Cost::of(|| page.drain(|_, _, _| ()))?;
        drain.add(cost);

        table.fill(profile)?;
        let (flip_cost, page) = Cost::of(|| table.flip())?;
        flip.add(flip_cost);
        let (cost, _) = Cost::of(|| user_space.cycle(page))?;
        cycle.add(cost);
    }
    flip.put(&mut figures, "flip", profile.flows, 2 * scans);
    figures.insert(
        "flip.wall_ns_per_scan".into(),
        flip.wall_ns / f64::from(2 * scans),
    );
    drain.put(&mut figures, "drain", profile.flows, scans);
    cycle.put(&mut figures, "drain_and_cycle", profile.flows, scans);
    memory.put(&mut figures, profile)?;
    Ok(figures)
}

/// Memory in use before the replica holds a flow.
struct Memory {
    heap_bytes: i64,
    resident_bytes: u64,
}

impl Memory {
    fn before() -> Result<Self> {
        reset_peak();
        Ok(Self {
            heap_bytes: heap().live_bytes,
            resident_bytes: Resident::own()?.now_bytes,
        })
    }

    /// Records the memory that each flow has added.
    fn put(&mut self, figures: &mut Figures, profile: Profile) -> Result<()> {
        let flows = f64::from(profile.flows);
        let heap_bytes = heap().live_bytes - self.heap_bytes;
        let resident = Resident::own()?;
        let grown_bytes = resident.now_bytes.saturating_sub(self.resident_bytes);
        for (name, figure) in [
            ("heap_bytes_per_flow", heap_bytes as f64 / flows),
            ("resident_bytes_per_flow", grown_bytes as f64 / flows),
            (
                "heap_peak_bytes",
                (heap().peak_bytes - self.heap_bytes) as f64,
            ),
            ("resident_before_bytes", self.resident_bytes as f64),
            ("resident_peak_bytes", resident.peak_bytes as f64),
        ] {
            figures.insert(name.into(), figure);
        }
        Ok(())
    }
}
