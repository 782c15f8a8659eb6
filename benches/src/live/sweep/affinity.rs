//! Where and how urgently threads run: the sender has a CPU to itself, what is measured the others.

use std::{fs, io, mem::size_of_val, mem::zeroed};

use anyhow::{Context as _, Result};

/// The calling thread runs on this CPU only.
pub fn pin(cpu: usize) -> Result<()> {
    set(0, &[cpu]).with_context(|| format!("pin a thread to CPU {cpu}"))
}

/// While it lives, the calling thread, and what it starts, go before others: what else the machine
/// does would starve the capture of CPU and the sender of its rate.
pub struct Hurry {
    nice_before: libc::c_int,
}

impl Hurry {
    const NICE: libc::c_int = -10;

    pub fn begin() -> Result<Self> {
        // SAFETY: no pointers are passed; 0 is the calling thread.
        let nice_before = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        set_nice(Self::NICE).context("raise the bench's priority")?;
        Ok(Self { nice_before })
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        // Lowering one's own priority is never refused.
        let _ = set_nice(self.nice_before);
    }
}

fn set_nice(nice: libc::c_int) -> io::Result<()> {
    // SAFETY: no pointers are passed; 0 is the calling thread.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// All threads of the process, and those that they will start, run on any CPU but this.
pub fn keep_off(pid: u32, cpu: usize) -> Result<()> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let others: Vec<usize> = (0..cpus).filter(|&other| other != cpu).collect();
    let tasks = format!("/proc/{pid}/task");
    for task in fs::read_dir(&tasks).with_context(|| format!("read {tasks}"))? {
        let name = task?.file_name();
        let Some(task) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        match set(task, &others) {
            // The thread has ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            result => result.with_context(|| format!("keep thread {task} off CPU {cpu}"))?,
        }
    }
    Ok(())
}

/// 0 is the calling thread.
fn set(thread: libc::pid_t, cpus: &[usize]) -> io::Result<()> {
    // SAFETY: all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    for &cpu in cpus {
        if cpu >= size_of_val(&set) * 8 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the CPU was checked against the size of the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the set outlives the call, and its size is given.
    match unsafe { libc::sched_setaffinity(thread, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
