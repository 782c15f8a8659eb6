//! Control groups that do not outlive a test.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

/// The prefix of our groups' names.
const PREFIX: &str = "flow-agent-lab-";
/// How long the kernel may take to release ended processes.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    One,
    Two,
}

/// An empty group. Dropping it kills its processes (version 2) or waits for them (version 1), and removes it with the
/// groups below it.
#[derive(Debug)]
pub struct ControlGroup {
    path: PathBuf,
    version: Version,
    /// Shows that its run is alive. A process id would not: runs may be in different PID namespaces.
    _lock: File,
}

impl ControlGroup {
    /// Creates a group under the hierarchy of a controller, such as `memory`. `limit` names the controller's file that
    /// must exist in each version.
    pub fn of(controller: &str, limit: impl Fn(Version) -> &'static str) -> Result<Self> {
        let (hierarchy, version) = hierarchy_of(controller, &mounts()?).with_context(|| {
            format!("no control group hierarchy has the controller {controller}")
        })?;
        let group = Self::new(&hierarchy, version, "")?;
        // In version 2 the parent decides which controllers its children have.
        let limit = group.path.join(limit(version));
        ensure!(limit.exists(), "{} is not there", limit.display());
        Ok(group)
    }

    /// A group whose subgroups look like systemd's, in the hierarchy of version 2. Its name is that of a slice.
    pub fn slice() -> Result<Self> {
        Self::in_unified(".slice")
    }

    /// Creates a group below this one, and makes `sh` join it, as [`run_by`](Self::run_by) does.
    pub fn run_below<'a>(&self, name: &str, sh: &'a mut Command) -> Result<&'a mut Command> {
        let below = self.path.join(name);
        fs::create_dir_all(&below).with_context(|| format!("make {}", below.display()))?;
        Ok(entering(&below, sh))
    }

    /// A group that only holds processes, in the hierarchy of version 2.
    pub fn unified() -> Result<Self> {
        Self::in_unified("")
    }

    fn in_unified(suffix: &str) -> Result<Self> {
        let mounts = mounts()?;
        let hierarchy = find(&mounts, "cgroup2", None);
        let hierarchy = hierarchy.context("no control groups are mounted (cgroup2)")?;
        Self::new(&hierarchy, Version::Two, suffix)
    }

    fn new(hierarchy: &Path, version: Version, suffix: &str) -> Result<Self> {
        remove_orphans(hierarchy);
        loop {
            let mut name = tempfile::Builder::new();
            let made = name.prefix(PREFIX).suffix(suffix).tempdir_in(hierarchy);
            let made = made.with_context(|| format!("make a group in {}", hierarchy.display()))?;
            let path = made.keep();
            // Before we locked it, another run may have removed it as an orphan.
            if let Some(lock) = locked(&path).filter(|_| path.exists()) {
                return Ok(Self {
                    path,
                    version,
                    _lock: lock,
                });
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// Makes `sh`, a shell command, join the group and then execute the program that the following arguments name.
    pub fn run_by<'a>(&self, sh: &'a mut Command) -> &'a mut Command {
        entering(&self.path, sh)
    }

    /// Writes to a file of the group, such as `memory.max` or `cgroup.procs`.
    pub fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.path.join(file);
        fs::write(&path, value).with_context(|| format!("write {value} to {}", path.display()))
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        if self.version == Version::Two {
            drop(fs::write(self.path.join("cgroup.kill"), "1"));
        }
        let deadline = Instant::now() + PATIENCE;
        while !remove(&self.path) {
            if Instant::now() >= deadline {
                eprintln!("{} still has processes", self.path.display());
                return;
            }
            thread::sleep(PAUSE);
        }
    }
}

fn entering<'a>(group: &Path, sh: &'a mut Command) -> &'a mut Command {
    sh.args(["-c", "echo $$ > \"$1\"; shift; exec \"$@\"", "sh"])
        .arg(group.join("cgroup.procs"))
}

/// Removes the groups of killed runs. A group with processes stays.
fn remove_orphans(hierarchy: &Path) {
    let entries = fs::read_dir(hierarchy).into_iter().flatten().flatten();
    for entry in entries {
        let is_ours = |name: &str| name.starts_with(PREFIX);
        if entry.file_name().to_str().is_some_and(is_ours)
            && let Some(_lock) = locked(&entry.path())
        {
            remove(&entry.path());
        }
    }
}

fn locked(group: &Path) -> Option<File> {
    let folder = File::open(group).ok()?;
    folder.try_lock().ok().map(|()| folder)
}

/// Removes a group and the groups below it. Returns whether it is gone.
fn remove(group: &Path) -> bool {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    drop(fs::remove_dir(group));
    !group.exists()
}

fn mounts() -> Result<String> {
    fs::read_to_string("/proc/self/mounts").context("read /proc/self/mounts")
}

/// The hierarchy of a controller. Prefers version 1, in which a controller has its own hierarchy.
fn hierarchy_of(controller: &str, mounts: &str) -> Option<(PathBuf, Version)> {
    find(mounts, "cgroup", Some(controller))
        .map(|folder| (folder, Version::One))
        .or_else(|| find(mounts, "cgroup2", None).map(|folder| (folder, Version::Two)))
}

/// The first mount of a file system type, with this option if one is given.
fn find(mounts: &str, kind: &str, option: Option<&str>) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let folder = fields.next()?;
        let is_it = fields.next()? == kind
            && option.is_none_or(|option| {
                let options = fields.next().unwrap_or_default();
                options.split(',').any(|one| one == option)
            });
        is_it.then(|| Path::new(folder).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_is_where_the_mounts_say() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                      cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let unified = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let one = (PathBuf::from("/sys/fs/cgroup/cpu,cpuacct"), Version::One);
        let two = |path| Some((PathBuf::from(path), Version::Two));
        assert_eq!(hierarchy_of("cpu", hybrid), Some(one));
        assert_eq!(
            hierarchy_of("memory", hybrid),
            two("/sys/fs/cgroup/unified")
        );
        assert_eq!(hierarchy_of("cpu", unified), two("/sys/fs/cgroup"));
        assert_eq!(hierarchy_of("cpu", "proc /proc proc rw 0 0\n"), None);
    }
}
