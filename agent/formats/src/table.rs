//! Shows the busiest flows of each scan as a table for people.
//!
//! On a terminal the table is redrawn in place and fits the window. Elsewhere the tables follow each other.
//!
//! A flow has one row. An end without packets changes the state in the row of its flow. If the scan has no other record of
//! the flow, the end has no row, and is counted below the table.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    fmt,
    hash::{BuildHasher as _, RandomState},
    io::{self, Write},
};

use proto::{Account, Endpoint, FlowBatch, FlowRecord, RecordSum};

use super::{LostSoFar, flow_key::FlowKey, harmless::harmless, human, names::Names};

mod account;
mod layout;

pub use account::closing;
use account::reasons;
use layout::Row;

/// The default number of rows of a table that is not on a terminal.
const PLAIN_ROWS: usize = 50;
/// The maximum number of rows on a terminal.
const TERMINAL_ROWS: usize = 1000;
const FALLBACK_SIZE: (usize, usize) = (80, 24);

const CLEAR: &str = "\x1b[2J";
const HOME: &str = "\x1b[H";
const ERASE_LINE_END: &str = "\x1b[K";
const ERASE_BELOW: &str = "\x1b[J";

pub struct TableWriter<W: Write> {
    out: W,
    in_place: bool,
    limit: Option<usize>,
    drawn: bool,
    source: Source,
    names: Names,
    scan: Box<Scan>,
    all: All,
}

/// The kind of batches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Batches of scans.
    Scans,
    /// A list of flows in its order.
    List,
    /// The same of those that pass a filter: what is left out does not, and does not belong to the total.
    FilteredList,
}

/// Flows with their packets and bytes, both directions together.
#[derive(Clone, Copy, Default)]
struct Traffic {
    flows: u64,
    packets: u64,
    bytes: u64,
}

impl Traffic {
    fn add(&mut self, other: Self) {
        self.flows += other.flows;
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    /// The packets of a record since the flow's previous one. It is no flow of its own.
    fn of(record: &FlowRecord) -> Self {
        let [src, dst] = record.ends();
        Self {
            flows: 0,
            packets: src.delta_packets.saturating_add(dst.delta_packets),
            bytes: src.delta_bytes.saturating_add(dst.delta_bytes),
        }
    }
}

/// Exact, since other columns are rounded.
impl fmt::Display for Traffic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (packets, bytes) = (
            human::exact(self.packets, "packet"),
            human::exact(self.bytes, "byte"),
        );
        write!(formatter, "{packets}, {bytes}")?;
        if self.bytes >= 1024 {
            write!(formatter, " ({})", human::bytes(self.bytes))?;
        }
        Ok(())
    }
}

/// What all scans had since the first.
#[derive(Default)]
struct All {
    scans: u64,
    /// Counts the flows that began.
    traffic: Traffic,
    lost: LostSoFar,
    /// The number of the last batch on its stream.
    stream_seq: Option<u64>,
    /// Whether records did not arrive: they were lost, or the stream was interrupted.
    lacks_some: bool,
}

impl All {
    /// Notices what did not arrive before this batch.
    fn note(&mut self, batch: &FlowBatch) {
        let before = self.stream_seq.replace(batch.stream_seq);
        let is_next = before.is_none_or(|before| batch.stream_seq == before + 1);
        self.lacks_some |= self.lost.growth(batch).is_some() || !is_next;
    }

    fn add(&mut self, record: &FlowRecord) {
        let begins = record
            .ends()
            .iter()
            .all(|end| end.delta_packets == end.total_packets);
        self.traffic.add(Traffic {
            flows: begins.into(),
            ..Traffic::of(record)
        });
    }
}

/// The part of the current scan that has arrived.
#[derive(Default)]
struct Scan {
    id: u64,
    /// Flows with packets.
    flows: u64,
    /// How many of them ended.
    ended: u64,
    /// The packets of all flows, shown or not.
    traffic: Traffic,
    /// Flows that ended without packets.
    only_ended: u64,
    /// The busiest flows, which come first once sorted. At most twice as many as are shown.
    busiest: Vec<FlowRecord>,
    /// Where they are, by their flow.
    places: HashMap<u64, usize>,
    /// All flows with packets. A flow's end follows its other records.
    seen: HashSet<u64>,
    hasher: RandomState,
}

impl<W: Write> TableWriter<W> {
    pub fn on_terminal(out: W, limit: Option<usize>) -> Self {
        Self::new(out, limit, true)
    }

    pub fn plain(out: W, limit: Option<usize>) -> Self {
        Self::new(out, limit, false)
    }

    /// Shows flows in the order they arrive. `is_filtered` if those that are left out do not pass a filter.
    pub fn list(out: W, rows: usize, is_filtered: bool) -> Self {
        Self {
            source: if is_filtered {
                Source::FilteredList
            } else {
                Source::List
            },
            ..Self::new(out, Some(rows), false)
        }
    }

    fn new(out: W, limit: Option<usize>, in_place: bool) -> Self {
        Self {
            out,
            in_place,
            limit,
            drawn: false,
            source: Source::Scans,
            names: Names::default(),
            scan: Box::default(),
            all: All::default(),
        }
    }

    /// Adds a batch, and draws the table when the scan is complete.
    pub fn batch(&mut self, batch: &FlowBatch) -> io::Result<()> {
        if batch.scan_id != self.scan.id || batch.batch_index == 0 {
            *self.scan = Scan {
                id: batch.scan_id,
                ..Scan::default()
            };
            self.names.forget_senders();
        }
        self.names.note(batch);
        self.all.note(batch);
        let most = self.limit.unwrap_or(if self.in_place {
            TERMINAL_ROWS
        } else {
            PLAIN_ROWS
        });
        for record in &batch.records {
            let all = batch.snapshot.then(|| {
                let mut all = record.clone();
                all.report_total();
                all
            });
            let record = all.as_ref().unwrap_or(record);
            self.scan.traffic.add(Traffic::of(record));
            if !batch.snapshot {
                self.all.add(record);
            }
            if self.source == Source::Scans {
                self.scan.add(record, most);
            } else {
                self.scan.append(record, most);
            }
        }
        match &batch.account {
            Some(account) => {
                self.all.scans += u64::from(!batch.snapshot);
                self.draw(batch, account, most)
            }
            None => Ok(()),
        }
    }

    /// Writes below the last table what all scans had.
    pub fn finish(&mut self) -> io::Result<()> {
        let All { scans, traffic, .. } = self.all;
        if scans == 0 {
            return Ok(());
        }
        let (scans, flows) = (
            human::exact(scans, "scan"),
            human::exact(traffic.flows, "flow"),
        );
        let mut line = format!("in {scans}: {flows} began, {traffic}");
        if self.all.lacks_some {
            line.push_str("; records are missing, so there were more");
        }
        if self.in_place {
            // After Ctrl-C, the terminal shows it there.
            writeln!(self.out, "\r{line}{ERASE_LINE_END}")?;
        } else {
            writeln!(self.out, "\n{line}")?;
        }
        self.out.flush()
    }

    fn draw(&mut self, batch: &FlowBatch, account: &Account, most: usize) -> io::Result<()> {
        let mut lines = self.summary(batch, account);
        lines.push(String::new());

        let (width, rows) = if self.in_place {
            let (width, height) = terminal_size::terminal_size()
                .map_or(FALLBACK_SIZE, |(width, height)| {
                    (width.0.into(), height.0.into())
                });
            // Leave room for the table's head, the lines below it, and the one where the cursor ends up.
            (width, most.min(height.saturating_sub(lines.len() + 5)))
        } else {
            (usize::MAX, most)
        };
        if self.source == Source::Scans {
            self.scan.sort(rows);
        }
        let shown = self.scan.busiest.iter();
        let rows: Vec<Row> = shown.map(|record| self.row(record, batch)).collect();
        let mut more = self.scan.flows - rows.len() as u64;
        let mut total = Traffic {
            flows: self.scan.flows,
            ..self.scan.traffic
        };
        if self.source == Source::List {
            let RecordSum {
                records,
                packets,
                bytes,
            } = batch.left_out();
            more += records;
            total.add(Traffic {
                flows: records,
                packets,
                bytes,
            });
        }
        lines.extend(layout::lines(&rows, width));
        if more > 0 {
            lines.push(format!("… and {} more flows", human::count(more)));
        }
        if self.scan.only_ended > 0 {
            let (count, flows) = (
                human::count(self.scan.only_ended),
                flows(self.scan.only_ended),
            );
            lines.push(format!(
                "{count} {flows} ended without packets in this window"
            ));
        }
        if self.source == Source::FilteredList && batch.left_out_records > 0 {
            let left_out = human::count(batch.left_out_records);
            lines.push(format!("… and {left_out} flows that are left out"));
        }
        lines.push(format!(
            "total: {}, {total}",
            human::exact(total.flows, "flow")
        ));
        self.write(&lines, width)
    }

    fn write(&mut self, lines: &[String], width: usize) -> io::Result<()> {
        if self.in_place {
            if !self.drawn {
                self.out.write_all(CLEAR.as_bytes())?;
            }
            self.out.write_all(HOME.as_bytes())?;
            for line in lines {
                writeln!(
                    self.out,
                    "{}{ERASE_LINE_END}",
                    human::shortened(&harmless(line), width)
                )?;
            }
            self.out.write_all(ERASE_BELOW.as_bytes())?;
        } else {
            if self.drawn {
                writeln!(self.out)?;
            }
            for line in lines {
                writeln!(self.out, "{}", harmless(line))?;
            }
        }
        self.drawn = true;
        self.out.flush()
    }

    fn summary(&self, batch: &FlowBatch, account: &Account) -> Vec<String> {
        let active = self.scan.flows - self.scan.ended;
        let ended = self.scan.ended + self.scan.only_ended;
        let tracked = batch
            .tracked_flows
            .map(|flows| format!(", {flows} tracked"))
            .unwrap_or_default();
        if batch.snapshot {
            let tracked = batch.tracked_flows.unwrap_or_default();
            let after = format!(
                "after scan {}  flows {tracked} tracked, with all packets since each began",
                batch.scan_id
            );
            return vec![after, closing(account)];
        }
        let scan = format!(
            "scan {}  flows {active} active, {ended} ended{tracked}  table {} of {}{}",
            batch.scan_id,
            batch.table_occupancy.unwrap_or_default(),
            batch.table_capacity,
            if account.r#final { "  final" } else { "" },
        );
        let mut lines = vec![scan, closing(account)];
        if batch.refused_in_window {
            lines.push(format!(
                "flows were refused in this window, so some are counted in part: {}",
                reasons(account.not_inserted.iter()),
            ));
        }
        if batch.lost_batches > 0 {
            lines.push(format!(
                "lost {} batches with {} records: read too slowly",
                batch.lost_batches, batch.lost_records
            ));
        }
        lines
    }

    fn row(&self, record: &FlowRecord, batch: &FlowBatch) -> Row {
        Row::new(
            record,
            self.names.interface(record),
            [self.names.units(record), self.names.processes(record)],
            &self.names.hosts(record),
            batch.window_end_unix_ns,
        )
    }
}

impl Scan {
    fn append(&mut self, record: &FlowRecord, most: usize) {
        self.flows += 1;
        if self.busiest.len() < most {
            self.busiest.push(record.clone());
        }
    }

    fn add(&mut self, record: &FlowRecord, most: usize) {
        // A flow may end and begin again in one scan.
        let flow = (FlowKey::of(record), record.first_seen_unix_ns);
        let flow = self.hasher.hash_one(flow);
        let has_ended = record.end_reason.is_some();
        let has_packets = record.delta().packets > 0;
        if has_ended && !has_packets && !self.seen.contains(&flow) {
            self.only_ended += 1;
            return;
        }
        self.flows += u64::from(self.seen.insert(flow));
        self.ended += u64::from(has_ended);
        if let Some(&place) = self.places.get(&flow) {
            self.busiest[place] = merged(&self.busiest[place], record);
            return;
        }
        if has_ended && !has_packets {
            // The row of its flow is not shown.
            return;
        }
        self.places.insert(flow, self.busiest.len());
        self.busiest.push(record.clone());
        if self.busiest.len() >= most.max(1).saturating_mul(2) {
            self.sort(most);
        }
    }

    /// Keeps the `most` busiest flows, by bytes in both directions since the last scan.
    fn sort(&mut self, most: usize) {
        let busy = |record: &FlowRecord| {
            let [src, dst] = record.ends().map(|end| end.delta_bytes);
            let bytes = src.saturating_add(dst);
            (Reverse(bytes), record.first_seen_unix_ns)
        };
        self.busiest.sort_unstable_by_key(busy);
        self.busiest.truncate(most);
        let flows = self.busiest.iter().map(|record| {
            let flow = (FlowKey::of(record), record.first_seen_unix_ns);
            self.hasher.hash_one(flow)
        });
        self.places = flows.zip(0..).collect();
    }
}

/// A flow's later record, with the counts of both.
fn merged(row: &FlowRecord, later: &FlowRecord) -> FlowRecord {
    let mut merged = later.clone();
    let add = |to: &mut Endpoint, from: &Endpoint| {
        to.delta_packets = to.delta_packets.saturating_add(from.delta_packets);
        to.delta_bytes = to.delta_bytes.saturating_add(from.delta_bytes);
    };
    add(merged.src_mut(), row.src());
    add(merged.dst_mut(), row.dst());
    merged
}

fn flows(count: u64) -> &'static str {
    if count == 1 { "flow" } else { "flows" }
}

#[cfg(test)]
mod tests;
