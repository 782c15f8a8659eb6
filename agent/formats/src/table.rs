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

use proto::{Account, Endpoint, FlowBatch, FlowRecord};

use super::{LostSoFar, flow_key::FlowKey, harmless::harmless, human, names::Names};

mod layout;

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

/// What the batches are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Those of scans.
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
    /// The flows are those that began.
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
    /// Those of them that ended.
    ended: u64,
    /// The packets of all flows, also of those that are not shown.
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
            more += batch.left_out_records;
            total.add(Traffic {
                flows: batch.left_out_records,
                packets: batch.left_out_packets,
                bytes: batch.left_out_bytes,
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
            // The row of its flow is not among those that are shown.
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

/// The account's equation in packets, or the difference if it does not hold.
pub fn closing(account: &Account) -> String {
    let seen = proto::pair(account.seen);
    let missing = account.missing();
    let sampled_out = match (
        account.sample_rate,
        proto::pair(account.sampled_out).packets,
    ) {
        (0, 0) => String::new(),
        // A collector has stopped sampling since.
        (0, packets) => format!(" + sampled out {packets}"),
        (rate, packets) => format!(" + sampled out {packets} (1 flow in {rate} is counted)"),
    };
    let equation = format!(
        "seen {} = flows {} + unparsed {}{} + not inserted {}{} + filtered {}{sampled_out}",
        seen.packets,
        proto::pair(account.flows).packets,
        account.unparsed_sum().packets,
        in_brackets(&reasons(account.unparsed.iter())),
        account.not_inserted_sum().packets,
        in_brackets(&reasons(account.not_inserted.iter())),
        proto::pair(account.filtered).packets,
    );
    if missing == agent_common::Pair::default() {
        return format!("account closes: {equation}");
    }
    let (packets, bytes) = (missing.packets.cast_signed(), missing.bytes.cast_signed());
    format!("ACCOUNT DOES NOT CLOSE, {packets} packets and {bytes} bytes are missing: {equation}")
}

/// The reasons that have packets: `arp 3, llc 1`.
fn reasons<'a>(counts: impl Iterator<Item = (&'a String, &'a proto::Count)>) -> String {
    let named = counts
        .filter(|(_, count)| count.packets > 0)
        .map(|(reason, count)| format!("{reason} {}", count.packets));
    named.collect::<Vec<_>>().join(", ")
}

fn in_brackets(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        format!(" ({text})")
    }
}

#[cfg(test)]
mod tests {
    use agent_common::{HookAccount, Reason};
    use proto::{EndReason, Interface};

    use super::*;

    fn record(number: u32, bytes: u64) -> FlowRecord {
        FlowRecord {
            src: Some(Endpoint {
                addr: number.to_be_bytes().to_vec().into(),
                port: Some(40_000),
                delta_packets: 1,
                delta_bytes: bytes,
                ..Endpoint::default()
            }),
            dst: Some(Endpoint {
                addr: vec![192, 0, 2, 1].into(),
                port: Some(443),
                ..Endpoint::default()
            }),
            protocol: 6,
            ip_version: 4,
            ifindex: 2,
            first_seen_unix_ns: 1_000_000_000,
            ..FlowRecord::default()
        }
    }

    fn batch(records: Vec<FlowRecord>, account: &HookAccount) -> FlowBatch {
        FlowBatch {
            stream_seq: 1,
            scan_id: 4,
            window_end_unix_ns: 13_000_000_000,
            table_occupancy: Some(3),
            table_capacity: 1000,
            tracked_flows: Some(5),
            interfaces: vec![Interface {
                ifindex: 2,
                name: "eth0".into(),
                netns: 0,
                ..Interface::default()
            }],
            records,
            account: Some(Account::from_hook(account, false)),
            ..FlowBatch::default()
        }
    }

    fn drawn(batches: &[FlowBatch], limit: usize) -> String {
        let mut out = Vec::new();
        let mut table = TableWriter::plain(&mut out, Some(limit));
        for batch in batches {
            table.batch(batch).unwrap();
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_busiest_flows_come_first_and_the_others_are_counted() {
        let account = HookAccount::default();
        let whole = batch(
            (0..50)
                .map(|number| record(number, number.into()))
                .collect(),
            &account,
        );
        let mut ended = record(70, 5000);
        ended.end_reason = Some(EndReason::EndOfFlow.into());
        let first = FlowBatch {
            account: None,
            records: vec![ended],
            ..whole.clone()
        };
        let second = FlowBatch {
            batch_index: 1,
            ..whole
        };
        let text = drawn(&[first, second], 2);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "scan 4  flows 50 active, 1 ended, 5 tracked  table 3 of 1000"
        );
        assert!(
            lines[1].starts_with("account closes: seen 0 = flows 0"),
            "{text}"
        );
        assert!(lines[3].contains("INITIATOR"), "{text}");
        assert!(
            lines[4].contains("0.0.0.70:40000") && lines[4].contains("closed"),
            "{text}"
        );
        assert!(
            lines[5].contains("0.0.0.49:40000") && lines[5].contains("192.0.2.1:443"),
            "{text}"
        );
        assert!(lines[5].contains("12s"), "{text}");
        // All of them, 7's end included.
        let total = "total: 51 flows, 51 packets, 6225 bytes (6.1 KiB)";
        assert_eq!(lines[6..], ["… and 49 more flows", total]);
    }

    #[test]
    fn an_end_is_in_the_row_of_its_flow_or_is_counted() {
        let ended = |number| {
            let mut end = record(number, 0);
            end.src_mut().delta_packets = 0;
            end.end_reason = Some(EndReason::IdleTimeout.into());
            end
        };
        let account = HookAccount::default();
        // The next flow with the same ports began when this one ended.
        let again = FlowRecord {
            first_seen_unix_ns: 5_000_000_000,
            ..record(2, 30)
        };
        let whole = batch(
            vec![
                record(1, 100),
                record(3, 20),
                record(2, 10),
                again,
                record(4, 5),
                ended(2),
                ended(8),
                ended(4),
                ended(9),
            ],
            &account,
        );
        let text = drawn(&[whole], 4);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "scan 4  flows 3 active, 4 ended, 5 tracked  table 3 of 1000"
        );
        let rows: Vec<_> = lines[4..8]
            .iter()
            .map(|row| {
                let cells: Vec<&str> = row.split_whitespace().collect();
                (cells[3], cells[cells.len() - 1])
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("0.0.0.1:40000", "active"),
                ("0.0.0.2:40000", "active"),
                ("0.0.0.3:40000", "active"),
                ("0.0.0.2:40000", "idle"),
            ]
        );
        assert_eq!(
            lines[8..],
            [
                "… and 1 more flows",
                "2 flows ended without packets in this window",
                "total: 5 flows, 5 packets, 165 bytes"
            ]
        );
    }

    #[test]
    fn two_records_of_a_flow_are_one_row_with_the_counts_of_both() {
        let last = FlowRecord {
            end_reason: Some(EndReason::EndOfFlow.into()),
            ..record(1, 11)
        };
        let text = drawn(
            &[batch(vec![record(1, 100), last], &HookAccount::default())],
            4,
        );
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("flows 0 active, 1 ended"), "{text}");
        assert!(
            lines[4].contains("111 B") && lines[4].contains("closed"),
            "{text}"
        );
        let total = "total: 1 flow, 2 packets, 111 bytes";
        assert_eq!(lines[5..], [total], "{text}");
    }

    #[test]
    fn a_list_keeps_its_order_and_says_what_is_left_out() {
        let all = |number| FlowRecord {
            src: Some(Endpoint {
                total_packets: 4321,
                ..record(number, 10).src().clone()
            }),
            ..record(number, 10)
        };
        let listed = FlowBatch {
            snapshot: true,
            left_out_records: 7,
            ..batch(vec![all(1), all(2), all(3)], &HookAccount::default())
        };
        let listed = FlowBatch {
            left_out_packets: 100,
            left_out_bytes: 5000,
            ..listed
        };
        let list = |is_filtered| {
            let mut out = Vec::new();
            let mut table = TableWriter::list(&mut out, 2, is_filtered);
            table.batch(&listed).unwrap();
            String::from_utf8(out).unwrap()
        };
        let text = list(true);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("after scan 4  flows 5 tracked"),
            "{text}"
        );
        assert!(
            lines[4].contains("0.0.0.1:40000") && lines[4].contains("4.3k"),
            "{text}"
        );
        assert!(lines[5].contains("0.0.0.2:40000"), "{text}");
        assert_eq!(
            lines[6..],
            [
                "… and 1 more flows",
                "… and 7 flows that are left out",
                "total: 3 flows, 12963 packets, 0 bytes"
            ]
        );
        // Those that the server did not send belong to the total.
        let text = list(false);
        let lines: Vec<&str> = text.lines().skip(6).collect();
        let total = "total: 10 flows, 13063 packets, 5000 bytes (4.9 KiB)";
        assert_eq!(lines, ["… and 8 more flows", total]);
    }

    #[test]
    fn the_end_has_the_sum_of_all_scans() {
        let account = HookAccount::default();
        let with_total = |number, total_packets| FlowRecord {
            src: Some(Endpoint {
                total_packets,
                ..record(number, 700).src().clone()
            }),
            ..record(number, 700)
        };
        // Each has a packet since its last record: the first of flows 2 and 3, and a later one of flow 1.
        let scans = [
            FlowBatch {
                snapshot: true,
                ..batch(vec![with_total(1, 1)], &account)
            },
            FlowBatch {
                stream_seq: 2,
                ..batch(vec![with_total(1, 2), with_total(2, 1)], &account)
            },
            FlowBatch {
                scan_id: 5,
                stream_seq: 3,
                ..batch(
                    vec![with_total(1, 3), with_total(2, 2), with_total(3, 1)],
                    &account,
                )
            },
        ];
        let written = |scans: &[FlowBatch]| {
            let mut out = Vec::new();
            let mut table = TableWriter::plain(&mut out, Some(1));
            // There is nothing yet.
            table.finish().unwrap();
            for batch in scans {
                table.batch(batch).unwrap();
            }
            table.finish().unwrap();
            String::from_utf8(out).unwrap()
        };
        let text = written(&scans);
        let sum = "in 2 scans: 2 flows began, 5 packets, 3500 bytes (3.4 KiB)";
        assert_eq!(text.lines().last(), Some(sum));
        assert!(text.starts_with("after scan 4"), "{text}");
        let totals: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("total:"))
            .collect();
        let of_last = "total: 3 flows, 3 packets, 2100 bytes (2.1 KiB)";
        assert_eq!((totals.len(), totals[2]), (3, of_last), "{text}");
        // Lost to a slow reader, and missing because the agent was gone.
        let [_, first, second] = scans;
        let dropped = FlowBatch {
            lost_batches: 1,
            lost_records: 4,
            ..second.clone()
        };
        let anew = FlowBatch {
            stream_seq: 1,
            ..second
        };
        for second in [dropped, anew] {
            let text = written(&[first.clone(), second]);
            assert!(
                text.ends_with("; records are missing, so there were more\n"),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let mut account = HookAccount::default();
        account.add(Reason::Seen, 10, 1000);
        account.add(Reason::TableFull, 4, 400);
        account.add(Reason::Arp, 1, 60);
        let broken = FlowBatch {
            refused_in_window: true,
            lost_batches: 2,
            lost_records: 9,
            ..batch(Vec::new(), &account)
        };
        let text = drawn(&[broken], 10);
        assert!(
            text.contains("DOES NOT CLOSE, 5 packets and 540 bytes are missing"),
            "{text}"
        );
        assert!(text.contains("unparsed 1 (arp 1)"), "{text}");
        assert!(text.contains("counted in part: table_full 4"), "{text}");
        assert!(text.contains("lost 2 batches with 9 records"), "{text}");
    }
}
