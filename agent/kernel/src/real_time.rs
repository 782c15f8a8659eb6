//! Whether two programs may interleave on one CPU of this kernel.
//!
//! The programs update accounts by plain adds, which are exact only if bottom halves exclude each other on a CPU.
//! Real-time kernels before 6.18 exclude them by a lock. From 6.18 on they may be built without that lock
//! (`__local_bh_disable_ip`, `CONFIG_PREEMPT_RT_NEEDS_BH_LOCK`).

use std::fs;

use aya::util::KernelVersion;

/// The consequence for the user if [`may_interleave`] is true.
pub const LOSS: &str = "a real-time kernel (PREEMPT_RT): programs may interleave on one CPU, lose or double counts \
     and, with --decapsulate, mistake one packet for another, so counts may not be exact";

const REALTIME: &str = "/sys/kernel/realtime";
const VERSION: &str = "/proc/sys/kernel/version";

pub fn may_interleave() -> bool {
    // The first file exists only on real-time kernels. The second one says so in its text.
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let is_real_time = is_real_time(&read(REALTIME), &read(VERSION));
    KernelVersion::current().is_ok_and(|kernel| interleaves(is_real_time, kernel))
}

/// Warns at the start that exactness is not promised.
pub fn warn_if(may_interleave: bool) {
    if may_interleave {
        tracing::warn!("{LOSS}");
    }
}

fn interleaves(is_real_time: bool, kernel: KernelVersion) -> bool {
    is_real_time && kernel >= KernelVersion::new(6, 18, 0)
}

fn is_real_time(realtime: &str, version: &str) -> bool {
    realtime.trim() == "1" || version.split_whitespace().any(|word| word == "PREEMPT_RT")
}

#[cfg(test)]
mod tests {
    use lab::log::logged;

    use super::*;

    #[test]
    fn the_start_says_that_exactness_is_not_promised() {
        assert_eq!(logged(|| warn_if(false)), "");
        let log = logged(|| warn_if(true));
        assert!(
            log.contains("WARN") && log.contains("counts may not be exact"),
            "{log}"
        );
    }

    #[test]
    fn a_real_time_kernel_is_known_by_either_file() {
        for (realtime, version, expected) in [
            ("1\n", "", true),
            ("", "#1 SMP PREEMPT_RT Debian 6.18.4-1 (2026-01-10)\n", true),
            ("0\n", "#1 SMP PREEMPT_DYNAMIC Debian 6.12.9-1\n", false),
            ("", "#1 SMP PREEMPT_RTX Debian\n", false),
            ("", "", false),
        ] {
            assert_eq!(
                is_real_time(realtime, version),
                expected,
                "{realtime}{version}"
            );
        }
    }

    #[test]
    fn real_time_kernels_may_interleave_from_6_18_on() {
        for (is_real_time, minor, expected) in [
            (true, 17, false),
            (true, 18, true),
            (true, 19, true),
            (false, 18, false),
        ] {
            let kernel = KernelVersion::new(6, minor, 0);
            assert_eq!(interleaves(is_real_time, kernel), expected, "6.{minor}");
        }
        assert!(interleaves(true, KernelVersion::new(7, 0, 0)));
        assert!(!interleaves(true, KernelVersion::new(6, 17, 13)));
    }
}
