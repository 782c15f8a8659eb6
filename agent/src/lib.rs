//! The runtime behind the binary `flow-agent`, and its commands. It wires the other crates together.
//!
//! The programs in `kernel` count packets. [`scan`] drains them into the flow cache of `flows`, to which `enrich` adds what else is
//! known of flows. Batches of `proto` go through `hub` to the consumers of `server` and to `exporters`, whose bytes `formats` makes.
//! `collector` is another program: it stores what many agents send. `view` shows flows.
//!
//! Start reading at [`agent`], which starts and stops all of this. [`commands`] are what a user types. [`rules`] and [`changes`]
//! replace settings of a running agent, [`status`] makes the status message, and [`memory_limit`] compares settings with the
//! cgroup's limit. [`carry`] lets the next process continue. [`service_manager`] talks to systemd; [`log_queue`], [`log_filter`] and [`journal`] are the log.

pub mod agent;
pub mod carry;
pub mod changes;
pub mod commands;
pub mod journal;
pub mod log_filter;
pub mod log_queue;
mod memory_limit;
pub mod rules;
pub mod scan;
pub mod service_manager;
pub mod status;
mod stdout;
pub mod terminal;
#[cfg(test)]
mod unit;
