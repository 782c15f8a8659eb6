//! The agent's runtime and its commands: wires the other crates together.
//!
//! A packet is counted by the programs in `kernel`. A [`scan`] drains them into the flow cache of `flows`, with what `enrich` knows.
//! The records go as batches of `proto` through the `hub` to the consumers of the `server`, and to the `exporters`, whose bytes
//! are made by `formats`. `collector` is another program: it stores what many agents send. `view` shows it all.
//!
//! [`agent`] starts and ends all of this, [`commands`] are what a user types, [`rules`] and [`changes`] replace what runs.
//! [`service_manager`] tells systemd, and [`log_queue`], [`log_filter`] and [`journal`] are the log.

pub mod agent;
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
#[cfg(test)]
mod unit;
pub mod unit_traffic;
