//! Systemd units and containers, by the control groups of the sockets that send packets.

pub mod cgroups;
pub mod traffic;
