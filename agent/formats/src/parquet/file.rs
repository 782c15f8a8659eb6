//! Builds a Parquet file from pieces.

use std::{collections::BTreeMap, fs::File, sync::Arc};

use anyhow::Result;
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
use proto::{FlowBatch, RecordSum, known_interfaces::KnownInterfaces};
use serde_json::{Value, json};

use super::{
    Compression,
    columns::{OF_A_COLLECTOR, OF_A_FLOW, Row},
    pieces::Pieces,
    values::{Column, schema},
};
use crate::json::{JsonLines, StreamId};

/// A row group is closed once it has this many rows; its last piece may exceed that. The columns stay in memory until
/// the group is complete.
const ROWS_IN_A_GROUP: usize = 100_000;

/// Most streams whose agents and accounts go into the file's metadata. Of further streams only the losses do.
const MOST_STREAMS: usize = 1_000;
/// Most further streams with losses. A sender may create any number of streams.
const MOST_OTHERS: usize = 10_000;

/// Writes the Parquet file and returns it. An unreadable piece ends the file, and is logged.
pub fn make(pieces: &mut File, to: File, compression: Compression) -> Result<File> {
    let columns: Vec<_> = OF_A_FLOW.iter().collect();
    let to = (to, compression);
    in_groups_of(ROWS_IN_A_GROUP, &columns, Facts::of_an_agent(), pieces, to)
}

/// The same for a collector, whose pieces come from many agents.
pub fn make_of_many(pieces: &mut File, to: File, compression: Compression) -> Result<File> {
    let columns: Vec<_> = OF_A_COLLECTOR.iter().chain(&OF_A_FLOW).collect();
    let to = (to, compression);
    in_groups_of(ROWS_IN_A_GROUP, &columns, Facts::of_many(), pieces, to)
}

pub(super) fn in_groups_of(
    rows_in_a_group: usize,
    columns: &[&Column],
    facts: Facts,
    pieces: &mut File,
    (to, compression): (File, Compression),
) -> Result<File> {
    let codec = match compression {
        Compression::None => Codec::UNCOMPRESSED,
        Compression::Zstd => Codec::ZSTD(ZstdLevel::default()),
    };
    let properties = WriterProperties::builder()
        .set_created_by(concat!("flow-agent ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(codec)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .build();
    let mut rows = Rows {
        pieces: Pieces::new(pieces)?,
        columns,
        facts,
    };
    let mut writer = SerializedFileWriter::new(to, schema(columns)?, Arc::new(properties))?;
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
    if facts.are_streams_omitted {
        tracing::warn!(
            streams = MOST_OTHERS,
            "a Parquet file does not tell the losses of all its streams, since there are more than that which lost something"
        );
    }
    for (key, value) in facts.metadata() {
        writer.append_key_value_metadata(KeyValue::new(format!("flow_agent.{key}"), value));
    }
    Ok(writer.into_inner()?)
}

/// The pieces that are still to be read, and the facts from those already read.
struct Rows<'a> {
    pieces: Pieces<'a>,
    columns: &'a [&'a Column],
    facts: Facts,
}

impl Rows<'_> {
    /// Writes a row group. Returns whether another one may follow.
    fn group(
        &mut self,
        writer: &mut SerializedFileWriter<File>,
        rows_in_a_group: usize,
    ) -> Result<bool> {
        let (schema, properties) = (writer.schema_descr(), writer.properties());
        let mut chunks: Vec<_> = self
            .columns
            .iter()
            .map(|_| TrackedWrite::new(Vec::new()))
            .collect();
        // Write all columns at once, so that no rows need to be kept.
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
            match self.pieces.next_batch()? {
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

    /// Appends the rows of a piece. Returns their number.
    fn write(&mut self, batch: &FlowBatch, columns: &mut [ColumnWriter<'_>]) -> Result<usize> {
        // Each piece names its own interfaces. Other pieces may come from another agent.
        let mut interfaces = KnownInterfaces::default();
        interfaces.note_all(batch);
        self.facts.note(batch)?;
        let row = |(record, number)| Row::new(batch, number, record, interfaces.of(record));
        let rows: Vec<Row<'_>> = batch.records.iter().zip(0..).map(row).collect();
        for (column, writer) in self.columns.iter().zip(columns) {
            column.write(writer, &rows)?;
        }
        Ok(rows.len())
    }
}

/// The metadata of a file.
pub(super) struct Facts {
    of: Of,
    unread_bytes: u64,
    /// More streams lost something than the metadata can list.
    are_streams_omitted: bool,
}

/// The facts of the last piece, or of each stream's last piece.
enum Of {
    Agent(Box<StreamFacts>),
    Many {
        streams: BTreeMap<Stream, StreamFacts>,
        /// Losses of further streams. Streams without losses are omitted.
        lost_of_others: BTreeMap<Stream, Lost>,
    },
}

/// The sender's identity and the stream ID.
type Stream = (String, u64);

#[derive(Default)]
struct StreamFacts {
    /// The last batch, without its records.
    last: FlowBatch,
    /// A JSON object on one line.
    account: Option<String>,
}

impl Facts {
    pub(super) fn of_an_agent() -> Self {
        Self {
            of: Of::Agent(Box::default()),
            unread_bytes: 0,
            are_streams_omitted: false,
        }
    }

    pub(super) fn of_many() -> Self {
        Self {
            of: Of::Many {
                streams: BTreeMap::new(),
                lost_of_others: BTreeMap::new(),
            },
            unread_bytes: 0,
            are_streams_omitted: false,
        }
    }

    fn note(&mut self, batch: &FlowBatch) -> Result<()> {
        match &mut self.of {
            Of::Agent(stream) => stream.note(batch),
            Of::Many {
                streams,
                lost_of_others,
            } => {
                let agent = batch.agent.as_ref();
                let identity = agent.map_or_else(String::new, |agent| agent.identity.clone());
                let id = (identity, batch.stream_id);
                if streams.len() < MOST_STREAMS || streams.contains_key(&id) {
                    return streams.entry(id).or_default().note(batch);
                }
                let lost = Lost::by(batch);
                if lost == Lost::default() {
                    return Ok(());
                }
                if lost_of_others.len() < MOST_OTHERS || lost_of_others.contains_key(&id) {
                    lost_of_others.insert(id, lost);
                } else {
                    self.are_streams_omitted = true;
                }
                Ok(())
            }
        }
    }

    fn metadata(self) -> Vec<(&'static str, String)> {
        let mut facts = Vec::new();
        match self.of {
            Of::Agent(stream) => {
                let [agent, lost, left_out] = stream.facts();
                facts.push(("agent", agent.to_string()));
                facts.push(("lost", lost.to_string()));
                facts.push(("left_out", left_out.to_string()));
                facts.extend(stream.account.map(|account| ("account", account)));
            }
            Of::Many {
                streams,
                lost_of_others,
            } => {
                let streams = streams.into_iter().map(|((identity, id), stream)| {
                    let [agent, lost, _] = stream.facts();
                    let account = stream.account.as_deref().map(serde_json::from_str::<Value>);
                    json!({
                        "identity": identity,
                        "stream_id": StreamId(id).to_string(),
                        "agent": agent,
                        "lost": lost,
                        "account": account.and_then(Result::ok),
                    })
                });
                let others = lost_of_others.into_iter().map(|((identity, id), lost)| {
                    json!({
                        "identity": identity,
                        "stream_id": StreamId(id).to_string(),
                        "lost": lost.json(),
                    })
                });
                // Turn each into text at once: JSON values take ten times the memory.
                let streams = streams.chain(others).map(|stream| stream.to_string());
                let streams = streams.collect::<Vec<_>>().join(",");
                facts.push(("streams", format!("[{streams}]")));
            }
        }
        if self.unread_bytes > 0 {
            facts.push(("dropped_bytes", self.unread_bytes.to_string()));
        }
        facts
    }
}

impl StreamFacts {
    fn note(&mut self, batch: &FlowBatch) -> Result<()> {
        if batch.account.is_some() {
            let mut line = Vec::new();
            JsonLines::default().end(&mut line, batch)?;
            let line = String::from_utf8(line)?;
            self.account = Some(line.trim_end().to_owned());
        }
        self.last = FlowBatch {
            agent: batch.agent.clone(),
            ..batch.losses()
        };
        Ok(())
    }

    /// The agent, the losses, and the records left out, as JSON.
    fn facts(&self) -> [Value; 3] {
        let batch = &self.last;
        let agent = batch.agent.clone().unwrap_or_default();
        let agent = json!({
            "agent_id": agent.agent_id,
            "hostname": agent.hostname,
            "boot_id": agent.boot_id,
            "instance_id": agent.instance_id,
            "version": agent.version,
        });
        let RecordSum {
            records,
            packets,
            bytes,
        } = batch.left_out();
        let left_out = json!({"records": records, "packets": packets, "bytes": bytes});
        [agent, Lost::by(batch).json(), left_out]
    }
}

/// Total losses of a stream.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Lost {
    batches: u64,
    sum: RecordSum,
}

impl Lost {
    /// The losses that a batch reports.
    fn by(batch: &FlowBatch) -> Self {
        Self {
            batches: batch.lost_batches,
            sum: batch.lost(),
        }
    }

    fn json(self) -> Value {
        let Self { batches, sum } = self;
        let RecordSum {
            records,
            packets,
            bytes,
        } = sum;
        json!({"batches": batches, "records": records, "packets": packets, "bytes": bytes})
    }
}
