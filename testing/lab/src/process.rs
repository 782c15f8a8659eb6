//! A program that a test starts and that does not outlive the value.

use std::{
    io,
    os::unix::process::CommandExt as _,
    process::{Child, Command, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// The program that enters a namespace.
pub(crate) const ENTER: &str = "nsenter";
/// A command that makes another one die with the thread that started it.
pub(crate) const DYING_WITH_PARENT: [&str; 3] = ["setpriv", "--pdeathsig", "KILL"];

/// A running program. Dropping it kills the program. The kernel kills it if the thread that started it ends first
/// (`PR_SET_PDEATHSIG`), so it does not outlive a killed test.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
}

impl Process {
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let dies_with_parent = command.get_args().any(|word| word == DYING_WITH_PARENT[1]);
        let name = if dies_with_parent {
            // Skip the options of nsenter and setpriv.
            command.get_args().nth(1 + DYING_WITH_PARENT.len())
        } else {
            Some(command.get_program())
        };
        let name = name.unwrap_or_default().to_string_lossy().into_owned();
        if !dies_with_parent {
            // SAFETY: between fork and exec, the closure makes one system call and touches no memory.
            unsafe { command.pre_exec(die_with_parent) };
        }
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        Ok(Self { child, name })
    }

    /// Gives access to its process id and pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Asks it to stop and waits until it has.
    pub fn terminate(&mut self, timeout: Duration) -> Result<ExitStatus> {
        self.signal(libc::SIGTERM)?;
        self.wait(timeout)
    }

    pub fn signal(&self, signal: i32) -> Result<()> {
        // SAFETY: no pointers. The id is our child's, which is not reaped while we hold it.
        let result = unsafe { libc::kill(self.child.id().cast_signed(), signal) };
        if result != 0 {
            return Err(io::Error::last_os_error())
                .with_context(|| format!("send signal {signal} to {}", self.name));
        }
        Ok(())
    }

    /// Its exit status, `None` while it runs.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .with_context(|| format!("ask after {}", self.name))
    }

    /// Waits until it exits on its own.
    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("{} still runs after {timeout:?}", self.name);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn die_with_parent() -> io::Result<()> {
    // SAFETY: the call takes no pointers.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail harmlessly if it has already exited.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_process_ends_when_asked_and_when_dropped() {
        let sleep = || Process::spawn(Command::new("sleep").arg("60")).unwrap();
        let mut asked = sleep();
        assert_eq!(asked.exited().unwrap(), None);
        assert!(!asked.terminate(Duration::from_mins(1)).unwrap().success());

        let mut dropped = sleep();
        let id = dropped.child().id();
        drop(dropped);
        assert!(!Path::new("/proc").join(id.to_string()).exists());
    }
}
