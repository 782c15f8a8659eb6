//! Makes a Parquet file of pieces.

use std::{fs::File, sync::Arc};

use anyhow::{Result, bail};
use bytes::Bytes;
use parquet::{
    basic::{Compression as Codec, ZstdLevel},
    column::writer::{ColumnWriter, get_column_writer},
    file::{
        metadata::KeyValue,
        properties::{EnabledStatistics, WriterProperties},
        writer::{SerializedFileWriter, SerializedPageWriter, TrackedWrite},
    },
};
use serde_json::json;

use super::{
    columns::{COLUMNS, Row, schema},
    pieces::Pieces,
};
use crate::{
    freed_memory, known_interfaces::KnownInterfaces, output::json::JsonLines,
    outputs::files::Compression, proto::FlowBatch,
};

/// A row group has that many rows, and those of one more piece at most. Its columns are in memory until it is whole.
const ROWS_IN_A_GROUP: usize = 100_000;

/// Writes the file and returns it. Pieces that cannot be read end it, and are told.
pub(super) fn make(pieces: &mut File, to: File, compression: Compression) -> Result<File> {
    let made = in_groups_of(ROWS_IN_A_GROUP, pieces, to, compression);
    // Each thread of tokio's pool would keep as much.
    freed_memory::give_back();
    made
}

pub(super) fn in_groups_of(
    rows_in_a_group: usize,
    pieces: &mut File,
    to: File,
    compression: Compression,
) -> Result<File> {
    let codec = match compression {
        Compression::None => Codec::UNCOMPRESSED,
        Compression::Zstd => Codec::ZSTD(ZstdLevel::default()),
        Compression::Gzip => bail!("Parquet is not compressed with gzip here"),
    };
    let properties = WriterProperties::builder()
        .set_created_by(concat!("flow-agent ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(codec)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .build();
    let mut rows = Rows {
        pieces: Pieces::new(pieces)?,
        interfaces: KnownInterfaces::default(),
        facts: Facts::default(),
    };
    let mut writer = SerializedFileWriter::new(to, schema()?, Arc::new(properties))?;
    while rows.group(&mut writer, rows_in_a_group)? {}
    let Rows {
        pieces, mut facts, ..
    } = rows;
    facts.unread_bytes = pieces.rest_bytes();
    if facts.unread_bytes > 0 {
        tracing::warn!(
            bytes = facts.unread_bytes,
            "what waited to become a Parquet file is damaged, and its end is dropped"
        );
    }
    for (key, value) in facts.metadata() {
        writer.append_key_value_metadata(KeyValue::new(format!("flow_agent.{key}"), value));
    }
    Ok(writer.into_inner()?)
}

/// The rows that are not written yet, and what was read beside those that are.
struct Rows<'a> {
    pieces: Pieces<'a>,
    interfaces: KnownInterfaces,
    facts: Facts,
}

impl Rows<'_> {
    /// Writes a row group. Returns whether there may be another one.
    fn group(
        &mut self,
        writer: &mut SerializedFileWriter<File>,
        rows_in_a_group: usize,
    ) -> Result<bool> {
        let (schema, properties) = (writer.schema_descr(), writer.properties());
        let mut chunks: Vec<_> = COLUMNS
            .iter()
            .map(|_| TrackedWrite::new(Vec::new()))
            .collect();
        // All columns at once, so that the rows need not be kept.
        let mut columns: Vec<ColumnWriter<'_>> = chunks
            .iter_mut()
            .zip(schema.columns())
            .map(|(chunk, column)| {
                let pages = Box::new(SerializedPageWriter::new(chunk));
                get_column_writer(Arc::clone(column), Arc::clone(properties), pages)
            })
            .collect();
        let (mut written, mut has_more) = (0, true);
        while has_more && written < rows_in_a_group {
            match self.pieces.next()? {
                Some(batch) => written += self.write(&batch, &mut columns)?,
                None => has_more = false,
            }
        }
        let closed: Result<Vec<_>, _> = columns.into_iter().map(ColumnWriter::close).collect();
        let closed = closed?;
        if written == 0 {
            return Ok(has_more);
        }
        let mut group = writer.next_row_group()?;
        for (chunk, closed) in chunks.into_iter().zip(closed) {
            group.append_column(&Bytes::from(chunk.into_inner()?), closed)?;
        }
        group.close()?;
        Ok(has_more)
    }

    /// Appends the rows of a piece. Returns how many there are.
    fn write(&mut self, batch: &FlowBatch, columns: &mut [ColumnWriter<'_>]) -> Result<usize> {
        self.interfaces.note_all(batch);
        self.facts.note(batch)?;
        let row = |record| Row {
            batch,
            record,
            interface: self.interfaces.of(record),
        };
        let rows: Vec<Row<'_>> = batch.records.iter().map(row).collect();
        for (column, writer) in COLUMNS.iter().zip(columns) {
            column.write(writer, &rows)?;
        }
        Ok(rows.len())
    }
}

/// What a file tells beside its rows, as of its last piece.
#[derive(Default)]
struct Facts {
    last: FlowBatch,
    /// A line of JSON.
    account: Option<String>,
    unread_bytes: u64,
}

impl Facts {
    fn note(&mut self, batch: &FlowBatch) -> Result<()> {
        if batch.account.is_some() {
            let mut line = Vec::new();
            JsonLines::default().end(&mut line, batch)?;
            let line = String::from_utf8(line)?;
            self.account = Some(line.trim_end().to_owned());
        }
        self.last = FlowBatch {
            agent: batch.agent.clone(),
            lost_batches: batch.lost_batches,
            lost_records: batch.lost_records,
            lost_packets: batch.lost_packets,
            lost_bytes: batch.lost_bytes,
            left_out_records: batch.left_out_records,
            left_out_packets: batch.left_out_packets,
            left_out_bytes: batch.left_out_bytes,
            ..FlowBatch::default()
        };
        Ok(())
    }

    fn metadata(self) -> Vec<(&'static str, String)> {
        let Self {
            last,
            account,
            unread_bytes,
        } = self;
        let agent = last.agent.unwrap_or_default();
        let agent = json!({
            "agent_id": agent.agent_id,
            "hostname": agent.hostname,
            "boot_id": agent.boot_id,
            "instance_id": agent.instance_id,
            "version": agent.version,
        });
        let lost = json!({
            "batches": last.lost_batches,
            "records": last.lost_records,
            "packets": last.lost_packets,
            "bytes": last.lost_bytes,
        });
        let left_out = json!({
            "records": last.left_out_records,
            "packets": last.left_out_packets,
            "bytes": last.left_out_bytes,
        });
        let mut facts = vec![
            ("agent", agent.to_string()),
            ("lost", lost.to_string()),
            ("left_out", left_out.to_string()),
        ];
        facts.extend(account.map(|account| ("account", account)));
        if unread_bytes > 0 {
            facts.push(("dropped_bytes", unread_bytes.to_string()));
        }
        facts
    }
}
