//! The live path: the agent's programs in a real kernel on real packets, in namespaces of their own.
//!
//! A live bench is a [`bench::Bench`], which [`rounds::run`] plays: each of its arms is measured once a round at a
//! station of its own. [`overhead`] and [`filters`] ask what a packet costs ([`flooded`]), [`ladder`] and [`compare`]
//! what an agent costs at a steady rate; [`sweep`], [`newflows`], [`http`], [`outputs`], [`priority`] and [`peers`] are
//! experiments of their own.
//!
//! Stations are made of a [`wire`] or a [`sender`], a [`program`] on its hook, and [`cost`], [`kernel_time`] and
//! [`fdinfo`], which tell what processes, programs and the kernel take. A [`result::Run`] has all that was measured and
//! goes into a file, from which [`report`] and [`diff`] read it.

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
