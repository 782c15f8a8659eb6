//! Lays out the table's columns so that its lines fit a width.

use proto::FlowRecord;

use crate::{
    cells::{
        age, both, direction, ends, place, protocol, round_trip, round_trips, short_unit, state,
    },
    columns::Columns,
    human,
};

const TITLES: [&str; 15] = [
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
/// This and the following columns are shown only if a flow has a value.
const UNIT: usize = 11;
const PROCESS: usize = 12;
const RTT: usize = 13;
const RETRANS: usize = 14;
const TABLE: Columns<'_> = Columns {
    titles: &TITLES,
    elastic: &[INITIATOR, RESPONDER],
    least_width: 21,
    dispensable: &[9, 7, 5, 1, 0, 10, UNIT, PROCESS, RETRANS, RTT],
    figures: &[5, 6, 7, 8, 9],
};

/// One flow as text, a cell for each column.
pub(super) struct Row {
    cells: [String; TITLES.len()],
}

impl AsRef<[String]> for Row {
    fn as_ref(&self) -> &[String] {
        &self.cells
    }
}

impl Row {
    pub(super) fn new(
        record: &FlowRecord,
        interface: Option<&String>,
        [units, processes]: [[Option<&str>; 2]; 2],
        [source, destination]: &[Option<String>; 2],
        scan_end_unix_ns: u64,
    ) -> Self {
        let [src, dst] = record.ends();
        let mut initiator = human::end(source.as_deref(), src);
        if record.initiator_assumed {
            initiator.push('?');
        }
        let cells = [
            place(record, interface),
            direction(record),
            protocol(record),
            initiator,
            human::end(destination.as_deref(), dst),
            human::count(src.delta_packets),
            human::bytes(src.delta_bytes),
            human::count(dst.delta_packets),
            human::bytes(dst.delta_bytes),
            age(record, scan_end_unix_ns),
            state(record).to_owned(),
            ends(&units.map(|unit| unit.map(short_unit))),
            both(processes),
            ends(&round_trips(record).map(|us| us.map(round_trip))),
            ends(&[src, dst].map(|end| Some(human::count(end.tcp_total_retrans?.into())))),
        ];
        Self { cells }
    }
}

/// The head, and one line for each row.
pub(super) fn lines(rows: &[Row], width: usize) -> Vec<String> {
    let has_some = |column: usize| rows.iter().any(|row| !row.cells[column].is_empty());
    let shown = (0..TITLES.len()).filter(|&column| column < UNIT || has_some(column));
    let fitted = TABLE.fit(rows, shown.collect(), width);
    let head = TABLE.line(&TITLES, &fitted);
    let rows = rows.iter().map(|row| TABLE.line(&row.cells, &fitted));
    std::iter::once(head).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use proto::Endpoint;

    use super::*;

    const NOBODY: [[Option<&str>; 2]; 2] = [[None; 2]; 2];

    fn rows() -> Vec<Row> {
        let long = FlowRecord {
            src: Some(Endpoint {
                addr: vec![0xfd; 16].into(),
                delta_bytes: u64::MAX,
                tcp_rtt_us: Some(1_234),
                ..Endpoint::default()
            }),
            dst: Some(Endpoint {
                addr: vec![0xfe; 16].into(),
                tcp_rtt_us: Some(99_999),
                tcp_total_retrans: Some(u32::MAX),
                ..Endpoint::default()
            }),
            protocol: 58,
            icmp_type: Some(128),
            icmp_code: Some(0),
            vlan_ids: vec![10, 20],
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
                &[None, None],
                1,
            ),
            Row::new(&FlowRecord::default(), None, NOBODY, &[None, None], 0),
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
    fn a_name_stands_in_the_place_of_its_address() {
        let record = FlowRecord {
            src: Some(Endpoint {
                addr: vec![10, 0, 0, 1].into(),
                port: Some(40_000),
                ..Endpoint::default()
            }),
            dst: Some(Endpoint {
                addr: vec![192, 0, 2, 1].into(),
                port: Some(443),
                ..Endpoint::default()
            }),
            ..FlowRecord::default()
        };
        let named = [None, Some("www.example".to_owned())];
        let lines = lines(&[Row::new(&record, None, NOBODY, &named, 1)], 200);
        assert!(
            lines[1].contains("  10.0.0.1:40000  www.example:443  "),
            "{}",
            lines[1]
        );
    }

    #[test]
    fn an_initiator_that_is_assumed_has_a_question_mark() {
        for (initiator_assumed, shown) in [(true, " 10.0.0.1:40000? "), (false, " 10.0.0.1:40000 ")]
        {
            let record = FlowRecord {
                src: Some(Endpoint {
                    addr: vec![10, 0, 0, 1].into(),
                    port: Some(40_000),
                    ..Endpoint::default()
                }),
                initiator_assumed,
                ..FlowRecord::default()
            };
            let lines = lines(&[Row::new(&record, None, NOBODY, &[None, None], 1)], 200);
            assert!(lines[1].contains(shown), "{}", lines[1]);
        }
    }

    #[test]
    fn what_tcp_knows_is_shown_of_the_ends_that_are_here() {
        let known = FlowRecord {
            src: Some(Endpoint {
                tcp_total_retrans: Some(0),
                ..Endpoint::default()
            }),
            dst: Some(Endpoint {
                tcp_rtt_us: Some(1_234),
                tcp_total_retrans: Some(3),
                ..Endpoint::default()
            }),
            ..FlowRecord::default()
        };
        let lines = lines(&[Row::new(&known, None, NOBODY, &[None, None], 0)], 200);
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
    fn what_passes_shows_how_long_its_ends_take_to_answer() {
        let passing = FlowRecord {
            src: Some(Endpoint {
                handshake_rtt_us: Some(5),
                ack_rtt_us: Some(250),
                ..Endpoint::default()
            }),
            dst: Some(Endpoint {
                ack_rtt_us: Some(12_345),
                ..Endpoint::default()
            }),
            ..FlowRecord::default()
        };
        let here = FlowRecord {
            src: Some(Endpoint {
                tcp_rtt_us: Some(1_234),
                ..passing.clone().src().clone()
            }),
            ..passing.clone()
        };
        for (record, shown) in [(passing, "250us > 12.3ms"), (here, "1.23ms")] {
            let lines = lines(&[Row::new(&record, None, NOBODY, &[None, None], 0)], 200);
            assert!(lines[1].trim_end().ends_with(shown), "{}", lines[1]);
        }
    }

    #[test]
    fn a_narrow_terminal_keeps_the_endpoints_and_the_bytes() {
        let lines = lines(&rows(), 80);
        assert!(lines[0].contains("INITIATOR") && lines[0].contains("BYTES"));
        assert!(!lines[0].contains("AGE"));
    }
}
