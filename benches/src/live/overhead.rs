//! What a packet costs on a hook: nothing, an empty program, the least that a flow table needs, and
//! the agent, by turns on wires of their own.

use std::{collections::BTreeMap, path::Path, time::Instant};

use anyhow::{Context as _, Result, ensure};
use lab::{
    Host, Lab, LabOptions, Variety,
    traffic::{self, IpVersion},
};

use super::{
    affinity,
    cost::programs_during,
    program::{Hook, Occupant},
    reference,
    result::{Run, names},
    rounds::{Interrupt, Progress, order},
    wire::{Wire, sender_cpu},
};

const ARMS: [&str; 4] = ["nothing", "empty", "bare", "agent"];
/// `noexist` is the bare program with an insert that refuses what is there.
const INSERT_ARMS: [&str; 5] = ["nothing", "empty", "bare", "noexist", "agent"];
const TCP_ARMS: [&str; 3] = ["nothing", "empty", "agent"];
/// Room for every flow of every scenario, so that no packet is refused.
const MAX_FLOWS: u32 = 1_000_000;
/// The bare program in its parts, and the agent beside them. `timeless` is all of it but the clock;
/// `order` is `parse` with the canonical order found once more; `plain_adds` and `short_key` are
/// `timeless` with adds that are not atomic, and with a key of eight bytes.
const PARTS: [&str; 10] = [
    "empty",
    "clock",
    "coarse_clock",
    "parse",
    "order",
    "timeless",
    "plain_adds",
    "short_key",
    "bare",
    "agent",
];
const HOOKS: [Hook; 2] = [Hook::Tc, Hook::Xdp];

pub struct Settings<'a> {
    pub agent: &'a Path,
    pub rounds: u32,
    pub quick: bool,
    /// Empty for all.
    pub sections: &'a [Section],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Section {
    /// The bare program taken apart
    Parts,
    /// Packets of flows that are in the table
    Hits,
    /// Every packet a new flow
    Inserts,
    /// TCP throughput
    Tcp,
}

/// What all arms get in one measurement.
#[derive(Clone, Copy)]
struct Scenario {
    frame_len_bytes: usize,
    /// Concurrent flows, hit at random; 0 where every packet is a flow of its own.
    flows: u32,
    packets: u32,
}

impl Scenario {
    fn variety(self) -> Variety {
        match self.flows {
            1 => Variety::Same,
            flows => Variety::Sources(flows),
        }
    }

    fn labels(self, path: &str, hook: Hook) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("hook".to_owned(), hook.name().to_owned()),
            ("frame_bytes".to_owned(), self.frame_len_bytes.to_string()),
            ("path".to_owned(), path.to_owned()),
            ("flows".to_owned(), self.flows.to_string()),
        ])
    }
}

fn hits(quick: bool) -> Vec<Scenario> {
    let packets = if quick { 300_000 } else { 600_000 };
    [(64, 1), (1500, 1), (64, 10_000), (64, 500_000)]
        .into_iter()
        .map(|(frame_len_bytes, flows)| Scenario {
            frame_len_bytes,
            flows,
            packets,
        })
        .collect()
}

pub fn run(settings: &Settings, interrupt: &Interrupt) -> Result<Run> {
    let hits = hits(settings.quick);
    let insert = Scenario {
        frame_len_bytes: 64,
        flows: 0,
        packets: if settings.quick { 100_000 } else { 400_000 },
    };
    let wants = |section| settings.sections.is_empty() || settings.sections.contains(&section);
    let on_all_hooks = HOOKS.len() * ARMS.len();
    let steps_a_round = [
        (Section::Parts, PARTS.len()),
        (Section::Hits, on_all_hooks * hits.len()),
        (Section::Inserts, ARMS.len() + INSERT_ARMS.len()),
        (Section::Tcp, TCP_ARMS.len()),
    ];
    let steps_a_round: usize = steps_a_round
        .into_iter()
        .filter(|(section, _)| wants(*section))
        .map(|(_, steps)| steps)
        .sum();
    let mut bench = Bench {
        run: Run::new("overhead", settings.quick, settings.rounds)?,
        settings,
        progress: Progress::new(settings.rounds as usize * steps_a_round),
        interrupt,
    };
    if wants(Section::Parts) {
        bench.hits("parts", &PARTS, Hook::Tc, &hits[..1])?;
    }
    for hook in HOOKS {
        if wants(Section::Hits) {
            bench.hits("hit", &ARMS, hook, &hits)?;
        }
        if wants(Section::Inserts) {
            bench.inserts(hook, insert)?;
        }
    }
    if wants(Section::Tcp) {
        bench.tcp()?;
    }
    let mut run = bench.run;
    run.sections = names(settings.sections);
    run.notes.extend([
        "program_ns_per_packet is the kernel's run_time_ns over run_cnt while BPF_ENABLE_STATS is on; \
         it contains what the statistics themselves cost, which is what the empty program shows. \
         net_ns_per_packet is that over the empty program of the same round, and the honest base for \
         a ratio."
            .to_owned(),
        "packets_per_second is taken with the statistics off: one CPU sends, and the frames that \
         arrived count. The agent runs on the other CPUs."
            .to_owned(),
        "The TCP stream's ends run where the scheduler puts them; the agent is on both directions, the \
         empty program on arriving packets."
            .to_owned(),
        "The bare program has the same parser, one clock read and a look-up and add in one hash map; \
         it keeps no account, no pages, no flags and no time of the first packet."
            .to_owned(),
    ]);
    Ok(run)
}

/// Nanoseconds of a packet by arm, in one round.
type Net = BTreeMap<String, f64>;

struct Measured {
    /// `None` where no program is on the hook.
    program_ns_per_packet: Option<f64>,
    packets_per_second: f64,
}

/// An arm on a wire of its own.
struct Station {
    wire: Wire,
    occupant: Occupant,
}

impl Station {
    fn new(arm: &str, hook: Hook, settings: &Settings, interrupt: &Interrupt) -> Result<Self> {
        let wire = Wire::new()?;
        let host = &wire.lab.agent;
        let occupant = match arm {
            "nothing" => Occupant::Nothing,
            "agent" => agent(host, hook, settings, interrupt)?,
            program => Occupant::reference(host, hook, program, MAX_FLOWS)?,
        };
        Ok(Self { wire, occupant })
    }

    /// Sends the scenario's packets, once with statistics and once without.
    fn measure(&mut self, scenario: Scenario, interrupt: &Interrupt) -> Result<Measured> {
        let frame = self.wire.frame(scenario.frame_len_bytes)?;
        let send = || {
            self.wire
                .flood(&frame, scenario.variety(), scenario.packets, interrupt)
        };
        let ids = self.occupant.program_ids()?;
        let (cost, _, passage) = programs_during(&ids, send)?;
        ensure!(
            ids.is_empty() || cost.runs >= passage.packets,
            "{} packets arrived and the program ran {} times",
            passage.packets,
            cost.runs
        );
        Ok(Measured {
            program_ns_per_packet: cost.ns_per_run(),
            packets_per_second: send()?.packets_per_second(),
        })
    }
}

/// No scan falls into a measurement: what is measured is the program.
fn agent(host: &Host, hook: Hook, settings: &Settings, interrupt: &Interrupt) -> Result<Occupant> {
    let max_flows = MAX_FLOWS.to_string();
    let arguments = [
        "--direction",
        "ingress",
        "--max-flows",
        &max_flows,
        "--scan-interval",
        "1h",
        // New flows are counted, and never so many that a scan comes early.
        "--early-scan",
        "99",
    ];
    let arguments = [hook.settings(), &arguments].concat();
    let mut occupant = Occupant::agent(host, settings.agent, &arguments, interrupt)?;
    if let (Occupant::Agent(agent), Some(cpu)) = (&mut occupant, sender_cpu()) {
        affinity::keep_off(agent.pid(), cpu)?;
    }
    Ok(occupant)
}

struct Bench<'a> {
    run: Run,
    settings: &'a Settings<'a>,
    progress: Progress,
    interrupt: &'a Interrupt,
}

impl Bench<'_> {
    /// The arms stay while the scenarios pass, so that flows are in the table when they count.
    fn hits(
        &mut self,
        path: &str,
        arms: &[&str],
        hook: Hook,
        scenarios: &[Scenario],
    ) -> Result<()> {
        let mut stations = arms
            .iter()
            .map(|arm| Station::new(arm, hook, self.settings, self.interrupt))
            .collect::<Result<Vec<_>>>()?;
        for scenario in scenarios {
            for station in stations.iter_mut().filter(|_| scenario.flows > 1) {
                let frame = station.wire.frame(scenario.frame_len_bytes)?;
                let count = scenario.flows.saturating_mul(5);
                station
                    .wire
                    .flood(&frame, scenario.variety(), count, self.interrupt)?;
            }
            let labels = scenario.labels(path, hook);
            for round in 0..self.settings.rounds {
                self.reference(&labels);
                let mut net = Net::default();
                for index in order(arms.len(), round) {
                    let arm = arms[index];
                    let (len_bytes, flows) = (scenario.frame_len_bytes, scenario.flows);
                    let what = format!("{} hook, {len_bytes} bytes, {flows} flows", hook.name());
                    self.step(&what, round, arm);
                    let measured = stations[index].measure(*scenario, self.interrupt);
                    self.record(&labels, arm, measured, &mut net)?;
                }
                self.record_net(&labels, &net);
            }
        }
        Ok(())
    }

    /// Every round has arms of its own, whose tables are empty.
    fn inserts(&mut self, hook: Hook, scenario: Scenario) -> Result<()> {
        let labels = scenario.labels("insert", hook);
        let arms = match hook {
            Hook::Tc => INSERT_ARMS.as_slice(),
            Hook::Xdp => ARMS.as_slice(),
        };
        for round in 0..self.settings.rounds {
            self.reference(&labels);
            let mut net = Net::default();
            for index in order(arms.len(), round) {
                let arm = arms[index];
                let what = format!("{} hook, every packet a new flow", hook.name());
                self.step(&what, round, arm);
                let mut station = Station::new(arm, hook, self.settings, self.interrupt)?;
                let measured = station.measure(scenario, self.interrupt);
                self.record(&labels, arm, measured, &mut net)?;
            }
            self.record_net(&labels, &net);
        }
        Ok(())
    }

    /// Real sockets over a wire with offloads, the agent on both directions as by default.
    fn tcp(&mut self) -> Result<()> {
        let bytes: u64 = if self.settings.quick {
            200_000_000
        } else {
            2_000_000_000
        };
        let labels = BTreeMap::from([("traffic".to_owned(), "one TCP stream".to_owned())]);
        let mut stations = Vec::new();
        for arm in TCP_ARMS {
            let lab = Lab::new(LabOptions {
                addresses: true,
                offloads: true,
                ..LabOptions::default()
            })?;
            let occupant = match arm {
                "empty" => Occupant::reference(&lab.agent, Hook::Tc, "empty", 1)?,
                "agent" => Occupant::agent(&lab.agent, self.settings.agent, &[], self.interrupt)?,
                _ => Occupant::Nothing,
            };
            stations.push((occupant, lab));
        }
        for round in 0..self.settings.rounds {
            self.reference(&labels);
            for index in order(TCP_ARMS.len(), round) {
                self.interrupt.check()?;
                let arm = TCP_ARMS[index];
                self.step("one TCP stream", round, arm);
                let lab = &stations[index].1;
                let started = Instant::now();
                traffic::tcp(&lab.peer, &lab.agent, IpVersion::V4, 5001, bytes)?;
                let rate = bytes as f64 / started.elapsed().as_secs_f64();
                self.run.add(&labels, arm, "tcp_bytes_per_second", rate);
            }
        }
        Ok(())
    }

    fn step(&mut self, what: &str, round: u32, arm: &str) {
        self.progress
            .step(&format!("{what}, round {}: {arm}", round + 1));
    }

    fn reference(&mut self, labels: &BTreeMap<String, String>) {
        self.run
            .add(labels, "reference", "step_ns", reference::step_ns());
    }

    fn record(
        &mut self,
        labels: &BTreeMap<String, String>,
        arm: &str,
        measured: Result<Measured>,
        net: &mut Net,
    ) -> Result<()> {
        let measured = measured.with_context(|| format!("measure {arm}"))?;
        if let Some(ns) = measured.program_ns_per_packet {
            self.run.add(labels, arm, "program_ns_per_packet", ns);
            net.insert(arm.to_owned(), ns);
        }
        let rate = measured.packets_per_second;
        self.run.add(labels, arm, "packets_per_second", rate);
        Ok(())
    }

    /// What each program takes over the empty one of the same round.
    fn record_net(&mut self, labels: &BTreeMap<String, String>, round: &Net) {
        let Some(empty_ns) = round.get("empty") else {
            return;
        };
        for (arm, ns) in round.iter().filter(|(arm, _)| *arm != "empty") {
            self.run
                .add(labels, arm, "net_ns_per_packet", ns - empty_ns);
        }
    }
}
