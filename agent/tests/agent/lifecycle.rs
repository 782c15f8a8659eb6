//! The life of an agent: how it starts, is refused, shares an interface with others, and what it leaves
//! behind. Tested with the real binary on real interfaces.

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
mod unknown;

pub const CLSACT: &[&str] = &["--tc-attach", "clsact"];
pub const TCX: &[&str] = &["--tc-attach", "tcx"];
