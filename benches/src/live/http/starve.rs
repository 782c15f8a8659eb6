//! Takes the CPU away from a process, or limits its share of one, until a guard is dropped.

use anyhow::Result;
use lab::{ControlGroup, Process, control_group::Version};
use signal_hook::consts::{SIGCONT, SIGSTOP};

/// A process stopped by SIGSTOP. Dropping the guard continues it, without which it could not exit.
pub struct Stopped<'a>(&'a Process);

impl<'a> Stopped<'a> {
    pub fn new(process: &'a Process) -> Result<Self> {
        process.signal(SIGSTOP)?;
        Ok(Self(process))
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.signal(SIGCONT) {
            eprintln!("{error:#}");
        }
    }
}

/// A control group with a CPU quota.
#[derive(Debug)]
pub struct QuotaGroup(ControlGroup);

/// The period of a quota, 100 ms. The kernel accepts no quota below 1 ms.
const PERIOD_US: u32 = 100_000;

impl QuotaGroup {
    /// Fails if this host has no CPU controller that we may use.
    pub fn new() -> Result<Self> {
        ControlGroup::of("cpu", quota_file).map(Self)
    }

    /// Limits a process to `percent` of one CPU.
    pub fn hold(&self, pid: u32, percent: u32) -> Result<Held<'_>> {
        let held = Held(self);
        self.set(Some(PERIOD_US / 100 * percent))?;
        self.0.write("cgroup.procs", &pid.to_string())?;
        Ok(held)
    }

    fn set(&self, quota_us: Option<u32>) -> Result<()> {
        let value = match (self.0.version(), quota_us) {
            (Version::One, None) => "-1".to_owned(),
            (Version::One, Some(quota_us)) => {
                self.0.write("cpu.cfs_period_us", &PERIOD_US.to_string())?;
                quota_us.to_string()
            }
            (Version::Two, None) => format!("max {PERIOD_US}"),
            (Version::Two, Some(quota_us)) => format!("{quota_us} {PERIOD_US}"),
        };
        self.0.write(quota_file(self.0.version()), &value)
    }
}

fn quota_file(version: Version) -> &'static str {
    match version {
        Version::One => "cpu.cfs_quota_us",
        Version::Two => "cpu.max",
    }
}

/// Lifts the quota when dropped; the process stays in the group.
pub struct Held<'a>(&'a QuotaGroup);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.set(None) {
            eprintln!("{error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{process::Command, thread, time::Duration};

    use super::*;
    use crate::live::cost::process_cpu_ns;

    #[test]
    fn a_stopped_process_does_nothing_until_the_guard_is_dropped() {
        let mut busy = busy();
        let pid = busy.child().id();
        let used = |busy_for: Duration| {
            let before = process_cpu_ns(pid).unwrap();
            thread::sleep(busy_for);
            process_cpu_ns(pid).unwrap() - before
        };
        let stopped = Stopped::new(&busy).unwrap();
        thread::sleep(Duration::from_millis(50));
        assert_eq!(used(Duration::from_millis(100)), 0);
        drop(stopped);
        assert!(used(Duration::from_millis(200)) > 0);
    }

    #[test]
    fn a_held_process_gets_its_share_until_the_guard_is_dropped() {
        let group = match QuotaGroup::new() {
            Ok(group) => group,
            Err(error) => {
                let test = "benches::a_held_process_gets_its_share_until_the_guard_is_dropped";
                return lab::privilege::skip(test, &format!("{error:#}"));
            }
        };
        let folder = group.0.path().to_owned();
        let mut busy = busy();
        let pid = busy.child().id();
        let held = group.hold(pid, 1).unwrap();
        thread::sleep(Duration::from_millis(200));
        let before = process_cpu_ns(pid).unwrap();
        thread::sleep(Duration::from_millis(500));
        let used_ns = process_cpu_ns(pid).unwrap() - before;
        // One percent, plus a tick, since the kernel may enforce the quota that late.
        assert!(used_ns < 50_000_000, "{used_ns}");
        drop((held, busy));
        drop(group);
        assert!(!folder.exists());
    }

    fn busy() -> Process {
        Process::spawn(Command::new("sh").args(["-c", "while :; do :; done"])).unwrap()
    }
}
