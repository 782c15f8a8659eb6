//! The agent: counts packets in the kernel and streams flow records to consumers.
//!
//! The modules in the order of the data: [`interfaces`] chooses where to count, in each of the network
//! namespaces of [`netns`], knowing which of the [`devices`] stand on each other. The [`kernel`] half counts the
//! packets that the [`filter`] rules let through. A [`scan`] drains it into the [`replica`]. A [`record`] is what
//! one scan says about one flow, [`cgroups`] says who sent it, and a [`batch`] holds many records encoded as [`proto`] messages.
//! The [`hub`] gives batches to every consumer, and the [`server`] sends them and the [`status`] over gRPC.
//! The [`client`] is the other end, and its [`output`] is what people and programs read. [`log_filter`] says what
//! is logged, [`log_limit`] keeps the log short, and [`log_queue`] keeps a slow reader of the log from holding up
//! the agent. [`tls`] is for both ends of a connection. The
//! [`collector`] is another program: it stores what many agents send. The [`journal`] is where systemd keeps it, with fields. The [`service_manager`] hears that it is ready and alive.

pub mod accounts;
pub mod agent;
pub mod asks;
pub mod background;
pub mod batch;
pub mod cgroups;
pub mod changes;
pub mod client;
pub mod clock;
pub mod collector;
pub mod commands;
pub mod community_id;
mod counted;
pub mod devices;
pub mod dns;
pub mod dns_codes;
pub mod encoder;
pub mod ends;
pub mod enrichment;
pub mod fault;
pub mod filter;
mod flowtables;
pub mod hub;
pub mod identity;
pub mod in_force;
pub mod interfaces;
mod ipsec;
pub mod journal;
mod kept;
pub mod kernel;
pub mod known_interfaces;
pub mod limits;
pub mod link_names;
pub mod log_filter;
pub mod log_limit;
pub mod log_queue;
#[cfg(test)]
mod logged;
mod memory_limit;
pub mod mentions;
pub mod metrics;
pub mod netns;
pub mod output;
pub mod outputs;
pub mod own_file;
pub mod pattern;
pub mod process_memory;
pub mod processes;
pub mod proto;
pub mod protocols;
pub mod query;
pub mod quoted;
pub mod record;
pub mod regular_file;
pub mod replica;
pub mod round_trip;
pub mod rules;
pub mod rules_in_force;
pub mod scan;
pub mod server;
pub mod service_manager;
mod silent;
pub mod similar;
pub mod source;
pub mod status;
pub mod tcp;
pub mod tls;
pub mod token;
pub mod top;
#[cfg(test)]
mod unit;
pub mod unit_traffic;
