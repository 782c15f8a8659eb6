//! What a process and BPF programs cost: ids come in, CPU time and memory go out.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use aya::{programs::loaded_programs, sys::Stats};

/// CPU time of a process with all threads, those that have ended too: nanoseconds, not ticks
/// (`clock_getcpuclockid(3)`).
pub fn process_cpu_ns(pid: u32) -> Result<u64> {
    let mut clock = 0;
    // SAFETY: the id of the clock outlives the call, which writes it.
    let error = unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error))
            .with_context(|| format!("find the CPU clock of process {pid}"));
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time outlives the call, which writes it.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error())
            .with_context(|| format!("read the CPU clock of process {pid}"));
    }
    Ok(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}

/// As percent of one core.
pub fn cpu_percent(cpu_ns: u64, window: Duration) -> f64 {
    100.0 * cpu_ns as f64 / window.as_nanos() as f64
}

/// The CPU that processes take from its start on.
pub struct CpuMeter {
    started: Instant,
    before_ns: BTreeMap<u32, u64>,
}

impl CpuMeter {
    pub fn start(pids: impl IntoIterator<Item = u32>) -> Result<Self> {
        let started = Instant::now();
        let before = pids.into_iter().map(|pid| Ok((pid, process_cpu_ns(pid)?)));
        Ok(Self {
            started,
            before_ns: before.collect::<Result<_>>()?,
        })
    }

    /// Of all processes that it was started with, in percent of one core.
    pub fn percent(&self) -> Result<f64> {
        let mut sum_ns = 0;
        for (&pid, before_ns) in &self.before_ns {
            sum_ns += process_cpu_ns(pid)?.saturating_sub(*before_ns);
        }
        Ok(cpu_percent(sum_ns, self.started.elapsed()))
    }

    /// Of the processes that there are in the end, those that came meanwhile too; what ended
    /// meanwhile is left out.
    pub fn percent_of(&self, pids: &BTreeSet<u32>) -> f64 {
        let of = |pid| {
            let before_ns = self.before_ns.get(pid).copied().unwrap_or_default();
            process_cpu_ns(*pid).map_or(0, |now_ns| now_ns.saturating_sub(before_ns))
        };
        cpu_percent(pids.iter().map(of).sum(), self.started.elapsed())
    }
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
            // A program that was unloaded meanwhile takes its share away.
            run_time_ns: self.run_time_ns.saturating_sub(earlier.run_time_ns),
            runs: self.runs.saturating_sub(earlier.runs),
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

/// What the programs took while `work` ran, with the time that it took and its answer. Only for this
/// time does the kernel count.
pub fn programs_during<T>(
    ids: &BTreeSet<u32>,
    work: impl FnOnce() -> Result<T>,
) -> Result<(ProgramCost, Duration, T)> {
    let statistics = Statistics::enable()?;
    let (started, before) = (Instant::now(), program_cost(ids)?);
    let answer = work()?;
    let cost = program_cost(ids)? - before;
    let elapsed = started.elapsed();
    drop(statistics);
    Ok((cost, elapsed, answer))
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
