//! The agent: packets that the kernel programs counted come in, flow records on streams go out.
//!
//! In the order of the data: [`interfaces`] are chosen, the [`kernel`] half counts packets that the
//! [`filter`] rules leave, a
//! [`scan`] drains it into the [`replica`], a [`record`] is what one scan says about one flow, a
//! [`batch`] holds many of them encoded as [`proto`] messages, the [`hub`] gives batches to every
//! consumer, the [`server`] carries them and the [`status`] over gRPC, and the [`client`] is the
//! other end, whose [`output`] is what people and programs read. [`log_limit`] keeps the log short,
//! [`log_queue`] keeps it from holding anything up.

pub mod agent;
pub mod batch;
pub mod client;
pub mod clock;
pub mod commands;
pub mod community_id;
pub mod filter;
pub mod hub;
pub mod interfaces;
pub mod kernel;
pub mod limits;
pub mod log_limit;
pub mod log_queue;
pub mod output;
pub mod pattern;
pub mod proto;
pub mod protocols;
pub mod record;
pub mod replica;
pub mod rules;
pub mod scan;
pub mod server;
pub mod status;
