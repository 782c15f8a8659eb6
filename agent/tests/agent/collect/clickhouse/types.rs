//! Each value is in ClickHouse as it was counted, in a type of its own; and what the documentation asks can be asked.

use std::{
    net::Ipv6Addr,
    sync::OnceLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use proto::{
    Account, Cgroup, Count, Direction, Encapsulation, EndReason, Endpoint, Failure, FlowRecord,
    HostName, Interface, NameSource, Process,
};
use serde_json::json;

use super::*;

const SECOND_NS: u64 = 1_000_000_000;

/// A record with every field, and one with as few as possible.
fn records() -> Vec<FlowRecord> {
    let full = FlowRecord {
        src: Some(Endpoint {
            dscp: Some(46),
            addr: vec![192, 0, 2, 1].into(),
            port: Some(65535),
            delta_packets: 1 << 48,
            delta_bytes: 2,
            total_packets: 5,
            total_bytes: 6,
            direction: Direction::Ingress.into(),
            tcp_flags: Some(0xff),
            outer_addr: vec![10, 0, 0, 1].into(),
            cgroup_id: Some(77),
            process_key: Some(4711 << 32 | 1),
            tcp_min_rtt_us: Some(70),
            tcp_total_retrans: Some(0),
            tcp_delivered: Some(u32::MAX),
            tcp_delivered_ce: Some(1),
            tcp_data_segs_out: Some(2),
            total_dropped_packets: i64::MAX as u64,
            ack_rtt_us: Some(u32::MAX),
            ..Endpoint::default()
        }),
        dst: Some(Endpoint {
            addr: vec![192, 0, 2, 2].into(),
            port: Some(0),
            delta_packets: 3,
            delta_bytes: 4,
            total_packets: 7,
            total_bytes: 8,
            tcp_flags: Some(0),
            outer_addr: vec![10, 0, 0, 2].into(),
            cgroup_id: Some(78),
            handshake_rtt_us: Some(90),
            host_id: Some(5),
            host_source: NameSource::DnsOfAnother.into(),
            ..Endpoint::default()
        }),
        protocol: 6,
        first_seen_unix_ns: began_s() * SECOND_NS + 123_456_789,
        last_seen_unix_ns: (began_s() + 1) * SECOND_NS + 1,
        delta_duration_ns: 9,
        ip_version: 4,
        ifindex: 2,
        netns: u32::MAX,
        vlan_ids: vec![1, 4095],
        end_reason: Some(EndReason::EndOfFlow.into()),
        encapsulation: Some(Encapsulation::Vxlan.into()),
        tunnel_id: Some(u32::MAX),
        outer_vlan_ids: vec![7],
        failure: Some(Failure::Reset.into()),
        ..FlowRecord::default()
    };
    // With a part as in an IPv4 address.
    let v6: Ipv6Addr = "2001:db8::ffff:1:2".parse().unwrap();
    let sparse = FlowRecord {
        src: Some(Endpoint {
            addr: v6.octets().to_vec().into(),
            ..Endpoint::default()
        }),
        dst: Some(Endpoint {
            addr: vec![0; 16].into(),
            ..Endpoint::default()
        }),
        protocol: 58,
        icmp_type: Some(128),
        icmp_code: Some(0),
        icmp_identifier: Some(65535),
        ip_version: 6,
        later_fragment: true,
        initiator_assumed: true,
        first_seen_unix_ns: began_s() * SECOND_NS,
        last_seen_unix_ns: began_s() * SECOND_NS,
        ..FlowRecord::default()
    };
    vec![full, sparse]
}

/// Of the window, which is near now.
fn began_s() -> u64 {
    static BEGAN_S: OnceLock<u64> = OnceLock::new();
    *BEGAN_S.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        now.as_secs() - 60
    })
}

/// As ClickHouse writes so long after that.
fn shown(seconds: u64, nanos: u32) -> String {
    let time = UNIX_EPOCH + Duration::new(began_s() + seconds, nanos);
    let text = humantime::format_rfc3339_nanos(time).to_string();
    text.replace('T', " ").replace('Z', "")
}

fn whole() -> FlowBatch {
    FlowBatch {
        agent: Some(AgentIdentity {
            agent_id: "machine".into(),
            hostname: "there".into(),
            boot_id: "boot".into(),
            instance_id: "instance".into(),
            version: "1".into(),
            identity: String::new(),
        }),
        scan_id: 8,
        batch_index: 2,
        last_of_scan: true,
        window_start_unix_ns: began_s() * SECOND_NS,
        window_end_unix_ns: (began_s() + 1) * SECOND_NS + 5,
        interfaces: vec![Interface {
            ifindex: 2,
            netns: u32::MAX,
            name: "eth0".into(),
            netns_name: "blue".into(),
            ..Interface::default()
        }],
        records: records(),
        cgroups: vec![Cgroup {
            id: 77,
            path: "/system.slice/web.service".into(),
            unit: "web.service".into(),
            container_id: "c0ffee".into(),
            ..Cgroup::default()
        }],
        processes: vec![Process {
            key: 4711 << 32 | 1,
            pid: 4711,
            name: "nginx".into(),
            uid: Some(33),
        }],
        hosts: vec![HostName {
            id: 5,
            name: "www.example".into(),
        }],
        lost_batches: 1,
        lost_records: 2,
        lost_packets: 3,
        lost_bytes: 4,
        left_out_records: 5,
        left_out_packets: 6,
        left_out_bytes: 7,
        refused_in_window: true,
        tracked_flows: Some(9),
        sample_rate: 16,
        account: Some(Account {
            r#final: true,
            seen: Some(Count {
                packets: 10,
                bytes: 11,
            }),
            flows: Some(Count {
                packets: 12,
                bytes: 13,
            }),
            ..Account::default()
        }),
        ..batch(7, 0)
    }
}

#[test]
#[ignore = "cargo xtask test-consumers"]
fn every_column_has_what_was_sent_and_every_documented_query_runs() {
    const TEST: &str = "agent::every_column_has_what_was_sent_and_every_documented_query_runs";
    let Some(clickhouse) = ClickHouse::or_skip(TEST) else {
        return;
    };
    let (collector, socket) = clickhouse.collector(&output(""));
    let (acks, ended) = export(&socket, vec![whole()]);
    assert_eq!(acks, [7], "{ended:?}");
    collector.stop();
    let rows = clickhouse.ask("SELECT * FROM flows_once ORDER BY record");
    let agent = json!({
        "identity": "uid:0", "agent_id": "machine", "hostname": "there", "boot_id": "boot", "instance_id": "instance",
        "stream_id": "123456789abcdef0", "stream_seq": 7, "scan_id": 8, "sample_rate": 16,
        "window_start": shown(0, 0), "window_end": shown(1, 5),
    });
    let mut full = json!({
        "record": 0, "interface": "eth0", "ifindex": 2, "netns": u32::MAX, "netns_name": "blue",
        "direction": "ingress", "vlan_ids": [1, 4095], "ip_version": 4, "protocol": 6,
        "src_addr": "::ffff:192.0.2.1", "dst_addr": "::ffff:192.0.2.2", "src": "192.0.2.1", "dst": "192.0.2.2",
        "src_port": 65535, "dst_port": 0, "icmp_type": null, "icmp_code": null, "icmp_identifier": null,
        "later_fragment": false, "initiator_assumed": false, "packets": 1_u64 << 48, "bytes": 2, "reverse_packets": 3, "reverse_bytes": 4,
        "total_packets": 5, "total_bytes": 6, "total_reverse_packets": 7, "total_reverse_bytes": 8,
        "first_seen": shown(0, 123_456_789), "last_seen": shown(1, 1), "duration_ns": 9,
        "tcp_flags": 255, "reverse_tcp_flags": 0, "dscp": 46, "end_reason": "end_of_flow",
        "encapsulation": "vxlan", "tunnel_id": u32::MAX, "outer_src_addr": "::ffff:10.0.0.1",
        "outer_dst_addr": "::ffff:10.0.0.2", "outer_vlan_ids": [7], "outer_pppoe_session": null,
    });
    // More arguments than one macro call takes. The destination's cgroup has no name.
    let senders = json!({
        "src_unit": "web.service", "src_container_id": "c0ffee", "src_cgroup": "/system.slice/web.service",
        "dst_unit": "", "dst_container_id": "", "dst_cgroup": "",
        "src_process": "nginx", "src_pid": 4711, "src_uid": 33, "dst_process": "", "dst_pid": null, "dst_uid": null,
        "src_tcp_rtt_us": null, "src_tcp_min_rtt_us": 70, "src_tcp_total_retrans": 0, "src_tcp_delivered": u32::MAX,
        "failure": "reset", "icmp_error_type": null, "icmp_error_code": null, "src_host": "", "src_host_source": "", "dst_host": "www.example", "dst_host_source": "dns_of_another",
        "src_tcp_delivered_ce": 1, "src_tcp_data_segs_out": 2, "dst_tcp_rtt_us": null, "dst_tcp_delivered": null,
        "src_handshake_rtt_us": null, "dst_handshake_rtt_us": 90, "src_ack_rtt_us": u32::MAX, "dst_ack_rtt_us": null,
        "total_dropped_packets": i64::MAX, "total_reverse_dropped_packets": 0,
    });
    full.as_object_mut()
        .unwrap()
        .extend(senders.as_object().unwrap().clone());
    let sparse = json!({
        "record": 1, "interface": "", "netns_name": "", "direction": "", "vlan_ids": [], "ip_version": 6,
        "protocol": 58, "src_addr": "2001:db8::ffff:1:2", "dst_addr": "::", "src": "2001:db8::ffff:1:2", "src_port": null, "dst_port": null,
        "icmp_type": 128, "icmp_code": 0, "icmp_identifier": 65535, "later_fragment": true, "initiator_assumed": true, "packets": 0,
        "first_seen": shown(0, 0), "last_seen": shown(0, 0),
        "tcp_flags": null, "dscp": null, "end_reason": "", "community_id": "", "encapsulation": "", "tunnel_id": null,
        "outer_src_addr": null, "outer_vlan_ids": [],
    });
    for (row, expected) in rows.iter().zip([&full, &sparse]) {
        for (name, value) in [&agent, expected]
            .into_iter()
            .flat_map(|all| all.as_object().unwrap())
        {
            assert_eq!(row[name], *value, "{name}");
        }
    }
    let of_batches = clickhouse.ask("SELECT * FROM flows_batches FINAL");
    let expected = json!({
        "version": "1", "batch_index": 2, "last_of_scan": true, "records": 2, "packets": (1_u64 << 48) + 3, "bytes": 6,
        "lost_batches": 1, "lost_records": 2, "lost_packets": 3, "lost_bytes": 4, "refused_in_window": true,
        "left_out_records": 5, "left_out_packets": 6, "left_out_bytes": 7,
        "tracked_flows": 9, "final": true, "seen_packets": 10, "seen_bytes": 11, "flows_packets": 12,
        "flows_bytes": 13,
    });
    for (name, value) in [&agent, &expected]
        .into_iter()
        .flat_map(|all| all.as_object().unwrap())
    {
        assert_eq!(of_batches[0][name], *value, "{name}");
    }
    let loose = clickhouse.ask("SELECT * FROM flows_streams");
    assert_eq!(loose[0]["lost_packets"], 3);
    assert_eq!(loose[0]["batches_with_refusals"], 1);
    for statement in documented() {
        clickhouse.ask(&statement);
    }
}

/// The statements of the documentation.
fn documented() -> Vec<String> {
    let text = include_str!("../../../../../docs/clickhouse.md");
    let mut statements = Vec::new();
    for block in text.split("```sql\n").skip(1) {
        let (block, _) = block.split_once("```").unwrap();
        let lines = block.lines().filter(|line| !line.starts_with("--"));
        let block = lines.collect::<Vec<_>>().join("\n");
        let all = block
            .split(';')
            .map(str::trim)
            .filter(|one| !one.is_empty());
        statements.extend(all.map(str::to_owned));
    }
    assert!(statements.len() > 5);
    statements
}
