//! Another agent beside ours, and nothing: what the processes, the programs and the traffic cost.

use std::{
    collections::BTreeSet, os::unix::process::CommandExt as _, process::Stdio, time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use lab::{Host, Process};
use rustix::process::{Pid, Signal, kill_process_group};

use super::{
    affinity,
    bench::{Bench, Group, Labels, Lifetime, Measures, Plan, Setup, Station, notes, station},
    cost::{CpuMeter, process_tree, program_ids, programs_during},
    fdinfo::{self, map_memory_bytes},
    program::Agent,
    wire::{Flood, Passage, Steady, Wire},
};
use crate::resident::Resident;

#[derive(clap::Args)]
pub struct Compare {
    /// What its rows are called
    #[arg(long, default_value = "other")]
    name: String,
    /// How long it takes to come up
    #[arg(long, default_value = "3s", value_parser = humantime::parse_duration)]
    settle: Duration,
    /// Its command; `{interface}` becomes the name of the interface that it shall watch
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

const PATIENCE: Duration = Duration::from_secs(10);

impl Bench for Compare {
    const NAME: &'static str = "compare";

    type Load = Steady;

    fn plan(&self, _: &Setup) -> Result<Plan<Steady>> {
        ensure!(
            !["nothing", "agent", "reference"].contains(&self.name.as_str()),
            "--name {} is the name of another arm",
            self.name
        );
        let arms = ["nothing", "agent", &self.name];
        let mut notes = notes(&NOTES);
        let command = self.command.join(" ");
        notes.insert(0, format!("{} is `{command}`.", self.name));
        Ok(Plan {
            groups: vec![Group::new(Lifetime::Rounds, arms, &Steady::USUAL)],
            notes,
        })
    }

    fn labels(load: &Steady) -> Labels {
        load.labels()
    }

    fn station(&self, arm: &str, &load: &Steady, setup: &Setup) -> Result<Box<dyn Station>> {
        let wire = Wire::new()?;
        let host = &wire.lab.agent;
        let before = program_ids()?;
        let mut contender = match arm {
            "nothing" => Contender::Nothing,
            "agent" => {
                let agent = Agent::start(host, &["--scan-interval", "1s"], setup)?;
                Contender::Ours(Box::new(agent))
            }
            _ => self.other(host, setup)?,
        };
        let mut programs = BTreeSet::new();
        if let Contender::Other(_) = contender {
            programs.extend(program_ids()?.difference(&before));
        }
        for pid in contender.processes()? {
            programs.extend(fdinfo::program_ids(pid)?);
            affinity::keep_off_sender(pid)?;
        }
        let window = setup.window(Duration::from_secs(5));
        Ok(station(move |setup| {
            let pace = || wire.pace(load, window, &setup.interrupt);
            let mut measures = contender.measure(&programs, pace)?;
            let flood = wire.flood(
                Flood {
                    frame_len_bytes: load.frame_len_bytes,
                    flows: load.flows,
                    packets: 500_000,
                },
                &setup.interrupt,
            )?;
            measures.push(("packets_per_second", flood.packets_per_second()));
            Ok(measures)
        }))
    }
}

const NOTES: [&str; 2] = [
    "CPU is in percent of one core, of the command and all processes that it started; what a \
     process took that ended within a measurement is not in it.",
    "Programs are those that the processes hold by descriptor and those that appeared in the \
     kernel while the command came up; kernel memory is that of maps held by descriptor.",
];

impl Compare {
    /// Returns when it has had its time to come up.
    fn other(&self, host: &Host, setup: &Setup) -> Result<Contender> {
        let mut words = self
            .command
            .iter()
            .map(|word| word.replace("{interface}", &host.interface));
        let program = words.next().context("the command is empty")?;
        let mut command = host.command(program);
        command
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0);
        let mut other = Contender::Other(Process::spawn(&mut command)?);
        setup.interrupt.sleep(self.settle)?;
        if let Contender::Other(process) = &mut other
            && let Some(status) = process.exited()?
        {
            bail!("{} ended with {status}", self.name);
        }
        Ok(other)
    }
}

/// Who watches a wire.
enum Contender {
    Nothing,
    Ours(Box<Agent>),
    Other(Process),
}

impl Contender {
    fn processes(&mut self) -> Result<BTreeSet<u32>> {
        match self {
            Self::Nothing => Ok(BTreeSet::new()),
            Self::Ours(agent) => process_tree(agent.pid()),
            Self::Other(process) => process_tree(process.child().id()),
        }
    }

    fn measure(
        &mut self,
        programs: &BTreeSet<u32>,
        pace: impl Fn() -> Result<Passage>,
    ) -> Result<Measures> {
        let mut measures = Measures::new();
        let meter = CpuMeter::start(self.processes()?)?;
        pace()?;
        let pids = self.processes()?;
        if !pids.is_empty() {
            measures.push(("cpu_percent", meter.percent_of(&pids)));
            let [mut resident_bytes, mut map_bytes] = [0; 2];
            for &pid in &pids {
                // A process may end meanwhile.
                resident_bytes += Resident::of(pid).unwrap_or_default().now_bytes;
                map_bytes += map_memory_bytes(pid).unwrap_or_default();
            }
            measures.push(("resident_bytes", resident_bytes as f64));
            measures.push(("kernel_memory_bytes", map_bytes as f64));
        }
        if !programs.is_empty() {
            let (cost, passage) = programs_during(programs, pace)?;
            measures.push(("programs_cpu_percent", cost.cpu_percent()));
            let per_packet = cost.run_time_ns as f64 / passage.packets as f64;
            measures.push(("programs_ns_per_packet", per_packet));
        }
        Ok(measures)
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let Self::Other(process) = self else {
            return;
        };
        let group = Pid::from_child(process.child());
        // It is asked to stop, as by an operator, and killed where it does not listen, with all processes that it
        // left behind.
        let _ = process.terminate(PATIENCE);
        let _ = kill_process_group(group, Signal::KILL);
    }
}
