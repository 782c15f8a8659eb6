//! What a process and BPF programs cost: ids come in, CPU time and memory go out.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::fd::OwnedFd,
    path::PathBuf,
};

use anyhow::{Context as _, Result};
use aya::{programs::loaded_programs, sys::Stats};

/// CPU time of a process, all threads, from `/proc/PID/task/*/schedstat`: nanoseconds, not ticks.
pub fn process_cpu_ns(pid: u32) -> Result<u64> {
    let tasks = PathBuf::from(format!("/proc/{pid}/task"));
    let mut sum = 0;
    for task in fs::read_dir(&tasks).with_context(|| format!("read {}", tasks.display()))? {
        let path = task?.path().join("schedstat");
        // A thread may end meanwhile.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        sum += text
            .split(' ')
            .next()
            .and_then(|field| field.parse::<u64>().ok())
            .with_context(|| format!("read {}", path.display()))?;
    }
    Ok(sum)
}

/// A process and all its descendants, as `/proc` shows them at the moment.
pub fn process_tree(root: u32) -> Result<BTreeSet<u32>> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").context("read /proc")? {
        let Some(pid) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if let Some(parent) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut tree = BTreeSet::new();
    let mut left = vec![root];
    while let Some(pid) = left.pop() {
        if tree.insert(pid) {
            left.extend(children.get(&pid).into_iter().flatten());
        }
    }
    Ok(tree)
}

fn parent_of(pid: u32) -> Option<u32> {
    // The name, in parentheses, may contain anything.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

/// Resident memory now and at most, as `proc_pid_status(5)` has it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resident {
    pub now_bytes: u64,
    pub peak_bytes: u64,
}

pub fn resident(pid: u32) -> Result<Resident> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let field = |name: &str| -> Result<u64> {
        let kib: u64 = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"))
            .with_context(|| format!("{path} has {name}"))?
            .parse()
            .with_context(|| format!("read {name} of {path}"))?;
        Ok(kib * 1024)
    };
    Ok(Resident {
        now_bytes: field("VmRSS:")?,
        peak_bytes: field("VmHWM:")?,
    })
}

/// Kernel memory of the BPF maps that a process holds by descriptor, each map once; maps inside
/// maps are counted where the process holds them too.
pub fn map_memory_bytes(pid: u32) -> Result<u64> {
    let folder = format!("/proc/{pid}/fdinfo");
    let mut maps = BTreeMap::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("read {folder}"))? {
        // A descriptor may be closed meanwhile.
        let Ok(text) = fs::read_to_string(entry?.path()) else {
            continue;
        };
        let field = |name: &str| -> Option<u64> {
            text.lines()
                .find_map(|line| line.strip_prefix(name))
                .and_then(|value| value.trim().parse().ok())
        };
        if let (Some(id), Some(bytes)) = (field("map_id:"), field("memlock:")) {
            maps.insert(id, bytes);
        }
    }
    Ok(maps.values().sum())
}

/// Run time and runs of programs, which the kernel counts while a [`Statistics`] lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramCost {
    pub run_time_ns: u64,
    pub runs: u64,
}

impl std::ops::Sub for ProgramCost {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            run_time_ns: self.run_time_ns - earlier.run_time_ns,
            runs: self.runs - earlier.runs,
        }
    }
}

impl ProgramCost {
    /// `None` where nothing ran.
    pub fn ns_per_run(self) -> Option<f64> {
        (self.runs != 0).then(|| self.run_time_ns as f64 / self.runs as f64)
    }
}

/// `BPF_ENABLE_STATS` (5.8): the kernel counts until it is dropped. Reading the clock twice costs
/// every run of every program some tens of nanoseconds meanwhile.
#[derive(Debug)]
pub struct Statistics {
    _fd: OwnedFd,
}

impl Statistics {
    pub fn enable() -> Result<Self> {
        let fd = aya::sys::enable_stats(Stats::RunTime)
            .context("switch on BPF statistics (needs CAP_SYS_ADMIN)")?;
        Ok(Self { _fd: fd })
    }
}

/// Ids of all programs in the kernel.
pub fn program_ids() -> Result<BTreeSet<u32>> {
    loaded_programs()
        .map(|program| Ok(program.context("list the programs")?.id()))
        .collect()
}

/// The sum over the given programs that are still there.
pub fn program_cost(ids: &BTreeSet<u32>) -> Result<ProgramCost> {
    let mut sum = ProgramCost::default();
    for program in loaded_programs() {
        let program = program.context("list the programs")?;
        if ids.contains(&program.id()) {
            sum.run_time_ns += u64::try_from(program.run_time().as_nanos()).unwrap_or(u64::MAX);
            sum.runs += program.run_count();
        }
    }
    Ok(sum)
}

/// Ids of the programs that a process holds by descriptor, directly or by a link.
pub fn held_program_ids(pid: u32) -> Result<BTreeSet<u32>> {
    let folder = format!("/proc/{pid}/fdinfo");
    let mut ids = BTreeSet::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("read {folder}"))? {
        // A descriptor may be closed meanwhile.
        let Ok(text) = fs::read_to_string(entry?.path()) else {
            continue;
        };
        ids.extend(
            text.lines()
                .filter_map(|line| line.strip_prefix("prog_id:"))
                .filter_map(|value| value.trim().parse::<u32>().ok()),
        );
    }
    Ok(ids)
}
