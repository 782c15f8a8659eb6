//! The life of an agent: its start, refusals, interfaces shared with others, and its traces after the end. Tested with
//! the real binary on real interfaces.

mod audits;
mod checks;
pub mod coming;
mod consumers;
mod endings;
mod gone;
mod held;
mod indexes;
mod leftovers;
mod logs;
mod many;
mod names;
mod neighbours;
pub mod netns;
mod notifications;
mod passed;
mod places;
mod refusals;
mod scans;
mod service;
mod short;
mod signals;
mod silence;
mod stacks;
mod strangers;
mod told;
mod unknown;

use lab::{
    kernel,
    privilege::{is_root_or_skip, skip},
};

pub const CLSACT: &[&str] = &["--tc-attach", "clsact"];
pub const TCX: &[&str] = &["--tc-attach", "tcx"];

/// The ones of these ways to attach that this kernel has.
pub fn here<'a>(
    ways: impl IntoIterator<Item = &'a [&'a str]>,
) -> impl Iterator<Item = &'a [&'a str]> {
    let has_tcx = kernel::has_tcx();
    ways.into_iter().filter(move |way| has_tcx || *way != TCX)
}

fn has_tcx_or_skip(test: &str) -> bool {
    let has_tcx = kernel::has_tcx();
    if !has_tcx {
        skip(test, "the kernel has TCX from 6.6");
    }
    has_tcx && is_root_or_skip(test)
}
