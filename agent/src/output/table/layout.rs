//! Lays out the table's columns so that its lines fit a width.

use std::time::Duration;

use crate::{
    output::{harmless::harmless, human},
    proto::{Cgroup, Direction, EndReason, FlowRecord, Process},
    tcp::Tcp,
};

const GAP: &str = "  ";
const COLUMNS: usize = 15;
const TITLES: [&str; COLUMNS] = [
    "IFACE",
    "DIR",
    "PROTO",
    "INITIATOR",
    "RESPONDER",
    "PKTS",
    "BYTES",
    "REV PKTS",
    "REV BYTES",
    "AGE",
    "STATE",
    "UNIT",
    "PROCESS",
    "RTT",
    "RETRANS",
];
const INITIATOR: usize = 3;
const RESPONDER: usize = 4;
/// Shown only if a flow has one, like the next ones.
const UNIT: usize = 11;
const PROCESS: usize = 12;
const RTT: usize = 13;
const RETRANS: usize = 14;
/// A longer unit is shortened.
const UNIT_WIDTH: usize = 30;
/// The columns with figures, which are aligned to the right.
const FIGURES: std::ops::RangeInclusive<usize> = 5..=9;
/// The columns to leave out, in this order, if a line is too long.
const DISPENSABLE: [usize; 10] = [9, 7, 5, 1, 0, 10, UNIT, PROCESS, RETRANS, RTT];
/// An endpoint is not shortened below this width while a column can still be left out.
const ENDPOINT_WIDTH: usize = 21;

/// One flow as text, a cell for each column.
pub(super) struct Row {
    cells: [String; COLUMNS],
}

impl Row {
    pub(super) fn new(
        record: &FlowRecord,
        interface: Option<&String>,
        [units, processes]: [[Option<&str>; 2]; 2],
        scan_end_unix_ns: u64,
    ) -> Self {
        let tcp = Tcp::both(record).map(Option::unwrap_or_default);
        let age = scan_end_unix_ns.saturating_sub(record.first_seen_unix_ns);
        let cells = [
            place(record, interface),
            direction(record),
            protocol(record),
            human::endpoint(&record.src_addr, record.src_port),
            human::endpoint(&record.dst_addr, record.dst_port),
            human::count(record.delta_packets),
            human::bytes(record.delta_bytes),
            human::count(record.delta_reverse_packets),
            human::bytes(record.delta_reverse_bytes),
            human::duration(Duration::from_nanos(age)),
            state(record).to_owned(),
            both(units),
            both(processes),
            ends(&tcp.map(|end| end.rtt_us.map(round_trip))),
            ends(&tcp.map(|end| end.total_retrans.map(|count| human::count(count.into())))),
        ];
        Self { cells }
    }
}

/// The interface with the VLANs behind it, and the tunnel: `eth0.100`, `eth0 vxlan 42`.
fn place(record: &FlowRecord, interface: Option<&String>) -> String {
    let name = interface
        .cloned()
        .unwrap_or_else(|| format!("#{}", record.ifindex));
    let vlan_ids = record.vlan_ids.iter().map(ToString::to_string);
    let mut place = std::iter::once(name)
        .chain(vlan_ids)
        .collect::<Vec<_>>()
        .join(".");
    if let Some(encapsulation) = human::encapsulation(record) {
        place = format!("{place} {encapsulation}");
    }
    if let Some(id) = record.tunnel_id {
        place = format!("{place} {id}");
    }
    place
}

/// `in` or `out` for the initiator's packets. Given twice if the responder's are seen on the same side.
fn direction(record: &FlowRecord) -> String {
    let [forward, reverse] = human::directions(record);
    let name = match forward {
        Some(Direction::Ingress) => "in",
        Some(Direction::Egress) => "out",
        Some(Direction::Unspecified) | None => "?",
    };
    if forward.is_some() && forward == reverse {
        format!("{name} {name}")
    } else {
        name.to_owned()
    }
}

/// The container by the first digits of its id, as its runtime shows it; else the unit, or the path. `None` if nothing is known.
pub(super) fn sender(cgroup: &Cgroup) -> Option<String> {
    const SHORT_ID: usize = 12;
    let container = cgroup.container_id.get(..SHORT_ID).map(|id| {
        let runtime = match cgroup.container_runtime.as_str() {
            "" => "container",
            runtime => runtime,
        };
        format!("{runtime}:{id}")
    });
    let name = container.unwrap_or_else(|| {
        let unit = if cgroup.unit.is_empty() {
            &cgroup.path
        } else {
            &cgroup.unit
        };
        human::shortened(&harmless(unit), UNIT_WIDTH).to_string()
    });
    (!name.is_empty()).then_some(name)
}

/// Its name and number, as `nginx/1234`.
pub(super) fn process(process: &Process) -> String {
    let name = harmless(&process.name);
    if name.is_empty() {
        process.pid.to_string()
    } else {
        format!("{name}/{}", process.pid)
    }
}

/// In three digits or so.
fn round_trip(us: u32) -> String {
    let ms = f64::from(us) / 1e3;
    match us {
        0..1_000 => format!("{us}us"),
        1_000..10_000 => format!("{ms:.2}ms"),
        10_000..100_000 => format!("{ms:.1}ms"),
        100_000..1_000_000 => format!("{ms:.0}ms"),
        _ => format!("{:.1}s", ms / 1e3),
    }
}

fn ends(ends: &[Option<String>; 2]) -> String {
    both(ends.each_ref().map(Option::as_deref))
}

/// Of the host's end, or `initiator > responder` if both are here.
fn both(ends: [Option<&str>; 2]) -> String {
    match ends {
        [Some(source), Some(destination)] => format!("{source} > {destination}"),
        [one, other] => one.or(other).unwrap_or_default().to_owned(),
    }
}

fn protocol(record: &FlowRecord) -> String {
    let name = human::protocol(record);
    match (record.icmp_type, record.icmp_code) {
        (Some(icmp_type), Some(code)) => format!("{name} {icmp_type}/{code}"),
        _ if record.later_fragment => format!("{name} frag"),
        _ => name,
    }
}

fn state(record: &FlowRecord) -> &'static str {
    match record.end_reason.map(EndReason::try_from) {
        None => "active",
        Some(Ok(EndReason::IdleTimeout)) => "idle",
        Some(Ok(EndReason::EndOfFlow)) => "closed",
        Some(Ok(EndReason::ForcedEnd)) => "stopped",
        Some(Ok(EndReason::LackOfResources)) => "evicted",
        Some(Ok(EndReason::ActiveTimeout | EndReason::Unspecified) | Err(_)) => "ended",
    }
}

/// The head and a line for each row.
pub(super) fn lines(rows: &[Row], width: usize) -> Vec<String> {
    let (columns, widths) = fit(rows, width);
    let titles = TITLES.map(str::to_owned);
    let cells = std::iter::once(&titles).chain(rows.iter().map(|row| &row.cells));
    cells.map(|cells| line(cells, &columns, &widths)).collect()
}

fn line(cells: &[String; COLUMNS], columns: &[usize], widths: &[usize; COLUMNS]) -> String {
    let padded = columns.iter().map(|&column| {
        let width = widths[column];
        let cell = human::shortened(&cells[column], width).to_string();
        if FIGURES.contains(&column) {
            format!("{cell:>width$}")
        } else {
            format!("{cell:<width$}")
        }
    });
    padded.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
}

/// The columns to show, and the width of each.
fn fit(rows: &[Row], width: usize) -> (Vec<usize>, [usize; COLUMNS]) {
    let mut widths = TITLES.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(&row.cells) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let has_some = |column: usize| rows.iter().any(|row| !row.cells[column].is_empty());
    let mut columns: Vec<usize> = (0..COLUMNS)
        .filter(|&column| column < UNIT || has_some(column))
        .collect();
    for dispensable in DISPENSABLE {
        let endpoints =
            widths[INITIATOR].min(ENDPOINT_WIDTH) + widths[RESPONDER].min(ENDPOINT_WIDTH);
        if width_beside_endpoints(&columns, &widths) + endpoints <= width {
            break;
        }
        columns.retain(|&column| column != dispensable);
    }
    let room = width.saturating_sub(width_beside_endpoints(&columns, &widths));
    let (initiator, responder) = (widths[INITIATOR], widths[RESPONDER]);
    if initiator.saturating_add(responder) > room {
        // The shorter one gets what it needs, up to half.
        let half = room / 2;
        (widths[INITIATOR], widths[RESPONDER]) = if initiator <= half {
            (initiator, room - initiator)
        } else if responder <= half {
            (room - responder, responder)
        } else {
            (half, room - half)
        };
    }
    (columns, widths)
}

fn width_beside_endpoints(columns: &[usize], widths: &[usize; COLUMNS]) -> usize {
    let cells: usize = columns
        .iter()
        .filter(|&&column| column != INITIATOR && column != RESPONDER)
        .map(|&column| widths[column])
        .sum();
    cells + (columns.len() - 1) * GAP.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let long = FlowRecord {
            protocol: 58,
            src_addr: vec![0xfd; 16].into(),
            dst_addr: vec![0xfe; 16].into(),
            icmp_type: Some(128),
            icmp_code: Some(0),
            vlan_ids: vec![10, 20],
            delta_bytes: u64::MAX,
            src_tcp_rtt_us: Some(1_234),
            dst_tcp_rtt_us: Some(99_999),
            dst_tcp_total_retrans: Some(u32::MAX),
            ..FlowRecord::default()
        };
        let name = "eth0".to_owned();
        vec![
            Row::new(
                &long,
                Some(&name),
                [
                    [Some("nginx.service"), Some("php.service")],
                    [None, Some("php/12")],
                ],
                1,
            ),
            Row::new(&FlowRecord::default(), None, [[None; 2]; 2], 0),
        ]
    }

    #[test]
    fn lines_fit_the_terminal() {
        for width in [40, 60, 80, 100, 120, 200] {
            for line in lines(&rows(), width) {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn a_wide_terminal_shows_everything() {
        let lines = lines(&rows(), 240);
        assert!(TITLES.iter().all(|title| lines[0].contains(title)));
        assert!(lines[1].contains("eth0.10.20") && lines[1].contains("icmp6 128/0"));
        assert!(lines[1].contains("fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd"));
    }

    #[test]
    fn units_and_processes_have_a_column_only_if_there_are_any() {
        let with = lines(&rows(), 200);
        assert!(
            with[1].contains("  nginx.service > php.service  php/12  "),
            "{}",
            with[1]
        );
        let without = lines(&rows()[1..], 200);
        assert!(
            !without[0].contains("UNIT") && !without[0].contains("PROCESS"),
            "{}",
            without[0]
        );
        assert_eq!(both([None, Some("sshd.service")]), "sshd.service");
    }

    #[test]
    fn what_tcp_knows_is_shown_of_the_ends_that_are_here() {
        let known = FlowRecord {
            dst_tcp_rtt_us: Some(1_234),
            src_tcp_total_retrans: Some(0),
            dst_tcp_total_retrans: Some(3),
            ..FlowRecord::default()
        };
        let lines = lines(&[Row::new(&known, None, [[None; 2]; 2], 0)], 200);
        assert!(lines[0].ends_with("RTT     RETRANS"), "{}", lines[0]);
        assert!(lines[1].ends_with("1.23ms  0 > 3"), "{}", lines[1]);
        for (us, shown) in [
            (999, "999us"),
            (12_345, "12.3ms"),
            (123_456, "123ms"),
            (u32::MAX, "4295.0s"),
        ] {
            assert_eq!(round_trip(us), shown);
        }
    }

    #[test]
    fn a_process_has_its_number_and_a_harmless_name() {
        let shown = |name: &str| {
            process(&Process {
                pid: 12,
                name: name.to_owned(),
                ..Process::default()
            })
        };
        assert_eq!(shown("php"), "php/12");
        assert_eq!(shown(""), "12");
        assert!(!shown("\x1b[2J").contains('\x1b'));
    }

    #[test]
    fn a_sender_has_a_short_and_harmless_name() {
        let cgroup = |unit: &str, container_id: &str, runtime: &str| Cgroup {
            path: "/somewhere".to_owned(),
            unit: unit.to_owned(),
            container_id: container_id.to_owned(),
            container_runtime: runtime.to_owned(),
            ..Cgroup::default()
        };
        let shown = |cgroup: &Cgroup| sender(cgroup).unwrap();
        let id = "0123456789abcdef";
        assert_eq!(
            shown(&cgroup("docker-01.scope", id, "docker")),
            "docker:0123456789ab"
        );
        assert_eq!(shown(&cgroup("", id, "")), "container:0123456789ab");
        assert_eq!(shown(&cgroup("a.service", "", "")), "a.service");
        assert_eq!(shown(&cgroup("", "", "")), "/somewhere");
        assert!(!shown(&cgroup("\x1b[2Ja.service", "", "")).contains('\x1b'));
        let long = shown(&cgroup(&"u".repeat(255), "", ""));
        assert_eq!(long.chars().count(), UNIT_WIDTH);
        assert_eq!(sender(&Cgroup::default()), None);
    }

    #[test]
    fn the_direction_is_the_initiators_and_tells_a_mirror_port() {
        let shown = |forward: Direction, reverse: Direction| {
            direction(&FlowRecord {
                direction: forward.into(),
                reverse_direction: reverse.into(),
                ..FlowRecord::default()
            })
        };
        let none = Direction::Unspecified;
        assert_eq!(shown(Direction::Ingress, none), "in");
        assert_eq!(shown(Direction::Egress, none), "out");
        assert_eq!(shown(Direction::Ingress, Direction::Ingress), "in in");
        assert_eq!(shown(Direction::Egress, Direction::Egress), "out out");
        assert_eq!(shown(none, none), "?");
    }

    #[test]
    fn a_narrow_terminal_keeps_the_endpoints_and_the_bytes() {
        let lines = lines(&rows(), 80);
        assert!(lines[0].contains("INITIATOR") && lines[0].contains("BYTES"));
        assert!(!lines[0].contains("AGE"));
    }
}
