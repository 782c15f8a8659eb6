//! What each thing that the agent is asked to do adds: steps that build on each other, each with an
//! agent and a wire of its own, under the same traffic.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use lab::{Process, Variety};

use super::{
    cost::{Statistics, map_memory_bytes, process_cpu_ns, program_cost, resident},
    program::{Agent, watch},
    reference,
    result::Run,
    rounds::{Interrupt, Progress, order},
    wire::Wire,
};

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
    Step {
        name: "debug logging",
        arguments: &["--bpf-log-level", "debug"],
        environment: &[("RUST_LOG", "debug")],
        consumers: 0,
    },
];

const FLOWS: u32 = 10_000;
const PACKETS_PER_SECOND: u32 = 50_000;
const FRAME_LEN_BYTES: usize = 512;

/// An agent with all that its step and those before ask of it.
struct Rung {
    name: &'static str,
    consumers: Vec<Process>,
    agent: Agent,
    programs: BTreeSet<u32>,
    wire: Wire,
}

pub fn run(settings: &Settings, interrupt: &Interrupt) -> Result<Run> {
    let mut run = Run::new("ladder", settings.quick, settings.rounds)?;
    let mut progress = Progress::new(settings.rounds as usize * STEPS.len());
    let labels = BTreeMap::from([
        ("flows".to_owned(), FLOWS.to_string()),
        (
            "packets_per_second".to_owned(),
            PACKETS_PER_SECOND.to_string(),
        ),
        ("frame_bytes".to_owned(), FRAME_LEN_BYTES.to_string()),
    ]);
    let mut rungs = (1..=STEPS.len())
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
        let arguments: Vec<&str> = last_of_each(steps.iter().flat_map(|step| step.arguments));
        let environment: Vec<(&str, &str)> = steps
            .iter()
            .flat_map(|step| step.environment)
            .copied()
            .collect();
        let mut agent =
            Agent::start_in(&wire.lab.agent, binary, &arguments, &environment, interrupt)?;
        let consumers = (0..steps.iter().map(|step| step.consumers).sum())
            .map(|_| watch(binary, &agent.address()))
            .collect::<Result<_>>()?;
        Ok(Self {
            name: steps.last().map_or("", |step| step.name),
            programs: agent.program_ids()?,
            consumers,
            agent,
            wire,
        })
    }

    fn measure(
        &mut self,
        window: Duration,
        interrupt: &Interrupt,
    ) -> Result<Vec<(&'static str, f64)>> {
        let frame = self.wire.frame(FRAME_LEN_BYTES)?;
        let send = || {
            let variety = Variety::Sources(FLOWS);
            self.wire
                .pace(&frame, variety, PACKETS_PER_SECOND, window, interrupt)
        };
        let pid = self.agent.pid();
        let consumer_pids: Vec<u32> = self
            .consumers
            .iter_mut()
            .map(|consumer| consumer.child().id())
            .collect();
        let consumers_cpu_ns =
            || -> Result<u64> { consumer_pids.iter().map(|&pid| process_cpu_ns(pid)).sum() };

        let started = Instant::now();
        let before = (process_cpu_ns(pid)?, consumers_cpu_ns()?);
        let passage = send()?;
        let after = (process_cpu_ns(pid)?, consumers_cpu_ns()?);
        let window_ns = started.elapsed().as_nanos() as f64;
        let resident = resident(pid)?;

        let statistics = Statistics::enable()?;
        let programs_started = Instant::now();
        let programs_before = program_cost(&self.programs)?;
        send()?;
        let programs = program_cost(&self.programs)? - programs_before;
        let programs_window_ns = programs_started.elapsed().as_nanos() as f64;
        drop(statistics);

        let percent = |ns: u64, window_ns: f64| 100.0 * ns as f64 / window_ns;
        Ok(vec![
            ("agent_cpu_percent", percent(after.0 - before.0, window_ns)),
            (
                "programs_cpu_percent",
                percent(programs.run_time_ns, programs_window_ns),
            ),
            (
                "consumers_cpu_percent",
                percent(after.1 - before.1, window_ns),
            ),
            ("resident_bytes", resident.now_bytes as f64),
            ("resident_peak_bytes", resident.peak_bytes as f64),
            ("kernel_memory_bytes", map_memory_bytes(pid)? as f64),
            ("packets_per_second", passage.packets_per_second()),
        ])
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
