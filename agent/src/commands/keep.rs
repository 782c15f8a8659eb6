//! `flow-agent keep`: runs the agent, starts it again when it fails, and keeps its programs and tables meanwhile.

use std::{
    env,
    ffi::{OsStr, OsString},
    io::{self, IsTerminal as _},
    mem,
    os::unix::process::ExitStatusExt as _,
    path::{self, PathBuf},
    process::{self, ExitCode, ExitStatus},
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

use self::store::{Answer, Heard, Store};
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
/// If the keeper wakes up later than this, it was stopped itself, and knows nothing about the agent.
const LATE: Duration = Duration::from_secs(1);
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
        let wrong =
            "write `run` and its options after `keep`, such as `flow-agent keep run -i eth0`";
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
        has_promised: false,
        is_last: false,
    };
    loop {
        match keeper.start() {
            Ok(agent) => {
                let status = keeper.watch(agent).await?;
                if let Some(code) = keeper.ends_with(status) {
                    return Ok(code);
                }
                if keeper.asked.end() || status.success() {
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

/// The path that this program was called by, with its links: an upgrade may replace the file or redirect a link.
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
    /// The agent leaves its programs to the next one.
    has_promised: bool,
    /// No other agent is started after this one, whatever it leaves.
    is_last: bool,
}

/// An agent that runs.
struct Running {
    child: Child,
    is_ready: bool,
    is_ending: bool,
    /// When to kill it, unless it shows that it is alive.
    kill_at: Instant,
}

impl Running {
    fn show_alive(&mut self) {
        if !self.is_ending {
            self.kill_at = Instant::now() + WATCHDOG;
        }
    }

    fn begin_to_end(&mut self) {
        if !mem::replace(&mut self.is_ending, true) {
            self.kill_at = Instant::now() + STOP_TIMEOUT;
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        // It may have ended meanwhile.
        let pid = self.child.id();
        let pid = pid.and_then(|pid| Pid::from_raw(pid.cast_signed()));
        pid.map_or(Ok(()), |pid| kill_process(pid, signal))
            .context("signal the agent")
    }
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
    fn start(&mut self) -> Result<Running> {
        self.asked.restart = false;
        self.has_promised = false;
        self.failures += 1;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        if env::var_os("FLOW_AGENT_CARRY_OVER").is_none() {
            command.env("FLOW_AGENT_CARRY_OVER", "true");
        }
        command.env(KEEPER, process::id().to_string());
        command.env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        // Ctrl-C in a terminal is for this process, which passes it on.
        command.process_group(0);
        command.kill_on_drop(true);
        let passed = self.store.pass(&mut command)?;
        let child = command
            .spawn()
            .with_context(|| format!("run {}", self.program.display()))?;
        drop(passed);
        self.store.obey(child.id());
        Ok(Running {
            child,
            is_ready: false,
            is_ending: false,
            kill_at: Instant::now() + START_TIMEOUT,
        })
    }

    /// Waits until the agent has ended.
    async fn watch(&mut self, mut agent: Running) -> Result<ExitStatus> {
        let status = loop {
            let kill_at = agent.kill_at;
            tokio::select! {
                biased;
                status = agent.child.wait() => break status.context("wait for the agent")?,
                heard = self.store.hear() => self.react(heard?, &mut agent)?,
                signal = self.signals.next() => {
                    self.asked.note(signal);
                    self.pass_on(&mut agent)?;
                }
                () = sleep_until(kill_at) => {
                    if kill_at.elapsed() > LATE {
                        agent.kill_at = Instant::now() + WATCHDOG;
                        continue;
                    }
                    tracing::warn!("the agent does not answer, and is killed");
                    agent.child.start_kill().context("kill the agent")?;
                    agent.kill_at = Instant::now() + START_TIMEOUT;
                }
            }
        };
        // What it has stored last is for the next one.
        for heard in self.store.hear_all()? {
            self.react(heard, &mut agent)?;
        }
        Ok(status)
    }

    fn react(&mut self, heard: Heard, agent: &mut Running) -> Result<()> {
        match heard {
            Heard::Ready => {
                agent.is_ready = true;
                self.has_counted = true;
                self.failures = 0;
                agent.show_alive();
                self.pass_on(agent)?;
            }
            Heard::Alive => agent.show_alive(),
            Heard::Stopping => agent.begin_to_end(),
            Heard::AsksForRestart(answer) => self.say_whether_it_restarts(&answer),
        }
        Ok(())
    }

    /// Forwards the signals. A signal kills an agent that is still starting, and loses what it has to take over, so signals
    /// wait until the agent counts. The first agent has nothing to take over.
    fn pass_on(&mut self, agent: &mut Running) -> Result<()> {
        if self.asked.end() && (agent.is_ready || !self.has_counted) {
            agent.begin_to_end();
            agent.signal(Signal::TERM)
        } else if agent.is_ready && mem::take(&mut self.asked.reload) {
            agent.signal(Signal::HUP)
        } else {
            Ok(())
        }
    }

    fn say_whether_it_restarts(&mut self, answer: &Answer) {
        if !self.asked.restart || self.asked.stop {
            return;
        }
        match answer.yes() {
            Ok(()) => self.has_promised = true,
            Err(error) => {
                tracing::warn!(%error, "the agent could not be told that it is restarted, so it stops");
            }
        }
    }

    /// The exit status of this process if the agent is not to be started again.
    fn ends_with(&mut self, status: ExitStatus) -> Option<ExitCode> {
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        let goes_on = if self.asked.stop {
            // The next agent reports what this one has left, and then detaches the programs.
            let leaves = self.has_promised || !status.success();
            leaves && self.has_counted && !mem::replace(&mut self.is_last, true)
        } else if self.asked.restart {
            true
        } else {
            let is_refused = code == Some(RefusedSettings::EXIT_STATUS);
            !status.success() && !is_refused && self.may_try_again()
        };
        if goes_on {
            return None;
        }
        let is_asked = self.asked.stop && status.signal() == Some(Signal::TERM.as_raw());
        let code = if is_asked { Some(0) } else { code };
        Some(code.map_or(ExitCode::FAILURE, ExitCode::from))
    }

    fn may_try_again(&self) -> bool {
        self.has_counted && self.failures < MOST_FAILURES
    }

    /// Waits a little after a failure. If the agent is to stop, the next one starts at once.
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
    has_terminal: bool,
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hang_up: unix::Signal,
    restart: unix::Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("listen for signals");
        Ok(Self {
            has_terminal: io::stdin().is_terminal(),
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
            restart: listen(SignalKind::user_defined1())?,
        })
    }

    /// SIGHUP means that the terminal has closed, if there was one, and then stops the agent.
    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.hang_up.recv() => if self.has_terminal { Signal::TERM } else { Signal::HUP },
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

fn is_our_parent(keeper: &OsStr) -> bool {
    let parent = getppid().map_or(0, Pid::as_raw_pid);
    keeper.to_str() == Some(&parent.to_string())
}
