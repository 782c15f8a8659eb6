//! What is on a hook: nothing, a program to hold ours against, or the agent itself. An interface of a
//! laboratory comes in, the ids of the programs that run there go out.

use std::{
    collections::BTreeSet,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use aya::{
    Ebpf, EbpfLoader,
    programs::{SchedClassifier, TcAttachType, Xdp, XdpMode},
};
use lab::{Host, Process};

use super::rounds::Interrupt;

pub(super) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/flow-agent-ebpf-bench"));

/// Of the table that only one flow is counted in.
const FEW_FLOWS: u32 = 1024;

/// To start and to stop, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where packets are counted on their way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    Tc,
    /// Native.
    Xdp,
}

impl Hook {
    /// What makes an agent count there. The peer's offloads are off, which it cannot see.
    pub fn settings(self) -> &'static [&'static str] {
        match self {
            Self::Tc => &["--ingress-hook", "tc"],
            Self::Xdp => &["--ingress-hook", "xdp", "--xdp-without-tags"],
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Tc => "tc",
            Self::Xdp => "xdp",
        }
    }
}

/// What is on the hook; dropping it takes it off.
pub enum Occupant {
    Nothing,
    Reference { ebpf: Box<Ebpf>, id: u32 },
    Agent(Box<Agent>),
}

impl Occupant {
    /// One of the programs that the agent's are held against, as `empty` or `bare`; `max_flows` is
    /// the size of its table.
    pub fn reference(host: &Host, hook: Hook, which: &str, max_flows: u32) -> Result<Self> {
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("BARE", max_flows)
            .map_max_entries("SHORT_KEYS", FEW_FLOWS)
            .load(OBJECT)
            .context("load the reference programs")?;
        let name = format!("{which}_{}", hook.name());
        let program = ebpf
            .program_mut(&name)
            .with_context(|| format!("the object has no program {name}"))?;
        let attach = || -> Result<u32> {
            let info = match hook {
                Hook::Tc => {
                    let program: &mut SchedClassifier = program.try_into()?;
                    program.load()?;
                    program.attach(&host.interface, TcAttachType::Ingress)?;
                    program.info()?
                }
                Hook::Xdp => {
                    let program: &mut Xdp = program.try_into()?;
                    program.load()?;
                    program.attach(&host.interface, XdpMode::Driver)?;
                    program.info()?
                }
            };
            Ok(info.id())
        };
        let id = host
            .namespace
            .enter(attach)
            .with_context(|| format!("attach {name} to {}", host.interface))?;
        Ok(Self::Reference {
            ebpf: Box::new(ebpf),
            id,
        })
    }

    pub fn agent(
        host: &Host,
        binary: &Path,
        settings: &[&str],
        interrupt: &Interrupt,
    ) -> Result<Self> {
        Ok(Self::Agent(Box::new(Agent::start(
            host, binary, settings, interrupt,
        )?)))
    }

    /// The programs whose run time is this occupant's.
    pub fn program_ids(&mut self) -> Result<BTreeSet<u32>> {
        match self {
            Self::Nothing => Ok(BTreeSet::new()),
            Self::Reference { ebpf: _, id } => Ok(BTreeSet::from([*id])),
            Self::Agent(agent) => agent.program_ids(),
        }
    }
}

/// A running agent that ends with the value.
pub struct Agent(lab::Agent);

impl Agent {
    /// Returns when it has attached its programs. Settings are those of `flow-agent run`.
    pub fn start(
        host: &Host,
        binary: &Path,
        settings: &[&str],
        interrupt: &Interrupt,
    ) -> Result<Self> {
        Self::start_in(host, binary, settings, &[], interrupt)
    }

    /// The same with environment variables.
    pub fn start_in(
        host: &Host,
        binary: &Path,
        settings: &[&str],
        environment: &[(&str, &str)],
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let mut command = host.command(binary);
        command.envs(environment.iter().copied());
        let mut agent = lab::Agent::begin(command, &host.interface, settings)?;
        agent.wait_until_counting(PATIENCE, || interrupt.check())?;
        Ok(Self(agent))
    }

    pub fn pid(&mut self) -> u32 {
        self.0.pid()
    }

    /// As `--connect` takes it.
    pub fn address(&self) -> String {
        self.0.address()
    }

    /// Ends it as an operator would.
    pub fn stop(self) -> Result<()> {
        self.0.stop(PATIENCE)
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.0.process
    }

    /// Of the programs that it holds by descriptor.
    pub fn program_ids(&mut self) -> Result<BTreeSet<u32>> {
        let ids = super::cost::held_program_ids(self.pid())?;
        ensure!(!ids.is_empty(), "flow-agent holds no program");
        Ok(ids)
    }
}

/// A consumer that reads everything and shows it to nobody.
pub fn watch(binary: &Path, address: &str) -> Result<Process> {
    Process::spawn(
        Command::new(binary)
            .args(["watch", "--connect", address, "--output", "json"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    )
}
