use std::{fs::File, io::Write as _};

use parquet::{
    file::reader::{FileReader as _, SerializedFileReader},
    record::Field,
    schema::printer::print_schema,
};
use proto::{Account, AgentIdentity, Direction, Encapsulation, EndReason, Endpoint, Interface};
use serde_json::{Value, json};

use super::*;

mod written;

/// A record of the first flow, with this many packets of 100 bytes.
fn flow(packets: u64) -> FlowRecord {
    FlowRecord {
        src: Some(Endpoint {
            addr: vec![10, 0, 0, 1].into(),
            port: Some(1),
            delta_packets: packets,
            delta_bytes: packets * 100,
            ..Endpoint::default()
        }),
        dst: Some(Endpoint {
            addr: vec![10, 0, 0, 2].into(),
            port: Some(2),
            ..Endpoint::default()
        }),
        protocol: 17,
        ifindex: 2,
        netns: 5,
        ip_version: 4,
        ..FlowRecord::default()
    }
}

fn batch(stream_seq: u64) -> FlowBatch {
    FlowBatch {
        stream_seq,
        scan_id: 7,
        interfaces: vec![Interface {
            ifindex: 2,
            netns: 5,
            name: "eth0".to_owned(),
            ..Interface::default()
        }],
        ..FlowBatch::default()
    }
}

/// The pieces of these batches, each with its flows.
fn pieces(batches: &[(FlowBatch, Vec<FlowRecord>)]) -> Vec<u8> {
    let mut encoder = Parquet::default();
    let pieces = batches.iter().flat_map(|(batch, flows)| {
        let message = encoder.message(batch, flows);
        assert_eq!(message.flows, flows.len());
        message.bytes
    });
    pieces.collect()
}

fn piece(packets: u64) -> Vec<u8> {
    pieces(&[(batch(packets), vec![flow(packets)])])
}

fn temporary(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file
}

/// Makes a file of pieces, of row groups of two pieces.
fn made(pieces: &[u8]) -> SerializedFileReader<File> {
    let to = tempfile::tempfile().unwrap();
    let columns: Vec<_> = columns::OF_A_FLOW.iter().collect();
    let facts = file::Facts::of_an_agent();
    let to = (to, Compression::Zstd);
    let whole = file::in_groups_of(4, &columns, facts, &mut temporary(pieces), to).unwrap();
    SerializedFileReader::new(whole).unwrap()
}

/// Names and values of each row.
fn rows(file: &SerializedFileReader<File>) -> Vec<Vec<(String, Field)>> {
    let rows = file.get_row_iter(None).unwrap();
    rows.map(|row| row.unwrap().into_columns()).collect()
}

fn values(file: &SerializedFileReader<File>, name: &str) -> Vec<String> {
    let value = |row: Vec<(String, Field)>| {
        let found = row.into_iter().find(|(column, _)| column == name);
        found.unwrap_or_else(|| panic!("{name}")).1.to_string()
    };
    rows(file).into_iter().map(value).collect()
}

fn fact(file: &SerializedFileReader<File>, key: &str) -> Option<Value> {
    let facts = file.metadata().file_metadata().key_value_metadata();
    let mut facts = facts.unwrap().iter();
    let fact = facts.find(|fact| fact.key == format!("flow_agent.{key}"))?;
    serde_json::from_str(fact.value.as_ref().unwrap()).unwrap()
}
