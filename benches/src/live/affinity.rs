//! CPU affinity and priority of threads: the sender gets a CPU to itself, and whatever is measured runs on the others.

use std::{fs, io};

use anyhow::{Context as _, Result};
use rustix::{
    io::Errno,
    process::{Pid, getpriority_process, setpriority_process},
    thread::{CpuSet, sched_setaffinity},
};

/// Restricts the calling thread to this CPU.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("pin a thread to CPU {cpu}"))
}

/// Raises the priority of the calling thread, and of whatever it starts, until dropped. Otherwise other work on the
/// machine would take CPU from the capture and slow the sender down.
pub struct Hurry {
    nice_before: i32,
}

impl Hurry {
    const NICE: i32 = -10;

    pub fn begin() -> Result<Self> {
        let nice_before = getpriority_process(None).context("read the bench's priority")?;
        setpriority_process(None, Self::NICE).context("raise the bench's priority")?;
        Ok(Self { nice_before })
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        // Lowering one's own priority is never refused.
        let _ = setpriority_process(None, self.nice_before);
    }
}

/// Gives the calling thread, and whatever it starts, real-time priority until dropped. Like a network card's
/// interrupts, it then preempts every thread that is not real-time, whatever its `CPUWeight=` or nice value.
pub struct RealTime;

impl RealTime {
    pub fn begin() -> Result<Self> {
        set_policy(libc::SCHED_FIFO, 1).context("put the sender before all services")?;
        Ok(Self)
    }
}

impl Drop for RealTime {
    fn drop(&mut self) {
        // Giving up a priority is never refused.
        let _ = set_policy(libc::SCHED_OTHER, 0);
    }
}

/// Sets the scheduling policy of the calling thread.
fn set_policy(policy: i32, priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the kernel only reads the parameters, which outlive the call.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Keeps all threads of the process, and the threads that they start later, off this CPU.
fn keep_off(pid: u32, cpu: usize) -> Result<()> {
    let others = others(cpu);
    each_thread(pid, |thread| sched_setaffinity(Some(thread), &others))
        .with_context(|| format!("keep process {pid} off CPU {cpu}"))
}

/// Sets the nice value of all threads of the process, which threads that they start later inherit.
pub fn set_nice(pid: u32, nice: i32) -> Result<()> {
    each_thread(pid, |thread| setpriority_process(Some(thread), nice))
        .with_context(|| format!("give process {pid} the nice value {nice}"))
}

fn each_thread(pid: u32, act: impl Fn(Pid) -> rustix::io::Result<()>) -> Result<()> {
    let tasks = format!("/proc/{pid}/task");
    for task in fs::read_dir(&tasks).with_context(|| format!("read {tasks}"))? {
        let name = task?.file_name();
        let task = name.to_str().and_then(|name| name.parse().ok());
        let Some(thread) = task.and_then(Pid::from_raw) else {
            continue;
        };
        match act(thread) {
            // The thread has ended in the meantime.
            Err(Errno::SRCH) => {}
            result => result.with_context(|| format!("thread {thread:?}"))?,
        }
    }
    Ok(())
}

/// The CPU for the sender: the last one if there are several, since interrupts mostly go to the first ones.
pub fn sender_cpu() -> Option<usize> {
    let cpus = cpus();
    (cpus > 1).then(|| cpus - 1)
}

/// Keeps the process off the sender's CPU.
pub fn keep_off_sender(pid: u32) -> Result<()> {
    sender_cpu().map_or(Ok(()), |cpu| keep_off(pid, cpu))
}

/// The same for the calling thread and the threads that it starts.
pub fn keep_this_thread_off_sender() -> Result<()> {
    sender_cpu().map_or(Ok(()), |cpu| {
        sched_setaffinity(None, &others(cpu)).context("keep a thread off the sender's CPU")
    })
}

fn others(cpu: usize) -> CpuSet {
    let mut others = CpuSet::new();
    for other in (0..cpus()).filter(|&other| other != cpu) {
        others.set(other);
    }
    others
}

pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
