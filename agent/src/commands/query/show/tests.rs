use std::rc::Rc;

use view::query::Earlier;

use super::*;

fn answer() -> QueryResult {
    let sums = |times: u64| Sums {
        records: times,
        packets: [10 * times, times],
        bytes: [15_000 * times, 60 * times],
        begun: 1,
        ended: 0,
    };
    let group = |parts, times| Group {
        parts,
        sums: sums(times),
        before: None,
        history: Vec::new(),
    };
    let name = |text: &str| Part::Name(Rc::from(text));
    QueryResult {
        groups: vec![
            group(vec![name("eth0"), Part::Port(6, Some(443))], 1000),
            group(vec![name("red, \x1b[31m\"hot\""), Part::Port(1, None)], 2),
            group(vec![name(""), Part::Port(200, Some(7))], 1),
        ],
        all_groups: 5,
        total: sums(1010),
        windows_us: Some(1_767_312_000_000_000..1_767_312_010_500_000),
        files: 1,
        repeated_records: 3,
        ..QueryResult::default()
    }
}

fn shape(form: Form, by: &[By]) -> Shape<'_> {
    Shape {
        form,
        by,
        step: None,
        zone: Zone::Utc,
        order: Order::Bytes,
        width: None,
    }
}

fn shown(form: Form, by: &[By], answer: &QueryResult) -> String {
    shown_as(&shape(form, by), answer)
}

fn shown_as(shape: &Shape<'_>, answer: &QueryResult) -> String {
    let mut out = Vec::new();
    show(&mut out, shape, answer).unwrap();
    String::from_utf8(out).unwrap()
}

/// The second of two hours has no records.
fn hours() -> QueryResult {
    let hour = |number: i64| Part::Step {
        start_us: 1_767_312_000_000_000 + number * 3_600_000_000,
        end_us: 1_767_312_000_000_000 + (number + 1) * 3_600_000_000,
    };
    let group = |parts, sums| Group {
        parts,
        sums,
        before: None,
        history: Vec::new(),
    };
    let sums = answer().total;
    QueryResult {
        groups: vec![
            group(vec![hour(0), Part::Port(6, Some(443))], sums),
            group(vec![hour(1), Part::Nothing], Sums::default()),
        ],
        all_groups: 2,
        ..answer()
    }
}

#[test]
fn steps_of_time_come_first_and_show_gaps() {
    let of = |form| Shape {
        step: Some(Step::HOUR),
        ..shape(form, &[By::Port])
    };
    let table = shown_as(&of(Form::Table), &hours());
    let lines: Vec<_> = table.lines().skip(2).collect();
    assert!(
        lines[0].starts_with("TIME               PORT     PKTS"),
        "{table}"
    );
    assert!(
        lines[1].starts_with("2026-01-02 00:00Z  443/tcp"),
        "{table}"
    );
    assert!(
        lines[2].starts_with("2026-01-02 01:00Z  -           0     0 B"),
        "{table}"
    );
    let csv = shown_as(&of(Form::Csv), &hours());
    let lines: Vec<_> = csv.lines().collect();
    assert!(
        lines[0].starts_with("step_start,step_end,protocol,dst_port,records,"),
        "{csv}"
    );
    assert!(
        lines[2]
            .starts_with("2026-01-02T01:00:00.000000000Z,2026-01-02T02:00:00.000000000Z,,,0,0,"),
        "{csv}"
    );
    let json = shown_as(&of(Form::Json), &hours());
    let line: Value = serde_json::from_str(json.lines().nth(1).unwrap()).unwrap();
    assert_eq!(line["step_start"], "2026-01-02T01:00:00.000000000Z");
    assert_eq!(
        (&line["protocol"], &line["dst_port"]),
        (&Value::Null, &Value::Null)
    );
    let days = Shape {
        step: Some(Step::DAY),
        ..of(Form::Table)
    };
    let table = shown_as(&days, &hours());
    assert!(
        table
            .lines()
            .nth(3)
            .unwrap()
            .starts_with("2026-01-02 Fri  443/tcp"),
        "{table}"
    );
    let months = Shape {
        step: Some(Step::MONTH),
        ..of(Form::Table)
    };
    let table = shown_as(&months, &hours());
    let first = table.lines().nth(3).unwrap();
    assert!(first.starts_with("2026-01  443/tcp"), "{table}");
}

const BY: &[By] = &[By::Interface, By::Port];

#[test]
fn a_table_has_aligned_columns_and_says_what_it_leaves_out() {
    let table = shown(Form::Table, BY, &answer());
    let expected = "\
2026-01-02 00:00:00Z to 2026-01-02 00:00:10Z (11s), 1 file: 1.0k records, 1 flow began, 11k packets, 15 MiB in both directions; \
3 records were repeated and count once

IFACE                 PORT     PKTS   BYTES  REV PKTS  REV BYTES  BEGUN  PKT/S  BIT/S
eth0                  443/tcp   10k  14 MiB      1.0k     59 KiB      1   1.0k    11M
red, \\u{1b}[31m\"hot\"  icmp       20  29 KiB         2      120 B      1    2.1    23k
?                     7/200      10  15 KiB         1       60 B      1    1.0    11k
… and 2 more; --top 0 shows all
";
    assert_eq!(table, expected);
}

#[test]
fn a_history_is_shown_if_the_terminal_has_room() {
    let mut answer = answer();
    for (group, history) in answer
        .groups
        .iter_mut()
        .zip([[0, 4, 8], [100, 0, 0], [0, 0, 0]])
    {
        group.history = history.to_vec();
    }
    let lines = |width| {
        let shape = Shape {
            width,
            ..shape(Form::Table, BY)
        };
        let table = shown_as(&shape, &answer);
        table.lines().skip(2).map(str::to_owned).collect::<Vec<_>>()
    };
    let plain = lines(None);
    let longest = plain.iter().map(|line| line.chars().count()).max().unwrap();
    let width = longest + GAP.len() + "HISTORY".len();
    assert_eq!(lines(Some(width - 1)), plain);
    let wide = lines(Some(width));
    assert_eq!(wide[0], format!("{}  HISTORY", plain[0]));
    assert_eq!(wide[1], format!("{}   ▄█", plain[1]));
    assert_eq!(wide[2], format!("{}  █", plain[2]));
    assert_eq!(wide[3], plain[3]);
}

/// Of three groups, one has grown, one is gone and one is new.
fn comparison() -> QueryResult {
    let mut answer = answer();
    let sums = |times: u64| Sums {
        records: times,
        packets: [10 * times, times],
        bytes: [15_000 * times, 60 * times],
        ..Sums::default()
    };
    for (group, [now, before]) in answer.groups.iter_mut().zip([[1000, 800], [0, 2], [1, 0]]) {
        (group.sums, group.before) = (sums(now), Some(sums(before)));
    }
    QueryResult {
        before: Some(Earlier {
            total: sums(1010),
            windows_us: Some(1_767_225_600_000_000..1_767_225_610_000_000),
        }),
        repeated_records: 0,
        all_groups: 3,
        ..answer
    }
}

#[test]
fn a_comparison_shows_what_is_more_new_or_gone() {
    let table = shown(Form::Table, BY, &comparison());
    let expected = "\
2026-01-02 00:00:00Z to 2026-01-02 00:00:10Z (11s), 1 file: 1.0k records, 1 flow began, 11k packets, 15 MiB in both directions
compared with 2026-01-01 00:00:00Z to 2026-01-01 00:00:10Z (10s): 1.0k records, 0 flows began, 11k packets, 15 MiB in both directions

IFACE                 PORT      BYTES  BEFORE  DIFFERENCE  CHANGE
eth0                  443/tcp  14 MiB  11 MiB    +2.9 MiB   +25 %
red, \\u{1b}[31m\"hot\"  icmp        0 B  29 KiB     -29 KiB    gone
?                     7/200    15 KiB     0 B     +15 KiB     new
TOTAL                          15 MiB  15 MiB         0 B     0 %
";
    assert_eq!(table, expected);
    let json = shown(Form::Json, BY, &comparison());
    let lines: Vec<Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        (&lines[1]["packets"], &lines[1]["before_packets"]),
        (&json!(0), &json!(20))
    );
    assert_eq!(lines[3]["before_bytes"], 15_150_000);
    assert_eq!(
        lines[3]["before_window_start"],
        "2026-01-01T00:00:00.000000000Z"
    );
    let csv = shown(Form::Csv, BY, &comparison());
    let mut lines = csv.lines();
    let head = lines.next().unwrap();
    assert!(
        head.ends_with(",before_reverse_bytes,before_flows_begun,before_flows_ended"),
        "{csv}"
    );
    let first = lines.next().unwrap();
    assert!(first.ends_with(",800,8000,12000000,800,48000,0,0"), "{csv}");
}

#[test]
fn a_table_without_rows_says_so() {
    let none = QueryResult {
        files: 2,
        ..QueryResult::default()
    };
    let expected = "2 files: no record in this period passes the filter\n";
    assert_eq!(shown(Form::Table, BY, &none), expected);
}

#[test]
fn csv_quotes_what_would_be_taken_for_a_separator() {
    let expected = "\
interface,protocol,dst_port,records,packets,bytes,reverse_packets,reverse_bytes,flows_begun,flows_ended,packets_per_second,bits_per_second,reverse_packets_per_second,reverse_bits_per_second
eth0,6,443,1000,10000,15000000,1000,60000,1,0,952.381,11428571.429,95.238,45714.286
\"red, \\u{1b}[31m\"\"hot\"\"\",1,,2,20,30000,2,120,1,0,1.905,22857.143,0.19,91.429
,200,7,1,10,15000,1,60,1,0,0.952,11428.571,0.095,45.714
";
    assert_eq!(shown(Form::Csv, BY, &answer()), expected);
}

#[test]
fn csv_holds_no_formula_and_nothing_that_acts_on_a_terminal() {
    for (text, cell) in [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+1", "'+1"),
        ("-.mount", "'-.mount"),
        ("@SUM(1)", "'@SUM(1)"),
        ("＝1", "'＝1"),
        ("'a", "''a"),
        ("\t=1", "\\u{9}=1"),
        ("\r=1", "\\u{d}=1"),
        ("a\u{9b}31m\u{202e}\n", "a\\u{9b}31m\\u{202e}\\u{a}"),
        ("a=1", "a=1"),
        ("Zürich", "Zürich"),
    ] {
        assert_eq!(csv_cell(text), cell);
        let answer = QueryResult {
            groups: vec![Group {
                parts: vec![Part::Name(Rc::from(text))],
                sums: Sums::default(),
                before: None,
                history: Vec::new(),
            }],
            all_groups: 1,
            ..QueryResult::default()
        };
        let shown = shown(Form::Csv, &[By::Unit], &answer);
        let mut rows = csv::Reader::from_reader(shown.as_bytes());
        let row = rows.records().next().unwrap().unwrap();
        assert_eq!((&row[0], &row[1]), (cell, "0"));
    }
}

#[test]
fn json_has_a_line_for_each_group_and_one_for_the_total() {
    let text = shown(Form::Json, BY, &answer());
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(
        lines[2],
        json!({
            "type": "group", "interface": null, "protocol": 200, "dst_port": 7, "records": 1, "packets": 10,
            "bytes": 15000, "reverse_packets": 1, "reverse_bytes": 60, "flows_begun": 1, "flows_ended": 0,
            "packets_per_second": 0.952, "bits_per_second": 11428.571, "reverse_packets_per_second": 0.095,
            "reverse_bits_per_second": 45.714,
        })
    );
    let total = &lines[3];
    assert_eq!(total["type"], "total");
    assert_eq!(total["packets"], 10_100);
    assert_eq!(total["groups"], 5);
    assert_eq!(total["window_end"], "2026-01-02T00:00:10.500000000Z");
}

#[test]
fn a_protocol_that_was_asked_for_stands_beside_the_port_once() {
    let by = &[By::Port, By::Protocol];
    let group = Group {
        parts: vec![Part::Port(6, Some(80)), Part::Protocol(6)],
        sums: Sums::default(),
        before: None,
        history: Vec::new(),
    };
    assert_eq!(names(&shape(Form::Json, by)), ["dst_port", "protocol"]);
    assert_eq!(parts(by, &group), [json!(80), json!(6)]);
}

#[test]
fn what_is_missing_is_said() {
    assert_eq!(missing(Form::Table, &answer()), Vec::<String>::new());
    let csv = missing(Form::Csv, &answer());
    assert_eq!(csv, ["these are 3 of 5 groups; --top 0 shows all"]);
    let answer = QueryResult {
        missing: StreamLosses {
            lost: Missing {
                records: 4,
                packets: 9,
                bytes: 900,
            },
            left_out: Missing {
                records: 5,
                packets: 0,
                bytes: 0,
            },
        },
        sample_rates: [10, 20].into(),
        damaged: vec![("/tmp/x".into(), 7)],
        gone_files: 2,
        ..answer()
    };
    let missing = missing(Form::Json, &answer);
    assert_eq!(missing.len(), 5);
    assert!(missing[0].starts_with("4 records with 9 packets were lost"));
    assert!(missing[1].starts_with("5 records with 0 packets were left out"));
    assert!(missing[2].starts_with("only one in 10 or 20 flows"));
    assert!(missing[3].starts_with("7 bytes of /tmp/x"));
    assert!(missing[4].starts_with("2 files were removed"));
}
