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
    Sort, View, draw,
    fleet::{Fleet, Host},
    picture::{self, Flow},
    rows::{Of, Row, cells, columns, rows},
};

/// The summary, and the first rows. `width` is the terminal's width, if stdout is one.
pub fn table(
    mut out: impl Write,
    fleet: &Fleet,
    (view, sort): (View, Sort),
    (most, width): (usize, usize),
) -> io::Result<()> {
    for line in draw::summary(fleet) {
        writeln!(out, "{}", human::shortened(&line, width))?;
    }
    let warnings = draw::warnings(fleet);
    if !warnings.is_empty() {
        writeln!(out, "{}", harmless(&warnings))?;
    }
    writeln!(out)?;
    let mut all = rows(fleet, view, sort, false);
    all.retain(|row| !row.is_only_an_end());
    let shown = all.iter().take(most);
    let shown: Vec<_> = shown.map(|row| cells(fleet, view, row)).collect();
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
    fleet: &Fleet,
    (view, sort): (View, Sort),
    most: usize,
    connected_hosts: Option<usize>,
) -> io::Result<()> {
    for row in rows(fleet, view, sort, false).iter().take(most) {
        line(&mut out, &Line::of(fleet, view, row))?;
    }
    line(&mut out, &Total::of(fleet, connected_hosts))?;
    out.flush()
}

fn line(mut out: impl Write, line: &impl Serialize) -> io::Result<()> {
    let line = serde_json::to_string(line)?;
    writeln!(out, "{}", harmless::json(&line))
}

#[derive(Serialize)]
struct Line<'a> {
    r#type: &'static str,
    /// Of the agent; absent from a row that adds up several hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<&'a str>,
    /// Of a collector's hosts.
    #[serde(flatten)]
    sender: Option<Whose<'a>>,
    #[serde(flatten)]
    of: Named<'a>,
    /// The last window's length; `null` if the row adds up windows of unequal length.
    window_ns: Option<u64>,
    /// `null` for a silent host, like the counts of the last window.
    bits_per_second: Option<u64>,
    reverse_bits_per_second: Option<u64>,
    packets_per_second: Option<u64>,
    reverse_packets_per_second: Option<u64>,
    /// In the last window.
    packets: Option<u64>,
    bytes: Option<u64>,
    reverse_packets: Option<u64>,
    reverse_bytes: Option<u64>,
    total_packets: u64,
    total_bytes: u64,
    total_reverse_packets: u64,
    total_reverse_bytes: u64,
}

/// Who sent a host's flows, as the collector knows it and as the agent says.
#[derive(Serialize)]
struct Whose<'a> {
    identity: &'a str,
    agent_id: &'a str,
    instance_id: &'a str,
    window_end: UtcTime,
    /// How long nothing has come from it, if that is too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    silent_ns: Option<u64>,
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
    fn of(fleet: &Fleet, view: View, row: &Row<'a>) -> Self {
        let (recent, total) = (row.recent, row.total);
        let live = |count: u64| (!row.is_silent).then_some(count);
        let sender = row.host.filter(|_| fleet.is_collector());
        let of = match row.of {
            Of::Flow(_, flow) => Named::Flow(FlowPart::of(flow)),
            Of::Group(name) => Named::Group {
                name: Some(name).filter(|name| !name.is_empty()),
                host: row.called,
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
            View::Hosts => "host",
        };
        Self {
            r#type,
            hostname: row.host.map(|host| host.picture.hostname.as_str()),
            sender: sender.map(|host| Whose {
                identity: &host.sender.identity,
                agent_id: &host.sender.agent_id,
                instance_id: &host.sender.instance_id,
                window_end: UtcTime::new(host.picture.end_unix_ns),
                silent_ns: row.is_silent.then(|| nanos(fleet.silence(host))),
            }),
            of,
            window_ns: row.window().map(nanos),
            bits_per_second: live(row.bits()[0]),
            reverse_bits_per_second: live(row.bits()[1]),
            packets_per_second: live(row.packets()[0]),
            reverse_packets_per_second: live(row.packets()[1]),
            packets: live(recent.packets[0]),
            bytes: live(recent.bytes[0]),
            reverse_packets: live(recent.packets[1]),
            reverse_bytes: live(recent.bytes[1]),
            total_packets: total.packets[0],
            total_bytes: total.bytes[0],
            total_reverse_packets: total.packets[1],
            total_reverse_bytes: total.bytes[1],
        }
    }
}

/// The total of all interfaces, and whether it is complete.
#[derive(Serialize)]
struct Total<'a> {
    r#type: &'static str,
    /// `null` for several hosts, as `scan_id` is.
    hostname: Option<&'a str>,
    /// Hosts in the sums. The others are silent, have no complete scan yet, or are too many.
    hosts: usize,
    silent_hosts: usize,
    beginning_hosts: usize,
    forgotten_hosts: usize,
    /// How many the collector says are connected; `null` if it does not tell this caller.
    connected_hosts: Option<usize>,
    scan_id: Option<u64>,
    window_ns: Option<u64>,
    /// Of the hosts that say so.
    tracked_flows: u64,
    hosts_without_tracked_flows: usize,
    bits_per_second: u64,
    reverse_bits_per_second: u64,
    packets_per_second: u64,
    reverse_packets_per_second: u64,
    packets: u64,
    bytes: u64,
    reverse_packets: u64,
    reverse_bytes: u64,
    /// Whether the account of every host has every packet that was seen. `null` if one is not known and all others do.
    account_closes: Option<bool>,
    lost_records: u64,
    missing_batches: u64,
    missed_scans: u64,
    incomplete_scans: u64,
    forgotten_rows: u64,
    refused_in_window: bool,
    /// The largest of all hosts, as the next one is.
    sample_rate: u32,
    report_interval_ns: u64,
}

impl<'a> Total<'a> {
    fn of(fleet: &'a Fleet, connected_hosts: Option<usize>) -> Self {
        let row = Row::of_all(fleet);
        let alone = row.as_ref().and_then(|row| row.host);
        let recent = row.as_ref().map(|row| row.recent).unwrap_or_default();
        let [bits, packets] = row
            .as_ref()
            .map(|row| [row.bits(), row.packets()])
            .unwrap_or_default();
        let missing = || fleet.shown().map(|host| host.picture.missing);
        let accounts = fleet.shown().map(|host| host.picture.account.as_ref());
        let closing = accounts.map(|account| account.map(picture::closes));
        let (tracked_flows, hosts_without_tracked_flows) = fleet.tracked_flows();
        let of_hosts = |count: fn(&Host) -> u64| fleet.shown().map(count).sum::<u64>();
        Self {
            r#type: "total",
            hostname: alone.map(|host| host.picture.hostname.as_str()),
            hosts: fleet.shown().count(),
            silent_hosts: fleet.silent(),
            beginning_hosts: fleet.beginning(),
            forgotten_hosts: fleet.left_out(),
            connected_hosts,
            scan_id: alone.map(|host| host.picture.scan_id()),
            window_ns: row.as_ref().and_then(Row::window).map(nanos),
            tracked_flows,
            hosts_without_tracked_flows,
            bits_per_second: bits[0],
            reverse_bits_per_second: bits[1],
            packets_per_second: packets[0],
            reverse_packets_per_second: packets[1],
            packets: recent.packets[0],
            bytes: recent.bytes[0],
            reverse_packets: recent.packets[1],
            reverse_bytes: recent.bytes[1],
            account_closes: closing.reduce(both).flatten(),
            lost_records: fleet.missing.lost_records,
            missing_batches: fleet.missing.gaps,
            missed_scans: fleet.missing.missed_scans + of_hosts(|host| host.missing.scans),
            incomplete_scans: of_hosts(|host| host.missing.parts),
            forgotten_rows: missing().map(|missing| missing.forgotten_rows).sum(),
            refused_in_window: missing().any(|missing| missing.refused_in_window),
            sample_rate: missing()
                .map(|missing| missing.sample_rate)
                .max()
                .unwrap_or_default(),
            report_interval_ns: missing()
                .map(|missing| nanos(missing.report_interval))
                .max()
                .unwrap_or_default(),
        }
    }
}

/// Whether both hold. A known failure goes before what is not known.
fn both(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}
