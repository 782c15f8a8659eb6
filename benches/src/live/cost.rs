//! The CPU time of processes and BPF programs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use aya::{programs::loaded_programs, sys::Stats};

/// CPU time of a process with all its threads, including threads that have ended, in nanoseconds rather than ticks
/// (`clock_getcpuclockid(3)`).
pub fn process_cpu_ns(pid: u32) -> Result<u64> {
    let mut clock = 0;
    // SAFETY: the kernel writes the clock id, which outlives the call.
    let error = unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error))
            .with_context(|| format!("find the CPU clock of process {pid}"));
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes the time, which outlives the call.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error())
            .with_context(|| format!("read the CPU clock of process {pid}"));
    }
    Ok(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}

/// The sum of the CPU times of these processes. A process that has ended counts as zero.
pub fn cpu_ns(pids: &BTreeSet<u32>) -> u64 {
    let of = |pid: &u32| process_cpu_ns(*pid).unwrap_or_default();
    pids.iter().map(of).sum()
}

/// CPU time of all child processes that this process has waited for, and of descendants that those have waited for.
pub fn ended_children_cpu_ns() -> Result<u64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel writes the usage, which outlives the call.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error()).context("ask for the CPU time of ended processes");
    }
    // SAFETY: the successful call has initialised the whole structure.
    let usage = unsafe { usage.assume_init() };
    let ns = |time: libc::timeval| {
        time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_usec.unsigned_abs() * 1_000
    };
    Ok(ns(usage.ru_utime) + ns(usage.ru_stime))
}

/// CPU time as percent of one core.
pub fn cpu_percent(cpu_ns: u64, window: Duration) -> f64 {
    100.0 * cpu_ns as f64 / window.as_nanos() as f64
}

/// Measures the CPU time of processes from its start on.
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

    /// CPU time of all processes that it was started with, in percent of one core.
    pub fn percent(&self) -> Result<f64> {
        let mut sum_ns = 0;
        for (&pid, before_ns) in &self.before_ns {
            sum_ns += process_cpu_ns(pid)?.saturating_sub(*before_ns);
        }
        Ok(cpu_percent(sum_ns, self.started.elapsed()))
    }

    /// CPU time of `pids`, in percent of one core. Processes that started in the meantime count in full; ones that have
    /// ended count as zero.
    pub fn percent_of(&self, pids: &BTreeSet<u32>) -> f64 {
        let of = |pid| {
            let before_ns = self.before_ns.get(pid).copied().unwrap_or_default();
            process_cpu_ns(*pid).map_or(0, |now_ns| now_ns.saturating_sub(before_ns))
        };
        cpu_percent(pids.iter().map(of).sum(), self.started.elapsed())
    }
}

/// A process and all its current descendants, from `/proc`.
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

/// Whether a process sleeps (`S` in `proc_pid_stat(5)`) or has ended.
pub fn is_asleep(pid: u32) -> bool {
    stat_of(pid).is_none_or(|stat| stat.starts_with('S'))
}

fn parent_of(pid: u32) -> Option<u32> {
    stat_of(pid)?.split_whitespace().nth(1)?.parse().ok()
}

/// The fields of `/proc/PID/stat` after the name: the state, the parent and so on.
fn stat_of(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.trim_start().to_owned())
}

/// The run time and the number of runs of some programs during a period.
#[derive(Clone, Copy, Debug)]
pub struct ProgramCost {
    pub run_time_ns: u64,
    pub runs: u64,
    elapsed: Duration,
}

impl ProgramCost {
    /// `None` if nothing ran.
    pub fn ns_per_run(self) -> Option<f64> {
        (self.runs != 0).then(|| self.run_time_ns as f64 / self.runs as f64)
    }

    /// Run time as percent of one core.
    pub fn cpu_percent(self) -> f64 {
        cpu_percent(self.run_time_ns, self.elapsed)
    }
}

/// Measures the programs while `work` runs, and returns its result too.
///
/// Enables the kernel's statistics (`BPF_ENABLE_STATS`, 5.8) only for this period: they read the clock twice per run of
/// every program, which costs some tens of nanoseconds.
pub fn programs_during<T>(
    ids: &BTreeSet<u32>,
    work: impl FnOnce() -> Result<T>,
) -> Result<(ProgramCost, T)> {
    let _statistics = aya::sys::enable_stats(Stats::RunTime)
        .context("switch on BPF statistics (needs CAP_SYS_ADMIN)")?;
    let (started, before) = (Instant::now(), run_time_and_runs(ids)?);
    let answer = work()?;
    let after = run_time_and_runs(ids)?;
    let cost = ProgramCost {
        // The counts of a program that was unloaded in the meantime are lost.
        run_time_ns: after.0.saturating_sub(before.0),
        runs: after.1.saturating_sub(before.1),
        elapsed: started.elapsed(),
    };
    Ok((cost, answer))
}

/// Ids of all programs in the kernel.
pub fn program_ids() -> Result<BTreeSet<u32>> {
    loaded_programs()
        .map(|program| Ok(program.context("list the programs")?.id()))
        .collect()
}

/// Total nanoseconds and runs of the given programs that are still loaded.
fn run_time_and_runs(ids: &BTreeSet<u32>) -> Result<(u64, u64)> {
    let mut sum = (0, 0);
    for program in loaded_programs() {
        let program = program.context("list the programs")?;
        if ids.contains(&program.id()) {
            sum.0 += u64::try_from(program.run_time().as_nanos()).unwrap_or(u64::MAX);
            sum.1 += program.run_count();
        }
    }
    Ok(sum)
}
