//! The doors of a running agent: who may come in, how many, and what they can make it hold, by the real
//! binary over real sockets.

mod client;
mod connections;
mod consumers;
mod locks;
mod memory;
mod rules;

use crate::support::PATIENCE;
