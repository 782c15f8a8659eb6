//! What the pages of the flow table are made of: memory in advance or a flow at a time, and one table
//! for all CPUs or one for each. See `docs/flow-table-pages.md`.

mod variant;

use std::{collections::BTreeSet, sync::Barrier, thread};

use anyhow::{Context as _, Result, ensure};
use lab::Lab;

use self::variant::{Kind, Variant};
use super::{
    affinity,
    bench::{Bench, Group, Labels, Lifetime, Plan, Setup, Station, labels, notes, station},
    flooded::Flooded,
    wire::Flood,
};
use crate::stage::Cost;

const KINDS: [Kind; 3] = [Kind::Preallocated, Kind::Growing, Kind::ByCpu];
const HIT_FLOWS: [u32; 2] = [1, 10_000];
/// The agent's default for `--max-flows`.
const MAX_FLOWS: u32 = 500_000;

#[derive(clap::Args)]
pub struct Pages;

#[derive(Clone, Copy)]
pub enum Load {
    /// Packets of flows that are in the page.
    Hit(Flood),
    /// Every packet a new flow, into a page that nothing was in before; then its drain.
    Insert(Flood),
    Elephant {
        elephant: Elephant,
        repeat: u32,
    },
}

/// Frames that two CPUs count at once.
#[derive(Clone, Copy)]
pub enum Elephant {
    /// One flow, a direction for each CPU.
    BothDirections,
    /// One flow in one direction, from both CPUs.
    OneDirection,
    /// A flow for each CPU.
    OneEach,
    /// One CPU alone.
    Alone,
}

const ELEPHANTS: [Elephant; 4] = [
    Elephant::Alone,
    Elephant::OneEach,
    Elephant::OneDirection,
    Elephant::BothDirections,
];

impl Elephant {
    fn name(self) -> &'static str {
        match self {
            Self::BothDirections => "one flow, a direction each",
            Self::OneDirection => "one flow, one direction",
            Self::OneEach => "a flow each",
            Self::Alone => "one flow, one CPU",
        }
    }

    /// A frame for each CPU that counts.
    fn frames(self, lab: &Lab) -> Result<Vec<Vec<u8>>> {
        let there = lab.peer.frame_v4(&lab.agent);
        let back = lab.agent.frame_v4(&lab.peer);
        let payload = [0; 22];
        let first = there.udp(1000, 53, &payload)?;
        Ok(match self {
            Self::BothDirections => vec![first, back.udp(53, 1000, &payload)?],
            Self::OneDirection => vec![first.clone(), first],
            Self::OneEach => vec![first, there.udp(1001, 53, &payload)?],
            Self::Alone => vec![first],
        })
    }
}

impl Bench for Pages {
    const NAME: &'static str = "pages";

    type Load = Load;

    fn plan(&self, setup: &Setup) -> Result<Plan<Load>> {
        let (packets, repeat) = if setup.is_quick {
            (200_000, 2_000_000)
        } else {
            (600_000, 10_000_000)
        };
        let flood = |flows, packets| Flood {
            frame_len_bytes: 64,
            flows,
            packets,
        };
        let group = |stations, kinds: &[Kind], load| {
            Group::new(stations, kinds.iter().map(|kind| kind.name()), &load)
        };
        let mut groups = Vec::new();
        for flows in HIT_FLOWS {
            let load = Load::Hit(flood(flows, packets));
            groups.push(group(Lifetime::Rounds, &KINDS, load));
        }
        let insert = Load::Insert(flood(0, packets.min(MAX_FLOWS * 4 / 5)));
        groups.push(group(Lifetime::Turn, &KINDS, insert));
        for elephant in ELEPHANTS {
            let load = Load::Elephant { elephant, repeat };
            let kinds = [Kind::Preallocated, Kind::ByCpu];
            groups.push(group(Lifetime::Rounds, &kinds, load));
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
            Load::Elephant { elephant, .. } => {
                labels([("path", &"elephant"), ("traffic", &elephant.name())])
            }
        }
    }

    fn station(&self, arm: &str, load: &Load, _: &Setup) -> Result<Box<dyn Station>> {
        let kind = KINDS.into_iter().find(|kind| kind.name() == arm);
        let kind = kind.with_context(|| format!("no kind of page is called {arm}"))?;
        match *load {
            Load::Hit(flood) => hit(kind, flood),
            Load::Insert(flood) => insert(kind, flood),
            Load::Elephant { elephant, repeat } => count_elephant(kind, elephant, repeat),
        }
    }
}

const NOTES: [&str; 4] = [
    "The programs have the agent's parser, read the tick counter, and keep neither account nor flags; \
     they differ in the page alone. preallocated is what the agent has, growing has \
     BPF_F_NO_PREALLOC, by_cpu a preallocated table for each CPU, which takes plain adds.",
    "program_ns_per_packet in insert and hit is the kernel's run_time_ns over run_cnt on real packets, \
     with what the statistics themselves cost; in elephant it is what BPF_PROG_TEST_RUN says, run on \
     both CPUs at once, the mean of the two.",
    "memory_empty_bytes and memory_full_bytes are what the kernel charges (fdinfo's memlock) for one \
     page of 500,000 flows, of which the agent has two.",
    "After every measurement the page is drained and its sum held against the packets that ran.",
];

fn flooded(kind: Kind, flood: Flood) -> Result<Flooded<Variant>> {
    Flooded::new(flood, |host| {
        let mut variant = Variant::new(kind, MAX_FLOWS)?;
        let id = variant.attach(host)?;
        Ok((variant, BTreeSet::from([id])))
    })
}

fn hit(kind: Kind, flood: Flood) -> Result<Box<dyn Station>> {
    let flooded = flooded(kind, flood)?;
    Ok(station(move |setup| {
        // The drain after the turn before has emptied the page.
        let before = flooded.warm_up(&setup.interrupt)?;
        let (ns, packets) = flooded.program_ns(&setup.interrupt)?;
        closes(&flooded.programs, before + packets)?;
        let ns = ns.context("the program did not run")?;
        Ok(vec![("program_ns_per_packet", ns)])
    }))
}

fn insert(kind: Kind, flood: Flood) -> Result<Box<dyn Station>> {
    let flooded = flooded(kind, flood)?;
    Ok(station(move |setup| {
        let page = &flooded.programs;
        let empty = page.memory_bytes()?;
        let (ns, packets) = flooded.program_ns(&setup.interrupt)?;
        let full = page.memory_bytes()?;
        let (drain, entries) = Cost::of(|| closes(page, packets))?;
        Ok(vec![
            (
                "program_ns_per_packet",
                ns.context("the program did not run")?,
            ),
            ("memory_empty_bytes", empty as f64),
            ("memory_full_bytes", full as f64),
            ("drain_cpu_ns_per_flow", drain.cpu_ns / entries as f64),
        ])
    }))
}

fn count_elephant(kind: Kind, elephant: Elephant, repeat: u32) -> Result<Box<dyn Station>> {
    let frames = elephant.frames(&Lab::quiet()?)?;
    let mut variant = Variant::new(kind, 1000)?;
    variant.load_program()?;
    Ok(station(move |_| {
        // The entries are there when both CPUs begin: the first packet is not the cost.
        for (cpu, frame) in frames.iter().enumerate() {
            on_cpu(cpu, || variant.run(frame, 1))?;
        }
        let ns = at_once(&variant, &frames, repeat)?;
        closes(&variant, frames.len() as u64 * (u64::from(repeat) + 1))?;
        Ok(vec![("program_ns_per_packet", ns)])
    }))
}

/// Each frame on a CPU of its own, all beginning together; the mean of their nanoseconds a run.
fn at_once(variant: &Variant, frames: &[Vec<u8>], repeat: u32) -> Result<f64> {
    let start = Barrier::new(frames.len());
    let runs: Vec<Result<f64>> = thread::scope(|scope| {
        let running: Vec<_> = frames
            .iter()
            .enumerate()
            .map(|(cpu, frame)| {
                let start = &start;
                scope.spawn(move || {
                    let pinned = affinity::pin(cpu);
                    start.wait();
                    pinned?;
                    variant.run(frame, repeat)
                })
            })
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<f64>>| match thread.join() {
            Ok(result) => result,
            Err(panicked) => std::panic::resume_unwind(panicked),
        };
        running.into_iter().map(join).collect()
    });
    let runs = runs.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(runs.iter().sum::<f64>() / runs.len() as f64)
}

fn on_cpu<T: Send>(cpu: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let pinned = || {
        affinity::pin(cpu)?;
        work()
    };
    thread::scope(|scope| scope.spawn(pinned).join())
        .unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))
}

/// Empties the page, which has to hold so many packets; returns how many flows they were.
fn closes(variant: &Variant, packets: u64) -> Result<u64> {
    let (entries, sum) = variant.drain()?;
    ensure!(
        sum.packets == packets,
        "{packets} packets ran, the page holds {}",
        sum.packets
    );
    Ok(entries)
}
