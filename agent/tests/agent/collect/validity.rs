//! Batches that no agent would send are refused with the name of the field, and nothing of them is stored.

use std::time::{SystemTime, UNIX_EPOCH};

use proto::{
    Account, Count, DnsExchange, FlowBatch, FlowRecord, Interface, Process as ProcessName,
};

use super::{
    calls::{batch, call, connect, lines, runtime, start},
    *,
};

const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;

fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_nanos().try_into().unwrap()
}

fn exchange() -> DnsExchange {
    DnsExchange {
        client_addr: vec![10, 0, 0, 1],
        server_addr: vec![10, 0, 0, 2],
        asked_unix_ns: now_ns(),
        ..DnsExchange::default()
    }
}

/// Invalid batches, each with the field that the error names.
type Fault = (&'static str, fn(&mut FlowBatch));

fn first(batch: &mut FlowBatch) -> &mut FlowRecord {
    &mut batch.records[0]
}

const FAULTS: &[Fault] = &[
    ("records[0].protocol", |batch| first(batch).protocol = 300),
    ("records[0].ip_version", |batch| first(batch).ip_version = 5),
    ("records[0].src.port", |batch| {
        first(batch).src_mut().port = Some(70_000);
    }),
    ("records[0].dst.port", |batch| {
        first(batch).dst_mut().port = Some(65_536);
    }),
    ("records[1].dst.port", |batch| {
        batch.records[1].dst_mut().port = Some(u32::MAX);
    }),
    ("records[0].icmp_type", |batch| {
        first(batch).icmp_type = Some(256);
    }),
    ("records[0].icmp_code", |batch| {
        first(batch).icmp_code = Some(256);
    }),
    ("records[0].icmp_identifier", |batch| {
        first(batch).icmp_identifier = Some(65_536);
    }),
    ("records[0].icmp_error_type", |batch| {
        first(batch).icmp_error_type = Some(256);
    }),
    ("records[0].icmp_error_code", |batch| {
        first(batch).icmp_error_code = Some(256);
    }),
    ("records[0].src.dscp", |batch| {
        first(batch).src_mut().dscp = Some(64);
    }),
    ("records[0].src.tcp_flags", |batch| {
        first(batch).src_mut().tcp_flags = Some(1 << 16);
    }),
    ("records[0].dst.tcp_flags", |batch| {
        first(batch).dst_mut().tcp_flags = Some(1 << 16);
    }),
    ("records[0].outer_pppoe_session", |batch| {
        first(batch).outer_pppoe_session = Some(1 << 16);
    }),
    ("records[0].ifindex", |batch| first(batch).ifindex = 1 << 31),
    ("records[0].vlan_ids", |batch| {
        first(batch).vlan_ids = vec![1, 5000];
    }),
    ("records[0].vlan_ids", |batch| {
        first(batch).vlan_ids = vec![1; 9];
    }),
    ("records[0].outer_vlan_ids", |batch| {
        first(batch).outer_vlan_ids = vec![4096];
    }),
    ("records[0].src.addr", |batch| {
        first(batch).src_mut().addr = vec![1; 16].into();
    }),
    ("records[0].dst.addr", |batch| {
        first(batch).dst_mut().addr = vec![1; 5].into();
    }),
    ("records[0].dst.addr", |batch| {
        first(batch).dst_mut().addr.clear();
    }),
    ("records[0].src.outer_addr", |batch| {
        first(batch).src_mut().outer_addr = vec![1; 3].into();
    }),
    ("records[0].dst.outer_addr", |batch| {
        first(batch).dst_mut().outer_addr = vec![1; 17].into();
    }),
    ("records[0].src.addr", |batch| first(batch).src = None),
    ("records[0].dst.addr", |batch| first(batch).dst = None),
    ("records[0].community_id", |batch| {
        first(batch).community_id = vec![1; 19].into();
    }),
    ("records[0].src.delta_packets", |batch| {
        first(batch).src_mut().delta_packets = u64::MAX - 1;
    }),
    ("records[0].delta_duration_ns", |batch| {
        first(batch).delta_duration_ns = u64::MAX;
    }),
    ("records[0].src.delta_bytes", |batch| {
        first(batch).src_mut().delta_bytes = (1 << 48) + 1;
    }),
    ("records[0].src.delta_ip_bytes", |batch| {
        first(batch).src_mut().delta_ip_bytes = 1 << 63;
    }),
    ("records[0].dst.delta_packets", |batch| {
        first(batch).dst_mut().delta_packets = 1 << 49;
    }),
    ("records[0].dst.delta_bytes", |batch| {
        first(batch).dst_mut().delta_bytes = 1 << 49;
    }),
    ("records[0].dst.delta_ip_bytes", |batch| {
        first(batch).dst_mut().delta_ip_bytes = 1 << 49;
    }),
    ("records[0].src.total_packets", |batch| {
        first(batch).src_mut().total_packets = 1 << 63;
    }),
    ("records[0].src.total_bytes", |batch| {
        first(batch).src_mut().total_bytes = u64::MAX;
    }),
    ("records[0].src.total_ip_bytes", |batch| {
        first(batch).src_mut().total_ip_bytes = u64::MAX;
    }),
    ("records[0].dst.total_packets", |batch| {
        first(batch).dst_mut().total_packets = u64::MAX;
    }),
    ("records[0].dst.total_bytes", |batch| {
        first(batch).dst_mut().total_bytes = u64::MAX;
    }),
    ("records[0].dst.total_ip_bytes", |batch| {
        first(batch).dst_mut().total_ip_bytes = u64::MAX;
    }),
    ("records[0].src.total_dropped_packets", |batch| {
        first(batch).src_mut().total_dropped_packets = u64::MAX;
    }),
    ("records[0].dst.total_dropped_packets", |batch| {
        first(batch).dst_mut().total_dropped_packets = u64::MAX;
    }),
    ("records[0].first_seen_unix_ns", |batch| {
        first(batch).first_seen_unix_ns = now_ns() - 3651 * DAY_NS;
    }),
    ("records[0].first_seen_unix_ns", |batch| {
        first(batch).first_seen_unix_ns = 1;
    }),
    ("records[0].last_seen_unix_ns", |batch| {
        first(batch).last_seen_unix_ns = u64::MAX;
    }),
    ("window_end_unix_ns", |batch| {
        batch.window_end_unix_ns = now_ns() + 2 * DAY_NS;
    }),
    ("window_end_unix_ns", |batch| {
        batch.window_end_unix_ns = now_ns() - 401 * DAY_NS;
    }),
    ("window_end_unix_ns", |batch| batch.window_end_unix_ns = 0),
    ("window_end_unix_ns", |batch| {
        batch.window_end_unix_ns = u64::MAX;
    }),
    ("window_start_unix_ns", |batch| {
        batch.window_start_unix_ns = 1;
    }),
    ("report_interval_ns", |batch| {
        batch.report_interval_ns = u64::MAX;
    }),
    ("sample_rate", |batch| batch.sample_rate = 1_000_001),
    ("stream_seq", |batch| batch.stream_seq = u64::MAX),
    ("scan_id", |batch| batch.scan_id = u64::MAX),
    ("lost_batches", |batch| batch.lost_batches = u64::MAX),
    ("lost_records", |batch| batch.lost_records = u64::MAX),
    ("lost_packets", |batch| batch.lost_packets = u64::MAX),
    ("lost_bytes", |batch| batch.lost_bytes = u64::MAX),
    ("left_out_records", |batch| {
        batch.left_out_records = u64::MAX;
    }),
    ("left_out_packets", |batch| {
        batch.left_out_packets = u64::MAX;
    }),
    ("left_out_bytes", |batch| batch.left_out_bytes = u64::MAX),
    ("table_occupancy", |batch| {
        batch.table_occupancy = Some(u64::MAX);
    }),
    ("table_capacity", |batch| batch.table_capacity = u64::MAX),
    ("tracked_flows", |batch| {
        batch.tracked_flows = Some(u64::MAX);
    }),
    ("interfaces[0].ifindex", |batch| {
        batch.interfaces = vec![Interface {
            ifindex: u32::MAX,
            ..Interface::default()
        }];
    }),
    ("processes[0].pid", |batch| {
        batch.processes = vec![ProcessName {
            pid: u32::MAX,
            ..ProcessName::default()
        }];
    }),
    ("account.seen", |batch| {
        batch.account = Some(Account {
            seen: Some(Count {
                packets: u64::MAX,
                bytes: 1,
            }),
            ..Account::default()
        });
    }),
    ("account.not_inserted", |batch| {
        let huge = Count {
            packets: 1,
            bytes: 1 << 62,
        };
        batch.account = Some(Account {
            not_inserted: [("full".to_owned(), huge)].into(),
            ..Account::default()
        });
    }),
    ("account.sample_rate", |batch| {
        batch.account = Some(Account {
            sample_rate: u32::MAX,
            ..Account::default()
        });
    }),
    ("dns_exchanges[0].client_addr", |batch| {
        batch.dns_exchanges = vec![DnsExchange {
            client_addr: vec![1],
            ..exchange()
        }];
    }),
    ("dns_exchanges[0].addrs", |batch| {
        batch.dns_exchanges = vec![DnsExchange {
            addrs: vec![vec![1; 7]],
            ..exchange()
        }];
    }),
    ("dns_exchanges[0].client_port", |batch| {
        batch.dns_exchanges = vec![DnsExchange {
            client_port: 70_000,
            ..exchange()
        }];
    }),
    ("dns_exchanges[0].code", |batch| {
        batch.dns_exchanges = vec![DnsExchange {
            code: Some(1 << 16),
            ..exchange()
        }];
    }),
    ("dns_exchanges[0].asked_unix_ns", |batch| {
        batch.dns_exchanges = vec![DnsExchange {
            asked_unix_ns: 1,
            ..exchange()
        }];
    }),
    ("dns_exchanges[0].waited_ns", |batch| {
        batch.dns_exchanges = vec![DnsExchange {
            waited_ns: Some(u64::MAX),
            ..exchange()
        }];
    }),
    ("agent.identity", |batch| {
        "nobody:1".clone_into(&mut batch.agent.as_mut().unwrap().identity);
    }),
];

/// Odd batches that an agent may send.
const HONEST: &[fn(&mut FlowBatch)] = &[
    |_| {},
    |batch| {
        let record = first(batch);
        (record.protocol, record.ip_version) = (255, 6);
        record.src_mut().addr = vec![0; 16].into();
        record.dst_mut().addr = vec![255; 16].into();
        record.src_mut().port = Some(0);
        record.dst_mut().port = Some(65_535);
        (record.icmp_type, record.icmp_code) = (Some(255), Some(255));
        record.vlan_ids = vec![0, 4095];
        record.src_mut().dscp = Some(63);
        record.tunnel_id = Some(u32::MAX);
        (record.netns, record.ifindex) = (u32::MAX, i32::MAX as u32);
        record.src_mut().delta_bytes = 1 << 48;
        record.src_mut().total_bytes = i64::MAX as u64;
        record.src_mut().process_key = Some(u64::MAX);
        // A later agent's.
        record.end_reason = Some(99);
        record.src_mut().direction = 77;
    },
    // A spool found a year later, with a flow that was years old.
    |batch| {
        let then = now_ns() - 399 * DAY_NS;
        (batch.window_start_unix_ns, batch.window_end_unix_ns) = (then - DAY_NS, then);
        for record in &mut batch.records {
            (record.first_seen_unix_ns, record.last_seen_unix_ns) = (then - 2000 * DAY_NS, then);
        }
    },
    // A clock that is hours ahead, and was set in the middle of the window.
    |batch| {
        let then = now_ns() + DAY_NS / 2;
        (batch.window_start_unix_ns, batch.window_end_unix_ns) = (then + DAY_NS / 4, then);
        for record in &mut batch.records {
            record.last_seen_unix_ns = then + DAY_NS / 4;
        }
    },
    // Rare reports, from a host that slept.
    |batch| {
        batch.report_interval_ns = 30 * DAY_NS;
        batch.window_start_unix_ns = batch.window_end_unix_ns - 90 * DAY_NS;
        batch.sample_rate = 1_000_000;
    },
    // Only losses, without a window.
    |batch| {
        let losses = FlowBatch {
            agent: batch.agent.clone(),
            stream_id: batch.stream_id,
            stream_seq: batch.stream_seq,
            lost_batches: 7,
            lost_bytes: 1 << 60,
            ..FlowBatch::default()
        };
        *batch = losses;
    },
];

#[test]
fn what_no_agent_sends_is_refused_by_the_name_of_its_field_and_what_one_may_send_is_stored() {
    const TEST: &str = "agent::what_no_agent_sends_is_refused_by_the_name_of_its_field_and_what_one_may_send_is_stored";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let files = tempfile::tempdir().unwrap();
    let as_files = parquet(files.path());
    let (collector, socket) = start(&lab, &folder, &["--output", &as_files]);
    runtime().block_on(async {
        let mut client = connect(&socket).await;
        for (field, fault) in FAULTS {
            let mut wrong = batch(1, 2);
            fault(&mut wrong);
            let (acks, ended) = call(&mut client, vec![wrong]).await;
            let status = ended.expect_err(field);
            assert_eq!(
                (acks.len(), status.code()),
                (0, tonic::Code::InvalidArgument)
            );
            let told = status.message().split_once(": ").map(|(told, _)| told);
            assert_eq!(told, Some(*field), "{status}");
        }
        for (make, seq) in HONEST.iter().zip(1..) {
            let mut honest = batch(seq, 2);
            make(&mut honest);
            let (acks, ended) = call(&mut client, vec![honest]).await;
            assert_eq!(acks, [seq], "{ended:?}");
        }
    });
    collector.stop();
    let flows = lines(&folder)
        .into_iter()
        .filter(|line| line["type"] == "flow");
    assert_eq!(flows.count(), 2 * (HONEST.len() - 1));
    // A query over them works.
    let mut command = Command::new(env!("CARGO_BIN_EXE_flow-agent"));
    command
        .arg("query")
        .arg(files.path())
        .args(["--output", "json"]);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !stderr.contains("LEFT OUT"),
        "{stderr}"
    );
}
