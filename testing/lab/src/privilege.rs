//! Checks whether this process may create a laboratory, and records tests that are skipped because it may not.

use std::{env, fs::OpenOptions, io::Write as _};

use crate::kernel;

/// The environment variable with the file in which skipped tests record themselves, so that they never count as passed.
pub const SKIP_LOG: &str = "FLOW_AGENT_SKIP_LOG";

/// Returns true for root. Otherwise records the skip, and the test must return.
pub fn is_root_or_skip(test: &str) -> bool {
    let root = is_root();
    if !root {
        skip(test, "needs root");
    }
    root
}

/// Returns true in a virtual machine of `cargo xtask test-kernels`, for tests that affect the whole machine. Otherwise
/// records the skip, and the test must return.
pub fn is_virtual_machine_or_skip(test: &str, does: &str) -> bool {
    let is_one = env::var_os(kernel::EMULATED).is_some();
    if !is_one {
        skip(
            test,
            &format!("it {does}: `cargo xtask test-kernels` runs it in a virtual machine"),
        );
    }
    is_one
}

pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Records that `test` did not run, and why.
///
/// # Panics
///
/// If the record cannot be written: a skip must not look like a pass.
pub fn skip(test: &str, reason: &str) {
    eprintln!("skipped: {test}: {reason}");
    if let Some(path) = env::var_os(SKIP_LOG) {
        let mut log = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .expect("the skip log opens");
        // A single write, so that lines of parallel tests do not mix.
        log.write_all(format!("{test}: {reason}\n").as_bytes())
            .expect("the skip log is written");
    }
}
