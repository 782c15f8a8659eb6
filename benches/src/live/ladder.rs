//! What each thing that the agent is asked to do adds: steps that build on each other, each with an
//! agent and a wire of its own, under the same traffic.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result};
use lab::{Process, Variety};

use super::{
    affinity,
    cost::{CpuMeter, cpu_percent, map_memory_bytes, programs_during},
    program::{Agent, watch},
    reference,
    result::Run,
    rounds::{Interrupt, Progress, order},
    wire::{Wire, sender_cpu},
};
use crate::resident::Resident;

pub struct Settings<'a> {
    pub agent: &'a Path,
    pub rounds: u32,
    pub quick: bool,
    /// Of each measurement.
    pub window: Duration,
}

/// What a step adds to the one before. A capability with a cost of its own adds a line to [`STEPS`].
struct Step {
    name: &'static str,
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
    consumers: usize,
}

/// Without an agent: what the traffic is by itself.
const CONTROL: &str = "nothing";

/// Later settings win, so that a step can change what an earlier one set.
const STEPS: &[Step] = &[
    Step {
        name: "attached",
        arguments: &["--scan-interval", "1h"],
        environment: &[],
        consumers: 0,
    },
    Step {
        name: "scanning",
        arguments: &["--scan-interval", "1s"],
        environment: &[],
        consumers: 0,
    },
    Step {
        name: "one consumer",
        arguments: &[],
        environment: &[],
        consumers: 1,
    },
    Step {
        name: "four consumers",
        arguments: &[],
        environment: &[],
        consumers: 3,
    },
    Step {
        name: "json output",
        arguments: &["--output", "json"],
        environment: &[],
        consumers: 0,
    },
    // Of traffic without tunnels: what it costs to look for them.
    Step {
        name: "decapsulation",
        arguments: &[],
        environment: &[("FLOW_AGENT_DECAPSULATE", "true")],
        consumers: 0,
    },
    Step {
        name: "ten filter rules",
        arguments: &["--filter", FILTER],
        environment: &[],
        consumers: 0,
    },
    Step {
        name: "debug logging",
        arguments: &["--bpf-log-level", "debug"],
        environment: &[("RUST_LOG", "debug")],
        consumers: 0,
    },
];

/// None of them matches.
const FILTER: &str = "exclude net 198.18.0.0/15; exclude net 2001:db8::/32; exclude port 9; \
                      exclude src port 7; exclude proto gre; exclude proto tcp dst port 1024-65535; \
                      exclude egress net 198.51.100.0/24; exclude net 203.0.113.0/24; \
                      exclude proto sctp; exclude dst port 65535";
const FLOWS: u32 = 10_000;
const PACKETS_PER_SECOND: u32 = 50_000;
const FRAME_LEN_BYTES: usize = 512;

/// A wire with an agent that does all that its step and those before ask of it, or with none.
struct Rung {
    name: &'static str,
    climber: Option<Climber>,
    wire: Wire,
}

struct Climber {
    consumers: Vec<Process>,
    agent: Agent,
    programs: BTreeSet<u32>,
}

pub fn run(settings: &Settings, interrupt: &Interrupt) -> Result<Run> {
    let mut run = Run::new("ladder", settings.quick, settings.rounds)?;
    let mut progress = Progress::new(settings.rounds as usize * (1 + STEPS.len()));
    let labels = BTreeMap::from([
        ("flows".to_owned(), FLOWS.to_string()),
        (
            "packets_per_second".to_owned(),
            PACKETS_PER_SECOND.to_string(),
        ),
        ("frame_bytes".to_owned(), FRAME_LEN_BYTES.to_string()),
    ]);
    let mut rungs = (0..=STEPS.len())
        .map(|steps| Rung::new(&STEPS[..steps], settings.agent, interrupt))
        .collect::<Result<Vec<_>>>()?;
    for round in 0..settings.rounds {
        run.add(&labels, "reference", "step_ns", reference::step_ns());
        for index in order(rungs.len(), round) {
            let rung = &mut rungs[index];
            progress.step(&format!("round {}: {}", round + 1, rung.name));
            let measured = rung.measure(settings.window, interrupt);
            for (measure, value) in measured.with_context(|| format!("measure {}", rung.name))? {
                run.add(&labels, rung.name, measure, value);
            }
        }
    }
    run.notes.extend([
        "Each step has what the steps before it have. CPU is in percent of one core.".to_owned(),
        "programs_cpu_percent is the kernel's run time of the agent's programs, taken in a window of \
         its own since the statistics cost time themselves."
            .to_owned(),
    ]);
    Ok(run)
}

impl Rung {
    /// `steps` are its own, the last one, and all before it.
    fn new(steps: &[Step], binary: &Path, interrupt: &Interrupt) -> Result<Self> {
        let wire = Wire::new()?;
        let climber = match steps {
            [] => None,
            steps => Some(Climber::new(&wire, steps, binary, interrupt)?),
        };
        Ok(Self {
            name: steps.last().map_or(CONTROL, |step| step.name),
            climber,
            wire,
        })
    }

    fn measure(
        &mut self,
        window: Duration,
        interrupt: &Interrupt,
    ) -> Result<Vec<(&'static str, f64)>> {
        let frame = self.wire.frame(FRAME_LEN_BYTES)?;
        let wire = &self.wire;
        let send = || {
            let variety = Variety::Sources(FLOWS);
            wire.pace(&frame, variety, PACKETS_PER_SECOND, window, interrupt)
        };
        let Some(climber) = &mut self.climber else {
            let rate = send()?.packets_per_second();
            return Ok(vec![("packets_per_second", rate)]);
        };
        let pid = climber.agent.pid();
        let consumers = climber.consumers.iter_mut();
        let agent = CpuMeter::start([pid])?;
        let consumers = CpuMeter::start(consumers.map(|consumer| consumer.child().id()))?;
        let passage = send()?;
        let cpu_percents = (agent.percent()?, consumers.percent()?);
        let resident = Resident::of(pid)?;
        let (programs, elapsed, _) = programs_during(&climber.programs, send)?;
        Ok(vec![
            ("agent_cpu_percent", cpu_percents.0),
            (
                "programs_cpu_percent",
                cpu_percent(programs.run_time_ns, elapsed),
            ),
            ("consumers_cpu_percent", cpu_percents.1),
            ("resident_bytes", resident.now_bytes as f64),
            ("resident_peak_bytes", resident.peak_bytes as f64),
            ("kernel_memory_bytes", map_memory_bytes(pid)? as f64),
            ("packets_per_second", passage.packets_per_second()),
        ])
    }
}

impl Climber {
    fn new(wire: &Wire, steps: &[Step], binary: &Path, interrupt: &Interrupt) -> Result<Self> {
        let arguments: Vec<&str> = last_of_each(steps.iter().flat_map(|step| step.arguments));
        let environment: Vec<(&str, &str)> = steps
            .iter()
            .flat_map(|step| step.environment)
            .copied()
            .collect();
        let mut agent =
            Agent::start_in(&wire.lab.agent, binary, &arguments, &environment, interrupt)?;
        let mut consumers: Vec<Process> = (0..steps.iter().map(|step| step.consumers).sum())
            .map(|_| watch(binary, &agent.address()))
            .collect::<Result<_>>()?;
        if let Some(cpu) = sender_cpu() {
            affinity::keep_off(agent.pid(), cpu)?;
            for consumer in &mut consumers {
                affinity::keep_off(consumer.child().id(), cpu)?;
            }
        }
        Ok(Self {
            programs: agent.program_ids()?,
            consumers,
            agent,
        })
    }
}

/// Options with their values; of an option that stands there twice, the last one.
fn last_of_each<'a>(arguments: impl Iterator<Item = &'a &'static str>) -> Vec<&'static str> {
    let words: Vec<&str> = arguments.copied().collect();
    let pairs: BTreeMap<&str, &str> = words
        .chunks_exact(2)
        .map(|pair| (pair[0], pair[1]))
        .collect();
    pairs
        .into_iter()
        .flat_map(|(option, value)| [option, value])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_step_overrules_an_earlier_one() {
        let words = ["--scan-interval", "1h", "--scan-interval", "1s"];
        assert_eq!(last_of_each(words.iter()), ["--scan-interval", "1s"]);
    }
}
