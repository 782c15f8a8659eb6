//! Checks whether this kernel's verifier accepts the agent's own programs. Attaches nothing, and unloads them at the
//! end.

use anyhow::Result;
use kernel::{
    layout::{self, Layout},
    load::{Kernel, LoadSettings, OBJECT},
};

use super::Check;

pub(super) fn programs(layout: &Layout) -> Vec<Check> {
    let mut settings = match LoadSettings::smallest_here() {
        Ok(settings) => settings,
        Err(error) => {
            let remedy = "report it with the kernel's version";
            return vec![Check::missing("programs", format!("{error:#}"), remedy)];
        }
    };
    let enrichment = enrich::checks(&settings, layout).into_iter();
    let plain = match Kernel::verified(&settings, layout) {
        Ok(_) => Check::ok("programs", "the kernel takes all of the agent's programs"),
        Err(error) => Check::missing(
            "programs",
            format!("{error:#}"),
            "see `bpf` and the capabilities above; else report it with the kernel's version",
        ),
    };
    settings.decapsulate = true;
    let decapsulating = match Kernel::verified(&settings, layout) {
        Ok(_) => Check::ok("decapsulation", "and with --decapsulate too"),
        Err(error) => Check::warn(
            "decapsulation",
            format!("{error:#}"),
            "run without --decapsulate, and report it with the kernel's version",
        ),
    };
    let enrichment = enrichment.map(|check| match check.outcome {
        Ok(detail) => Check::ok(check.name, detail),
        Err(error) => Check::warn(check.name, format!("{error:#}"), check.remedy),
    });
    let programs = [plain, decapsulating].into_iter();
    programs.chain(enrichment).collect()
}

/// Loads the programs of a start with `--ingress-hook xdp`.
pub(super) fn kernel_that_asks() -> Result<Kernel> {
    let layout = layout::of_this_kernel().unwrap_or(Layout::UNKNOWN);
    let settings = LoadSettings {
        asks_drivers: true,
        ..LoadSettings::smallest_here()?
    };
    Kernel::load_with(OBJECT, &settings, &layout)
}
