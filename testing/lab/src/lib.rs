//! A network laboratory: real interfaces that carry exactly the packets that a test sends.
//!
//! Everything here needs root. A [`Lab`] is two [`Host`]s, each with its own network namespace. A veth pair joins them,
//! and nothing moves on it unprompted: no neighbour discovery, no multicast reports, no address detection. So a test
//! can compare counts exactly, even with the interfaces' own [`Counters`].
//!
//! Traffic comes from [`Frame`]s sent through a [`FrameSocket`] (any bytes, in order, none lost), a
//! [`SuperFrameSocket`] (one skb for many frames), a [`Generator`] (one frame, millions of times a second), a [`Tun`]
//! (bare IP), or from real sockets ([`traffic`]). An [`Agent`] is a running `flow-agent`. A [`Process`] is a program
//! that does not outlive its test, and an [`AtEnd`] ends threads when the test ends. A [`Store`] is a service manager
//! that keeps descriptors from one agent for the next, and [`kill_at`] ends an agent at a step of its work. A [`ControlGroup`] limits programs. A [`RtnlHold`] keeps the
//! kernel from answering requests about interfaces, and [`tcx_programs`] counts the attached programs. A [`Disk`] fails
//! on demand. TLS tests use [`certificates`]. A [`Broker`] is Apache Kafka's own.

mod agent;
mod at_end;
mod broker;
pub mod certificates;
mod checksum;
pub mod control_group;
mod counters;
mod disk;
mod extension;
mod frame;
mod frame_socket;
mod generator;
mod host;
pub mod kernel;
pub mod log;
mod namespace;
pub mod privilege;
mod process;
mod rtnl;
mod steps;
mod store;
mod super_frame;
mod tcx;
pub mod traffic;
mod tun;

pub use agent::Agent;
pub use at_end::AtEnd;
pub use broker::{Broker, BrokerOptions};
pub use control_group::ControlGroup;
pub use counters::Counters;
pub use disk::Disk;
pub use extension::Extension;
pub use frame::Frame;
pub use frame_socket::FrameSocket;
pub use generator::{Generator, Variety, pin_to};
pub use host::{Host, Lab, LabOptions};
pub use namespace::Namespace;
pub use process::Process;
pub use rtnl::RtnlHold;
pub use steps::kill_at;
pub use store::Store;
pub use super_frame::SuperFrameSocket;
pub use tcx::tcx_programs;
pub use tun::Tun;

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Runs a command to its end. If it fails, the error has its output.
fn run(command: &mut Command) -> Result<Vec<u8>> {
    let output = command
        .output()
        .with_context(|| format!("start {command:?}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{command:?} failed: {}",
        stderr.trim()
    );
    Ok(output.stdout)
}
