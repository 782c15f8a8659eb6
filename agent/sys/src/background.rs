//! Threads whose work gives way to the scans, however long it takes.

use std::{io, thread};

use rustix::process::{getpid, getpriority_process, setpriority_process};

/// Works on a thread of its own, below the priority of the agent's other threads.
pub fn start(name: &'static str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name(name.to_owned());
    thread.spawn(move || {
        give_way(name);
        work();
    })?;
    Ok(())
}

/// Lowers the calling thread's priority below that of the process, whatever nice value that was started with. The kernel stops
/// at 19.
fn give_way(name: &str) {
    const NICER_BY: i32 = 5;
    // setpriority(2), "C library/kernel differences": without a process id, this affects the calling thread
    // only. With one, it is about the first thread.
    let nicer = getpriority_process(Some(getpid()))
        .and_then(|own| setpriority_process(None, own + NICER_BY));
    if let Err(error) = nicer {
        tracing::warn!(%error, thread = name, "a thread has the same priority as the scans");
    }
}
