//! The kernel under a test: its version and how fast it runs come out, for tests that need something
//! newer or send fewer packets where each takes long.

use std::{env, fs};

/// Set where an emulator runs the kernel, some thirty times slower than a CPU would.
pub const EMULATED: &str = "FLOW_AGENT_EMULATED";

/// So many packets, or bytes, or a small part of them in an emulator.
pub fn packets(many: u64, few: u64) -> u64 {
    if env::var_os(EMULATED).is_some() {
        few
    } else {
        many
    }
}

/// Whether this kernel has what came with version `major.minor`.
///
/// # Panics
///
/// Where the kernel does not tell its version.
pub fn is_at_least(major: u32, minor: u32) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    version(&release) >= Some((major, minor))
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_begins_with_its_version() {
        assert_eq!(version("6.1.0-46-cloud-amd64\n"), Some((6, 1)));
        assert_eq!(version("6.12+deb13"), Some((6, 12)));
        assert!(version("6.12.0") > Some((6, 6)));
    }
}
