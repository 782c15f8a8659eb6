use proto::{
    Cgroup, Direction, Encapsulation, EndReason, Endpoint, HostName, Interface, NameSource, Process,
};
use serde_json::{Value, json};

use super::*;

fn lines(batches: &[FlowBatch]) -> Vec<Value> {
    let mut out = Vec::new();
    let mut writer = JsonWriter::new(&mut out);
    for batch in batches {
        writer.batch(batch).unwrap();
    }
    let schema = schema::schema();
    let out = String::from_utf8(out).unwrap();
    let lines = out.lines().map(|line| serde_json::from_str(line).unwrap());
    lines
        .inspect(|line| schema::assert_described(line, &schema))
        .collect()
}

fn tcp_record() -> FlowRecord {
    FlowRecord {
        src: Some(Endpoint {
            dscp: Some(0),
            addr: vec![10, 0, 0, 1].into(),
            port: Some(40_000),
            delta_packets: 1,
            delta_bytes: 60,
            total_packets: 3,
            total_bytes: 180,
            delta_ip_bytes: 40,
            total_ip_bytes: 138,
            tcp_flags: Some(0),
            direction: Direction::Egress.into(),
            ..Endpoint::default()
        }),
        dst: Some(Endpoint {
            addr: vec![10, 0, 0, 2].into(),
            port: Some(443),
            delta_packets: 2,
            delta_bytes: 140,
            total_packets: 5,
            total_bytes: 350,
            delta_ip_bytes: 112,
            total_ip_bytes: 280,
            tcp_flags: Some(0x12),
            direction: Direction::Ingress.into(),
            ..Endpoint::default()
        }),
        protocol: 6,
        first_seen_unix_ns: 1_700_000_000_000_000_001,
        last_seen_unix_ns: 1_700_000_000_000_000_002,
        ip_version: 4,
        ifindex: 2,
        netns: 5,
        vlan_ids: vec![100],
        community_id: vec![0; 20].into(),
        initiator_assumed: true,
        delta_duration_ns: 1,
        ..FlowRecord::default()
    }
}

fn batch(records: Vec<FlowRecord>) -> FlowBatch {
    let interfaces = vec![Interface {
        ifindex: 2,
        name: "eth0".into(),
        netns: 5,
        ..Interface::default()
    }];
    FlowBatch {
        agent: Some(AgentIdentity {
            agent_id: "a".into(),
            hostname: "web01".into(),
            ..AgentIdentity::default()
        }),
        scan_id: 7,
        batch_index: 1,
        stream_seq: 9,
        interfaces,
        records,
        ..FlowBatch::default()
    }
}

#[test]
fn a_flow_line_has_every_field_and_null_where_none_applies() {
    let lines = lines(&[FlowBatch {
        sample_rate: 100,
        ..batch(vec![tcp_record()])
    }]);
    let mut expected = json!({
        "type": "flow", "scan_id": 7, "batch": 1, "stream_seq": 9,
        "interface": "eth0", "ifindex": 2,
        "direction": "egress", "reverse_direction": "ingress",
        "netns": 5, "netns_name": null, "vlan_ids": [100],
        "ip_version": 4, "protocol": 6,
        "src_addr": "10.0.0.1", "src_port": 40_000, "dst_addr": "10.0.0.2", "dst_port": 443,
        "icmp_type": null, "icmp_code": null, "icmp_identifier": null, "later_fragment": false,
        "packets": 1, "bytes": 60, "reverse_packets": 2, "reverse_bytes": 140,
        "total_packets": 3, "total_bytes": 180,
        "total_reverse_packets": 5, "total_reverse_bytes": 350,
        "first_seen": "2023-11-14T22:13:20.000000001Z",
        "last_seen": "2023-11-14T22:13:20.000000002Z",
        "tcp_flags": 0, "reverse_tcp_flags": 18, "dscp": 0, "end_reason": null,
        "community_id": "1:AAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "encapsulation": null, "tunnel_id": null,
        "outer_src_addr": null, "outer_dst_addr": null, "sample_rate": 100,
    });
    // More fields than one macro takes.
    for (name, value) in [
        ("ip_bytes", 40),
        ("reverse_ip_bytes", 112),
        ("total_ip_bytes", 138),
        ("total_reverse_ip_bytes", 280),
    ] {
        expected[name] = json!(value);
    }
    // Added here, since the macro takes fewer fields.
    expected["initiator_assumed"] = json!(true);
    expected["agent_id"] = json!("a");
    expected["hostname"] = json!("web01");
    expected["duration_ns"] = json!(1);
    expected["outer_vlan_ids"] = json!([]);
    expected["outer_pppoe_session"] = json!(null);
    expected["reverse_dscp"] = json!(null);
    assert_eq!(lines, [expected]);
}

#[test]
fn a_flow_out_of_a_tunnel_has_the_tunnels_endpoints() {
    let record = FlowRecord {
        src: Some(Endpoint {
            outer_addr: vec![192, 0, 2, 1].into(),
            ..tcp_record().src().clone()
        }),
        dst: Some(Endpoint {
            outer_addr: vec![192, 0, 2, 2].into(),
            ..tcp_record().dst().clone()
        }),
        encapsulation: Some(Encapsulation::Vxlan.into()),
        tunnel_id: Some(42),
        outer_vlan_ids: vec![7, 8],
        outer_pppoe_session: Some(0),
        ..tcp_record()
    };
    let line = &lines(&[batch(vec![record])])[0];
    assert_eq!(
        (&line["encapsulation"], &line["tunnel_id"]),
        (&json!("vxlan"), &json!(42))
    );
    assert_eq!(
        (&line["outer_src_addr"], &line["outer_dst_addr"]),
        (&json!("192.0.2.1"), &json!("192.0.2.2"))
    );
    assert_eq!(
        (&line["outer_vlan_ids"], &line["outer_pppoe_session"]),
        (&json!([7, 8]), &json!(0))
    );
}

#[test]
fn a_network_namespace_has_the_name_by_which_it_was_asked_for() {
    let mut batch = batch(vec![tcp_record()]);
    batch.interfaces[0].netns_name = "blue".into();
    let line = &lines(&[batch])[0];
    assert_eq!(
        (&line["interface"], &line["netns"], &line["netns_name"]),
        (&json!("eth0"), &json!(5), &json!("blue"))
    );
}

#[test]
fn whoever_sent_the_packets_is_named_at_the_end_that_is_known() {
    let cgroup = |id, unit: &str| Cgroup {
        id,
        path: format!("/system.slice/{unit}"),
        unit: unit.into(),
        slice: "system.slice".into(),
        ..Cgroup::default()
    };
    let records = [
        (Some(7), None),
        (Some(9), Some(7)),
        (Some(8), None),
        (None, None),
    ];
    let records = records.map(|(src_cgroup_id, dst_cgroup_id)| FlowRecord {
        src: Some(Endpoint {
            cgroup_id: src_cgroup_id,
            ..tcp_record().src().clone()
        }),
        dst: Some(Endpoint {
            cgroup_id: dst_cgroup_id,
            ..tcp_record().dst().clone()
        }),
        ..tcp_record()
    });
    let lines = lines(&[FlowBatch {
        cgroups: vec![cgroup(7, "a.service"), cgroup(9, "b.service")],
        ..batch(records.to_vec())
    }]);
    let texts = |name: &str| {
        let of = lines.iter().map(|line| line.get(name).cloned());
        of.collect::<Vec<_>>()
    };
    let (a, b) = (Some(json!("a.service")), Some(json!("b.service")));
    // Its cgroup is not in the batch, so only the id is known.
    let unnamed = None;
    assert_eq!(texts("src_unit"), [a.clone(), b, unnamed.clone(), None]);
    assert_eq!(texts("dst_unit"), [None, a, None, None]);
    assert_eq!(
        texts("src_cgroup_id"),
        [Some(json!(7)), Some(json!(9)), Some(json!(8)), None]
    );
    assert_eq!(lines[0]["src_cgroup"], "/system.slice/a.service");
    assert_eq!(lines[0]["src_slice"], "system.slice");
    assert_eq!(lines[0]["src_container_id"], json!(null));
}

#[test]
fn the_process_of_an_end_has_its_number_even_where_it_has_no_name() {
    let [named, nameless] = [7, 8].map(|pid| pid << 32 | 1);
    let lines = lines(&[FlowBatch {
        processes: vec![Process {
            key: named,
            pid: 7,
            name: "nginx".to_owned(),
            uid: Some(33),
        }],
        ..batch(vec![FlowRecord {
            src: Some(Endpoint {
                process_key: Some(named),
                ..tcp_record().src().clone()
            }),
            dst: Some(Endpoint {
                process_key: Some(nameless),
                ..tcp_record().dst().clone()
            }),
            ..tcp_record()
        }])
    }]);
    for (name, value) in [
        ("src_process", json!("nginx")),
        ("src_pid", json!(7)),
        ("src_uid", json!(33)),
        ("dst_process", json!(null)),
        ("dst_pid", json!(8)),
        ("dst_uid", json!(null)),
    ] {
        assert_eq!(lines[0][name], value, "{name}");
    }
    assert!(lines[0].get("src_unit").is_none());
}

#[test]
fn an_end_has_its_name_and_how_that_was_learned() {
    let named = FlowRecord {
        src: Some(Endpoint {
            // A host that the batch does not name.
            host_id: Some(6),
            host_source: NameSource::Dns.into(),
            ..tcp_record().src().clone()
        }),
        dst: Some(Endpoint {
            host_id: Some(5),
            host_source: NameSource::HostsFile.into(),
            ..tcp_record().dst().clone()
        }),
        ..tcp_record()
    };
    let lines = lines(&[FlowBatch {
        hosts: vec![HostName {
            id: 5,
            name: "www.example".to_owned(),
        }],
        ..batch(vec![named])
    }]);
    assert_eq!(lines[0]["dst_host"], "www.example");
    assert_eq!(lines[0]["dst_host_source"], "hosts_file");
    assert!(lines[0].get("src_host").is_none());
    assert!(lines[0].get("src_host_source").is_none());
}

#[test]
fn what_tcp_knows_is_said_of_the_ends_that_are_here() {
    let lines = lines(&[batch(vec![FlowRecord {
        dst: Some(Endpoint {
            tcp_min_rtt_us: Some(70),
            tcp_total_retrans: Some(0),
            tcp_delivered: Some(5),
            tcp_delivered_ce: Some(1),
            tcp_data_segs_out: Some(4),
            ..tcp_record().dst().clone()
        }),
        ..tcp_record()
    }])]);
    for (name, value) in [
        ("dst_tcp_rtt_us", json!(null)),
        ("dst_tcp_min_rtt_us", json!(70)),
        ("dst_tcp_total_retrans", json!(0)),
        ("dst_tcp_delivered", json!(5)),
        ("dst_tcp_delivered_ce", json!(1)),
        ("dst_tcp_data_segs_out", json!(4)),
    ] {
        assert_eq!(lines[0][name], value, "{name}");
    }
    assert!(lines[0].get("src_tcp_delivered").is_none());
}

#[test]
fn each_direction_has_its_dscp_and_a_mark_only_if_that_changed() {
    let flow = |changed: [bool; 2]| FlowRecord {
        src: Some(Endpoint {
            dscp: Some(46),
            dscp_changed: changed[0],
            ..tcp_record().src().clone()
        }),
        dst: Some(Endpoint {
            dscp: Some(10),
            dscp_changed: changed[1],
            ..tcp_record().dst().clone()
        }),
        ..tcp_record()
    };
    let lines = lines(&[batch(vec![flow([true, false]), flow([false, true])])]);
    for (line, marked, unmarked) in [
        (&lines[0], "dscp_changed", "reverse_dscp_changed"),
        (&lines[1], "reverse_dscp_changed", "dscp_changed"),
    ] {
        assert_eq!(
            (&line["dscp"], &line["reverse_dscp"]),
            (&json!(46), &json!(10))
        );
        assert_eq!((&line[marked], line.get(unmarked)), (&json!(true), None));
    }
}

#[test]
fn round_trips_that_were_measured_are_said_of_each_end() {
    let lines = lines(&[batch(vec![FlowRecord {
        src: Some(Endpoint {
            handshake_rtt_us: Some(1),
            ..tcp_record().src().clone()
        }),
        dst: Some(Endpoint {
            handshake_rtt_us: Some(2),
            ack_rtt_us: Some(u32::MAX),
            total_dropped_packets: 3,
            ..tcp_record().dst().clone()
        }),
        ..tcp_record()
    }])]);
    assert_eq!(lines[0]["src_handshake_rtt_us"], 1);
    assert_eq!(lines[0]["dst_handshake_rtt_us"], 2);
    assert_eq!(lines[0]["dst_ack_rtt_us"], u32::MAX);
    assert!(lines[0].get("src_ack_rtt_us").is_none());
    assert_eq!(lines[0]["total_reverse_dropped_packets"], 3);
    assert!(lines[0].get("total_dropped_packets").is_none());
}

#[test]
fn both_directions_of_a_mirror_port_arrive() {
    let record = FlowRecord {
        src: Some(Endpoint {
            direction: Direction::Ingress.into(),
            ..tcp_record().src().clone()
        }),
        dst: Some(Endpoint {
            direction: Direction::Ingress.into(),
            ..tcp_record().dst().clone()
        }),
        ..tcp_record()
    };
    let line = &lines(&[batch(vec![record])])[0];
    assert_eq!(line["direction"], "ingress");
    assert_eq!(line["reverse_direction"], "ingress");
}

#[test]
fn an_icmp_flow_that_ended_has_no_ports_and_says_why() {
    let record = FlowRecord {
        src: Some(Endpoint {
            addr: vec![0xfe; 16].into(),
            port: None,
            tcp_flags: None,
            ..tcp_record().src().clone()
        }),
        dst: Some(Endpoint {
            port: None,
            ..tcp_record().dst().clone()
        }),
        protocol: 58,
        ip_version: 6,
        icmp_type: Some(128),
        icmp_code: Some(0),
        ifindex: 99,
        end_reason: Some(EndReason::IdleTimeout.into()),
        ..tcp_record()
    };
    let line = &lines(&[batch(vec![record])])[0];
    assert_eq!(line["src_addr"], "fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe");
    assert!(
        line["src_port"].is_null() && line["tcp_flags"].is_null() && line["interface"].is_null()
    );
    assert_eq!(
        (&line["icmp_type"], &line["icmp_code"]),
        (&json!(128), &json!(0))
    );
    assert_eq!(line["end_reason"], "idle_timeout");
}

#[test]
fn losses_come_before_the_batch_and_the_account_after_it() {
    let hook = agent_common::HookAccount::default();
    let last = FlowBatch {
        stream_seq: 10,
        lost_batches: 3,
        lost_records: 30,
        lost_packets: 31,
        lost_bytes: 32,
        left_out_records: 40,
        left_out_packets: 41,
        left_out_bytes: 42,
        table_occupancy: Some(1),
        account: Some(Account::from_hook(&hook, true)),
        ..batch(vec![tcp_record()])
    };
    let lines = lines(&[
        batch(Vec::new()),
        last.clone(),
        FlowBatch {
            account: None,
            ..last
        },
    ]);
    let types: Vec<&str> = lines
        .iter()
        .map(|line| line["type"].as_str().unwrap())
        .collect();
    assert_eq!(types, ["lost", "flow", "account", "flow"]);
    assert_eq!(
        (&lines[0]["batches"], &lines[0]["lost_records"]),
        (&json!(3), &json!(30))
    );
    assert_eq!(lines[2]["final"], true);
    for (field, value) in [
        ("lost_records", 30),
        ("lost_packets", 31),
        ("lost_bytes", 32),
        ("left_out_records", 40),
        ("left_out_packets", 41),
        ("left_out_bytes", 42),
    ] {
        assert_eq!(lines[2][field], value, "{field}");
    }
    assert_eq!(
        lines[2]["not_inserted"]["table_full"],
        json!({"packets": 0, "bytes": 0})
    );
    let unparsed = lines[2]["unparsed"].as_object().unwrap();
    assert_eq!(unparsed.len(), agent_common::Reason::UNPARSED.len());
}
