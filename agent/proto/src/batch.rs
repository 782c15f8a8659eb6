//! Encoded batches: how a record is written, how a batch is read, and whether an agent could have made it.

use agent_common::Pair;
use bytes::Bytes;

use crate::AgentIdentity;

pub mod fields;
mod reader;
mod record_buffer;
pub mod validity;

pub use reader::{by_hand, read};
pub use record_buffer::RecordBuffer;

/// The encoder closes a batch when its records name this many hosts, of at most 270 bytes each.
pub const MOST_HOSTS: usize = 2000;

/// Identifies the agent in every batch.
pub type Identity = AgentIdentity;

/// The fields of a `FlowBatch` that say which batch it is. Reading them skips everything else.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Head {
    #[prost(message, optional, tag = "1")]
    pub agent: Option<AgentIdentity>,
    #[prost(uint64, tag = "5")]
    pub scan_id: u64,
    #[prost(uint32, tag = "6")]
    pub batch_index: u32,
}

/// An encoded `FlowBatch` without the fields that differ between consumers. Clones share its bytes.
#[derive(Debug, Clone)]
pub struct Batch {
    pub body: Bytes,
    pub records: u32,
    /// Packets and bytes of both directions in its records.
    pub delta: Pair,
    pub scan_id: u64,
    /// The number of the batch within the scan, from 0.
    pub index: u32,
    pub last_of_scan: bool,
}
