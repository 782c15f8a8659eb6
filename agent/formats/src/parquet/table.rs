//! Batches as rows of a database's two tables, each as a Parquet file in memory: the flow records, and the batches
//! themselves with their origin and losses.

use std::{iter::once, sync::Arc};

use agent_common::Pair;
use anyhow::Result;
use bytes::Bytes;
use parquet::{
    basic::{Compression as Codec, ZstdLevel},
    file::{
        properties::{EnabledStatistics, WriterProperties},
        writer::SerializedFileWriter,
    },
};
use proto::{Account, Count, FlowBatch, FlowRecord, known_interfaces::KnownInterfaces};

use super::{
    columns::{OF_A_COLLECTOR, OF_A_FLOW, Row},
    values::{
        Column,
        Values::{Boolean, Counter, Number, Text, Time},
        column, schema,
    },
};
use crate::json::JsonLines;

/// A table of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// One row per record, with the columns of files.
    Flows,
    /// One row per batch.
    Batches,
}

/// The columns of a batch, after the columns of [`OF_A_COLLECTOR`] that it shares with records.
const OF_A_BATCH: &[Column] = &[
    column("version", Text(version)),
    column("stream_seq", Counter(|row| row.batch().stream_seq)),
    column("scan_id", Counter(|row| row.batch().scan_id)),
    column("batch_index", Number(32, |row| row.batch().batch_index)),
    column("last_of_scan", Boolean(|row| row.batch().last_of_scan)),
    column("window_start", Time(|row| row.batch().window_start_unix_ns)),
    column("window_end", Time(|row| row.batch().window_end_unix_ns)),
    column("records", Counter(|row| row.batch().records.len() as u64)),
    column("packets", Counter(|row| volume(row).packets)),
    column("bytes", Counter(|row| volume(row).bytes)),
    column("lost_batches", Counter(|row| row.batch().lost_batches)),
    column("lost_records", Counter(|row| row.batch().lost_records)),
    column("lost_packets", Counter(|row| row.batch().lost_packets)),
    column("lost_bytes", Counter(|row| row.batch().lost_bytes)),
    column(
        "left_out_records",
        Counter(|row| row.batch().left_out_records),
    ),
    column(
        "left_out_packets",
        Counter(|row| row.batch().left_out_packets),
    ),
    column("left_out_bytes", Counter(|row| row.batch().left_out_bytes)),
    column(
        "refused_in_window",
        Boolean(|row| row.batch().refused_in_window),
    ),
    column(
        "tracked_flows",
        Counter(|row| row.batch().tracked_flows.unwrap_or_default()),
    ),
    column("sample_rate", Number(32, |row| row.batch().sample_rate)),
    column(
        "final",
        Boolean(|row| {
            row.batch()
                .account
                .as_ref()
                .is_some_and(|account| account.r#final)
        }),
    ),
    column(
        "seen_packets",
        Counter(|row| counted(row, |account| &account.seen).packets),
    ),
    column(
        "seen_bytes",
        Counter(|row| counted(row, |account| &account.seen).bytes),
    ),
    column(
        "flows_packets",
        Counter(|row| counted(row, |account| &account.flows).packets),
    ),
    column(
        "flows_bytes",
        Counter(|row| counted(row, |account| &account.flows).bytes),
    ),
    column("account", Text(account)),
];

impl Table {
    /// Column names, in order.
    pub fn column_names(self) -> Vec<&'static str> {
        self.columns().iter().map(|column| column.name).collect()
    }

    /// Encodes the rows of these batches. Without batches the file has only the columns.
    pub fn file(self, batches: &[FlowBatch]) -> Result<Bytes> {
        let columns = self.columns();
        let columns: Vec<_> = columns.iter().collect();
        let interfaces: Vec<_> = batches.iter().map(known).collect();
        // A batch's own row has number 0 and reads no record.
        let none = FlowRecord::default();
        let mut rows = Vec::new();
        for (batch, interfaces) in batches.iter().zip(&interfaces) {
            let row = |(record, number)| Row::new(batch, number, record, interfaces.of(record));
            match self {
                Self::Flows => rows.extend(batch.records.iter().zip(0..).map(row)),
                Self::Batches => rows.extend(once((&none, 0)).map(row)),
            }
        }
        let properties = WriterProperties::builder()
            .set_created_by(concat!("flow-agent ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_compression(Codec::ZSTD(ZstdLevel::default()))
            // Readers take the whole file, so statistics are useless.
            .set_statistics_enabled(EnabledStatistics::None)
            .build();
        let schema = schema(&columns)?;
        let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?;
        if !rows.is_empty() {
            let mut group = writer.next_row_group()?;
            for column in columns {
                let mut written = group.next_column()?.expect("the schema has this column");
                column.write(written.untyped(), &rows)?;
                written.close()?;
            }
            group.close()?;
        }
        Ok(writer.into_inner()?.into())
    }

    fn columns(self) -> Vec<Column> {
        let all: Vec<_> = match self {
            Self::Flows => OF_A_COLLECTOR.iter().chain(&OF_A_FLOW).collect(),
            Self::Batches => {
                let of_both = OF_A_COLLECTOR.iter().filter(|one| one.name != "record");
                of_both.chain(OF_A_BATCH).collect()
            }
        };
        all.into_iter().map(|column| column.native()).collect()
    }
}

/// The interfaces of one batch. Other batches may come from another agent.
fn known(batch: &FlowBatch) -> KnownInterfaces {
    let mut interfaces = KnownInterfaces::default();
    interfaces.note_all(batch);
    interfaces
}

fn version(row: &Row, text: &mut String) -> Option<()> {
    text.push_str(&row.batch().agent.as_ref()?.version);
    Some(())
}

/// The total of a batch's records. Wraps like the counters.
fn volume(row: &Row) -> Pair {
    let deltas = row.batch().records.iter().map(FlowRecord::delta);
    deltas.fold(Pair::default(), |sum, delta| Pair {
        packets: sum.packets.wrapping_add(delta.packets),
        bytes: sum.bytes.wrapping_add(delta.bytes),
    })
}

fn counted(row: &Row, of: fn(&Account) -> &Option<Count>) -> Count {
    let account = row.batch().account.as_ref();
    account.and_then(|account| *of(account)).unwrap_or_default()
}

/// The account as one line of JSON.
fn account(row: &Row, text: &mut String) -> Option<()> {
    row.batch().account.as_ref()?;
    let mut line = Vec::new();
    JsonLines::default().end(&mut line, row.batch()).ok()?;
    text.push_str(std::str::from_utf8(&line).ok()?.trim_end());
    Some(())
}

#[cfg(test)]
mod tests {
    use parquet::{
        file::reader::{FileReader as _, SerializedFileReader},
        record::Field,
    };
    use proto::Interface;

    use super::*;

    #[test]
    fn texts_that_are_too_much_for_memory_at_once_are_all_there() {
        let interface = |ifindex: u32| Interface {
            ifindex,
            // One of three has none.
            netns_name: ifindex.to_string().repeat(ifindex as usize * 2_000),
            ..Interface::default()
        };
        let record = |number: u32| FlowRecord {
            ifindex: number % 3,
            ..FlowRecord::default()
        };
        let batch = FlowBatch {
            interfaces: (0..3).map(interface).collect(),
            records: (0..2_000).map(record).collect(),
            ..FlowBatch::default()
        };
        let file = Table::Flows.file(&[batch]).unwrap();
        let file = SerializedFileReader::new(file).unwrap();
        for (row, number) in file.get_row_iter(None).unwrap().zip(0..2_000) {
            let mut columns = row.unwrap().into_columns().into_iter();
            let (_, name) = columns.find(|(name, _)| name == "netns_name").unwrap();
            let expected = match interface(number % 3).netns_name {
                name if name.is_empty() => Field::Null,
                name => Field::Str(name),
            };
            assert_eq!(name, expected, "{number}");
        }
        assert_eq!(file.metadata().file_metadata().num_rows(), 2_000);
    }
}
