//! What must hold: the real binary, real programs in the kernel, real packets in network namespaces. One
//! program of many modules, so that each test has its name once:
//! `cargo test -p agent --test agent -- tunnels::` runs those of one of them.

#![expect(
    clippy::unwrap_used,
    reason = "clippy takes only functions marked as tests for tests"
)]

mod captures;
mod clients;
mod closing;
mod corpus;
mod devices;
mod directions;
mod doors;
mod exact;
mod filters;
mod fragments;
mod kinds;
mod lifecycle;
mod pressure;
mod stream;
mod super_frames;
mod support;
mod tunnels;
mod xdp;
