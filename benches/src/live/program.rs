//! The occupant of a hook: nothing, a program for comparison, or the agent.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use aya::{
    Ebpf, EbpfLoader,
    programs::{SchedClassifier, TcAttachType, Xdp, XdpMode},
};
use lab::{Host, Process};

use super::{affinity, bench::Setup, fdinfo, status::Status};

pub(super) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/flow-agent-ebpf-bench"));

/// The size of a table for a single flow.
const FEW_FLOWS: u32 = 1024;

/// Turns on every enrichment at the hook.
pub const ENRICH: &[&str] = &["--enrich", "unit,process,tcp,rtt,dns,icmp"];

/// How long a process may take to start or stop, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// The hook that counts arriving packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    Tc,
    /// Native.
    Xdp,
}

impl Hook {
    /// The settings that make an agent count at this hook. The agent cannot see that the peer's offloads are off.
    fn settings(self) -> &'static [&'static str] {
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

/// The program on the hook. Dropping it detaches it.
pub enum Occupant {
    Nothing,
    Reference { _programs: Box<Ebpf> },
    Agent { _process: Box<Agent> },
}

impl Occupant {
    /// One of the programs that the agent's are compared with, such as `empty` or `bare`, and its id. `max_flows` is
    /// the size of its table.
    pub fn reference(
        host: &Host,
        hook: Hook,
        which: &str,
        max_flows: u32,
    ) -> Result<(Self, BTreeSet<u32>)> {
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("BARE", max_flows)
            .map_max_entries("SHORT_KEYS", FEW_FLOWS)
            .load(OBJECT)
            .context("load the reference programs")?;
        let id = attach(&mut ebpf, &format!("{which}_{}", hook.name()), host, hook)?;
        let programs = Self::Reference {
            _programs: Box::new(ebpf),
        };
        Ok((programs, BTreeSet::from([id])))
    }

    /// An agent that counts arriving packets, with additional settings, and the ids of its programs. No scan runs
    /// during a measurement, which is to measure only the program.
    pub fn agent(
        host: &Host,
        hook: Hook,
        max_flows: u32,
        settings: &[&str],
        setup: &Setup,
    ) -> Result<(Self, BTreeSet<u32>)> {
        let max_flows = max_flows.to_string();
        let without_scans = [
            "--direction",
            "ingress",
            "--max-flows",
            &max_flows,
            // Start the pages at their full size.
            "--min-flows",
            &max_flows,
            "--scan-interval",
            "1h",
            // New flows are counted, but never enough to start an early scan.
            "--early-scan",
            "99",
        ];
        let settings = [hook.settings(), &without_scans, settings].concat();
        let mut agent = Agent::start(host, &settings, setup)?;
        agent.keep_off_sender()?;
        let ids = agent.program_ids()?;
        Ok((agent.into(), ids))
    }
}

/// A program at TC that walks over memory at each packet, beside any other program there, so that the next one finds
/// the caches as after other kernel work. Dropping it detaches it.
pub struct Walk {
    _program: Box<Ebpf>,
}

impl Walk {
    const PAGE_BYTES: u32 = 4096;

    /// Walks over this much memory, rounded down to pages of 4 KiB.
    pub fn over(bytes: u32, host: &Host) -> Result<Self> {
        let pages = bytes / Self::PAGE_BYTES;
        let mut ebpf = EbpfLoader::new()
            .override_global("WALK_PAGES", &pages, true)
            .map_max_entries("WALKED", pages)
            .load(OBJECT)
            .context("load the program that walks over memory")?;
        attach(&mut ebpf, "walk_tc", host, Hook::Tc)?;
        Ok(Self {
            _program: Box::new(ebpf),
        })
    }
}

impl From<Agent> for Occupant {
    fn from(agent: Agent) -> Self {
        Self::Agent {
            _process: Box::new(agent),
        }
    }
}

/// Loads a program, attaches it to the hook for arriving packets and returns its id.
pub fn attach(ebpf: &mut Ebpf, name: &str, host: &Host, hook: Hook) -> Result<u32> {
    let program = ebpf
        .program_mut(name)
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
    host.namespace
        .enter(attach)
        .with_context(|| format!("attach {name} to {}", host.interface))
}

/// The version that an agent's binary reports.
pub fn version_of(agent: &Path) -> Result<String> {
    let output = Command::new(agent)
        .arg("--version")
        .output()
        .with_context(|| format!("start {}", agent.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split_whitespace().next_back();
    Ok(version.context("the agent says no version")?.to_owned())
}

/// A running agent. Dropping it ends it.
pub struct Agent {
    agent: lab::Agent,
    binary: PathBuf,
}

impl Agent {
    /// Returns once the agent has attached its programs. `settings` are options of `flow-agent run`.
    pub fn start(host: &Host, settings: &[&str], setup: &Setup) -> Result<Self> {
        Self::start_by(host.command(&setup.agent), host, settings, setup)
    }

    /// The same by a command for the agent.
    pub fn start_by(
        command: Command,
        host: &Host,
        settings: &[&str],
        setup: &Setup,
    ) -> Result<Self> {
        let mut agent = lab::Agent::begin(command, &host.interface, settings)?;
        agent.wait_until_counting(PATIENCE, || setup.interrupt.check())?;
        Ok(Self {
            agent,
            binary: setup.agent.clone(),
        })
    }

    /// Keeps the agent off the sender's CPU.
    pub fn keep_off_sender(&mut self) -> Result<()> {
        affinity::keep_off_sender(self.pid())
    }

    pub fn pid(&mut self) -> u32 {
        self.agent.pid()
    }

    /// Stops the agent as an operator would.
    pub fn stop(self) -> Result<()> {
        self.agent.stop(PATIENCE)
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.agent.process
    }

    /// The ids of the programs that it holds by descriptor.
    pub fn program_ids(&mut self) -> Result<BTreeSet<u32>> {
        let ids = fdinfo::program_ids(self.pid())?;
        ensure!(!ids.is_empty(), "flow-agent holds no program");
        Ok(ids)
    }

    pub fn status(&self) -> Result<Status> {
        let output = self
            .client("status")
            .output()
            .context("start flow-agent status")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "flow-agent status: {}",
            stderr.trim()
        );
        serde_json::from_slice(&output.stdout).context("parse the agent's status")
    }

    /// A consumer that reads everything and discards it.
    pub fn watch(&self) -> Result<Process> {
        Process::spawn(
            self.client("watch")
                .stdout(Stdio::null())
                .stderr(Stdio::null()),
        )
    }

    fn client(&self, subcommand: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args([subcommand, "--connect", &self.agent.address()])
            .args(["--output", "json"])
            .stdin(Stdio::null());
        command
    }
}
