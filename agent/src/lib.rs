//! The agent: packets that the kernel programs counted come in, flow records on streams go out.
//!
//! In the order of the data: a [`record`] is what one scan says about one flow, a [`batch`] holds
//! many of them encoded as [`wire`] messages, the [`hub`] gives batches to every consumer, the
//! [`server`] carries them over gRPC, and the [`client`] is the other end, whose
//! [`output`] is what people and programs read.

pub mod batch;
pub mod client;
pub mod commands;
pub mod community_id;
pub mod hub;
pub mod output;
pub mod record;
pub mod replica;
pub mod server;
pub mod wire;
