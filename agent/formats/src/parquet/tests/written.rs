//! What a file has of the flows.

use std::collections::BTreeMap;

use parquet::file::metadata::RowGroupMetaData;
use proto::{Cgroup, Endpoint, Failure, HostName, NameSource, Process};

use super::*;

const COUNTER: &str = "REQUIRED INT64 (INTEGER(64,false))";
const TIME: &str = "REQUIRED INT64 (TIMESTAMP(MICROS,true))";
const TEXT: &str = "OPTIONAL BYTE_ARRAY (STRING)";
const U32: &str = "REQUIRED INT32 (INTEGER(32,false))";
const U8: &str = "REQUIRED INT32 (INTEGER(8,false))";
const U32_OR_NULL: &str = "OPTIONAL INT32 (INTEGER(32,false))";
const U16_OR_NULL: &str = "OPTIONAL INT32 (INTEGER(16,false))";
const U8_OR_NULL: &str = "OPTIONAL INT32 (INTEGER(8,false))";

/// Names and types; values of a flow that has everything, and of one that has nothing.
const EXPECTED: &[(&str, &str, &str, &str)] = &[
    ("scan_id", COUNTER, "7", "7"),
    ("stream_seq", COUNTER, "9", "9"),
    (
        "window_start",
        TIME,
        "2023-11-14 22:13:20.000000 +00:00",
        "2023-11-14 22:13:20.000000 +00:00",
    ),
    (
        "window_end",
        TIME,
        "2023-11-14 22:13:30.000000 +00:00",
        "2023-11-14 22:13:30.000000 +00:00",
    ),
    ("interface", TEXT, "\"eth0\"", "null"),
    ("ifindex", U32, "2", "4294967295"),
    ("netns", U32, "4026531840", "5"),
    ("netns_name", TEXT, "\"blue\"", "null"),
    ("direction", TEXT, "\"egress\"", "null"),
    ("reverse_direction", TEXT, "\"ingress\"", "null"),
    ("vlan_ids", "LIST", "[100, 4095]", "[]"),
    ("ip_version", U8, "4", "6"),
    ("protocol", U8, "6", "255"),
    ("src_addr", TEXT, "\"10.0.0.1\"", "\"2001:db8::1\""),
    ("src_port", U16_OR_NULL, "65535", "null"),
    ("dst_addr", TEXT, "\"10.0.0.2\"", "null"),
    ("dst_port", U16_OR_NULL, "443", "null"),
    ("icmp_type", U8_OR_NULL, "8", "null"),
    ("icmp_code", U8_OR_NULL, "0", "null"),
    ("icmp_identifier", U16_OR_NULL, "65534", "null"),
    ("later_fragment", "REQUIRED BOOLEAN", "true", "false"),
    ("initiator_assumed", "REQUIRED BOOLEAN", "true", "false"),
    ("packets", COUNTER, "18446744073709551615", "0"),
    ("bytes", COUNTER, "60", "0"),
    ("reverse_packets", COUNTER, "3", "0"),
    ("reverse_bytes", COUNTER, "4", "0"),
    ("ip_bytes", COUNTER, "9", "0"),
    ("reverse_ip_bytes", COUNTER, "10", "0"),
    ("total_packets", COUNTER, "5", "0"),
    ("total_bytes", COUNTER, "6", "0"),
    ("total_reverse_packets", COUNTER, "7", "0"),
    ("total_reverse_bytes", COUNTER, "8", "0"),
    ("total_ip_bytes", COUNTER, "11", "0"),
    ("total_reverse_ip_bytes", COUNTER, "12", "0"),
    (
        "first_seen",
        TIME,
        "2023-11-14 22:13:20.000001 +00:00",
        "1970-01-01 00:00:00.000000 +00:00",
    ),
    (
        "last_seen",
        TIME,
        "2023-11-14 22:13:29.999999 +00:00",
        "1970-01-01 00:00:00.000000 +00:00",
    ),
    ("duration_ns", COUNTER, "500000000", "0"),
    ("tcp_flags", U8_OR_NULL, "255", "null"),
    ("reverse_tcp_flags", U8_OR_NULL, "18", "null"),
    ("dscp", U8_OR_NULL, "46", "null"),
    ("end_reason", TEXT, "\"idle_timeout\"", "null"),
    (
        "community_id",
        TEXT,
        "\"1:AAAAAAAAAAAAAAAAAAAAAAAAAAA=\"",
        "null",
    ),
    ("encapsulation", TEXT, "\"vxlan\"", "null"),
    ("tunnel_id", U32_OR_NULL, "16777215", "null"),
    ("outer_src_addr", TEXT, "\"192.0.2.1\"", "null"),
    ("outer_dst_addr", TEXT, "\"192.0.2.2\"", "null"),
    ("outer_vlan_ids", "LIST", "[7]", "[]"),
    ("outer_pppoe_session", U16_OR_NULL, "1", "null"),
    ("src_unit", TEXT, "\"web.service\"", "null"),
    ("dst_unit", TEXT, "\"db.service\"", "null"),
    ("src_container_id", TEXT, "\"web-container\"", "null"),
    ("dst_container_id", TEXT, "\"db-container\"", "null"),
    (
        "src_cgroup",
        TEXT,
        "\"/system.slice/web.service/x\"",
        "null",
    ),
    ("dst_cgroup", TEXT, "\"/system.slice/db.service/x\"", "null"),
    ("src_process", TEXT, "\"nginx\"", "null"),
    ("dst_process", TEXT, "null", "null"),
    ("src_sender_shared", "REQUIRED BOOLEAN", "false", "false"),
    ("dst_sender_shared", "REQUIRED BOOLEAN", "true", "false"),
    ("src_pid", U32_OR_NULL, "4194303", "null"),
    ("dst_pid", U32_OR_NULL, "4711", "null"),
    ("src_uid", U32_OR_NULL, "33", "null"),
    ("dst_uid", U32_OR_NULL, "null", "null"),
    ("src_tcp_rtt_us", U32_OR_NULL, "812", "null"),
    ("dst_tcp_rtt_us", U32_OR_NULL, "null", "null"),
    ("src_tcp_min_rtt_us", U32_OR_NULL, "70", "null"),
    ("dst_tcp_min_rtt_us", U32_OR_NULL, "null", "null"),
    ("src_tcp_total_retrans", U32_OR_NULL, "3", "null"),
    ("dst_tcp_total_retrans", U32_OR_NULL, "0", "null"),
    ("src_tcp_delivered", U32_OR_NULL, "4294967295", "null"),
    ("dst_tcp_delivered", U32_OR_NULL, "1", "null"),
    ("src_tcp_delivered_ce", U32_OR_NULL, "2", "null"),
    ("dst_tcp_delivered_ce", U32_OR_NULL, "0", "null"),
    ("src_tcp_data_segs_out", U32_OR_NULL, "40", "null"),
    ("dst_tcp_data_segs_out", U32_OR_NULL, "1", "null"),
    ("src_handshake_rtt_us", U32_OR_NULL, "90", "null"),
    ("dst_handshake_rtt_us", U32_OR_NULL, "null", "null"),
    ("src_ack_rtt_us", U32_OR_NULL, "4294967295", "null"),
    ("dst_ack_rtt_us", U32_OR_NULL, "12000", "null"),
    (
        "total_dropped_packets",
        COUNTER,
        "18446744073709551615",
        "0",
    ),
    ("total_reverse_dropped_packets", COUNTER, "13", "0"),
    ("failure", TEXT, "\"unreachable\"", "null"),
    ("icmp_error_type", U8_OR_NULL, "3", "null"),
    ("icmp_error_code", U8_OR_NULL, "1", "null"),
    ("src_host", TEXT, "\"www.example\"", "null"),
    ("dst_host", TEXT, "null", "null"),
    ("src_host_source", TEXT, "\"dns\"", "null"),
    ("dst_host_source", TEXT, "null", "null"),
    ("sample_rate", U32, "100", "100"),
];

fn full() -> FlowRecord {
    FlowRecord {
        src: Some(Endpoint {
            dscp: Some(46),
            port: Some(65_535),
            delta_packets: u64::MAX,
            delta_bytes: 60,
            delta_ip_bytes: 9,
            total_packets: 5,
            total_bytes: 6,
            total_ip_bytes: 11,
            tcp_flags: Some(255),
            outer_addr: vec![192, 0, 2, 1].into(),
            direction: Direction::Egress.into(),
            cgroup_id: Some(77),
            process_key: Some(4_194_303 << 32 | 5),
            tcp_rtt_us: Some(812),
            handshake_rtt_us: Some(90),
            ack_rtt_us: Some(u32::MAX),
            total_dropped_packets: u64::MAX,
            tcp_min_rtt_us: Some(70),
            tcp_total_retrans: Some(3),
            tcp_delivered: Some(u32::MAX),
            tcp_delivered_ce: Some(2),
            tcp_data_segs_out: Some(40),
            host_id: Some(3),
            host_source: NameSource::Dns.into(),
            ..flow(0).src().clone()
        }),
        dst: Some(Endpoint {
            port: Some(443),
            delta_packets: 3,
            delta_bytes: 4,
            delta_ip_bytes: 10,
            total_packets: 7,
            total_bytes: 8,
            total_ip_bytes: 12,
            sender_shared: true,
            direction: Direction::Ingress.into(),
            tcp_flags: Some(18),
            outer_addr: vec![192, 0, 2, 2].into(),
            cgroup_id: Some(78), // Nobody knows its name.
            process_key: Some(4711 << 32 | 5),
            ack_rtt_us: Some(12_000),
            total_dropped_packets: 13,
            tcp_rtt_us: None,
            tcp_min_rtt_us: None,
            tcp_total_retrans: Some(0),
            tcp_delivered: Some(1),
            tcp_delivered_ce: Some(0),
            tcp_data_segs_out: Some(1),
            ..flow(0).dst().clone()
        }),
        protocol: 6,
        first_seen_unix_ns: 1_700_000_000_000_001_999,
        last_seen_unix_ns: 1_700_000_009_999_999_999,
        netns: 4_026_531_840,
        vlan_ids: vec![100, 4095],
        icmp_type: Some(8),
        icmp_code: Some(0),
        icmp_identifier: Some(65_534),
        later_fragment: true,
        initiator_assumed: true,
        delta_duration_ns: 500_000_000,
        end_reason: Some(EndReason::IdleTimeout.into()),
        community_id: vec![0; 20].into(),
        encapsulation: Some(Encapsulation::Vxlan.into()),
        tunnel_id: Some(16_777_215),
        outer_vlan_ids: vec![7],
        outer_pppoe_session: Some(1),
        failure: Some(Failure::Unreachable.into()),
        icmp_error_type: Some(3),
        icmp_error_code: Some(1),
        ..flow(0)
    }
}

/// A container's cgroup.
fn named((id, name): (u64, &str)) -> Cgroup {
    Cgroup {
        id,
        path: format!("/system.slice/{name}.service/x"),
        unit: format!("{name}.service"),
        slice: "system.slice".to_owned(),
        container_id: format!("{name}-container"),
        container_runtime: "docker".to_owned(),
    }
}

fn empty() -> FlowRecord {
    FlowRecord {
        src: Some(Endpoint {
            addr: vec![0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1].into(),
            ..Endpoint::default()
        }),
        protocol: 255,
        ip_version: 6,
        ifindex: u32::MAX,
        netns: 5,
        ..FlowRecord::default()
    }
}

/// Names of the columns with their types, as text.
fn types(file: &SerializedFileReader<File>) -> Vec<(String, String)> {
    let schema = file.metadata().file_metadata().schema();
    let types = schema.get_fields().iter().map(|field| {
        let mut text = Vec::new();
        print_schema(&mut text, field);
        let text = String::from_utf8(text).unwrap();
        if field.is_group() {
            assert!(text.contains("REQUIRED group"), "{text}");
            let element = "REQUIRED INT32 element (INTEGER(16,false))";
            assert!(text.contains(element), "{text}");
            return (field.name().to_owned(), "LIST".to_owned());
        }
        let name = format!(" {}", field.name());
        let text = text.trim_end().trim_end_matches(';');
        (field.name().to_owned(), text.replacen(&name, "", 1))
    });
    types.collect()
}

#[test]
fn each_column_has_its_type_and_its_values() {
    let mut batch = FlowBatch {
        window_start_unix_ns: 1_700_000_000_000_000_000,
        window_end_unix_ns: 1_700_000_010_000_000_000,
        sample_rate: 100,
        ..batch(9)
    };
    batch.interfaces[0].netns = 4_026_531_840;
    batch.interfaces[0].netns_name = "blue".to_owned();
    batch.cgroups = [(77, "web"), (78, "db")].map(named).to_vec();
    batch.processes = vec![Process {
        key: 4_194_303 << 32 | 5,
        pid: 4_194_303,
        name: "nginx".to_owned(),
        uid: Some(33),
    }];
    batch.hosts = vec![HostName {
        id: 3,
        name: "www.example".to_owned(),
    }];
    let file = made(&pieces(&[(batch, vec![full(), empty()])]));
    let types = types(&file);
    let names: Vec<_> = types.iter().map(|(name, _)| name.as_str()).collect();
    let expected: Vec<_> = columns::OF_A_FLOW
        .iter()
        .map(|column| column.name)
        .collect();
    assert_eq!(names, expected);
    let types: BTreeMap<_, _> = types.into_iter().collect();
    for (name, column, full, empty) in EXPECTED {
        assert_eq!(types[*name], *column, "{name}");
        assert_eq!(values(&file, name), [*full, *empty], "{name}");
    }
}

#[test]
fn a_file_has_the_rows_of_all_its_pieces_in_row_groups() {
    let batches: Vec<_> = (1..=5)
        .map(|seq| (batch(seq), vec![flow(seq), flow(10 * seq), flow(100 * seq)]))
        .collect();
    let file = made(&pieces(&batches));
    let groups = file.metadata().row_groups().iter();
    let groups: Vec<_> = groups.map(RowGroupMetaData::num_rows).collect();
    assert_eq!(groups, [6, 6, 3]);
    let packets = values(&file, "packets").into_iter();
    let sum: u64 = packets.map(|packets| packets.parse::<u64>().unwrap()).sum();
    assert_eq!(sum, 111 * 15);
    let order = values(&file, "stream_seq").concat();
    assert_eq!(order, "111222333444555");
}

#[test]
fn each_piece_knows_its_interfaces_even_if_a_batch_before_it_named_them() {
    let later = FlowBatch {
        interfaces: Vec::new(),
        ..batch(2)
    };
    let first = pieces(&[(batch(1), vec![flow(1)])]).len();
    let both = pieces(&[(batch(1), vec![flow(1)]), (later, vec![flow(2)])]);
    assert_eq!(values(&made(&both[first..]), "interface"), ["\"eth0\""]);
}

#[test]
fn a_file_tells_the_account_and_what_is_missing_from_its_rows() {
    let account = |is_final| {
        Some(Account {
            r#final: is_final,
            ..Account::default()
        })
    };
    let first = FlowBatch {
        account: account(false),
        lost_records: 1,
        ..batch(1)
    };
    let last = FlowBatch {
        agent: Some(AgentIdentity {
            agent_id: "a".to_owned(),
            ..AgentIdentity::default()
        }),
        lost_batches: 2,
        lost_records: 3,
        lost_packets: 4,
        lost_bytes: 5,
        left_out_records: 6,
        left_out_packets: 7,
        left_out_bytes: 8,
        ..batch(2)
    };
    let with_account = FlowBatch {
        account: account(true),
        ..last.clone()
    };
    for (last, is_final) in [(last, false), (with_account, true)] {
        // Without rows, too.
        let file = made(&pieces(&[(first.clone(), Vec::new()), (last, Vec::new())]));
        assert!(rows(&file).is_empty());
        assert_eq!(fact(&file, "agent").unwrap()["agent_id"], "a");
        let expected = json!({ "batches": 2, "records": 3, "packets": 4, "bytes": 5 });
        assert_eq!(fact(&file, "lost").unwrap(), expected);
        let expected = json!({ "records": 6, "packets": 7, "bytes": 8 });
        assert_eq!(fact(&file, "left_out").unwrap(), expected);
        let account = fact(&file, "account").unwrap();
        assert_eq!(account["type"], "account");
        assert_eq!(account["final"], is_final);
        assert_eq!(account["lost_records"], if is_final { 3 } else { 1 });
        assert_eq!(fact(&file, "dropped_bytes"), None);
    }
    let file = made(&pieces(&[(batch(1), Vec::new())]));
    assert_eq!(fact(&file, "account"), None);
}

#[test]
fn a_file_says_what_of_it_could_not_be_read() {
    let damaged = [piece(1), piece(2)[..20].to_vec()].concat();
    assert_eq!(fact(&made(&damaged), "dropped_bytes"), Some(json!(20)));
}

#[test]
fn pieces_end_where_the_first_one_is_not_whole() {
    let two = [piece(1), piece(2)].concat();
    let first = piece(1).len();
    let mut other_mark = two.clone();
    other_mark[first] ^= 1;
    for (content, whole) in [
        (Vec::new(), 0),
        (two.clone(), two.len()),
        (two[..two.len() - 1].to_vec(), first),
        (two[..first + 5].to_vec(), first),
        (other_mark, first),
        (piece(1)[..2].to_vec(), 0),
    ] {
        let whole_len = pieces::whole_len(&mut temporary(&content)).unwrap();
        assert_eq!(whole_len, whole as u64, "{content:?}");
    }
}
