//! `flow-agent keep`: runs the agent, starts it again when it fails, and keeps its programs and tables meanwhile.

use std::{
    ffi::OsString,
    path::PathBuf,
    process::{ExitCode, ExitStatus},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use sys::open_files;
use tokio::{
    process::{Child, Command},
    signal::unix::{self, SignalKind, signal},
    time::{Instant, sleep_until},
};

use self::store::{Heard, Store};
use super::run::RefusedSettings;

mod store;

pub use store::ask_for_restart;

/// How long to wait before the agent is started again, as in the unit for systemd.
const PAUSE: Duration = Duration::from_secs(2);
/// How often in a row the agent may fail before it counts.
const MOST_FAILURES: u32 = 5;

/// Run the agent where there is no systemd, and start it again if it fails.
///
/// The programs keep counting while no agent runs, and the next agent takes over what they counted, so no packet goes
/// uncounted when the agent crashes or is upgraded. For containers and other service managers; systemd does the same for
/// the unit of the package. Example: flow-agent keep run -i eth0
///
/// SIGUSR1 restarts the agent, after an upgrade with the new file. SIGHUP reloads its settings. SIGTERM and SIGINT stop
/// it and detach its programs.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The agent's command: `run` and its options.
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub command: Vec<OsString>,
}

/// Runs the agent until it ends by itself, cannot start, or is stopped. Returns its exit status.
pub async fn run(args: Args) -> Result<ExitCode> {
    if args.command.first().is_none_or(|command| command != "run") {
        let wrong = "keep runs the agent: write `run` and its options behind it, such as `flow-agent keep run -i eth0`";
        return Err(RefusedSettings(anyhow!(wrong)).into());
    }
    open_files::raise_limit()?;
    let mut keeper = Keeper {
        program: std::env::current_exe().context("find the file of this program")?,
        arguments: args.command,
        store: Store::new()?,
        signals: Signals::new()?,
        has_counted: false,
        failures: 0,
        is_stopping: false,
        restarts: false,
    };
    loop {
        let status = keeper.run_once().await?;
        if let Some(code) = keeper.ends_with(status) {
            return Ok(code);
        }
        keeper.pause(status).await?;
        if keeper.is_stopping {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

struct Keeper {
    program: PathBuf,
    arguments: Vec<OsString>,
    store: Store,
    signals: Signals,
    /// Some agent has counted. The first one has to, or its settings are wrong.
    has_counted: bool,
    /// Agents in a row that have not counted.
    failures: u32,
    is_stopping: bool,
    /// The agent ends to be started again.
    restarts: bool,
}

impl Keeper {
    /// Runs an agent until it has ended.
    async fn run_once(&mut self) -> Result<ExitStatus> {
        self.restarts = false;
        self.failures += 1;
        let mut agent = self.start()?;
        let status = loop {
            tokio::select! {
                status = agent.wait() => break status.context("wait for the agent")?,
                heard = self.store.hear() => self.answer(heard?),
                signal = self.signals.next() => self.pass_on(signal, &agent)?,
            }
        };
        self.store.process_all()?;
        Ok(status)
    }

    fn start(&self) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        if std::env::var_os("FLOW_AGENT_CARRY_OVER").is_none() {
            command.env("FLOW_AGENT_CARRY_OVER", "true");
        }
        self.store.prepare(&mut command)?;
        // Ctrl-C in a terminal is for this process, which passes it on.
        command.process_group(0);
        // SAFETY: between fork and exec, the closure only makes a system call.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
        }
        command
            .spawn()
            .with_context(|| format!("run {}", self.program.display()))
    }

    fn answer(&mut self, heard: Heard) {
        match heard {
            Heard::Ready => {
                self.has_counted = true;
                self.failures = 0;
            }
            Heard::AsksForRestart(answer) => {
                // Without an answer the agent detaches its programs.
                if self.restarts
                    && !self.is_stopping
                    && let Err(error) = rustix::io::write(&answer, &[1])
                {
                    tracing::warn!(%error, "the agent does not hear that it is to be started again");
                }
            }
        }
    }

    fn pass_on(&mut self, signal: Signal, agent: &Child) -> Result<()> {
        let signal = match signal {
            Signal::HUP => Signal::HUP,
            Signal::USR1 => {
                self.restarts = true;
                Signal::TERM
            }
            _ => {
                self.is_stopping = true;
                Signal::TERM
            }
        };
        let Some(pid) = agent.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) else {
            // It has ended meanwhile.
            return Ok(());
        };
        kill_process(pid, signal).context("signal the agent")
    }

    /// The exit status of this process if the agent is not to be started again.
    fn ends_with(&self, status: ExitStatus) -> Option<ExitCode> {
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        let is_hopeless = code == Some(RefusedSettings::EXIT_STATUS)
            || !self.has_counted
            || self.failures >= MOST_FAILURES;
        let goes_on = self.restarts || !status.success();
        (self.is_stopping || is_hopeless || !goes_on)
            .then(|| code.map_or(ExitCode::FAILURE, ExitCode::from))
    }

    /// Waits a little after a failure.
    async fn pause(&mut self, status: ExitStatus) -> Result<()> {
        if status.success() {
            return Ok(());
        }
        tracing::warn!(%status, "the agent has failed; its programs go on counting, and it is started again in {PAUSE:?}");
        let end = Instant::now() + PAUSE;
        loop {
            tokio::select! {
                () = sleep_until(end) => return Ok(()),
                signal = self.signals.next() => if [Signal::TERM, Signal::INT].contains(&signal) {
                    self.is_stopping = true;
                    return Ok(());
                },
            }
        }
    }
}

struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hang_up: unix::Signal,
    restart: unix::Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
            restart: listen(SignalKind::user_defined1())?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.hang_up.recv() => Signal::HUP,
            _ = self.restart.recv() => Signal::USR1,
        }
    }
}
