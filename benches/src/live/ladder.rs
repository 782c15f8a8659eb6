//! The cost that each feature of the agent adds: steps that build on each other, each with its own agent and wire.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::Result;
use lab::{Process, Store};

use super::{
    affinity,
    bench::{Bench, Group, Labels, Lifetime, Measures, Plan, Setup, Station, notes, station},
    cost::{CpuMeter, programs_during},
    memory::Memory,
    program::Agent,
    wire::{Passage, Steady, Wire},
};

#[derive(clap::Args)]
pub struct Ladder;

/// A step, which adds a feature to the previous step. Add a line to [`STEPS`] for each feature with a cost of its own.
struct Step {
    name: &'static str,
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
    consumers: usize,
    /// Has a service manager that keeps descriptors.
    has_store: bool,
}

/// Only the traffic, without an agent.
const CONTROL: &str = "nothing";

/// Later settings override earlier ones, so a step can change a setting of an earlier step.
const STEPS: &[Step] = &[
    Step {
        name: "attached",
        arguments: &["--scan-interval", "1h"],
        environment: &[],
        consumers: 0,
        has_store: false,
    },
    Step {
        name: "scanning",
        arguments: &["--scan-interval", "1s"],
        environment: &[],
        consumers: 0,
        has_store: false,
    },
    Step {
        name: "one consumer",
        arguments: &[],
        environment: &[],
        consumers: 1,
        has_store: false,
    },
    Step {
        name: "four consumers",
        arguments: &[],
        environment: &[],
        consumers: 3,
        has_store: false,
    },
    Step {
        name: "json output",
        arguments: &["--output", "json"],
        environment: &[],
        consumers: 0,
        has_store: false,
    },
    Step {
        name: "carrying over",
        arguments: &[],
        environment: &[("FLOW_AGENT_CARRY_OVER", "true")],
        consumers: 0,
        has_store: true,
    },
    // The traffic has no tunnels, so this is the cost of looking for them.
    Step {
        name: "decapsulation",
        arguments: &[],
        environment: &[("FLOW_AGENT_DECAPSULATE", "true")],
        consumers: 0,
        has_store: false,
    },
    // The traffic has no sockets, so this is the cost of looking for them.
    Step {
        name: "units, processes, tcp, rtt",
        arguments: &["--enrich", "unit,process,tcp,rtt"],
        environment: &[],
        consumers: 0,
        has_store: false,
    },
    // The traffic has no DNS and no ICMP errors, and the kernel drops all of it, since nothing here is addressed.
    Step {
        name: "names, icmp, drops",
        arguments: &["--enrich", "unit,process,tcp,rtt,dns,icmp,drops"],
        environment: &[],
        consumers: 0,
        has_store: false,
    },
    Step {
        name: "ten filter rules",
        arguments: &["--filter", FILTER],
        environment: &[],
        consumers: 0,
        has_store: false,
    },
    Step {
        name: "debug logging",
        arguments: &["--bpf-log-level", "debug"],
        environment: &[("FLOW_AGENT_LOG", "debug")],
        consumers: 0,
        has_store: false,
    },
];

/// Rules that match none of the traffic.
const FILTER: &str = "exclude net 198.18.0.0/15; exclude net 2001:db8::/32; exclude port 9; \
                      exclude src port 7; exclude proto gre; exclude proto tcp dst port 1024-65535; \
                      exclude egress net 198.51.100.0/24; exclude net 203.0.113.0/24; \
                      exclude proto sctp; exclude dst port 65535";
impl Bench for Ladder {
    const NAME: &'static str = "ladder";

    type Load = Steady;

    fn plan(&self, _: &Setup) -> Result<Plan<Steady>> {
        let steps = STEPS.iter().map(|step| step.name);
        let arms = [CONTROL].into_iter().chain(steps);
        Ok(Plan {
            groups: vec![Group::new(Lifetime::Rounds, arms, &Steady::USUAL)],
            notes: notes(&NOTES),
        })
    }

    fn labels(load: &Steady) -> Labels {
        load.labels()
    }

    fn station(&self, arm: &str, &load: &Steady, setup: &Setup) -> Result<Box<dyn Station>> {
        let wire = Wire::new()?;
        let window = setup.window(Duration::from_secs(5));
        let Some(last) = STEPS.iter().position(|step| step.name == arm) else {
            return Ok(station(move |setup| {
                let passage = wire.pace(load, window, &setup.interrupt)?;
                Ok(vec![("packets_per_second", passage.packets_per_second())])
            }));
        };
        let mut climber = Climber::new(&wire, &STEPS[..=last], setup)?;
        Ok(station(move |setup| {
            climber.measure(|| wire.pace(load, window, &setup.interrupt))
        }))
    }
}

const NOTES: [&str; 2] = [
    "Each step has what the steps before it have. CPU is in percent of one core.",
    "programs_cpu_percent is the kernel's run time of the agent's programs, taken in a window of \
     its own since the statistics cost time themselves.",
];

/// An agent with the features of its step and of all steps before it.
struct Climber {
    consumers: Vec<Process>,
    agent: Agent,
    programs: BTreeSet<u32>,
    _store: Option<Store>,
}

impl Climber {
    /// `steps` ends with the agent's own step, preceded by all earlier ones.
    fn new(wire: &Wire, steps: &[Step], setup: &Setup) -> Result<Self> {
        let arguments: Vec<&str> = last_of_each(steps.iter().flat_map(|step| step.arguments));
        let environment: Vec<(&str, &str)> = steps
            .iter()
            .flat_map(|step| step.environment)
            .copied()
            .collect();
        let host = &wire.lab.agent;
        let has_store = steps.iter().any(|step| step.has_store);
        let store = has_store.then(Store::new).transpose()?;
        let mut command = match &store {
            Some(store) => store.command(&host.namespace, &setup.agent)?,
            None => host.command(&setup.agent),
        };
        command.envs(environment);
        let mut agent = Agent::start_by(command, host, &arguments, setup)?;
        agent.keep_off_sender()?;
        let mut consumers: Vec<Process> = (0..steps.iter().map(|step| step.consumers).sum())
            .map(|_| agent.watch())
            .collect::<Result<_>>()?;
        for consumer in &mut consumers {
            affinity::keep_off_sender(consumer.child().id())?;
        }
        Ok(Self {
            programs: agent.program_ids()?,
            consumers,
            agent,
            _store: store,
        })
    }

    fn measure(&mut self, send: impl Fn() -> Result<Passage>) -> Result<Measures> {
        let pid = self.agent.pid();
        let consumers = self.consumers.iter_mut();
        let agent = CpuMeter::start([pid])?;
        let consumers = CpuMeter::start(consumers.map(|consumer| consumer.child().id()))?;
        let passage = send()?;
        let cpu_percents = (agent.percent()?, consumers.percent()?);
        let memory = Memory::of(pid)?;
        let (programs, _) = programs_during(&self.programs, send)?;
        Ok(vec![
            ("agent_cpu_percent", cpu_percents.0),
            ("programs_cpu_percent", programs.cpu_percent()),
            ("consumers_cpu_percent", cpu_percents.1),
            ("resident_bytes", memory.resident_bytes as f64),
            ("kernel_memory_bytes", memory.kernel_bytes as f64),
            ("packets_per_second", passage.packets_per_second()),
        ])
    }
}

/// Removes repeated options and keeps the last value of each.
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
