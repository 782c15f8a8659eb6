//! `flow-agent keep`: runs the agent, starts it again when it fails, and keeps its programs and tables meanwhile.

use std::{
    env,
    ffi::OsString,
    path::{self, PathBuf},
    process::{ExitCode, ExitStatus},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
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

/// Tells an agent the process id of the keeper that has started it.
const KEEPER: &str = "FLOW_AGENT_KEEPER_PID";

// As in the unit for systemd.
const PAUSE: Duration = Duration::from_secs(2);
const START_TIMEOUT: Duration = Duration::from_mins(5);
const STOP_TIMEOUT: Duration = Duration::from_secs(40);
const WATCHDOG: Duration = Duration::from_secs(30);
/// How often in a row the agent may fail before it counts.
const MOST_FAILURES: u32 = 5;

/// Run the agent where there is no systemd, and start it again if it fails.
///
/// The programs keep counting while no agent runs, and the next agent takes over what they counted, so no packet goes
/// uncounted when the agent crashes or is upgraded. For containers and other service managers; systemd does the same for
/// the unit of the package. Example: flow-agent keep run -i eth0
///
/// SIGUSR1 restarts the agent; after an upgrade, the new file runs. SIGHUP reloads its settings. SIGTERM and SIGINT stop it
/// and detach its programs.
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
        program: this_program()?,
        arguments: args.command,
        store: Store::new()?,
        signals: Signals::new()?,
        has_counted: false,
        failures: 0,
        asked: Asked::default(),
    };
    loop {
        match keeper.run_once().await {
            Ok(status) => {
                if let Some(code) = keeper.ends_with(status) {
                    return Ok(code);
                }
                if status.success() {
                    continue;
                }
                tracing::warn!(%status, "the agent has failed, and is started again in {PAUSE:?}");
            }
            // The file may be missing for a moment while a package is upgraded.
            Err(error) if keeper.may_try_again() => {
                tracing::warn!("the agent cannot be started: {error:#}; retrying in {PAUSE:?}");
            }
            Err(error) => return Err(error),
        }
        keeper.pause().await;
    }
}

/// The path by which this program was called: an upgrade may put another file there, or behind a link.
fn this_program() -> Result<PathBuf> {
    let called = PathBuf::from(env::args_os().next().context("this program has no name")?);
    if called.components().count() == 1 {
        // Found on the search path.
        return Ok(called);
    }
    path::absolute(called).context("find the file of this program")
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
    asked: Asked,
}

/// What signals have asked for.
#[derive(Default)]
struct Asked {
    stop: bool,
    restart: bool,
    reload: bool,
}

impl Asked {
    fn note(&mut self, signal: Signal) {
        match signal {
            Signal::HUP => self.reload = true,
            Signal::USR1 => self.restart = true,
            _ => self.stop = true,
        }
    }

    /// Whether the agent is to end.
    fn end(&self) -> bool {
        self.stop || self.restart
    }
}

impl Keeper {
    /// Runs an agent until it has ended.
    async fn run_once(&mut self) -> Result<ExitStatus> {
        self.asked.restart = false;
        self.failures += 1;
        let mut agent = self.start()?;
        let timeout = if self.asked.stop {
            STOP_TIMEOUT
        } else {
            START_TIMEOUT
        };
        let mut kill_at = Instant::now() + timeout;
        let mut is_ready = false;
        let status = loop {
            tokio::select! {
                status = agent.wait() => break status.context("wait for the agent")?,
                heard = self.store.hear() => match heard? {
                    Heard::Ready if !is_ready => {
                        is_ready = true;
                        kill_at = self.pass_on(&agent)?;
                    }
                    Heard::Ready | Heard::Alive => {
                        if !self.asked.end() {
                            kill_at = Instant::now() + WATCHDOG;
                        }
                    }
                    Heard::AsksForRestart(answer) => self.say_whether_it_restarts(&answer),
                },
                signal = self.signals.next() => {
                    self.asked.note(signal);
                    // While an agent starts, a signal ends it, and what it was to take over is lost.
                    if is_ready || !self.has_counted {
                        kill_at = self.pass_on(&agent)?;
                    }
                }
                () = sleep_until(kill_at) => {
                    tracing::warn!("the agent does not answer, and is killed");
                    agent.kill().await.context("kill the agent")?;
                }
            }
            if is_ready {
                self.has_counted = true;
                self.failures = 0;
            }
        };
        for heard in self.store.hear_all()? {
            if matches!(heard, Heard::Ready) {
                self.has_counted = true;
                self.failures = 0;
            }
        }
        Ok(status)
    }

    fn start(&mut self) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        if env::var_os("FLOW_AGENT_CARRY_OVER").is_none() {
            command.env("FLOW_AGENT_CARRY_OVER", "true");
        }
        command.env(KEEPER, std::process::id().to_string());
        command.env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        // Ctrl-C in a terminal is for this process, which passes it on.
        command.process_group(0);
        let passed = self.store.pass(&mut command)?;
        let agent = command
            .spawn()
            .with_context(|| format!("run {}", self.program.display()))?;
        drop(passed);
        self.store.obey(agent.id());
        Ok(agent)
    }

    /// Passes on what signals have asked for. Returns when to kill the agent if it does not react.
    fn pass_on(&mut self, agent: &Child) -> Result<Instant> {
        let (signal, timeout) = if self.asked.end() {
            (Some(Signal::TERM), STOP_TIMEOUT)
        } else if std::mem::take(&mut self.asked.reload) {
            (Some(Signal::HUP), WATCHDOG)
        } else {
            (None, WATCHDOG)
        };
        // It may have ended meanwhile.
        let pid = agent.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let (Some(pid), Some(signal)) = (pid, signal) {
            kill_process(pid, signal).context("signal the agent")?;
        }
        Ok(Instant::now() + timeout)
    }

    fn say_whether_it_restarts(&self, answer: &store::Answer) {
        if self.asked.restart
            && !self.asked.stop
            && let Err(error) = answer.yes()
        {
            tracing::warn!(%error, "the agent does not hear that it is restarted, and stops");
        }
    }

    /// The exit status of this process if the agent is not to be started again.
    fn ends_with(&self, status: ExitStatus) -> Option<ExitCode> {
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        let goes_on = if self.asked.end() {
            !self.asked.stop
        } else {
            let is_refused = code == Some(RefusedSettings::EXIT_STATUS);
            !status.success() && !is_refused && self.may_try_again()
        };
        (!goes_on).then(|| code.map_or(ExitCode::FAILURE, ExitCode::from))
    }

    fn may_try_again(&self) -> bool {
        self.has_counted && self.failures < MOST_FAILURES
    }

    /// Waits a little after a failure. If the agent is to stop, the next one starts at once: it reports what the last one
    /// has left, and detaches its programs.
    async fn pause(&mut self) {
        let end = Instant::now() + PAUSE;
        while !self.asked.stop {
            tokio::select! {
                () = sleep_until(end) => return,
                signal = self.signals.next() => self.asked.note(signal),
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

/// Makes this process stop when the keeper that has started it ends, if one has. Fails if it has ended already. Call it in
/// the first thread.
pub fn end_with_keeper() -> Result<()> {
    let Some(keeper) = env::var_os(KEEPER) else {
        return Ok(());
    };
    set_parent_process_death_signal(Some(Signal::TERM)).context("stop with the keeper")?;
    ensure!(
        is_our_parent(&keeper),
        "the keeper of this agent has ended ({KEEPER}={})",
        keeper.display()
    );
    Ok(())
}

fn is_our_parent(keeper: &std::ffi::OsStr) -> bool {
    let parent = getppid().map_or(0, Pid::as_raw_pid);
    keeper.to_str() == Some(&parent.to_string())
}
