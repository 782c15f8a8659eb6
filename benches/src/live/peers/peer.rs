//! A third-party program, with the processes that it starts and its log.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use lab::Process;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::live::{
    affinity,
    cost::{is_asleep, process_tree},
    interrupt::Interrupt,
    program::PATIENCE,
};

/// A running program. Dropping it ends all its processes. They stay off the sender's CPU.
pub struct Peer {
    name: String,
    process: Process,
    log: PathBuf,
}

impl Peer {
    /// Its output goes to the file `log`.
    pub fn start(command: &mut Command, log: PathBuf) -> Result<Self> {
        let name = Path::new(command.get_program()).file_name();
        let name = name.unwrap_or_default().to_string_lossy().into_owned();
        let file = File::create(&log).with_context(|| format!("make {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("share the log")?)
            .stderr(file)
            // A process group of its own, so that Ctrl-C on a terminal reaches only the bench.
            .process_group(0);
        let mut peer = Self {
            name,
            process: Process::spawn(command)?,
            log,
        };
        affinity::keep_off_sender(peer.pid())?;
        Ok(peer)
    }

    pub fn pid(&mut self) -> u32 {
        self.process.child().id()
    }

    pub fn processes(&mut self) -> Result<BTreeSet<u32>> {
        process_tree(self.pid())
    }

    pub fn log(&self) -> Result<String> {
        fs::read_to_string(&self.log).with_context(|| format!("read {}", self.log.display()))
    }

    pub fn signal(&self, signal: i32) -> Result<()> {
        self.process.signal(signal)
    }

    /// Returns once the log contains the text.
    pub fn wait_until_logged(&mut self, text: &str, interrupt: &Interrupt) -> Result<()> {
        self.wait_until(&format!("it logs {text:?}"), interrupt, |peer| {
            Ok(peer.log()?.contains(text))
        })
    }

    /// Returns once its processes have slept long enough that no work can be left.
    pub fn wait_until_idle(&mut self, interrupt: &Interrupt) -> Result<()> {
        const LOOKS: u32 = 50;
        let mut asleep = 0;
        self.wait_until("its processes sleep", interrupt, |peer| {
            let all_sleep = peer.processes()?.into_iter().all(is_asleep);
            asleep = if all_sleep { asleep + 1 } else { 0 };
            Ok(asleep >= LOOKS)
        })
    }

    /// Fails if a signal ended it.
    pub fn wait_until_ended(&mut self, interrupt: &Interrupt) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.exited()? {
                // softflowd's exit code is 1 after its `shutdown`.
                let has_exited = status.code().is_some();
                ensure!(
                    has_exited,
                    "{} ended with {status}: {}",
                    self.name,
                    self.tail()
                );
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{} does not end: {}",
                self.name,
                self.tail()
            );
            interrupt.sleep(Duration::from_millis(20))?;
        }
    }

    fn wait_until(
        &mut self,
        what: &str,
        interrupt: &Interrupt,
        mut is_true: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !is_true(self)? {
            if let Some(status) = self.process.exited()? {
                bail!("{} ended with {status}: {}", self.name, self.tail());
            }
            ensure!(
                Instant::now() < deadline,
                "{} does not come to where {what}: {}",
                self.name,
                self.tail()
            );
            interrupt.sleep(Duration::from_millis(20))?;
        }
        Ok(())
    }

    /// The last lines of its log, for an error.
    fn tail(&self) -> String {
        let log = self.log().unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("; ")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Include any processes that it left behind.
        let group = Pid::from_child(self.process.child());
        let _ = kill_process_group(group, Signal::KILL);
    }
}
