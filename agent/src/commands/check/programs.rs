//! Checks whether this kernel's verifier accepts the agent's own programs. Nothing is attached, and what was
//! loaded is freed at the end.

use anyhow::Result;

use super::Check;
use crate::kernel::{
    attach,
    layout::{self, Layout},
    links::netns_inode,
    load::{Kernel, LoadSettings, OBJECT},
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

/// What a start with `--ingress-hook xdp` has, on this kernel.
pub(super) fn kernel_that_asks() -> Result<Kernel> {
    let layout = layout::of_this_kernel().unwrap_or(Layout::UNKNOWN);
    let settings = settings(false, true)?;
    Kernel::load_with(OBJECT, &settings, &layout)
}

fn load(layout: &Layout, decapsulate: bool) -> Result<()> {
    let settings = settings(decapsulate, false)?;
    let mut kernel = Kernel::load_with(OBJECT, &settings, layout)?;
    attach::load_all(&mut kernel.sets[0].programs)
}

fn settings(decapsulate: bool, asks_drivers: bool) -> Result<LoadSettings> {
    Ok(LoadSettings {
        decapsulate,
        asks_drivers,
        ..LoadSettings::smallest(vec![netns_inode()?])
    })
}
