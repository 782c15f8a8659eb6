//! What people and programs read of flows: a batch to bytes.
//!
//! Outputs send what an [`Encoder`](encoder::Encoder) makes: [`jsonl`], [`ipfix`], [`otlp`], [`pbflow`], or the pieces of [`parquet`]
//! files. People read [`json`] lines, the live [`table`], and [`human`] figures. [`names`] has the words that these share, and
//! [`harmless`] makes text from others safe for a terminal.
//!
//! Nothing here opens a file or a connection: what is read and written is handed in, but for [`Printer`]'s stdout.
//!
//! May depend on: `proto`, `sys`.

use std::io::{self, IsTerminal as _, Write};

use proto::FlowBatch;

pub mod cells;
pub mod columns;
pub mod encoder;
pub mod flow_key;
pub mod harmless;
pub mod human;
pub mod ipfix;
pub mod json;
pub mod jsonl;
pub mod log;
pub mod names;
pub mod otlp;
pub mod parquet;
pub mod pbflow;
pub mod table;
pub mod time;

pub use json::JsonWriter;
pub use table::TableWriter;

/// The output formats for batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Columns, for people.
    Table,
    /// JSON Lines: an object a line, for programs.
    Json,
}

/// Writes batches in either form.
pub enum Printer<W: Write> {
    Table(Box<TableWriter<W>>),
    Json(JsonWriter<W>),
}

impl Printer<io::BufWriter<io::Stdout>> {
    /// `limit` bounds the rows of a table.
    pub fn on_stdout(format: Format, limit: Option<usize>) -> Self {
        let stdout = io::stdout();
        let in_place = stdout.is_terminal();
        Self::new(format, buffered(stdout), in_place, limit)
    }
}

impl Printer<io::BufWriter<io::Stdout>> {
    /// For a list of flows, which keeps its order. `is_filtered` if flows that are left out do not pass a filter.
    pub fn once(format: Format, rows: usize, is_filtered: bool) -> Self {
        let out = buffered(io::stdout());
        match format {
            Format::Table => Self::Table(Box::new(TableWriter::list(out, rows, is_filtered))),
            Format::Json => Self::Json(JsonWriter::new(out)),
        }
    }
}

/// Buffers the output, so that few system calls are needed.
pub fn buffered<W: Write>(out: W) -> io::BufWriter<W> {
    io::BufWriter::with_capacity(64 << 10, out)
}

impl<W: Write> Printer<W> {
    /// `in_place` redraws a table on a terminal. `limit` bounds its rows.
    pub fn new(format: Format, out: W, in_place: bool, limit: Option<usize>) -> Self {
        match format {
            Format::Table if in_place => {
                Self::Table(Box::new(TableWriter::on_terminal(out, limit)))
            }
            Format::Table => Self::Table(Box::new(TableWriter::plain(out, limit))),
            Format::Json => Self::Json(JsonWriter::new(out)),
        }
    }

    pub fn batch(&mut self, batch: &FlowBatch) -> io::Result<()> {
        match self {
            Self::Table(table) => table.batch(batch),
            Self::Json(json) => json.batch(batch),
        }
    }

    /// After the last batch: a table ends with the sum of all.
    pub fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Table(table) => table.finish(),
            Self::Json(_) => Ok(()),
        }
    }
}

/// Whether the reader of our output has exited, as `head` does. That is not a failure.
pub fn is_broken_pipe(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// Tracks the lost counters of a stream, which start again with each stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct LostSoFar {
    batches: u64,
    records: u64,
}

impl LostSoFar {
    /// Batches and records lost between the previous batch and this one.
    pub fn growth(&mut self, batch: &FlowBatch) -> Option<(u64, u64)> {
        if batch.stream_seq == 1 {
            *self = Self::default();
        }
        let growth = (
            batch.lost_batches.saturating_sub(self.batches),
            batch.lost_records.saturating_sub(self.records),
        );
        *self = Self {
            batches: batch.lost_batches,
            records: batch.lost_records,
        };
        (growth != (0, 0)).then_some(growth)
    }
}
