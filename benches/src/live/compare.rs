//! Compares our agent with another one and with no agent: the cost of the processes, the programs and the traffic.

use std::{
    collections::BTreeSet,
    os::unix::process::CommandExt as _,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use lab::{Host, Process};
use rustix::process::{Pid, Signal, kill_process_group};

use super::{
    affinity,
    bench::{Bench, Group, Labels, Lifetime, Measures, Plan, Setup, Station, Turns, notes},
    cost::{CpuMeter, process_tree, program_ids, programs_during},
    fdinfo,
    memory::Memory,
    program::{Agent, Hook, Occupant, Walk},
    wire::{Flood, Passage, Steady, Wire},
};

#[derive(clap::Args)]
pub struct Compare {
    /// What its rows are called
    #[arg(long, default_value = "other")]
    name: String,
    /// How long it takes to come up
    #[arg(long, default_value = "3s", value_parser = humantime::parse_duration)]
    settle: Duration,
    /// Flows of the traffic; several, one after the other, with commas between them
    #[arg(long, default_values_t = [Steady::USUAL.flows], value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    flows: Vec<u32>,
    /// Packets a second: of each of these, or of all
    #[arg(long, default_values_t = [Steady::USUAL.packets_per_second], value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..))]
    rate: Vec<u32>,
    /// Memory in KiB that something else walks over between two packets, a multiple of 4 (at most 4,096), so that programs
    /// find the caches as after other work of the kernel
    #[arg(long, value_name = "KIB", value_parser = parse_walk)]
    walk: Option<u32>,
    /// A shell command that prints how many packets the other agent has exported since it started; it runs in the agent's
    /// namespace, again and again until it prints as many as arrived, or nothing more comes
    #[arg(long, value_name = "COMMAND")]
    count: Option<String>,
    /// How long the other agent may take to export
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    count_within: Duration,
    /// Its command; `{interface}` becomes the name of the interface that it shall watch
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// The program that does nothing.
const EMPTY: &str = "empty";

const PATIENCE: Duration = Duration::from_secs(10);

fn parse_walk(text: &str) -> Result<u32, String> {
    let kib: u32 = text.parse().map_err(|error| format!("{error}"))?;
    let is_in_bounds = (4..=4096).contains(&kib) && kib.is_multiple_of(4);
    is_in_bounds
        .then_some(kib)
        .ok_or_else(|| "not a multiple of 4 from 4 to 4096".to_owned())
}

impl Bench for Compare {
    const NAME: &'static str = "compare";

    type Load = Steady;

    fn plan(&self, _: &Setup) -> Result<Plan<Steady>> {
        ensure!(
            !["nothing", EMPTY, "agent", "reference"].contains(&self.name.as_str()),
            "--name {} is the name of another arm",
            self.name
        );
        let arms = ["nothing", EMPTY, "agent", &self.name];
        let mut notes = notes(&NOTES);
        let command = self.command.join(" ");
        notes.insert(0, format!("{} is `{command}`.", self.name));
        notes.extend(self.count.as_ref().map(|count| {
            format!(
                "Packets that {} exported are those of `{count}`.",
                self.name
            )
        }));
        notes.extend(self.walk.map(|kib| {
            format!("Between two packets a program of the bench reads {kib} KiB of memory.")
        }));
        let (all, first) = (self.flows.len(), self.rate[0]);
        ensure!(
            [1, all].contains(&self.rate.len()),
            "--rate has {} numbers and --flows {all}: give one for all, or one for each",
            self.rate.len()
        );
        let rates = self.rate.iter().copied();
        let loads = self.flows.iter().zip(rates.chain(std::iter::repeat(first)));
        let groups = loads.map(|(&flows, packets_per_second)| {
            let load = Steady {
                flows,
                packets_per_second,
                ..Steady::USUAL
            };
            Group::new(Lifetime::Rounds, arms, &load)
        });
        Ok(Plan {
            groups: groups.collect(),
            notes,
        })
    }

    fn labels(load: &Steady) -> Labels {
        load.labels()
    }

    fn derive(turns: &Turns, _: &super::host::Host) -> Vec<(String, &'static str, f64)> {
        const NS: &str = "programs_ns_per_packet";
        const RUNS: &str = "program_runs_per_packet";
        let empty = turns.get(EMPTY, NS).zip(turns.get(EMPTY, RUNS));
        let Some((empty_ns, empty_runs)) = empty else {
            return Vec::new();
        };
        let net = |(arm, ns)| {
            let runs = turns.get(arm, RUNS)?;
            let net_ns = ns - runs * empty_ns / empty_runs;
            Some((arm.to_owned(), "programs_net_ns_per_packet", net_ns))
        };
        let others = turns.of(NS).filter(|(arm, _)| *arm != EMPTY);
        others.filter_map(net).collect()
    }

    fn station(&self, arm: &str, &load: &Steady, setup: &Setup) -> Result<Box<dyn Station>> {
        let wire = Wire::new()?;
        let host = &wire.lab.agent;
        let before = program_ids()?;
        let mut programs = BTreeSet::new();
        let mut contender = match arm {
            "nothing" => Contender::Nothing,
            EMPTY => {
                let (program, ids) = Occupant::reference(host, Hook::Tc, EMPTY, 1)?;
                programs.extend(ids);
                Contender::Empty { _program: program }
            }
            "agent" => {
                let agent = Agent::start(host, &["--scan-interval", "1s"], setup)?;
                Contender::Ours(Box::new(agent))
            }
            _ => self.other(host, setup)?,
        };
        if let Contender::Other(_) = contender {
            programs.extend(program_ids()?.difference(&before));
        }
        for pid in contender.processes()? {
            programs.extend(fdinfo::program_ids(pid)?);
            affinity::keep_off_sender(pid)?;
        }
        let walk = self
            .walk
            .map(|kib| Walk::over(kib << 10, host))
            .transpose()?;
        let count = self.count.as_ref().filter(|_| arm == self.name);
        Ok(Box::new(Watched {
            contender,
            programs,
            load,
            window: setup.window(Duration::from_secs(5)),
            count: count.cloned(),
            count_within: self.count_within,
            arrived: 0,
            reported_before: 0,
            _walk: walk,
            wire,
        }))
    }
}

/// A wire and the contender that watches it.
struct Watched {
    contender: Contender,
    programs: BTreeSet<u32>,
    load: Steady,
    window: Duration,
    count: Option<String>,
    count_within: Duration,
    /// Packets that arrived in this turn.
    arrived: u64,
    reported_before: u64,
    _walk: Option<Walk>,
    wire: Wire,
}

impl Watched {
    /// Packets that the contender has exported, or `None` if it offers no way to find out.
    fn reported(&self) -> Result<Option<u64>> {
        match (&self.contender, &self.count) {
            (Contender::Ours(agent), _) => Ok(Some(agent.status()?.account.flows.packets)),
            (Contender::Other(_), Some(count)) => {
                let mut shell = self.wire.lab.agent.command("sh");
                let output = shell.args(["-c", count]).stdin(Stdio::null()).output();
                let output = output.with_context(|| format!("start `{count}`"))?;
                let text = String::from_utf8_lossy(&output.stdout);
                let packets = text.trim().parse().with_context(|| {
                    let stderr = String::from_utf8_lossy(&output.stderr);
                    format!("`{count}` prints no number but {text:?}: {}", stderr.trim())
                });
                packets.map(Some)
            }
            _ => Ok(None),
        }
    }
}

impl Station for Watched {
    fn measure(&mut self, setup: &Setup) -> Result<Measures> {
        self.reported_before = self.reported()?.unwrap_or_default();
        let mut arrived = 0;
        let pace = || {
            let passage = self.wire.pace(self.load, self.window, &setup.interrupt)?;
            arrived += passage.packets;
            Ok(passage)
        };
        let mut measures = self.contender.measure(&self.programs, pace)?;
        let flood = self.wire.flood(
            Flood {
                frame_len_bytes: self.load.frame_len_bytes,
                flows: self.load.flows,
                packets: 500_000,
                is_tcp: false,
            },
            &setup.interrupt,
        )?;
        measures.push(("packets_per_second", flood.packets_per_second()));
        self.arrived = arrived + flood.packets;
        Ok(measures)
    }

    /// Waits for late exports.
    fn settle(&mut self, setup: &Setup) -> Result<Measures> {
        let started = Instant::now();
        loop {
            let Some(reported) = self.reported()? else {
                return Ok(Measures::new());
            };
            let reported = reported
                .checked_sub(self.reported_before)
                .context("the count of exported packets went back")?;
            ensure!(
                reported <= self.arrived,
                "{} packets arrived and {reported} were exported",
                self.arrived
            );
            if reported == self.arrived || started.elapsed() > self.count_within {
                let lost = (self.arrived - reported) as f64;
                return Ok(vec![("lost_percent", 100.0 * lost / self.arrived as f64)]);
            }
            setup.interrupt.sleep(Duration::from_millis(500))?;
        }
    }
}

const NOTES: [&str; 4] = [
    "CPU is in percent of one core, of the command and all processes that it started; what a \
     process took that ended within a measurement is not in it.",
    "Programs are those that the processes hold by descriptor and those that appeared in the \
     kernel while the command came up; kernel memory is that of maps held by descriptor.",
    "programs_ns_per_packet has what the kernel's own measuring takes in it. programs_net_ns_per_packet is that without \
     what an empty program takes for each run (program_runs_per_packet).",
    "lost_percent is of the packets that arrived in a turn, at the steady rate and in the flood after it: those that \
     were in no export in the time that an export may take.",
];

impl Compare {
    /// Starts the other agent and waits until it is ready.
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

/// The agent, if any, that watches a wire.
enum Contender {
    Nothing,
    Empty { _program: Occupant },
    Ours(Box<Agent>),
    Other(Process),
}

impl Contender {
    fn processes(&mut self) -> Result<BTreeSet<u32>> {
        match self {
            Self::Nothing | Self::Empty { .. } => Ok(BTreeSet::new()),
            Self::Ours(agent) => process_tree(agent.pid()),
            Self::Other(process) => process_tree(process.child().id()),
        }
    }

    fn measure(
        &mut self,
        programs: &BTreeSet<u32>,
        mut pace: impl FnMut() -> Result<Passage>,
    ) -> Result<Measures> {
        let mut measures = Measures::new();
        let meter = CpuMeter::start(self.processes()?)?;
        pace()?;
        let pids = self.processes()?;
        if !pids.is_empty() {
            measures.push(("cpu_percent", meter.percent_of(&pids)));
            let memory = Memory::of_all(&pids);
            measures.push(("resident_bytes", memory.resident_bytes as f64));
            measures.push(("kernel_memory_bytes", memory.kernel_bytes as f64));
        }
        if !programs.is_empty() {
            let (cost, passage) = programs_during(programs, pace)?;
            measures.push(("programs_cpu_percent", cost.cpu_percent()));
            let per_packet = cost.run_time_ns as f64 / passage.packets as f64;
            measures.push(("programs_ns_per_packet", per_packet));
            let runs = cost.runs as f64 / passage.packets as f64;
            measures.push(("program_runs_per_packet", runs));
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
        // Ask it to stop, as an operator would. Kill it if it does not, along with any processes that it left behind.
        let _ = process.terminate(PATIENCE);
        let _ = kill_process_group(group, Signal::KILL);
    }
}
