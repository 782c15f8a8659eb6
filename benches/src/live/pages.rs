//! What the pages of the flow table are made of: memory in advance or a flow at a time, and one table
//! for all CPUs or one for each. See `docs/flow-table-pages.md`.

mod variant;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Barrier,
    thread,
};

use anyhow::{Context as _, Result, ensure};
use lab::{Lab, Variety};

use self::variant::{Kind, Variant};
use super::{
    affinity,
    cost::programs_during,
    reference,
    result::Run,
    rounds::{Interrupt, Progress, order},
    wire::Wire,
};
use crate::stage::Cost;

type Labels = BTreeMap<String, String>;

const KINDS: [Kind; 3] = [Kind::Preallocated, Kind::Growing, Kind::ByCpu];
const HIT_FLOWS: [u32; 2] = [1, 10_000];
/// The agent's default for `--max-flows`.
const MAX_FLOWS: u32 = 500_000;

/// Frames that two CPUs count at once.
#[derive(Clone, Copy)]
enum Elephant {
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

pub fn run(rounds: u32, quick: bool, interrupt: &Interrupt) -> Result<Run> {
    let a_round = KINDS.len() * (1 + HIT_FLOWS.len()) + 2 * ELEPHANTS.len();
    let mut bench = Bench {
        run: Run::new("pages", quick, rounds)?,
        rounds,
        packets: if quick { 200_000 } else { 600_000 },
        repeat: if quick { 2_000_000 } else { 10_000_000 },
        progress: Progress::new(rounds as usize * a_round),
        interrupt,
    };
    bench.hits()?;
    bench.fills()?;
    bench.elephants()?;
    let mut run = bench.run;
    run.notes.extend(NOTES.map(str::to_owned));
    Ok(run)
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

struct Bench<'a> {
    run: Run,
    rounds: u32,
    packets: u32,
    repeat: u32,
    progress: Progress,
    interrupt: &'a Interrupt,
}

/// A kind of page under a program on a wire of its own.
struct Station {
    wire: Wire,
    variant: Variant,
    id: u32,
}

impl Station {
    fn new(kind: Kind) -> Result<Self> {
        let wire = Wire::new()?;
        let mut variant = Variant::load(kind, MAX_FLOWS)?;
        let id = variant.attach(&wire.lab.agent)?;
        Ok(Self { wire, variant, id })
    }

    /// Packets that arrived, and nanoseconds for each.
    fn flood(&self, variety: Variety, count: u32, interrupt: &Interrupt) -> Result<(u64, f64)> {
        let frame = self.wire.frame(64)?;
        let ids = BTreeSet::from([self.id]);
        let flood = || self.wire.flood(&frame, variety, count, interrupt);
        let (cost, _, passage) = programs_during(&ids, flood)?;
        let ns = cost.ns_per_run().context("the program did not run")?;
        Ok((passage.packets, ns))
    }
}

impl Bench<'_> {
    fn hits(&mut self) -> Result<()> {
        let stations = KINDS.map(Station::new);
        let stations = stations.into_iter().collect::<Result<Vec<_>>>()?;
        for flows in HIT_FLOWS {
            let variety = match flows {
                1 => Variety::Same,
                flows => Variety::Sources(flows),
            };
            let mut expected = Vec::new();
            for station in &stations {
                expected.push(station.flood(variety, 5 * flows, self.interrupt)?.0);
            }
            let labels = labels("hit", "flows", &flows.to_string());
            for round in 0..self.rounds {
                self.reference(&labels);
                for index in order(KINDS.len(), round) {
                    let name = KINDS[index].name();
                    self.progress.step(&format!("{flows} flows: {name}"));
                    let (packets, ns) =
                        stations[index].flood(variety, self.packets, self.interrupt)?;
                    expected[index] += packets;
                    self.run.add(&labels, name, "program_ns_per_packet", ns);
                }
            }
            for (station, expected) in stations.iter().zip(expected) {
                closes(&station.variant, expected)?;
            }
        }
        Ok(())
    }

    /// Every packet a new flow, into a page that nothing was in before; then its drain.
    fn fills(&mut self) -> Result<()> {
        let flows = self.packets.min(MAX_FLOWS * 4 / 5);
        let labels = labels("insert", "flows", &flows.to_string());
        for round in 0..self.rounds {
            self.reference(&labels);
            for index in order(KINDS.len(), round) {
                let kind = KINDS[index];
                self.progress
                    .step(&format!("every packet a new flow: {}", kind.name()));
                let station = Station::new(kind)?;
                let empty = station.variant.memory_bytes()?;
                let (packets, ns) = station.flood(Variety::Sources(0), flows, self.interrupt)?;
                let full = station.variant.memory_bytes()?;
                let (drain, (entries, sum)) = Cost::of(|| station.variant.drain())?;
                ensure!(sum.packets == packets, "{packets} came, {sum:?} is there");
                let measures = [
                    ("program_ns_per_packet", ns),
                    ("memory_empty_bytes", empty as f64),
                    ("memory_full_bytes", full as f64),
                    ("drain_cpu_ns_per_flow", drain.cpu_ns / entries as f64),
                ];
                for (measure, value) in measures {
                    self.run.add(&labels, kind.name(), measure, value);
                }
            }
        }
        Ok(())
    }

    fn elephants(&mut self) -> Result<()> {
        let lab = Lab::quiet()?;
        let kinds = [Kind::Preallocated, Kind::ByCpu];
        for elephant in ELEPHANTS {
            let frames = elephant.frames(&lab)?;
            let labels = labels("elephant", "traffic", elephant.name());
            let variants = kinds.map(|kind| Variant::load(kind, 1000));
            let variants = variants.into_iter().collect::<Result<Vec<_>>>()?;
            for round in 0..self.rounds {
                self.reference(&labels);
                for index in order(kinds.len(), round) {
                    self.interrupt.check()?;
                    let name = kinds[index].name();
                    self.progress.step(&format!("{}: {name}", elephant.name()));
                    let variant = &variants[index];
                    // The entries are there when both CPUs begin: the first packet is not the cost.
                    for (cpu, frame) in frames.iter().enumerate() {
                        on_cpu(cpu, || variant.run(frame, 1))?;
                    }
                    let ns = at_once(variant, &frames, self.repeat)?;
                    self.run.add(&labels, name, "program_ns_per_packet", ns);
                    closes(variant, frames.len() as u64 * (u64::from(self.repeat) + 1))?;
                }
            }
        }
        Ok(())
    }

    fn reference(&mut self, labels: &Labels) {
        self.run
            .add(labels, "reference", "step_ns", reference::step_ns());
    }
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

/// Empties the page, which has to hold so many packets.
fn closes(variant: &Variant, packets: u64) -> Result<()> {
    let (_, sum) = variant.drain()?;
    ensure!(
        sum.packets == packets,
        "{packets} packets ran, the page holds {}",
        sum.packets
    );
    Ok(())
}

fn labels(path: &str, name: &str, value: &str) -> Labels {
    BTreeMap::from([
        ("path".to_owned(), path.to_owned()),
        (name.to_owned(), value.to_owned()),
    ])
}
