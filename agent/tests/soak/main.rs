//! Loads the agent with everything at once, and with the worst traffic. Its memory must stay bounded, its account must
//! close, the host must stay responsive, and nothing may be left in the kernel.
//!
//! The times are short here; `cargo xtask soak` sets longer ones.

#![expect(
    clippy::unwrap_used,
    reason = "clippy takes only functions marked as tests for tests"
)]
#![expect(clippy::print_stdout, reason = "a soak's figures are for people")]

mod churn;
mod flood;
mod memory;
mod objects;
mod probe;
#[path = "../agent/support/mod.rs"]
mod support;

use std::{env, time::Duration};

/// A duration in seconds from a variable that `cargo xtask soak` sets.
fn seconds_from(variable: &str, usual: u64) -> Duration {
    let seconds = env::var(variable).map_or(usual, |text| {
        text.parse().expect("a whole number of seconds")
    });
    Duration::from_secs(seconds)
}
