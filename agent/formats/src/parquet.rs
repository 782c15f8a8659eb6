//! Parquet files, for DuckDB and other columnar readers.
//!
//! A Parquet file is readable only when it is complete. Until then the flows are kept in a hidden file as [`pieces`],
//! each of them a batch of our own protocol. That is as safe as a line of JSON and cheap to write. [`make`] builds
//! the Parquet file from them at rotation, or after a kill. A database gets its rows as a file that never touches a
//! disk ([`Table`]).

use std::collections::HashSet;

use prost::{
    Message as _,
    encoding::{WireType, encode_key, encode_varint},
};
use proto::{FlowBatch, FlowRecord, known_interfaces::KnownInterfaces, mentions::Mentions};

use super::encoder::{Encoder, Message};

mod columns;
mod file;
pub mod pieces;
mod table;
mod values;

pub use file::{make, make_of_many};
pub use table::Table;

/// Field number of `FlowBatch.records`.
const RECORDS_FIELD: u32 = 15;

/// How the pages of a file are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Zstd,
}

/// A received batch as a piece.
pub fn piece_of(batch: &[u8]) -> Vec<u8> {
    pieces::piece(|body| body.extend_from_slice(batch))
}

#[derive(Default)]
pub struct Parquet {
    interfaces: KnownInterfaces,
    /// Network namespace and index of the interfaces that the last piece named.
    named: HashSet<(u32, u32)>,
}

impl Encoder for Parquet {
    /// Each piece has everything that its rows need, so that any part of a file can be completed.
    fn message(&mut self, batch: &FlowBatch, flows: &[FlowRecord]) -> Message {
        self.interfaces.note_all(batch);
        self.named.clear();
        let mut interfaces = Vec::new();
        let mut last = None;
        for flow in flows {
            // Most flows have the interface of the one before.
            if last.replace((flow.netns, flow.ifindex)) == Some((flow.netns, flow.ifindex)) {
                continue;
            }
            if self.named.insert((flow.netns, flow.ifindex)) {
                interfaces.extend(self.interfaces.of(flow).cloned());
            }
        }
        let mentions = Mentions::of(flows);
        let head = FlowBatch {
            agent: batch.agent.clone(),
            stream_seq: batch.stream_seq,
            scan_id: batch.scan_id,
            batch_index: batch.batch_index,
            last_of_scan: batch.last_of_scan,
            window_start_unix_ns: batch.window_start_unix_ns,
            window_end_unix_ns: batch.window_end_unix_ns,
            table_occupancy: batch.table_occupancy,
            table_capacity: batch.table_capacity,
            tracked_flows: batch.tracked_flows,
            refused_in_window: batch.refused_in_window,
            sample_rate: batch.sample_rate,
            account: batch.account.clone(),
            interfaces,
            cgroups: mentions.cgroups(&batch.cgroups).cloned().collect(),
            processes: mentions.processes(&batch.processes).cloned().collect(),
            hosts: mentions.hosts(&batch.hosts).cloned().collect(),
            ..batch.losses()
        };
        let bytes = pieces::piece(|body| {
            head.encode(body).expect("a vector takes every length");
            // Avoid cloning the records: the fields of a protobuf message may come in any order. Encode each apart, since
            // to ask for its length and for those of its ends takes as long as to write it.
            let mut record = Vec::new();
            for flow in flows {
                record.clear();
                flow.encode_raw(&mut record);
                encode_key(RECORDS_FIELD, WireType::LengthDelimited, body);
                encode_varint(record.len() as u64, body);
                body.extend_from_slice(&record);
            }
        });
        Message::new(bytes.into(), flows.len())
    }

    fn sent(&mut self) {}

    /// Pieces do not depend on each other.
    fn restart(&mut self) {}

    /// Files accept pieces of any length.
    fn limit(&mut self, _: usize) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
