//! Adds up the records of a batch from an unfinished Parquet file or from a spool.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::OnceLock,
};

use anyhow::Result;
use proto::{
    AgentIdentity, FlowBatch, FlowRecord,
    batch::validity,
    columns::{self, RowEnd},
    known_interfaces::KnownInterfaces,
};
use rules::Facts;

use super::{By, Missing, Query, StreamLosses, Sum, once::number, row::Row};

/// Adds up the records of a batch that match the query. `place` is the number of its folder. Fails if there are too
/// many groups.
pub(super) fn add(batch: &FlowBatch, place: usize, query: &Query, sum: &mut Sum<'_>) -> Result<()> {
    let window_end_us = micros(batch.window_end_unix_ns);
    if !batch.records.is_empty() {
        sum.note_windows(&(micros(batch.window_start_unix_ns)..window_end_us));
    }
    if query.times_with(window_end_us).next().is_none() {
        return Ok(());
    }
    let nobody = AgentIdentity::default();
    let agent = batch.agent.as_ref().unwrap_or(&nobody);
    // A batch in a collector's stream has the number of that stream.
    let is_on_stream = batch.stream_id != 0;
    // The stream that numbers the records, and the stream that reports losses.
    let [id, teller] = if is_on_stream {
        let instances = [&*agent.instance_id, ""];
        instances.map(|instance| of_an_agent([&agent.identity, instance], batch.stream_id))
    } else {
        let of_scan = |scan_id| of_an_agent(["", &agent.instance_id], scan_id);
        [batch.scan_id, 0].map(of_scan)
    };
    let stream = (place, id);
    sum.note_told(
        (place, teller),
        StreamLosses {
            lost: Missing {
                records: batch.lost_records,
                packets: batch.lost_packets,
                bytes: batch.lost_bytes,
            },
            left_out: Missing {
                records: batch.left_out_records,
                packets: batch.left_out_packets,
                bytes: batch.left_out_bytes,
            },
        },
    );
    if !is_on_stream && !sum.once.is_new(stream, batch.stream_seq.into()) {
        sum.answer.repeated_records += batch.records.len() as u64;
        return Ok(());
    }
    // Each batch names all interfaces of its records.
    let mut interfaces = KnownInterfaces::default();
    interfaces.note_all(batch);
    for (record, number) in batch.records.iter().zip(0..) {
        if is_on_stream
            && !sum
                .once
                .is_new(stream, self::number(batch.stream_seq, number))
        {
            sum.answer.repeated_records += 1;
            continue;
        }
        if !validity::is_sound(record) {
            sum.answer.unsound_records += 1;
            continue;
        }
        let interface = interfaces.of(record);
        let names = |by, name: for<'a> fn(&RowEnd<'a>) -> Option<&'a String>| {
            if !query.needs(by) {
                return [""; 2];
            }
            let ends = columns::Row::new(batch, record, interface).ends;
            ends.map(|end| name(&end).map_or("", String::as_str))
        };
        let row = Row {
            hostname: &agent.hostname,
            interface: interface.map_or("", |one| &one.name),
            netns_name: interface.map_or("", |one| &one.netns_name),
            units: names(By::Unit, |end| Some(&end.cgroup?.unit)),
            processes: names(By::Process, |end| Some(&end.process?.name)),
            names: names(By::Name, |end| Some(&end.host?.name)),
            ..of_a_record(batch, record)
        };
        sum.row(query, &row)?;
    }
    Ok(())
}

/// Without names.
fn of_a_record<'a>(batch: &FlowBatch, record: &FlowRecord) -> Row<'a> {
    let packets = [record.src().delta_packets, record.dst().delta_packets];
    Row {
        window_us: micros(batch.window_start_unix_ns)..micros(batch.window_end_unix_ns),
        hostname: "",
        interface: "",
        netns_name: "",
        units: [""; 2],
        processes: [""; 2],
        names: [""; 2],
        facts: Facts::from(record),
        packets,
        bytes: [record.src().delta_bytes, record.dst().delta_bytes],
        begins: packets == [record.src().total_packets, record.dst().total_packets],
        ends: record.end_reason.is_some(),
        sample_rate: batch.sample_rate,
    }
}

/// The precision of the Parquet columns.
fn micros(unix_ns: u64) -> i64 {
    (unix_ns / 1000).cast_signed()
}

/// A hash that identifies a stream. An agent's own output has no stream number, so each scan counts as a stream: a
/// reload that changes the output restarts the batch numbers. A collector's stream has an id, but a machine cloned
/// together with its spool continues the other machine's numbers, so the start of the agent is part of the hash.
/// `names` are the sender's identity, which owns the numbers, and the instance id of the agent's start.
pub(super) fn of_an_agent(names: [&str; 2], number: u64) -> u64 {
    static HASHER: OnceLock<RandomState> = OnceLock::new();
    let hasher = HASHER.get_or_init(RandomState::new);
    hasher.hash_one((names, number))
}
