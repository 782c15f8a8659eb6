//! A running `flow-agent`, with its socket, its log and its output in a temporary folder. Dropping it ends the process.

use std::{
    env,
    fs::{self, File},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::Process;

/// The beginning of the agent's log line once every hook is attached.
const COUNTING: &str = "counting max_flows=";

pub struct Agent {
    pub process: Process,
    folder: TempDir,
}

impl Agent {
    /// Starts `run` with these settings without waiting for it; `command` names the binary. With an empty interface,
    /// the settings choose. The agent listens on its own Unix socket and ignores the settings of this process's
    /// environment and of the machine.
    pub fn begin(mut command: Command, interface: &str, settings: &[&str]) -> Result<Self> {
        let folder = TempDir::with_prefix("flow-agent-").context("make a folder for an agent")?;
        let file = |name: &str| {
            let path = folder.path().join(name);
            File::create(&path).with_context(|| format!("make {}", path.display()))
        };
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            let is_setting = text.starts_with("FLOW_AGENT_");
            if is_setting && !command.get_envs().any(|(given, _)| given == name) {
                command.env_remove(&name);
            }
        }
        command.arg("run");
        if !interface.is_empty() {
            command.args(["--interface", interface]);
        }
        command
            .arg("--listen")
            .arg(address(&folder))
            .args(settings)
            .env("NO_COLOR", "1")
            .env("FLOW_AGENT_CONFIG", "/dev/null")
            .stdin(Stdio::null())
            .stdout(file("stdout")?)
            .stderr(file("stderr")?);
        Ok(Self {
            process: Process::spawn(&mut command)?,
            folder,
        })
    }

    /// Returns once every hook is attached; see [`Agent::wait_until_logged`].
    pub fn wait_until_counting(
        &mut self,
        patience: Duration,
        check: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        self.wait_until_logged(COUNTING, patience, check)
    }

    /// Returns once the log contains the text. If the agent ends first, fails with the log. Calls `check` repeatedly,
    /// whose error ends the wait.
    pub fn wait_until_logged(
        &mut self,
        text: &str,
        patience: Duration,
        mut check: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            check()?;
            // Before reading the log, so that the log of an agent that has ended is complete.
            let status = self.process.exited()?;
            let log = self.log()?;
            if log.contains(text) {
                return Ok(());
            }
            if let Some(status) = status {
                bail!("flow-agent ended with {status}: {}", log.trim());
            }
            ensure!(
                Instant::now() < deadline,
                "flow-agent does not log \"{text}\" after {patience:?}: {}",
                log.trim()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The address for `--connect`.
    pub fn address(&self) -> String {
        address(&self.folder)
    }

    pub fn pid(&mut self) -> u32 {
        self.process.child().id()
    }

    /// The agent's stderr so far.
    pub fn log(&self) -> Result<String> {
        self.written("stderr")
    }

    /// The agent's stdout so far.
    pub fn stdout(&self) -> Result<String> {
        self.written("stdout")
    }

    /// Stops the agent as an operator would.
    pub fn stop(mut self, patience: Duration) -> Result<()> {
        let status = self.process.terminate(patience)?;
        let log = self.log()?;
        ensure!(
            status.success(),
            "flow-agent ended with {status}: {}",
            log.trim()
        );
        Ok(())
    }

    fn written(&self, name: &str) -> Result<String> {
        let path: PathBuf = self.folder.path().join(name);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    }
}

fn address(folder: &TempDir) -> String {
    format!("unix:{}", folder.path().join("socket").display())
}
