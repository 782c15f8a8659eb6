//! Another agent beside ours: a command comes in; what its processes, its programs and the traffic
//! cost goes out, by turns with ours and with nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::process::CommandExt as _,
    path::Path,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use lab::{Process, Variety};
use rustix::process::{Pid, Signal, kill_process_group};

use super::{
    affinity,
    cost::{
        CpuMeter, cpu_percent, held_program_ids, map_memory_bytes, process_tree, program_ids,
        programs_during,
    },
    program::Agent,
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
    pub name: &'a str,
    pub settle: Duration,
    /// `{interface}` in it stands for the interface's name.
    pub command: &'a [String],
}

const FLOWS: u32 = 10_000;
const PACKETS_PER_SECOND: u32 = 50_000;
const FRAME_LEN_BYTES: usize = 512;
const FLOOD_PACKETS: u32 = 500_000;
const PATIENCE: Duration = Duration::from_secs(10);

/// Who watches a wire.
enum Contender {
    Nothing,
    Ours(Box<Agent>),
    Other(Process),
}

struct Arm<'a> {
    name: &'a str,
    contender: Contender,
    programs: BTreeSet<u32>,
    wire: Wire,
}

pub fn run(settings: &Settings, interrupt: &Interrupt) -> Result<Run> {
    ensure!(
        !["nothing", "agent", "reference"].contains(&settings.name),
        "--name {} is the name of another arm",
        settings.name
    );
    let mut run = Run::new("compare", settings.quick, settings.rounds)?;
    let labels = BTreeMap::from([
        ("flows".to_owned(), FLOWS.to_string()),
        (
            "packets_per_second".to_owned(),
            PACKETS_PER_SECOND.to_string(),
        ),
        ("frame_bytes".to_owned(), FRAME_LEN_BYTES.to_string()),
    ]);
    let mut arms = [
        Arm::new("nothing", |_| Ok(Contender::Nothing), interrupt, settings)?,
        Arm::new(
            "agent",
            |wire| {
                let settings_of_ours = ["--scan-interval", "1s"];
                let host = &wire.lab.agent;
                let agent = Agent::start(host, settings.agent, &settings_of_ours, interrupt)?;
                Ok(Contender::Ours(Box::new(agent)))
            },
            interrupt,
            settings,
        )?,
        Arm::new(
            settings.name,
            |wire| other(wire, settings),
            interrupt,
            settings,
        )?,
    ];
    let mut progress = Progress::new(settings.rounds as usize * arms.len());
    for round in 0..settings.rounds {
        run.add(&labels, "reference", "step_ns", reference::step_ns());
        for index in order(arms.len(), round) {
            let arm = &mut arms[index];
            progress.step(&format!("round {}: {}", round + 1, arm.name));
            let measured = arm.measure(settings.window, interrupt);
            for (measure, value) in measured.with_context(|| format!("measure {}", arm.name))? {
                run.add(&labels, arm.name, measure, value);
            }
        }
    }
    let command = settings.command.join(" ");
    run.notes.extend([
        format!("{} is `{command}`.", settings.name),
        "CPU is in percent of one core, of the command and all processes that it started; what a \
         process took that ended within a measurement is not in it."
            .to_owned(),
        "Programs are those that the processes hold by descriptor and those that appeared in the \
         kernel while the command came up; kernel memory is that of maps held by descriptor."
            .to_owned(),
    ]);
    Ok(run)
}

fn other(wire: &Wire, settings: &Settings) -> Result<Contender> {
    let interface = &wire.lab.agent.interface;
    let mut words = settings
        .command
        .iter()
        .map(|word| word.replace("{interface}", interface));
    let program = words.next().context("the command is empty")?;
    let mut command = wire.lab.agent.command(program);
    command
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0);
    Ok(Contender::Other(Process::spawn(&mut command)?))
}

impl<'a> Arm<'a> {
    fn new(
        name: &'a str,
        start: impl FnOnce(&Wire) -> Result<Contender>,
        interrupt: &Interrupt,
        settings: &Settings,
    ) -> Result<Self> {
        let wire = Wire::new()?;
        let before = program_ids()?;
        let mut contender = start(&wire)?;
        let mut programs = BTreeSet::new();
        if let Contender::Other(process) = &mut contender {
            interrupt.sleep(settings.settle)?;
            if let Some(status) = process.exited()? {
                bail!("{name} ended with {status}");
            }
            programs.extend(program_ids()?.difference(&before));
        }
        let mut arm = Self {
            name,
            contender,
            programs,
            wire,
        };
        for pid in arm.processes()? {
            arm.programs.extend(held_program_ids(pid)?);
            if let Some(cpu) = sender_cpu() {
                affinity::keep_off(pid, cpu)?;
            }
        }
        Ok(arm)
    }

    fn processes(&mut self) -> Result<BTreeSet<u32>> {
        match &mut self.contender {
            Contender::Nothing => Ok(BTreeSet::new()),
            Contender::Ours(agent) => process_tree(agent.pid()),
            Contender::Other(process) => process_tree(process.child().id()),
        }
    }

    fn measure(
        &mut self,
        window: Duration,
        interrupt: &Interrupt,
    ) -> Result<Vec<(&'static str, f64)>> {
        let frame = self.wire.frame(FRAME_LEN_BYTES)?;
        let variety = Variety::Sources(FLOWS);
        let mut figures = Vec::new();
        let pace = |wire: &Wire| wire.pace(&frame, variety, PACKETS_PER_SECOND, window, interrupt);

        let meter = CpuMeter::start(self.processes()?)?;
        pace(&self.wire)?;
        let pids = self.processes()?;
        if !pids.is_empty() {
            figures.push(("cpu_percent", meter.percent_of(&pids)));
            let [mut resident_bytes, mut map_bytes] = [0; 2];
            for &pid in &pids {
                // A process may end meanwhile.
                resident_bytes += Resident::of(pid).unwrap_or_default().now_bytes;
                map_bytes += map_memory_bytes(pid).unwrap_or_default();
            }
            figures.push(("resident_bytes", resident_bytes as f64));
            figures.push(("kernel_memory_bytes", map_bytes as f64));
        }
        if !self.programs.is_empty() {
            let (cost, elapsed, passage) = programs_during(&self.programs, || pace(&self.wire))?;
            let percent = cpu_percent(cost.run_time_ns, elapsed);
            figures.push(("programs_cpu_percent", percent));
            let per_packet = cost.run_time_ns as f64 / passage.packets as f64;
            figures.push(("programs_ns_per_packet", per_packet));
        }
        let flood = self.wire.flood(&frame, variety, FLOOD_PACKETS, interrupt)?;
        figures.push(("packets_per_second", flood.packets_per_second()));
        Ok(figures)
    }
}

impl Drop for Arm<'_> {
    fn drop(&mut self) {
        let Contender::Other(process) = &mut self.contender else {
            return;
        };
        let group = i32::try_from(process.child().id())
            .ok()
            .and_then(Pid::from_raw);
        // As an operator would; it is killed where it does not listen, and so are processes that it
        // left behind.
        let _ = process.terminate(PATIENCE);
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
