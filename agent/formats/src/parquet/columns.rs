//! The columns of a file besides those of `flow.proto`: the batch of a row and, in a collector's storage, its agent.
//! docs/parquet.md describes them.

use std::fmt::Write as _;

use proto::{
    AgentIdentity, FlowBatch, FlowRecord, Interface,
    columns::{self, COLUMNS},
};

use super::values::{
    Column,
    Values::{Counter, Fact, Number, Text, Time},
    column,
};
use crate::json::StreamId;

/// One flow report.
pub(super) struct Row<'a> {
    /// The record's index in the batch, from 0.
    pub(super) number: u32,
    pub(super) facts: columns::Row<'a>,
}

impl<'a> Row<'a> {
    pub(super) fn new(
        batch: &'a FlowBatch,
        number: u32,
        record: &'a FlowRecord,
        interface: Option<&'a Interface>,
    ) -> Self {
        let facts = columns::Row::new(batch, record, interface);
        Self { number, facts }
    }

    pub(super) fn batch(&self) -> &'a FlowBatch {
        self.facts.batch
    }
}

/// Leading columns in a collector's storage, which has flows of many agents, and possibly duplicates.
pub(super) const OF_A_COLLECTOR: &[Column] = &[
    column(
        "identity",
        Text(|row, text| agent(row, text, |one| &one.identity)),
    ),
    column(
        "agent_id",
        Text(|row, text| agent(row, text, |one| &one.agent_id)),
    ),
    column(
        "hostname",
        Text(|row, text| agent(row, text, |one| &one.hostname)),
    ),
    column(
        "boot_id",
        Text(|row, text| agent(row, text, |one| &one.boot_id)),
    ),
    column(
        "instance_id",
        Text(|row, text| agent(row, text, |one| &one.instance_id)),
    ),
    column("stream_id", Text(stream_id)),
    column("record", Number(32, |row| row.number)),
];

/// The columns of the batch.
const OF_A_BATCH: [Column; 5] = [
    column("scan_id", Counter(|row| row.batch().scan_id)),
    column("stream_seq", Counter(|row| row.batch().stream_seq)),
    column("window_start", Time(|row| row.batch().window_start_unix_ns)),
    column("window_end", Time(|row| row.batch().window_end_unix_ns)),
    column("sample_rate", Number(32, |row| row.batch().sample_rate)),
];

/// The columns of every file: first the batch, then the facts about the flow.
pub(super) static OF_A_FLOW: [Column; OF_A_BATCH.len() + COLUMNS.len()] = {
    let mut all = [OF_A_BATCH[0]; OF_A_BATCH.len() + COLUMNS.len()];
    let mut place = 0;
    while place < all.len() {
        all[place] = if place < OF_A_BATCH.len() {
            OF_A_BATCH[place]
        } else {
            let fact = &COLUMNS[place - OF_A_BATCH.len()];
            column(fact.name, Fact(fact.values))
        };
        place += 1;
    }
    all
};

fn agent(row: &Row, text: &mut String, of: fn(&AgentIdentity) -> &String) -> Option<()> {
    text.push_str(of(row.batch().agent.as_ref()?));
    Some(())
}

fn stream_id(row: &Row, text: &mut String) -> Option<()> {
    write!(text, "{}", StreamId(row.batch().stream_id)).ok()
}
