//! The doors of a running agent: who may come in, how many, and what they can make it hold, by the real
//! binary over real sockets.

#![expect(
    clippy::unwrap_used,
    reason = "clippy takes only functions marked as tests for tests"
)]

mod client;
mod connections;
mod consumers;
mod locks;
mod memory;
mod rules;
#[path = "../support/mod.rs"]
mod support;

use support::PATIENCE;
