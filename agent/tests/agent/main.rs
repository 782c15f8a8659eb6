//! Tests of the real binary with real programs in the kernel and real packets in network namespaces. They
//! are one test program of many modules: `cargo test -p agent --test agent -- tunnels::` runs the tests of
//! one module.

#![expect(
    clippy::unwrap_used,
    reason = "clippy takes only functions marked as tests for tests"
)]

mod accounts;
mod admission;
mod captures;
mod carry_over;
mod clients;
mod closing;
mod collect;
mod consumers;
mod corpus;
mod devices;
mod directions;
mod drops;
mod exact;
mod failures;
mod filters;
mod first_minute;
mod fragments;
mod hardened;
mod initiator;
mod kinds;
mod lifecycle;
mod link_headers;
mod lockdown;
mod looped_back;
mod metrics;
mod names;
mod nat;
mod outputs;
mod pressure;
mod round_trips;
mod senders;
mod settings;
mod snapshots;
mod stream;
mod super_frames;
mod support;
mod table;
mod terminal;
mod tls;
mod top;
mod tunnels;
mod xdp;
