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
