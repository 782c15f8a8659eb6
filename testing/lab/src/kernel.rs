//! The version and the speed of the running kernel, for tests that need a newer one or send fewer packets on a slow
//! one.

use std::{env, fs};

/// The environment variable that is set if the kernel runs in an emulator, some thirty times slower than a CPU.
pub const EMULATED: &str = "FLOW_AGENT_EMULATED";

/// The number of packets, bytes or rounds: `many`, or `few` in an emulator.
pub fn packets(many: u64, few: u64) -> u64 {
    if env::var_os(EMULATED).is_some() {
        few
    } else {
        many
    }
}

/// Whether this kernel is version `major.minor` or newer.
///
/// # Panics
///
/// If the kernel's version cannot be read.
pub fn is_at_least(major: u32, minor: u32) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    version(&release) >= Some((major, minor))
}

/// Whether programs can be attached by TCX.
pub fn has_tcx() -> bool {
    is_at_least(6, 6)
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
