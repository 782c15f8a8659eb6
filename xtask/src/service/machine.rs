//! A Debian with systemd as PID 1, in its own namespaces on this kernel. Dropping it removes everything.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use lab::{ControlGroup, Namespace, Process};
use tempfile::TempDir;

/// The timeout of every wait. Only a failure takes this long.
pub const PATIENCE: Duration = Duration::from_mins(2);
const PAUSE: Duration = Duration::from_millis(50);

pub struct Machine {
    /// `unshare`. PID 1 and all other processes end with it.
    _process: Process,
    /// Its PID 1, by its process id on this machine.
    init: u32,
    group: ControlGroup,
    /// The changes to the root file system that it was booted from.
    changes: TempDir,
}

impl Machine {
    /// Boots it in a network namespace and returns once every unit has started.
    pub fn boot(root: &Path, network: &Namespace) -> Result<Self> {
        let changes = TempDir::with_prefix("flow-agent-service-").context("make a folder")?;
        let group = ControlGroup::unified()?;
        let mut command = network.command("sh");
        group
            .run_by(&mut command)
            .args([
                "unshare",
                "--mount",
                "--uts",
                "--ipc",
                "--pid",
                "--cgroup",
                "--fork",
                "--kill-child",
            ])
            .args(["sh", "-c", include_str!("boot.sh"), "boot"])
            .args([root, changes.path()])
            .stdin(Stdio::null());
        let mut process = Process::spawn(&mut command)?;
        let init = wait_for("a first process", || {
            if let Some(status) = process.exited()? {
                bail!("its first process ended with {status}");
            }
            only_child(process.child().id())
        })?;
        let machine = Self {
            _process: process,
            init,
            group,
            changes,
        };
        let mut state = String::new();
        let is_up = wait_for("systemd is up", || {
            state = machine.output("systemctl is-system-running 2>&1");
            Ok((state == "running").then_some(()))
        });
        is_up
            .with_context(|| format!("it is {state}: {}", machine.output("systemctl --failed")))?;
        Ok(machine)
    }

    /// A shell command line inside the machine.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg("--net");
        self.complete(command, line)
    }

    /// The same, in a different network namespace.
    pub fn command_in(&self, network: &Namespace, line: &str) -> Command {
        self.complete(network.command("nsenter"), line)
    }

    fn complete(&self, mut nsenter: Command, line: &str) -> Command {
        nsenter
            .args(["--target", &self.init.to_string()])
            .args(["--mount", "--uts", "--ipc", "--pid", "--cgroup"])
            .args([
                "env",
                "-i",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                "NO_COLOR=1",
            ])
            .args(["DEBIAN_FRONTEND=noninteractive", "sh", "-c", line])
            .stdin(Stdio::null());
        nsenter
    }

    /// The command line's stdout, whether or not it fails.
    pub fn output(&self, line: &str) -> String {
        let output = self.command(line).output();
        output.map_or_else(
            |error| error.to_string(),
            |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        )
    }

    /// Runs the command line and returns its output. Fails if the command line fails.
    pub fn run(&self, line: &str) -> Result<String> {
        let output = self.command(line).output().context("start nsenter")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        ensure!(
            output.status.success(),
            "`{line}` failed ({}): {} {}",
            output.status,
            text(&output.stdout),
            text(&output.stderr)
        );
        Ok(text(&output.stdout))
    }

    /// Writes a file in the machine and creates its parent folders.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) -> Result<()> {
        let inside = PathBuf::from(format!("/proc/{}/root{path}", self.init));
        let folder = inside.parent().context("a file lies in a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        fs::write(&inside, content).with_context(|| format!("write {}", inside.display()))
    }

    /// The process ids of a service on this machine.
    pub fn processes(&self, service: &str) -> Result<Vec<u32>> {
        let path = self
            .group
            .path()
            .join("system.slice")
            .join(service)
            .join("cgroup.procs");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// A folder outside the machine, for files that strace writes.
    pub fn folder(&self) -> &Path {
        self.changes.path()
    }
}

fn only_child(pid: u32) -> Result<Option<u32>> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    Ok(text
        .split_whitespace()
        .next()
        .and_then(|child| child.parse().ok()))
}

/// Calls `ask` until it returns a value.
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        ensure!(Instant::now() < deadline, "in vain: {what}");
        thread::sleep(PAUSE);
    }
}
