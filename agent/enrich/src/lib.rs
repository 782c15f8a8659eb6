//! Enrichment: data about flows that their counted packets do not show, such as who sent them.
//!
//! Each kind has its own module, with its settings for the programs, its memory, its part of `flow-agent check`, the
//! data that it takes from the programs at a scan, and its part of the status. To add one, implement [`kind::Kind`] and
//! register it in [`enrichment`].
//!
//! May depend on: `flows`, `kernel`, `proto`, `sys`. Knows nothing about outputs.

pub mod dns;
mod drops;
mod enrichment;
mod icmp;
pub mod kind;
mod memory;
mod nat;
pub mod process;
mod rtt;
mod tcp;
pub mod unit;

pub use enrichment::{Enrichment, Settings, checks};
pub use memory::Tables;
