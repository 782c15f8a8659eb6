//! The facts about a flow as columns: what JSON Lines, files, databases, OTLP and the enterprise elements of IPFIX show
//! side by side. `flow.proto` defines them; the build script generates the table.

#![expect(
    clippy::unnecessary_wraps,
    reason = "required numbers are read like optional ones"
)]

use agent_common::Process as ProcessKey;

use crate::{Cgroup, Endpoint, FlowBatch, FlowRecord, HostName, Interface, Process};

include!(concat!(env!("OUT_DIR"), "/columns.rs"));

/// A JSON Schema of an object with the columns, for JSON Lines.
pub const SCHEMA: &str = include_str!(concat!(env!("OUT_DIR"), "/columns.schema.json"));

/// One column. Both ends of a flow have columns of their own.
pub struct Column {
    /// The name in JSON Lines, files and databases.
    pub name: &'static str,
    /// The name in JSON Lines as it follows another member: with comma, quotes and colon.
    pub json_key: &'static str,
    /// The attribute in OTLP; two for the first two values of a list.
    pub otlp: &'static [&'static str],
    /// The number of the element of the enterprise in the settings of IPFIX.
    pub element: Option<u16>,
    /// 0 if it is about the source, 1 if about the destination.
    pub end: Option<usize>,
    /// Without a value, JSON Lines leave it out. Others are `null` there.
    pub is_left_out: bool,
    /// It comes from `--enrich`.
    pub is_enriched: bool,
    pub values: Values,
}

impl Column {
    /// How many bits a number has.
    pub const fn bits(&self) -> i8 {
        if let Values::Number { bits, .. } = self.values {
            bits
        } else {
            64
        }
    }
}

/// How to get a row's value.
#[derive(Clone, Copy)]
pub enum Values {
    /// Unsigned, with this many bits.
    Number {
        bits: i8,
        is_required: bool,
        of: fn(&Row<'_>) -> Option<u32>,
    },
    /// Unsigned, with 64 bits; zero means none.
    Counter(fn(&Row<'_>) -> u64),
    /// Unsigned, with 64 bits, or none.
    Id(fn(&Row<'_>) -> Option<u64>),
    Flag(fn(&Row<'_>) -> bool),
    /// Unix time in nanoseconds.
    Time(fn(&Row<'_>) -> u64),
    /// 4 or 16 bytes, or none.
    Address {
        is_required: bool,
        of: for<'a> fn(&Row<'a>) -> &'a [u8],
    },
    /// The Community ID: 20 bytes, or none.
    Digest(for<'a> fn(&Row<'a>) -> &'a [u8]),
    /// A list of 16-bit numbers.
    Numbers(for<'a> fn(&Row<'a>) -> &'a [u32]),
    Text(for<'a> fn(&Row<'a>) -> Option<&'a str>),
}

/// Receives the values of a row. `C` is the index in [`COLUMNS`], so that what depends on the column alone is known when
/// the code is compiled.
pub trait Visitor<'a> {
    fn number<const C: usize>(&mut self, value: Option<u32>);
    fn counter<const C: usize>(&mut self, value: u64);
    fn id<const C: usize>(&mut self, value: Option<u64>);
    fn flag<const C: usize>(&mut self, value: bool);
    fn time<const C: usize>(&mut self, unix_ns: u64);
    fn address<const C: usize>(&mut self, bytes: &'a [u8]);
    fn digest<const C: usize>(&mut self, bytes: &'a [u8]);
    fn numbers<const C: usize>(&mut self, values: &'a [u32]);
    fn text<const C: usize>(&mut self, value: Option<&'a str>);
}

/// A record with what its batch says about it.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    pub batch: &'a FlowBatch,
    pub record: &'a FlowRecord,
    pub interface: Option<&'a Interface>,
    /// Source and destination.
    pub ends: [RowEnd<'a>; 2],
}

/// One end, with the names for it in the batch.
#[derive(Clone, Copy)]
pub struct RowEnd<'a> {
    pub end: &'a Endpoint,
    pub cgroup: Option<&'a Cgroup>,
    pub process: Option<&'a Process>,
    pub host: Option<&'a HostName>,
}

impl<'a> Row<'a> {
    #[inline]
    pub fn new(
        batch: &'a FlowBatch,
        record: &'a FlowRecord,
        interface: Option<&'a Interface>,
    ) -> Self {
        Self {
            batch,
            record,
            interface,
            ends: record.ends().map(|end| RowEnd::new(batch, end)),
        }
    }
}

impl Row<'_> {
    /// The same flow as seen from its destination.
    #[must_use]
    pub fn reversed(self) -> Self {
        let [src, dst] = self.ends;
        Self {
            ends: [dst, src],
            ..self
        }
    }
}

impl<'a> RowEnd<'a> {
    #[inline]
    fn new(batch: &'a FlowBatch, end: &'a Endpoint) -> Self {
        Self {
            end,
            cgroup: end
                .cgroup_id
                .and_then(|id| find(&batch.cgroups, |one| one.id.cmp(&id))),
            process: end
                .process_key
                .and_then(|key| find(&batch.processes, |one| one.key.cmp(&key))),
            host: end
                .host_id
                .and_then(|id| find(&batch.hosts, |one| one.id.cmp(&id))),
        }
    }

    /// The number of the process, which its key contains.
    #[inline]
    pub fn pid(&self) -> Option<u32> {
        self.end.process_key.map(ProcessKey::pid_of)
    }
}

/// Names are sorted by their id or key.
fn find<T>(sorted: &[T], order: impl FnMut(&T) -> std::cmp::Ordering) -> Option<&T> {
    let place = sorted.binary_search_by(order).ok()?;
    Some(&sorted[place])
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use super::*;

    /// The generated part of a file in the repository.
    fn check(path: &str, begin: &str, end: &str, generated: &str) {
        let path = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(&path).unwrap();
        let (before, rest) = text.split_once(begin).expect(begin);
        let (current, after) = rest.split_once(end).expect(end);
        if current != generated {
            update(&path, &[before, begin, generated, end, after].concat());
        }
    }

    fn update(path: &str, text: &str) {
        assert!(
            std::env::var_os("UPDATE").is_some(),
            "{path} is not as flow.proto has it: run UPDATE=1 cargo test -p proto columns"
        );
        fs::write(path, text).unwrap();
    }

    /// No link, which would break where somebody copies the examples.
    #[test]
    fn the_examples_have_a_copy_of_flow_proto() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/consumers/proto");
        let path = format!("{folder}/flow/v1/flow.proto");
        let ours = include_str!("../flow/v1/flow.proto");
        if fs::read_to_string(&path).unwrap() != ours {
            update(&path, ours);
        }
    }

    #[test]
    fn the_table_of_the_docs_is_that_of_flow_proto() {
        let table = include_str!(concat!(env!("OUT_DIR"), "/fields.md"));
        check(
            "docs/fields.md",
            "<!-- from flow.proto -->\n\n",
            "\n<!-- end -->",
            table,
        );
    }

    #[test]
    fn the_columns_in_clickhouse_are_those_of_flow_proto() {
        let columns = include_str!(concat!(env!("OUT_DIR"), "/flows.sql"));
        check(
            "deploy/clickhouse/flows.sql",
            "    -- The facts about the flow: docs/fields.md describes them.\n",
            "    -- The addresses in their usual notation.\n",
            columns,
        );
    }

    #[test]
    fn every_name_is_there_once() {
        let names: BTreeSet<_> = COLUMNS.iter().map(|column| column.name).collect();
        assert_eq!(names.len(), COLUMNS.len());
        let keys: Vec<_> = COLUMNS.iter().flat_map(|column| column.otlp).collect();
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
        let elements: Vec<_> = COLUMNS.iter().filter_map(|column| column.element).collect();
        assert_eq!(
            elements.iter().collect::<BTreeSet<_>>().len(),
            elements.len()
        );
    }

    #[test]
    fn a_process_without_a_name_has_its_number() {
        let batch = FlowBatch::default();
        let key = 0xc << 32 | 0x7;
        let mut record = FlowRecord::default();
        record.src_mut().process_key = Some(key);
        let row = Row::new(&batch, &record, None);
        let [src, dst] = row.ends.map(|end| end.pid());
        assert_eq!((src, dst), (Some(ProcessKey::pid_of(key)), None));
    }
}
