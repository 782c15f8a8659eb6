//! An agent that runs as long as the command that shows its flows.

use std::{
    fs, io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use formats::harmless::harmless;
use rustix::{
    io::Errno,
    process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal},
};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};
use view::client::Target;

use crate::commands::settings::variables::PREFIX;

/// How long the agent may take to load its programs, and to end.
const PATIENCE: Duration = Duration::from_mins(2);
const LOOK: Duration = Duration::from_millis(50);
/// The most log lines to show if it failed.
const MOST_LINES: usize = 20;

pub struct OwnAgent {
    child: Child,
    /// Removed when this is dropped.
    folder: TempDir,
}

impl OwnAgent {
    /// Starts an agent with these arguments of `flow-agent run`.
    pub fn start(arguments: &[String]) -> Result<Self> {
        // Created with mode 0700.
        let folder = tempfile::Builder::new()
            .prefix("flow-agent-top-")
            .tempdir()
            .context("make a folder for the agent's socket")?;
        let child = Self::spawn(folder.path(), arguments)?;
        Ok(Self { child, folder })
    }

    fn spawn(folder: &Path, arguments: &[String]) -> Result<Child> {
        let program = std::env::current_exe().context("find this program")?;
        let log = fs::File::create(log_of(folder)).context("make a file for the agent's log")?;
        let names_settings = |one: &String| one == "--config" || one.starts_with("--config=");
        // An empty file: the service's settings could send flows to a collector as well.
        let settings = if arguments.iter().any(names_settings) {
            Vec::new()
        } else {
            let empty = folder.join("config.toml");
            fs::write(&empty, "").context("make a file of settings")?;
            vec!["--config".into(), empty.into_os_string()]
        };
        let mut command = Command::new(program);
        // For the same reason, drop the variables of a service.
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
                command.env_remove(name);
            }
        }
        command
            .args(["run", "--listen"])
            .arg(format!("unix:{}", socket_of(folder).display()))
            .args(settings)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // In its own process group: the terminal's interrupts are not for the agent, since we stop it ourselves.
            .process_group(0)
            .kill_on_drop(true);
        let parent = getpid();
        // SAFETY: the closure makes only two system calls.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::TERM))?;
                // The parent may have ended before the signal was set.
                if getppid() == Some(parent) {
                    Ok(())
                } else {
                    Err(io::ErrorKind::Interrupted.into())
                }
            });
        }
        command.spawn().context("start an agent")
    }

    pub fn target(&self) -> Target {
        Target::Unix(socket_of(self.folder.path()).display().to_string())
    }

    /// Returns once the agent listens. If it cannot start, fails with its log.
    pub async fn ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(socket_of(self.folder.path())).is_err() {
            if let Some(status) = self.child.try_wait().context("look after the agent")? {
                bail!("the agent did not start ({status}):\n{}", self.said());
            }
            if Instant::now() > deadline {
                let patience = humantime::format_duration(PATIENCE);
                bail!(
                    "the agent did not start within {patience}:\n{}",
                    self.said()
                );
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Returns once the agent has ended by itself. Cancel safe.
    pub async fn ended(&mut self) -> anyhow::Error {
        match self.child.wait().await {
            Ok(status) => anyhow!("the agent ended ({status}):\n{}", self.said()),
            Err(error) => anyhow!(error).context("wait for the agent"),
        }
    }

    /// The last lines of its log.
    fn said(&self) -> String {
        let log = fs::read(log_of(self.folder.path())).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(MOST_LINES)..];
        let last: Vec<_> = last.iter().map(|line| harmless(line)).collect();
        last.join("\n")
    }

    /// Stops the agent and waits until it has detached its programs.
    pub async fn stop(mut self) -> Result<()> {
        let pid = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid {
            match kill_process(pid, Signal::TERM) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error).context("tell the agent to end"),
            }
        }
        let ended = timeout(PATIENCE, self.child.wait()).await;
        let status = ended
            .context("the agent does not end")?
            .context("wait for the agent")?;
        ensure!(
            status.success(),
            "the agent ended in trouble ({status}):\n{}",
            self.said()
        );
        Ok(())
    }
}

fn socket_of(folder: &Path) -> PathBuf {
    folder.join("socket")
}

fn log_of(folder: &Path) -> PathBuf {
    folder.join("log")
}
