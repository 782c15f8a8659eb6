//! What a packet costs on a hook: nothing, an empty program, the least that a flow table needs, and
//! the agent, by turns on wires of their own.

use std::{collections::BTreeMap, path::Path, time::Instant};

use anyhow::{Context as _, Result};
use lab::{
    Host, Lab, LabOptions, Variety,
    traffic::{self, IpVersion},
};

use super::{
    cost::{Statistics, program_cost},
    program::{Hook, Occupant, Reference},
    reference,
    result::Run,
    rounds::{Interrupt, Progress, order},
    wire::Wire,
};

const ARMS: [&str; 4] = ["nothing", "empty", "bare", "agent"];
/// Room for every flow of every scenario, so that no packet is refused.
const MAX_FLOWS: u32 = 1_000_000;
const HOOKS: [Hook; 2] = [Hook::Tc, Hook::Xdp];

pub struct Settings<'a> {
    pub agent: &'a Path,
    pub rounds: u32,
    pub quick: bool,
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

    fn labels(self, hook: Hook) -> BTreeMap<String, String> {
        let path = if self.flows == 0 { "insert" } else { "hit" };
        BTreeMap::from([
            ("hook".to_owned(), hook.name().to_owned()),
            ("frame_bytes".to_owned(), self.frame_len_bytes.to_string()),
            ("path".to_owned(), path.to_owned()),
            ("flows".to_owned(), self.flows.to_string()),
        ])
    }
}

fn hits(quick: bool) -> Vec<Scenario> {
    let packets = if quick { 300_000 } else { 1_000_000 };
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
    let mut run = Run::new("overhead", settings.quick, settings.rounds)?;
    let hits = hits(settings.quick);
    let insert = Scenario {
        frame_len_bytes: 64,
        flows: 0,
        packets: if settings.quick { 100_000 } else { 400_000 },
    };
    let rounds = settings.rounds as usize;
    let mut progress =
        Progress::new(HOOKS.len() * rounds * (hits.len() + 1) * ARMS.len() + rounds * 3);
    for hook in HOOKS {
        measure_hits(&mut run, settings, hook, &hits, &mut progress, interrupt)?;
        measure_inserts(&mut run, settings, hook, insert, &mut progress, interrupt)?;
    }
    measure_tcp(&mut run, settings, &mut progress, interrupt)?;
    run.notes.extend([
        "program_ns_per_packet is the kernel's run_time_ns over run_cnt while BPF_ENABLE_STATS is on; \
         it contains what the statistics themselves cost, which the empty program shows as well."
            .to_owned(),
        "packets_per_second is taken with the statistics off: one CPU sends, and the frames that \
         arrived count."
            .to_owned(),
        "The bare program has the same parser, one clock read and a look-up and add in one hash map; \
         it keeps no account, no pages, no flags and no time of the first packet."
            .to_owned(),
    ]);
    Ok(run)
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
            "empty" => Occupant::reference(host, hook, Reference::Empty, 1)?,
            "bare" => Occupant::reference(host, hook, Reference::Bare, MAX_FLOWS)?,
            "agent" => agent(host, hook, settings, interrupt)?,
            _ => Occupant::Nothing,
        };
        Ok(Self { wire, occupant })
    }

    /// Sends the scenario's packets, once with statistics and once without.
    fn measure(&mut self, scenario: Scenario, interrupt: &Interrupt) -> Result<(Option<f64>, f64)> {
        let frame = self.wire.frame(scenario.frame_len_bytes)?;
        let send = || {
            self.wire
                .flood(&frame, scenario.variety(), scenario.packets, interrupt)
        };
        let ids = self.occupant.program_ids()?;
        let statistics = Statistics::enable()?;
        let before = program_cost(&ids)?;
        let passage = send()?;
        let cost = program_cost(&ids)? - before;
        drop(statistics);
        let rate = if scenario.flows == 0 {
            // The table has no room for as many again.
            passage
        } else {
            send()?
        };
        Ok((cost.ns_per_run(), rate.packets_per_second()))
    }
}

/// No scan falls into a measurement: what is measured is the program.
fn agent(host: &Host, hook: Hook, settings: &Settings, interrupt: &Interrupt) -> Result<Occupant> {
    let max_flows = MAX_FLOWS.to_string();
    let arguments = [
        "--direction",
        "ingress",
        "--ingress-hook",
        hook.name(),
        "--max-flows",
        &max_flows,
        "--scan-interval",
        "1h",
    ];
    Occupant::agent(host, settings.agent, &arguments, interrupt)
}

fn record(
    run: &mut Run,
    labels: &BTreeMap<String, String>,
    arm: &str,
    (ns_per_packet, packets_per_second): (Option<f64>, f64),
) {
    if let Some(ns) = ns_per_packet {
        run.add(labels, arm, "program_ns_per_packet", ns);
    }
    run.add(labels, arm, "packets_per_second", packets_per_second);
}

fn measure_hits(
    run: &mut Run,
    settings: &Settings,
    hook: Hook,
    scenarios: &[Scenario],
    progress: &mut Progress,
    interrupt: &Interrupt,
) -> Result<()> {
    let mut stations = ARMS
        .iter()
        .map(|arm| Station::new(arm, hook, settings, interrupt))
        .collect::<Result<Vec<_>>>()?;
    for scenario in scenarios {
        // The flows are in the table before the first round.
        for station in stations.iter_mut().filter(|_| scenario.flows > 1) {
            let frame = station.wire.frame(scenario.frame_len_bytes)?;
            let count = scenario.flows.saturating_mul(5);
            station
                .wire
                .flood(&frame, scenario.variety(), count, interrupt)?;
        }
        let labels = scenario.labels(hook);
        for round in 0..settings.rounds {
            run.add(&labels, "reference", "step_ns", reference::step_ns());
            for index in order(ARMS.len(), round) {
                let arm = ARMS[index];
                progress.step(&format!(
                    "{} hook, {} bytes, {} flows, round {}: {arm}",
                    hook.name(),
                    scenario.frame_len_bytes,
                    scenario.flows,
                    round + 1
                ));
                let measured = stations[index]
                    .measure(*scenario, interrupt)
                    .with_context(|| format!("measure {arm}"))?;
                record(run, &labels, arm, measured);
            }
        }
    }
    Ok(())
}

/// Every round has arms of its own, whose tables are empty.
fn measure_inserts(
    run: &mut Run,
    settings: &Settings,
    hook: Hook,
    scenario: Scenario,
    progress: &mut Progress,
    interrupt: &Interrupt,
) -> Result<()> {
    let labels = scenario.labels(hook);
    for round in 0..settings.rounds {
        run.add(&labels, "reference", "step_ns", reference::step_ns());
        for index in order(ARMS.len(), round) {
            let arm = ARMS[index];
            progress.step(&format!(
                "{} hook, every packet a new flow, round {}: {arm}",
                hook.name(),
                round + 1
            ));
            let mut station = Station::new(arm, hook, settings, interrupt)?;
            let measured = station
                .measure(scenario, interrupt)
                .with_context(|| format!("measure {arm}"))?;
            record(run, &labels, arm, measured);
        }
    }
    Ok(())
}

/// Real sockets over a wire with offloads, the agent on both directions as by default.
fn measure_tcp(
    run: &mut Run,
    settings: &Settings,
    progress: &mut Progress,
    interrupt: &Interrupt,
) -> Result<()> {
    const TCP_ARMS: [&str; 3] = ["nothing", "empty", "agent"];
    let bytes: u64 = if settings.quick {
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
            "empty" => Occupant::reference(&lab.agent, Hook::Tc, Reference::Empty, 1)?,
            "agent" => Occupant::agent(&lab.agent, settings.agent, &[], interrupt)?,
            _ => Occupant::Nothing,
        };
        stations.push((lab, occupant));
    }
    for round in 0..settings.rounds {
        run.add(&labels, "reference", "step_ns", reference::step_ns());
        for index in order(TCP_ARMS.len(), round) {
            interrupt.check()?;
            let arm = TCP_ARMS[index];
            progress.step(&format!("one TCP stream, round {}: {arm}", round + 1));
            let lab = &stations[index].0;
            let started = Instant::now();
            traffic::tcp(&lab.peer, &lab.agent, IpVersion::V4, 5001, bytes)?;
            let rate = bytes as f64 / started.elapsed().as_secs_f64();
            run.add(&labels, arm, "tcp_bytes_per_second", rate);
        }
    }
    Ok(())
}
