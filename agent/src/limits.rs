//! How many files this process may open: the soft limit is raised to the hard one.
//!
//! systemd leaves the soft limit at 1,024 for programs that use select(2) (systemd.exec, `LimitNOFILE=`),
//! and each attached program takes a descriptor.

use std::{io, mem::MaybeUninit};

use anyhow::{Context as _, Result, ensure};

/// For maps, programs, listeners, consumers and the log.
const OTHERS: u64 = 64;

/// Fails where `attachments` descriptors and those of everything else cannot be open at once.
pub fn raise_open_files(attachments: usize) -> Result<()> {
    let mut limit = limit().context("ask for the limit of open files")?;
    let needed = attachments as u64 + OTHERS;
    ensure!(
        needed <= limit.rlim_max,
        "{attachments} hooks need {needed} open files, and the limit of open files is {}: raise it \
         (ulimit -Hn, LimitNOFILE= in the unit), or choose fewer interfaces",
        limit.rlim_max
    );
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the limit outlives the call, which only reads it.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).context("raise the limit of open files"),
    }
}

fn limit() -> io::Result<libc::rlimit> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: the kernel writes one `rlimit` to the pointer, which is valid for that.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: getrlimit answered 0, so it wrote the whole struct.
    Ok(unsafe { limit.assume_init() })
}
