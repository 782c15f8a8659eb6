//! Checks of the kernel facts that everyone can read in /proc and /sys: release, JIT and BTF.

use std::fs;

use anyhow::{Context as _, Result};
use kernel::{
    layout::{self, Layout},
    real_time,
};

use super::Check;

/// The oldest kernel that the agent supports and is tested on.
const FLOOR: (u32, u32) = (6, 1);
/// The oldest kernel with everything that the programs need. Untested.
const UNTESTED_FROM: (u32, u32) = (5, 15);

const JIT: &str = "/proc/sys/net/core/bpf_jit_enable";

/// A kernel release such as `6.1.0-13-amd64`.
pub(super) struct Release {
    text: String,
    version: (u32, u32),
}

impl Release {
    pub(super) fn of_this_kernel() -> Result<Self> {
        let path = "/proc/sys/kernel/osrelease";
        let text = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
        Self::parse(text.trim()).with_context(|| format!("understand {path}: {}", text.trim()))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text
            .split(|character: char| !character.is_ascii_digit())
            .map(|number| number.parse().ok());
        let version = (numbers.next()??, numbers.next()??);
        let text = text.to_owned();
        Some(Self { text, version })
    }

    pub(super) fn is_at_least(&self, major: u32, minor: u32) -> bool {
        self.version >= (major, minor)
    }
}

pub(super) fn kernel(release: &Release) -> Check {
    let (major, minor) = FLOOR;
    let older = format!("{} is older than {major}.{minor}", release.text);
    let remedy = format!("use a kernel from {major}.{minor}");
    if release.is_at_least(major, minor) {
        Check::ok("kernel", release.text.as_str())
    } else if release.is_at_least(UNTESTED_FROM.0, UNTESTED_FROM.1) {
        let untested = format!("{older}: the programs should load, which is not tested");
        Check::warn("kernel", untested, remedy)
    } else {
        Check::missing("kernel", older, remedy)
    }
}

pub(super) fn jit() -> Check {
    let name = "jit";
    // The file exists only in the initial network namespace.
    match fs::read_to_string(JIT) {
        Err(error) => Check::ok(
            name,
            format!("unknown ({JIT}: {error}); a kernel with CONFIG_BPF_JIT_ALWAYS_ON has it on"),
        ),
        Ok(value) if value.trim() == "0" => Check::warn(
            name,
            "off: programs are interpreted, several times slower",
            "sysctl net.core.bpf_jit_enable=1",
        ),
        Ok(value) => Check::ok(name, format!("on (bpf_jit_enable={})", value.trim())),
    }
}

/// `may_interleave` is whether the kernel may be a [`real_time`] one.
pub(super) fn preemption(may_interleave: bool) -> Check {
    let name = "preemption";
    if may_interleave {
        Check::warn(name, real_time::LOSS, "use a kernel without PREEMPT_RT")
    } else {
        Check::ok(
            name,
            "programs do not interleave on a CPU: counts are exact",
        )
    }
}

/// `layout` is the result of reading the kernel's BTF.
pub(super) fn btf(layout: &Result<Layout>) -> Check {
    match layout {
        Ok(_) => Check::ok(
            "btf",
            "it says how super-frames (GSO, GRO) are cut, and in which network namespace an interface is",
        ),
        Err(error) => Check::warn(
            "btf",
            format!("{}: {error:#}", layout::LOSS),
            layout::REMEDY,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Status, *};

    #[test]
    fn releases_compare_by_number() {
        for (text, status) in [
            ("6.1.0-13-amd64", true),
            ("6.12", true),
            ("5.19.16", false),
            ("4.19.0", false),
            ("6-rc", false),
        ] {
            let release = Release::parse(text);
            assert_eq!(
                release.is_some_and(|release| release.is_at_least(6, 1)),
                status,
                "{text}"
            );
        }
    }

    #[test]
    fn an_old_kernel_is_missing_and_an_untested_one_says_so() {
        for (text, status) in [
            ("6.1.0-13-amd64", Status::Ok),
            ("6.0.19", Status::Warn),
            ("5.15.0", Status::Warn),
            ("5.14.21", Status::Missing),
            ("5.10.0", Status::Missing),
        ] {
            let release = Release::parse(text).unwrap();
            assert_eq!(kernel(&release).status, status, "{text}");
        }
    }

    #[test]
    fn programs_that_may_interleave_are_warned_of() {
        for (may_interleave, status) in [(true, Status::Warn), (false, Status::Ok)] {
            assert_eq!(preemption(may_interleave).status, status);
        }
    }
}
