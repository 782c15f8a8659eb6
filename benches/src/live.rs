//! The live path: the agent's programs in a real kernel on real packets, in namespaces of their own.
//!
//! The arms of a bench are measured by turns ([`rounds`]), so that a machine whose speed swings slows
//! them all alike. Each measurement is a [`result::Row`]; a [`result::Run`] has all of
//! them with the [`host`] and goes into a file. [`overhead`], [`sweep`], [`newflows`], [`filters`], [`pages`],
//! [`ladder`], [`http`] and [`compare`] are benches; [`wire`] and [`program`]
//! are what they put on a hook, [`affinity`] on which CPU, [`cost`] what a process and its programs cost, [`difference`] what
//! one arm has over another.

pub mod affinity;
pub mod compare;
pub mod cost;
pub mod diff;
pub mod difference;
pub mod filters;
pub mod host;
pub mod http;
pub mod ladder;
pub mod newflows;
pub mod overhead;
pub mod pacer;
pub mod pages;
pub mod program;
pub mod reference;
pub mod report;
pub mod result;
pub mod rounds;
pub mod sweep;
pub mod table;
pub mod wire;
