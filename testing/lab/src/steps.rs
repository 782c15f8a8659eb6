//! Kills a process at a chosen system call.

use std::{
    collections::BTreeSet,
    fs, io,
    mem::size_of,
    ptr,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use libc::{c_int, c_long, c_uint, c_void, pid_t};

/// `PTRACE_GET_SYSCALL_INFO` (Linux 5.3), and how it says that a call begins.
const GET_SYSCALL_INFO: c_uint = 0x420e;
const ENTRY: u8 = 1;
/// How `PTRACE_O_TRACESYSGOOD` marks a stop at a system call.
const AT_CALL: c_int = libc::SIGTRAP | 0x80;

/// How long to wait for the call.
const PATIENCE: Duration = Duration::from_mins(2);

/// The beginning of `struct ptrace_syscall_info`.
#[repr(C)]
#[derive(Default)]
struct Info {
    op: u8,
    arch: u32,
    at: [u64; 2],
    call: u64,
}

/// Waits until a process is about to make the `number`th of these system calls, counted from 1 in all of its threads.
/// Lets it go on for a while, and kills it.
///
/// The caller still has to wait for the end of the process.
pub fn kill_at(pid: u32, calls: &[c_long], number: usize, later: Duration) -> Result<()> {
    let process = Tracer(pid.cast_signed());
    let trace = || -> Result<()> {
        process.stop_at(calls, number)?;
        if later == Duration::ZERO {
            process.kill()?;
        }
        Ok(())
    };
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // A process that makes no such call any more ends the wait for it.
        let watched = &process;
        scope.spawn(move || {
            if is_done.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                drop(watched.kill());
            }
        });
        // The kernel knows a tracer by its thread, and lets its processes go on when that ends.
        let traced = scope.spawn(trace).join();
        drop(done);
        traced.expect("the tracer does not panic")
    })?;
    if later != Duration::ZERO {
        thread::sleep(later);
        process.kill()?;
    }
    Ok(())
}

struct Tracer(pid_t);

impl Tracer {
    /// Stops the thread that is about to make the call.
    fn stop_at(&self, calls: &[c_long], number: usize) -> Result<()> {
        self.seize()?;
        let mut counted = 0;
        loop {
            let (thread, call) = self.next_call()?;
            counted += usize::from(calls.contains(&call));
            if counted == number {
                return Ok(());
            }
            request(libc::PTRACE_SYSCALL, thread, 0)?;
        }
    }

    fn kill(&self) -> Result<()> {
        // SAFETY: no pointers.
        let killed = unsafe { libc::kill(self.0, libc::SIGKILL) };
        ensure!(killed == 0, "{}", io::Error::last_os_error());
        Ok(())
    }

    /// Traces all threads, including new ones.
    fn seize(&self) -> Result<()> {
        let mut seized = BTreeSet::new();
        loop {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.0)).context("list threads")?;
            let names = tasks.filter_map(|task| task.ok()?.file_name().into_string().ok());
            let threads: BTreeSet<pid_t> = names.filter_map(|name| name.parse().ok()).collect();
            if threads.is_subset(&seized) {
                return Ok(());
            }
            for &thread in threads.difference(&seized) {
                let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;
                let seized = request(libc::PTRACE_SEIZE, thread, options);
                match seized.and_then(|()| request(libc::PTRACE_INTERRUPT, thread, 0)) {
                    Ok(()) => {}
                    // It has ended, or its parent was traced already.
                    Err(error)
                        if [Some(libc::ESRCH), Some(libc::EPERM)]
                            .contains(&error.raw_os_error()) => {}
                    Err(error) => return Err(error).context("trace a thread"),
                }
            }
            seized.extend(threads);
        }
    }

    /// Lets all threads run until one is about to make a call.
    fn next_call(&self) -> Result<(pid_t, c_long)> {
        loop {
            let mut status = 0;
            // Only this thread's tracees.
            let flags = libc::__WALL | libc::__WNOTHREAD;
            // SAFETY: the pointer is to a local variable.
            let thread = unsafe { libc::waitpid(-1, &raw mut status, flags) };
            ensure!(
                thread > 0,
                "wait for a thread: {}",
                io::Error::last_os_error()
            );
            if !libc::WIFSTOPPED(status) {
                ensure!(thread != self.0, "the process ended before the call");
                continue;
            }
            let signal = match libc::WSTOPSIG(status) {
                AT_CALL => {
                    let mut info = Info::default();
                    let found = (&raw mut info).cast();
                    if trace(GET_SYSCALL_INFO, thread, size_of::<Info>(), found).is_ok()
                        && info.op == ENTRY
                    {
                        return Ok((thread, info.call.cast_signed()));
                    }
                    0
                }
                // An event of ptrace itself.
                _ if status >> 16 != 0 => 0,
                signal => signal,
            };
            match request(libc::PTRACE_SYSCALL, thread, signal) {
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                    bail!("go on with a thread: {error}");
                }
                _ => {}
            }
        }
    }
}

/// A request with a number.
fn request(request: c_uint, thread: pid_t, data: c_int) -> io::Result<()> {
    let data = ptr::without_provenance_mut(data.cast_unsigned() as usize);
    trace(request, thread, 0, data)
}

fn trace(request: c_uint, thread: pid_t, address: usize, data: *mut c_void) -> io::Result<()> {
    let address = ptr::without_provenance_mut::<c_void>(address);
    // SAFETY: where the kernel writes to `data`, `address` is the length of what is there.
    match unsafe { libc::ptrace(request, thread, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_ends_at_the_call_that_is_chosen() {
        for (number, expected) in [(1, "a\n"), (3, "a\nb\nc\n")] {
            // Its shell reads a line before each write, so that it is traced in time.
            let mut child = Command::new("sh")
                .args(["-c", "read -r line; echo a; echo b; echo c; echo d"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let pid = child.id();
            let tracer = thread::spawn(move || {
                kill_at(pid, &[libc::SYS_write], number + 1, Duration::ZERO).unwrap();
            });
            while !is_traced(pid) {
                thread::sleep(Duration::from_millis(1));
            }
            // From its first stop on, its calls are seen.
            thread::sleep(Duration::from_secs(1));
            drop(child.stdin.take());
            tracer.join().unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(!output.status.success());
            assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
        }
    }

    fn is_traced(pid: u32) -> bool {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        !status.contains("TracerPid:\t0\n")
    }
}
