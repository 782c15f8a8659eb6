//! Data about the ends of flows that their packets do not show: the control group and the process that sent them, and
//! host names.
//!
//! [`enrichment`] lists the kinds, [`unit`] follows the tree of control groups, [`process`] knows which process made a
//! socket, and [`dns`] learns names from passing answers.
//!
//! May depend on: `flows`, `kernel`, `proto`, `sys`. Knows nothing about outputs.

pub mod dns;
pub mod enrichment;
pub mod process;
pub mod unit;
