//! Keeps a process from the CPU, or holds it to a share of one, until a guard is dropped.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use lab::Process;
use signal_hook::consts::{SIGCONT, SIGSTOP};

/// Stopped by SIGSTOP; continues when dropped, as it must before it can end.
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

/// A control group of our own with a quota of CPU, removed when dropped: after its processes.
#[derive(Debug)]
pub struct QuotaGroup {
    folder: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The groups' names' start; then follows our process id.
const PREFIX: &str = "flow-bench-";

/// A quota is so much of a period of 100 ms; the kernel takes none under 1 ms.
const PERIOD_US: u32 = 100_000;

impl QuotaGroup {
    /// An error where this host has no CPU controller that we may use.
    pub fn new() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("read /proc/self/mounts")?;
        let (parent, version) =
            cpu_controller(&mounts).context("no control group hierarchy has a CPU controller")?;
        remove_orphans(&parent);
        let folder = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        let group = Self { folder, version };
        let quota = group.quota_file();
        // With version 2 the parent decides which controllers its children have.
        ensure!(
            group.folder.join(quota).exists(),
            "{} has no {quota}",
            group.folder.display()
        );
        Ok(group)
    }

    /// Holds a process to so many percent of one CPU.
    pub fn hold(&self, pid: u32, percent: u32) -> Result<Held<'_>> {
        let held = Held(self);
        self.set(Some(PERIOD_US / 100 * percent))?;
        self.write("cgroup.procs", &pid.to_string())?;
        Ok(held)
    }

    fn quota_file(&self) -> &'static str {
        match self.version {
            Version::One => "cpu.cfs_quota_us",
            Version::Two => "cpu.max",
        }
    }

    fn set(&self, quota_us: Option<u32>) -> Result<()> {
        let value = match (self.version, quota_us) {
            (Version::One, None) => "-1".to_owned(),
            (Version::One, Some(quota_us)) => {
                self.write("cpu.cfs_period_us", &PERIOD_US.to_string())?;
                quota_us.to_string()
            }
            (Version::Two, None) => format!("max {PERIOD_US}"),
            (Version::Two, Some(quota_us)) => format!("{quota_us} {PERIOD_US}"),
        };
        self.write(self.quota_file(), &value)
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, value).with_context(|| format!("write {value} to {}", path.display()))
    }

    fn remove(&self) -> Result<()> {
        // The kernel takes a process out of its group shortly after it was reaped.
        for _ in 0..100 {
            match fs::remove_dir(&self.folder) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    thread::sleep(Duration::from_millis(10));
                }
                Err(error) => {
                    return Err(error).with_context(|| format!("remove {}", self.folder.display()));
                }
            }
        }
        bail!("{} still has processes", self.folder.display())
    }
}

impl Drop for QuotaGroup {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("{error:#}");
        }
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

/// Groups whose process is gone: it was killed before it could drop them. One that still has an agent
/// stays.
fn remove_orphans(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let owner = entry.file_name().into_string().ok();
        let owner = owner.and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            // The next run tries again.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Where `/proc/self/mounts` has the CPU controller. Version 1 has one for itself, if any.
fn cpu_controller(mounts: &str) -> Option<(PathBuf, Version)> {
    let find = |kind: &str, option: Option<&str>| {
        mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let folder = fields.next()?;
            let is_it = fields.next()? == kind
                && option.is_none_or(|option| {
                    fields
                        .next()
                        .is_some_and(|options| options.split(',').any(|one| one == option))
                });
            is_it.then(|| Path::new(folder).to_owned())
        })
    };
    find("cgroup", Some("cpu"))
        .map(|folder| (folder, Version::One))
        .or_else(|| find("cgroup2", None).map(|folder| (folder, Version::Two)))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::live::cost::process_cpu_ns;

    #[test]
    fn the_controller_is_where_the_mounts_say() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                      cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let unified = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let one = (PathBuf::from("/sys/fs/cgroup/cpu,cpuacct"), Version::One);
        let two = (PathBuf::from("/sys/fs/cgroup"), Version::Two);
        assert_eq!(cpu_controller(hybrid), Some(one));
        assert_eq!(cpu_controller(unified), Some(two));
        assert_eq!(cpu_controller("proc /proc proc rw 0 0\n"), None);
    }

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
                eprintln!("skipped: {error:#}");
                return;
            }
        };
        let folder = group.folder.clone();
        let mut busy = busy();
        let pid = busy.child().id();
        let held = group.hold(pid, 1).unwrap();
        thread::sleep(Duration::from_millis(200));
        let before = process_cpu_ns(pid).unwrap();
        thread::sleep(Duration::from_millis(500));
        let used_ns = process_cpu_ns(pid).unwrap() - before;
        // A hundredth, and the tick by which the kernel may be late.
        assert!(used_ns < 50_000_000, "{used_ns}");
        drop((held, busy));
        drop(group);
        assert!(!folder.exists());
    }

    fn busy() -> Process {
        Process::spawn(Command::new("sh").args(["-c", "while :; do :; done"])).unwrap()
    }
}
