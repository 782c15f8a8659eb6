//! The live path: the agent's programs in a real kernel, on real packets, in network namespaces created for the bench.
//!
//! A live bench is a [`bench::Bench`], which [`rounds::run`] runs: it measures each arm once per round, at a station of
//! its own. [`overhead`] and [`filters`] measure the cost per packet ([`flooded`]), [`ladder`] and [`compare`] the cost
//! of an agent at a steady rate; [`sweep`], [`newflows`], [`http`], [`outputs`], [`priority`] and [`peers`] are
//! experiments of their own.
//!
//! A station consists of a [`wire`] or a [`sender`] and a [`program`] on its hook. [`cost`], [`kernel_time`] and
//! [`fdinfo`] measure processes, programs and the kernel. A [`result::Run`] holds all measurements and is saved to a
//! file, which [`report`] and [`diff`] read.

pub mod affinity;
pub mod bench;
pub mod compare;
pub mod cost;
pub mod diff;
pub mod difference;
pub mod fdinfo;
pub mod filters;
pub mod flooded;
pub mod host;
pub mod http;
pub mod interrupt;
pub mod kernel_time;
pub mod ladder;
pub mod memory;
pub mod newflows;
pub mod outputs;
pub mod overhead;
pub mod pacer;
pub mod peers;
pub mod priority;
pub mod program;
pub mod reference;
pub mod report;
pub mod result;
pub mod rounds;
pub mod sender;
pub mod sinks;
pub mod status;
pub mod sweep;
pub mod wire;
