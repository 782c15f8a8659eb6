//! Prints rows once on stdout, as a table or as JSON Lines.

use std::io::{self, Write};

use formats::{
    harmless::{self, harmless},
    human,
    time::UtcTime,
};
use serde::Serialize;
use sys::clock::nanos;

use super::{
    Sort, View,
    picture::{self, Flow, Picture},
    rows::{Of, Row, cells, columns, rows},
};

/// The summary, and the first rows. `width` is the terminal's width, if stdout is one.
pub fn table(
    mut out: impl Write,
    picture: &Picture,
    (view, sort): (View, Sort),
    (most, width): (usize, usize),
) -> io::Result<()> {
    for line in super::draw::summary(picture) {
        writeln!(out, "{}", human::shortened(&line, width))?;
    }
    let warnings = super::draw::warnings(picture);
    if !warnings.is_empty() {
        writeln!(out, "{}", harmless(&warnings))?;
    }
    writeln!(out)?;
    let mut all = rows(picture, view, sort, false);
    all.retain(|row| !row.is_only_an_end());
    let shown = all.iter().take(most);
    let shown: Vec<_> = shown.map(|row| cells(picture, view, row)).collect();
    let (columns, some) = columns(view, &shown);
    let fitted = columns.fit(&shown, some, width);
    writeln!(out, "{}", columns.line(columns.titles, &fitted))?;
    for row in &shown {
        writeln!(out, "{}", columns.line(&row.0, &fitted))?;
    }
    let more = all.len() - shown.len();
    if more > 0 {
        writeln!(out, "… and {} more", human::count(more as u64))?;
    }
    out.flush()
}

/// One line for each of the first rows, and one for the total.
pub fn json(
    mut out: impl Write,
    picture: &Picture,
    (view, sort): (View, Sort),
    most: usize,
) -> io::Result<()> {
    for row in rows(picture, view, sort, false).iter().take(most) {
        line(&mut out, &Line::of(view, row))?;
    }
    line(&mut out, &Total::of(picture))?;
    out.flush()
}

fn line(mut out: impl Write, line: &impl Serialize) -> io::Result<()> {
    let line = serde_json::to_string(line)?;
    writeln!(out, "{}", harmless::json(&line))
}

#[derive(Serialize)]
struct Line<'a> {
    r#type: &'static str,
    #[serde(flatten)]
    of: Named<'a>,
    /// In the last window.
    packets: u64,
    bytes: u64,
    reverse_packets: u64,
    reverse_bytes: u64,
    total_packets: u64,
    total_bytes: u64,
    total_reverse_packets: u64,
    total_reverse_bytes: u64,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Named<'a> {
    Flow(FlowPart<'a>),
    Group {
        /// `null` for the group of flows without a name.
        name: Option<&'a str>,
        /// The last name seen for a peer.
        #[serde(skip_serializing_if = "Option::is_none")]
        host: Option<&'a str>,
        /// Flows with packets in the last window.
        flows: u64,
    },
}

#[derive(Serialize)]
struct FlowPart<'a> {
    protocol: u32,
    protocol_name: String,
    src_addr: String,
    dst_addr: String,
    src_port: Option<u32>,
    dst_port: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    src_host: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dst_host: Option<&'a str>,
    interface: Option<&'a str>,
    first_seen: UtcTime,
    last_seen: UtcTime,
}

impl<'a> FlowPart<'a> {
    fn of(flow: &'a Flow) -> Self {
        let record = &flow.record;
        Self {
            protocol: record.protocol,
            protocol_name: human::protocol(record),
            src_addr: human::endpoint(&record.src().addr, None),
            dst_addr: human::endpoint(&record.dst().addr, None),
            src_port: record.src().port,
            dst_port: record.dst().port,
            src_host: flow.hosts[0].as_deref(),
            dst_host: flow.hosts[1].as_deref(),
            interface: flow.interface.as_deref(),
            first_seen: UtcTime::new(record.first_seen_unix_ns),
            last_seen: UtcTime::new(record.last_seen_unix_ns),
        }
    }
}

impl<'a> Line<'a> {
    fn of(view: View, row: &Row<'a>) -> Self {
        let (recent, total) = (row.recent, row.figures.total);
        let of = match row.of {
            Of::Flow(_, flow) => Named::Flow(FlowPart::of(flow)),
            Of::Group(name) => Named::Group {
                name: Some(name).filter(|name| !name.is_empty()),
                host: row.figures.host.as_deref(),
                flows: row.flows,
            },
        };
        let r#type = match view {
            View::Flows => "flow",
            View::Peers => "peer",
            View::Processes => "process",
            View::Units => "unit",
            View::Interfaces => "interface",
            View::Names => "name",
            View::Services => "service",
        };
        Self {
            r#type,
            of,
            packets: recent.packets[0],
            bytes: recent.bytes[0],
            reverse_packets: recent.packets[1],
            reverse_bytes: recent.bytes[1],
            total_packets: total.packets[0],
            total_bytes: total.bytes[0],
            total_reverse_packets: total.packets[1],
            total_reverse_bytes: total.bytes[1],
        }
    }
}

/// The total of all interfaces, and whether it is complete.
#[derive(Serialize)]
struct Total {
    r#type: &'static str,
    hostname: String,
    scan_id: u64,
    window_ns: Option<u64>,
    tracked_flows: Option<u64>,
    packets: u64,
    bytes: u64,
    reverse_packets: u64,
    reverse_bytes: u64,
    /// Whether the account has every packet that was seen.
    account_closes: Option<bool>,
    lost_records: u64,
    missing_batches: u64,
    forgotten_rows: u64,
    refused_in_window: bool,
    sample_rate: u32,
    report_interval_ns: u64,
}

impl Total {
    fn of(picture: &Picture) -> Self {
        let (recent, _) = picture.recent(picture.all());
        let missing = picture.missing;
        Self {
            r#type: "total",
            hostname: picture.hostname.clone(),
            scan_id: picture.scan_id(),
            window_ns: picture.length().map(nanos),
            tracked_flows: picture.tracked_flows,
            packets: recent.packets[0],
            bytes: recent.bytes[0],
            reverse_packets: recent.packets[1],
            reverse_bytes: recent.bytes[1],
            account_closes: picture.account.as_ref().map(picture::closes),
            lost_records: missing.lost_records,
            missing_batches: missing.gaps,
            forgotten_rows: missing.forgotten_rows,
            refused_in_window: missing.refused_in_window,
            sample_rate: missing.sample_rate,
            report_interval_ns: nanos(missing.report_interval),
        }
    }
}
