//! Estimates the memory that a batch takes here and in ClickHouse, without decoding its records. A record of two bytes
//! takes some hundred, and each row repeats the names of its agent and interface.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use bytes::Bytes;
use prost::{DecodeError, Message as _};
use proto::{
    FlowBatch,
    batch::fields::{RECORDS, each_field},
};

/// Most rows of an INSERT, records and interfaces together. Groups with more rows are split.
const MOST_ROWS: usize = 100_000;
/// Most text of an INSERT or of one batch, over all columns.
const MOST_TEXT_BYTES: usize = 32 << 20;
/// Most days of an INSERT. ClickHouse allows a hundred partitions (`max_partitions_per_insert_block`), and the tables
/// have one per day. Agents with wrong clocks must not make other agents' inserts fail.
const MOST_DAYS: usize = 50;
const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;
/// Text in a row besides names: identifiers, directions, reasons.
const OTHER_TEXT_BYTES: usize = 160;

/// The size of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    /// Records and interfaces.
    rows: usize,
    /// Upper bound: assumes that every record has the longest names of the batch for interface, cgroup, process and
    /// host.
    text_bytes: usize,
    /// Days since 1970.
    day: u64,
}

impl Size {
    pub(super) fn of(raw: &Bytes) -> Result<Self, DecodeError> {
        let (mut records, mut others) = (0, Vec::new());
        each_field(raw, |field| {
            if field.tag == RECORDS {
                records += 1;
            } else {
                others.extend_from_slice(&raw[field.whole]);
            }
            Ok(())
        })?;
        let batch = FlowBatch::decode(&others[..])?;
        let names = |agent: &proto::AgentIdentity| {
            let names = [
                &agent.agent_id,
                &agent.hostname,
                &agent.boot_id,
                &agent.instance_id,
                &agent.identity,
            ];
            names.into_iter().map(String::len).sum::<usize>()
        };
        let of_agent = batch.agent.as_ref().map_or(0, names);
        let interfaces = batch.interfaces.iter();
        let of_interface = interfaces.map(|one| one.name.len() + one.netns_name.len());
        let of_cgroup = batch.cgroups.iter().map(|one| {
            // The columns that a row has for its cgroup.
            let names = [
                &one.path,
                &one.unit,
                &one.slice,
                &one.container_id,
                &one.container_runtime,
            ];
            names.into_iter().map(String::len).sum::<usize>()
        });
        let of_process = batch.processes.iter().map(|one| one.name.len());
        let of_host = batch.hosts.iter().map(|one| one.name.len());
        let of_row = of_agent
            + of_interface.max().unwrap_or_default()
            // Once for each end.
            + 2 * of_cgroup.max().unwrap_or_default()
            + 2 * of_process.max().unwrap_or_default()
            + 2 * of_host.max().unwrap_or_default()
            + OTHER_TEXT_BYTES;
        Ok(Self {
            rows: records + batch.interfaces.len(),
            text_bytes: records * of_row,
            day: batch.window_end_unix_ns / DAY_NS,
        })
    }
}

/// Fails if the batch alone is larger than an INSERT may be.
pub fn refuse_too_large(raw: &Bytes) -> Result<()> {
    let mib = MOST_TEXT_BYTES >> 20;
    ensure!(
        Size::of(raw)?.text_bytes <= MOST_TEXT_BYTES,
        "the batch as rows of a table: its names take more than {mib} MiB"
    );
    Ok(())
}

/// How many of these batches to insert together; at least one.
pub(super) fn together(sizes: &[Size]) -> usize {
    let (mut rows, mut text_bytes, mut days) = (0, 0, BTreeSet::new());
    let fits = sizes.iter().take_while(|size| {
        rows += size.rows;
        text_bytes += size.text_bytes;
        days.insert(size.day);
        rows <= MOST_ROWS && text_bytes <= MOST_TEXT_BYTES && days.len() <= MOST_DAYS
    });
    fits.count().max(1)
}

#[cfg(test)]
mod tests {
    use proto::{AgentIdentity, Cgroup, FlowRecord, HostName, Interface, Process};

    use super::*;

    fn raw(batch: &FlowBatch) -> Bytes {
        batch.encode_to_vec().into()
    }

    fn of_day(day: u64) -> Size {
        let batch = FlowBatch {
            window_end_unix_ns: day * DAY_NS + 1,
            ..FlowBatch::default()
        };
        Size::of(&raw(&batch)).unwrap()
    }

    /// Empty records on an interface whose network namespace has a name of this length.
    fn records(count: usize, netns_name_len: usize) -> FlowBatch {
        let interface = Interface {
            netns_name: "n".repeat(netns_name_len),
            ..Interface::default()
        };
        FlowBatch {
            interfaces: vec![interface],
            records: vec![FlowRecord::default(); count],
            ..FlowBatch::default()
        }
    }

    #[test]
    fn the_text_of_a_row_is_that_of_all_names_that_it_can_have() {
        let name = |len| "n".repeat(len);
        let batch = FlowBatch {
            agent: Some(AgentIdentity {
                agent_id: name(1),
                hostname: name(2),
                boot_id: name(4),
                instance_id: name(8),
                ..AgentIdentity::default()
            }),
            interfaces: vec![Interface {
                name: name(16),
                netns_name: name(32),
                ..Interface::default()
            }],
            cgroups: vec![Cgroup {
                path: name(64),
                unit: name(128),
                container_id: name(256),
                slice: name(2048),
                container_runtime: name(4096),
                ..Cgroup::default()
            }],
            processes: vec![Process {
                name: name(512),
                ..Process::default()
            }],
            hosts: vec![HostName {
                name: name(1024),
                ..HostName::default()
            }],
            records: vec![FlowRecord::default(); 3],
            ..FlowBatch::default()
        };
        let size = Size::of(&raw(&batch)).unwrap();
        // A cgroup, a process and a host may each be at both ends.
        let of_row = 15 + 48 + 2 * (448 + 512 + 1024 + 2048 + 4096) + OTHER_TEXT_BYTES;
        assert_eq!((size.rows, size.text_bytes), (4, 3 * of_row));
    }

    #[test]
    fn an_insert_has_few_days() {
        assert_eq!(together(&vec![of_day(7); 500]), 500);
        let days = |range: std::ops::Range<u64>| -> Vec<_> {
            range.flat_map(|day| [of_day(day); 2]).collect()
        };
        assert_eq!(together(&days(0..120)), 100);
        assert_eq!(together(&days(100..120)), 40);
    }

    #[test]
    fn an_insert_has_few_rows_and_little_text_and_at_least_one_batch() {
        let short = raw(&records(16_384, 0));
        assert!(short.len() < 40_000);
        assert_eq!(together(&[Size::of(&short).unwrap(); 128]), 6);
        let long = raw(&records(1_000, 4_096));
        assert_eq!(together(&[Size::of(&long).unwrap(); 16]), 7);
        let longest = raw(&records(16_384, 4_096));
        assert_eq!(together(&[Size::of(&longest).unwrap(); 16]), 1);
    }

    #[test]
    fn a_batch_whose_names_take_too_much_is_refused() {
        // An agent's batches have no more records than this, with names of any length.
        refuse_too_large(&raw(&records(4_000, 4_096))).unwrap();
        refuse_too_large(&raw(&records(16_384, 256))).unwrap();
        let why = refuse_too_large(&raw(&records(16_384, 4_096))).unwrap_err();
        assert_eq!(
            why.to_string(),
            "the batch as rows of a table: its names take more than 32 MiB"
        );
    }
}
