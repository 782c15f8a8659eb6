//! What the agent finds out about the ends of flows beyond their packets: the control group and the process that sent them, and
//! the names of hosts.
//!
//! [`enrichment`] lists the kinds, [`cgroups`] follows the tree of control groups, [`processes`] knows who made sockets, and [`dns`]
//! learns names from answers that pass.
//!
//! May depend on: `kernel`, `proto`, `sys`. Knows nothing about outputs.

pub mod cgroups;
pub mod dns;
pub mod enrichment;
pub mod processes;
