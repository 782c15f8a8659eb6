//! Checks whether this kernel's verifier accepts the agent's own programs. Nothing is attached, and what was
//! loaded is freed at the end.

use anyhow::Result;

use super::Check;
use crate::kernel::{
    attach,
    layout::Layout,
    links::netns_inode,
    load::{Kernel, LoadSettings, OBJECT, secret_factors},
};

pub(super) fn programs(layout: &Layout) -> [Check; 2] {
    let plain = match load(layout, false) {
        Ok(()) => Check::ok("programs", "the kernel takes all of the agent's programs"),
        Err(error) => Check::missing(
            "programs",
            format!("{error:#}"),
            "see `bpf` and the capabilities above; else report it with the kernel's version",
        ),
    };
    let decapsulating = match load(layout, true) {
        Ok(()) => Check::ok("decapsulation", "and with --decapsulate too"),
        Err(error) => Check::warn(
            "decapsulation",
            format!("{error:#}"),
            "run without --decapsulate, and report it with the kernel's version",
        ),
    };
    [plain, decapsulating]
}

fn load(layout: &Layout, decapsulate: bool) -> Result<()> {
    let settings = LoadSettings {
        min_flows: 1,
        max_flows: 1,
        max_fragments: 1,
        decapsulate,
        early_scan_flows: 0,
        netns: vec![netns_inode()?],
        max_interfaces: 1,
        sample_rate: 0,
        log_level: 0,
        hash_factors: secret_factors(),
    };
    let mut kernel = Kernel::load_with(OBJECT, &settings, layout)?;
    attach::load_all(&mut kernel.sets[0].programs)
}
