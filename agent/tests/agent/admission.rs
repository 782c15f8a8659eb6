//! Who may connect to a running agent, how many may, and how much they can make it hold. Tested with the real
//! binary over real sockets.

pub mod client;
mod connections;
mod consumers;
mod locks;
pub mod memory;
mod rules;

use crate::support::patience;
