//! What filter rules cost a packet: an agent without rules and agents with more and more networks, on
//! wires of their own, by turns under the same traffic.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result};
use lab::Variety;

use super::{
    cost::{Statistics, program_cost},
    program::{Hook, Occupant},
    reference,
    result::Run,
    rounds::{Interrupt, Progress, order},
    wire::{Passage, Wire},
};

/// Every packet goes on to the table with each of them, so that the rules are all that differs; but
/// for the last arm, which keeps most packets from it.
const ARMS: [(&str, u32, &str); 5] = [
    ("no rules", 0, "1"),
    ("1 network", 1, "1"),
    ("100 networks", 100, "1"),
    ("1000 networks", 1000, "1"),
    ("1 flow in 100", 0, "100"),
];
const HOOKS: [Hook; 2] = [Hook::Tc, Hook::Xdp];
const FLOWS: [u32; 2] = [1, 10_000];
const FRAME_LEN_BYTES: usize = 64;
const MAX_FLOWS: &str = "100000";

pub struct Settings<'a> {
    pub agent: &'a Path,
    pub rounds: u32,
    pub quick: bool,
}

pub fn run(settings: &Settings, interrupt: &Interrupt) -> Result<Run> {
    let mut run = Run::new("filters", settings.quick, settings.rounds)?;
    let steps = settings.rounds as usize * ARMS.len() * HOOKS.len() * FLOWS.len();
    let mut progress = Progress::new(steps);
    let packets = if settings.quick { 300_000 } else { 600_000 };
    for hook in HOOKS {
        let mut stations = ARMS
            .into_iter()
            .map(|arm| Station::new(arm, hook, settings.agent, interrupt))
            .collect::<Result<Vec<_>>>()?;
        for flows in FLOWS {
            let variety = match flows {
                1 => Variety::Same,
                flows => Variety::Sources(flows),
            };
            for station in &stations {
                station.send(variety, flows.saturating_mul(5), interrupt)?;
            }
            let labels = BTreeMap::from([
                ("hook".to_owned(), hook.name().to_owned()),
                ("frame_bytes".to_owned(), FRAME_LEN_BYTES.to_string()),
                ("flows".to_owned(), flows.to_string()),
            ]);
            for round in 0..settings.rounds {
                run.add(&labels, "reference", "step_ns", reference::step_ns());
                for index in order(ARMS.len(), round) {
                    let arm = ARMS[index].0;
                    let what = format!("{} hook, {flows} flows", hook.name());
                    progress.step(&format!("{what}, round {}: {arm}", round + 1));
                    let (ns, rate) = stations[index]
                        .measure(variety, packets, interrupt)
                        .with_context(|| format!("measure {arm}"))?;
                    if let Some(ns) = ns {
                        run.add(&labels, arm, "program_ns_per_packet", ns);
                    }
                    let rate = rate.packets_per_second();
                    run.add(&labels, arm, "packets_per_second", rate);
                }
            }
        }
    }
    run.notes.extend([
        "Each network is a rule of its own, among the addresses of the traffic; a tenth of 10,000 flows \
         is in one of 1,000 networks. All rules include, so that every packet goes on to the table."
            .to_owned(),
        "1 flow in 100 is --sample 100 without rules: the other packets do not reach the table.".to_owned(),
        "program_ns_per_packet is the kernel's run_time_ns over run_cnt while BPF_ENABLE_STATS is on."
            .to_owned(),
    ]);
    Ok(run)
}

/// An arm on a wire of its own.
struct Station {
    occupant: Occupant,
    wire: Wire,
}

impl Station {
    fn new(
        (_, networks, sample): (&str, u32, &str),
        hook: Hook,
        binary: &Path,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let wire = Wire::new()?;
        let file = std::env::temp_dir().join(format!("flow-bench-rules-{}", std::process::id()));
        fs::write(&file, rules(networks)).with_context(|| format!("write {}", file.display()))?;
        let path = file.to_str().context("the path of a temporary file")?;
        let arguments = [
            "--direction",
            "ingress",
            "--max-flows",
            MAX_FLOWS,
            // No scan falls into a measurement: what is measured is the program.
            "--scan-interval",
            "1h",
            "--sample",
            sample,
            "--filter-file",
            path,
        ];
        let arguments = [hook.settings(), &arguments].concat();
        // It has read the rules when it has started.
        let occupant = Occupant::agent(&wire.lab.agent, binary, &arguments, interrupt);
        fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
        Ok(Self {
            occupant: occupant?,
            wire,
        })
    }

    fn send(&self, variety: Variety, packets: u32, interrupt: &Interrupt) -> Result<Passage> {
        let frame = self.wire.frame(FRAME_LEN_BYTES)?;
        self.wire.flood(&frame, variety, packets, interrupt)
    }

    /// Once with statistics and once without.
    fn measure(
        &mut self,
        variety: Variety,
        packets: u32,
        interrupt: &Interrupt,
    ) -> Result<(Option<f64>, Passage)> {
        let ids = self.occupant.program_ids()?;
        let statistics = Statistics::enable()?;
        let before = program_cost(&ids)?;
        self.send(variety, packets, interrupt)?;
        let cost = program_cost(&ids)? - before;
        drop(statistics);
        let passage = self.send(variety, packets, interrupt)?;
        Ok((cost.ns_per_run(), passage))
    }
}

/// The generator's sources differ in their first two bytes.
fn rules(networks: u32) -> String {
    let mut rules = String::new();
    for number in 0..networks {
        // A String takes everything.
        let _ = writeln!(
            rules,
            "include net {}.{}.0.0/16",
            number % 250,
            number / 250
        );
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_network_is_a_rule_of_its_own() {
        let rules = rules(1000);
        let different: std::collections::BTreeSet<&str> = rules.lines().collect();
        assert_eq!(different.len(), 1000);
        assert!(different.contains("include net 249.3.0.0/16"));
    }
}
