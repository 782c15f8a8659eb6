//! What is on a hook: nothing, a program to hold ours against, or the agent itself. An interface of a
//! laboratory comes in, the ids of the programs that run there go out.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
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
pub struct Agent {
    process: Process,
    folder: PathBuf,
}

impl Agent {
    /// Returns when it has attached its programs. Settings are those of `flow-agent run`; it listens
    /// on a socket of its own.
    pub fn start(
        host: &Host,
        binary: &Path,
        settings: &[&str],
        interrupt: &Interrupt,
    ) -> Result<Self> {
        Self::start_in(host, binary, settings, &[], interrupt)
    }

    /// The same with environment variables; its own settings by environment are taken from it.
    pub fn start_in(
        host: &Host,
        binary: &Path,
        settings: &[&str],
        environment: &[(&str, &str)],
        interrupt: &Interrupt,
    ) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("flow-bench-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        let log = folder.join("log");
        let stderr = fs::File::create(&log).with_context(|| format!("make {}", log.display()))?;
        let mut command = host.command(binary);
        command
            .args(["run", "--interface", &host.interface, "--listen"])
            .arg(format!("unix:{}", folder.join("socket").display()))
            .args(settings)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            // The agent's log says when it counts, and what it logs it also costs.
            if text.starts_with("FLOW_AGENT_") || text == "RUST_LOG" {
                command.env_remove(name);
            }
        }
        command.envs(environment.iter().copied());
        let mut agent = Self {
            process: Process::spawn(&mut command)?,
            folder,
        };
        agent.await_attached(&log, interrupt)?;
        Ok(agent)
    }

    fn await_attached(&mut self, log: &Path, interrupt: &Interrupt) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            interrupt.check()?;
            let text =
                fs::read_to_string(log).with_context(|| format!("read {}", log.display()))?;
            if let Some(status) = self.process.exited()? {
                bail!("flow-agent ended with {status}: {}", text.trim());
            }
            // The last thing that it says before it scans.
            if text.contains("counting") {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "flow-agent does not count after {PATIENCE:?}: {}",
                text.trim()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn pid(&mut self) -> u32 {
        self.process.child().id()
    }

    /// As `--connect` takes it.
    pub fn address(&self) -> String {
        format!("unix:{}", self.folder.join("socket").display())
    }

    /// Ends it as an operator would.
    pub fn stop(mut self) -> Result<()> {
        let status = self.process.terminate(PATIENCE)?;
        ensure!(status.success(), "flow-agent ended with {status}");
        Ok(())
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Of the programs that it holds by descriptor.
    pub fn program_ids(&mut self) -> Result<BTreeSet<u32>> {
        let ids = super::cost::held_program_ids(self.pid())?;
        ensure!(!ids.is_empty(), "flow-agent holds no program");
        Ok(ids)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended before, and then nobody holds the folder either way.
        let _ = self.process.terminate(PATIENCE);
        let _ = fs::remove_dir_all(&self.folder);
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
