//! The agent: packets that the kernel programs counted come in, flow records on streams go out.
//!
//! In the order of the data: a [`record`] is what one scan says about one flow, a [`batch`] holds
//! many of them encoded as [`wire`] messages, and the [`hub`] gives batches to every consumer.

pub mod batch;
pub mod community_id;
pub mod hub;
pub mod record;
pub mod wire;
