//! The number of times that the kernel ran an agent's programs. The kernel counts the runs, and the count stays
//! readable after the agent has ended.

use std::{
    collections::BTreeSet,
    fs,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use aya::{
    programs::{ProgramFd, loaded_programs},
    sys::{Stats, enable_stats},
};

/// Keeps an agent's programs loaded. The kernel counts their runs while a [`Counting`] exists.
pub struct Runs {
    programs: Vec<ProgramFd>,
}

/// While it exists, the kernel counts the runs of all programs.
pub struct Counting {
    _stats: OwnedFd,
}

impl Counting {
    pub fn begin() -> Self {
        Self {
            _stats: enable_stats(Stats::RunTime).unwrap(),
        }
    }
}

impl Runs {
    /// The hook programs that a process has loaded.
    pub fn of(pid: u32) -> Self {
        let ids: BTreeSet<u32> = fs::read_dir(format!("/proc/{pid}/fdinfo"))
            .unwrap()
            .filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok())
            .filter_map(|info| number(&info, "prog_id:"))
            .map(|id| u32::try_from(id).unwrap())
            .collect();
        let programs: Vec<ProgramFd> = loaded_programs()
            .filter_map(Result::ok)
            .filter(|program| ids.contains(&program.id()))
            .filter(|program| matches!(program.name().get(..3), Some(b"tc_" | b"xdp")))
            .map(|program| program.fd().unwrap())
            .collect();
        assert!(!programs.is_empty(), "process {pid} has no programs");
        Self { programs }
    }

    pub fn count(&self) -> u64 {
        let runs = |program: &ProgramFd| {
            let fd = program.as_fd().as_raw_fd();
            let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
            number(&info, "run_cnt:").unwrap()
        };
        self.programs.iter().map(runs).sum()
    }
}

fn number(info: &str, name: &str) -> Option<u64> {
    let line = info.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
