//! The encoder against the types of OpenTelemetry, and against messages that are written out.

use std::{io::Read as _, sync::Mutex};

use agent_common::{Direction, HookAccount, Reason};
use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::{
    collector::{
        logs::v1::{ExportLogsPartialSuccess, ExportLogsServiceRequest},
        metrics::v1::ExportMetricsPartialSuccess,
    },
    logs::v1::LogRecord,
    metrics::v1::metric::Data,
};
use proto::{Cgroup, Endpoint, Process, accounts::AccountOfHook};

use super::*;
use crate::ipfix::tests::flows;

mod written;

fn plain() -> Settings {
    Settings {
        gzip: false,
        ..Settings::default()
    }
}

fn encoder(settings: Settings) -> Otlp {
    Otlp::new(settings, || accounts(1))
}

fn batch() -> FlowBatch {
    FlowBatch {
        agent: Some(AgentIdentity {
            agent_id: "0123456789abcdef".to_owned(),
            hostname: "host-1".to_owned(),
            boot_id: "boot".to_owned(),
            instance_id: "instance".to_owned(),
            version: "0.1.0".to_owned(),
            ..AgentIdentity::default()
        }),
        window_end_unix_ns: 1_700_000_002_000_000_000,
        interfaces: vec![flows::interface(7, "eth0")],
        ..flows::batch(1)
    }
}

fn closing() -> FlowBatch {
    FlowBatch {
        last_of_scan: true,
        lost_records: 4,
        lost_packets: 50,
        lost_bytes: 6_000,
        ..batch()
    }
}

fn accounts(hooks: u32) -> Arc<Accounts> {
    let account = |packets| {
        let mut account = HookAccount::default();
        account.add(Reason::Seen, packets, 100 * packets);
        account.add(Reason::Flows, packets - 3, 100 * (packets - 3));
        account.add(Reason::Arp, 2, 200);
        account.add(Reason::TableFull, 1, 100);
        account
    };
    let hooks = (7..7 + hooks).map(|index| AccountOfHook {
        interface: flows::interface(index, "eth0"),
        direction: Direction::Egress,
        since_unix_ns: 1_700_000_001_000_000_000,
        account: account(10),
    });
    Arc::new(Accounts {
        since_unix_ns: 1_700_000_000_000_000_000,
        window_start_unix_ns: 1_700_000_001_000_000_000,
        until_unix_ns: 1_700_000_002_000_000_000,
        hooks: hooks.collect(),
        departed: account(7),
        others: account(5),
    })
}

/// All messages until there is no more to say, with those about flows apart from those about metrics.
fn send(
    encoder: &mut Otlp,
    batch: &FlowBatch,
    mut flows: &[FlowRecord],
) -> (Vec<Bytes>, Vec<Bytes>) {
    let (mut logs, mut metrics) = (Vec::new(), Vec::new());
    loop {
        let message = encoder.message(batch, flows);
        if message.bytes.is_empty() {
            assert!(flows.is_empty() && !message.more);
            return (logs, metrics);
        }
        encoder.sent();
        flows = &flows[message.flows..];
        let is_of_flows = message.flows > 0;
        assert_eq!(message.call.method.contains("Logs"), is_of_flows);
        if is_of_flows {
            logs.push(message.bytes);
        } else {
            metrics.push(message.bytes);
        }
        if !message.more && flows.is_empty() {
            assert!(encoder.message(batch, flows).bytes.is_empty());
            return (logs, metrics);
        }
    }
}

fn records(message: &[u8]) -> Vec<LogRecord> {
    let request = ExportLogsServiceRequest::decode(message).unwrap();
    let [resource_logs] = &request.resource_logs[..] else {
        panic!("{request:?}")
    };
    let [scope_logs] = &resource_logs.scope_logs[..] else {
        panic!("{request:?}")
    };
    // In the encoding of somebody else it is as long.
    assert_eq!(request.encoded_len(), message.len());
    scope_logs.log_records.clone()
}

fn value(attributes: &[KeyValue], key: &str) -> Option<Value> {
    let found = attributes.iter().find(|one| one.key == key)?;
    found.value.clone()?.value
}

fn number(attributes: &[KeyValue], key: &str) -> i64 {
    match value(attributes, key) {
        Some(Value::IntValue(number)) => number,
        other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn each_flow_has_a_record_and_none_is_longer_than_a_request_may_be() {
    let flows = vec![flows::in_vxlan(); 3_000];
    let mut encoder = encoder(plain());
    let (logs, metrics) = send(&mut encoder, &batch(), &flows);
    assert!(metrics.is_empty());
    assert!(logs.len() > 1);
    let mut count = 0;
    for message in &logs {
        assert!(message.len() < REQUEST_LEN_BYTES + SLACK_LEN_BYTES);
        for record in records(message) {
            assert_eq!(number(&record.attributes, "flow.packets"), 3);
            assert_eq!(number(&record.attributes, "flow.reverse.bytes"), 2_000);
            count += 1;
        }
    }
    assert_eq!(count, flows.len());
}

#[test]
fn no_attribute_comes_twice_and_none_is_empty() {
    let all = [
        flows::tcp(),
        flows::udp_with_tags(),
        flows::ping6(),
        flows::in_vxlan(),
        flows::fragments(),
        flows::quiet(),
    ];
    let sampled = FlowBatch {
        sample_rate: 10,
        ..batch()
    };
    let (logs, _) = send(&mut encoder(plain()), &sampled, &all);
    for record in records(&logs[0]) {
        let mut keys: Vec<_> = record.attributes.iter().map(|one| &one.key).collect();
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), count, "{record:?}");
        assert!(record.attributes.iter().all(|one| one.value.is_some()));
        assert_eq!(number(&record.attributes, "flow.sample_rate"), 10);
    }
}

#[test]
fn an_initiator_that_is_assumed_is_said_to_be() {
    let assumed = FlowRecord {
        dst: Some(Endpoint {
            sender_shared: true,
            ..flows::tcp().dst().clone()
        }),
        initiator_assumed: true,
        ..flows::tcp()
    };
    let (logs, _) = send(&mut encoder(plain()), &batch(), &[flows::tcp(), assumed]);
    let records = records(&logs[0]);
    let shared = ["source", "destination"].map(|end| {
        let key = format!("flow.{end}.sender_shared");
        value(&records[1].attributes, &key)
    });
    assert_eq!(shared, [None, Some(Value::BoolValue(true))]);
    let said = records
        .into_iter()
        .map(|record| value(&record.attributes, "flow.initiator_assumed"));
    assert_eq!(
        said.collect::<Vec<_>>(),
        [None, Some(Value::BoolValue(true))]
    );
}

#[test]
fn a_side_has_its_name_and_one_that_is_not_known_has_none() {
    let sides = |direction: proto::Direction, reverse: proto::Direction| {
        let flow = FlowRecord {
            src: Some(Endpoint {
                direction: direction.into(),
                ..flows::tcp().src().clone()
            }),
            dst: Some(Endpoint {
                direction: reverse.into(),
                ..flows::tcp().dst().clone()
            }),
            ..flows::tcp()
        };
        let (logs, _) = send(&mut encoder(plain()), &batch(), &[flow]);
        let record = &records(&logs[0])[0];
        ["network.io.direction", "flow.reverse.direction"].map(|key| value(&record.attributes, key))
    };
    let text = |name: &str| Some(Value::StringValue(name.to_owned()));
    let [unspecified, ingress, egress] = [
        proto::Direction::Unspecified,
        proto::Direction::Ingress,
        proto::Direction::Egress,
    ];
    assert_eq!(sides(unspecified, unspecified), [None, None]);
    assert_eq!(sides(ingress, unspecified), [text("receive"), None]);
    assert_eq!(sides(egress, egress), [text("transmit"), text("transmit")]);
}

#[test]
fn a_name_that_a_person_gave_and_that_is_long_is_cut() {
    let mut batch = batch();
    batch.interfaces[0].netns_name = "ä".repeat(4_000);
    let long = "h".repeat(4_000);
    batch.agent = Some(AgentIdentity {
        agent_id: long.clone(),
        hostname: long.clone(),
        boot_id: long.clone(),
        instance_id: long.clone(),
        version: long,
        ..AgentIdentity::default()
    });
    let (logs, _) = send(&mut encoder(plain()), &batch, &[flows::in_vxlan()]);
    let record = &records(&logs[0])[0];
    let name = value(&record.attributes, "flow.netns.name");
    assert_eq!(name, Some(Value::StringValue("ä".repeat(127))));
}

#[test]
fn who_sent_the_packets_is_said_of_each_end_that_is_known() {
    let cgroup = |id, name: &str| Cgroup {
        id,
        path: format!("/system.slice/{name}"),
        unit: name.to_owned(),
        slice: "system.slice".to_owned(),
        container_id: "c".repeat(if id == 8 { 4_000 } else { 0 }),
        container_runtime: if id == 8 {
            "docker".to_owned()
        } else {
            String::new()
        },
    };
    let batch = FlowBatch {
        cgroups: vec![cgroup(7, "a.service"), cgroup(8, &"b".repeat(4_000))],
        processes: vec![Process {
            key: 5 << 32 | 1,
            pid: 5,
            name: "nginx".to_owned(),
            uid: Some(33),
        }],
        ..batch()
    };
    let flow = |src_cgroup_id, dst_cgroup_id| {
        let mut flow = flows::in_vxlan();
        flow.src_mut().cgroup_id = src_cgroup_id;
        flow.dst_mut().cgroup_id = dst_cgroup_id;
        flow
    };
    let of_processes = FlowRecord {
        src: Some(Endpoint {
            process_key: Some(5 << 32 | 1),
            tcp_rtt_us: Some(812),
            handshake_rtt_us: Some(90),
            total_dropped_packets: 4,
            tcp_total_retrans: Some(0),
            ..flow(Some(7), Some(8)).src().clone()
        }),
        dst: Some(Endpoint {
            // Nobody knows its name.
            process_key: Some(6 << 32 | 1),
            ack_rtt_us: Some(12_000),
            tcp_data_segs_out: Some(4),
            ..flow(Some(7), Some(8)).dst().clone()
        }),
        ..flow(Some(7), Some(8))
    };
    let all = [of_processes, flow(None, Some(7)), flow(Some(9), None)];
    let (logs, _) = send(&mut encoder(plain()), &batch, &all);
    let records = records(&logs[0]);
    let text = |record: usize, key: &str| match value(&records[record].attributes, key) {
        Some(Value::StringValue(text)) => Some(text),
        None => None,
        other => panic!("{key}: {other:?}"),
    };
    assert_eq!(text(0, "flow.source.unit").as_deref(), Some("a.service"));
    assert_eq!(
        text(0, "flow.source.cgroup").as_deref(),
        Some("/system.slice/a.service")
    );
    assert_eq!(text(0, "flow.source.container.id"), None);
    assert_eq!(
        text(0, "flow.destination.container.id"),
        Some("c".repeat(255))
    );
    assert_eq!(
        text(0, "flow.destination.container.runtime").as_deref(),
        Some("docker")
    );
    assert_eq!(text(0, "flow.destination.unit"), Some("b".repeat(255)));
    assert_eq!(text(1, "flow.source.unit"), None);
    assert_eq!(
        text(1, "flow.destination.unit").as_deref(),
        Some("a.service")
    );
    assert_eq!(text(2, "flow.source.cgroup"), None, "it has no name");
    assert_eq!(
        text(0, "flow.source.process.name").as_deref(),
        Some("nginx")
    );
    assert_eq!(text(0, "flow.destination.process.name"), None);
    let number = |key: &str| match value(&records[0].attributes, key) {
        Some(Value::IntValue(number)) => Some(number),
        None => None,
        other => panic!("{key}: {other:?}"),
    };
    assert_eq!(number("flow.source.process.pid"), Some(5));
    assert_eq!(number("flow.source.process.real_user.id"), Some(33));
    assert_eq!(number("flow.destination.process.pid"), Some(6));
    assert_eq!(number("flow.destination.process.real_user.id"), None);
    assert_eq!(number("flow.source.tcp.rtt_us"), Some(812));
    assert_eq!(number("flow.source.tcp.min_rtt_us"), None);
    assert_eq!(number("flow.source.handshake_rtt_us"), Some(90));
    assert_eq!(number("flow.source.ack_rtt_us"), None);
    assert_eq!(number("flow.destination.ack_rtt_us"), Some(12_000));
    assert_eq!(number("flow.total.dropped_packets"), Some(4));
    assert_eq!(number("flow.total.reverse.dropped_packets"), None);
    assert_eq!(number("flow.source.tcp.total_retrans"), Some(0));
    assert_eq!(number("flow.destination.tcp.data_segs_out"), Some(4));
    assert!(records[0].encoded_len() < SLACK_LEN_BYTES);
}

#[test]
fn an_end_has_its_name_and_how_that_was_learned() {
    let batch = FlowBatch {
        hosts: vec![proto::HostName {
            id: 3,
            name: "www.example".to_owned(),
        }],
        ..batch()
    };
    let flow = FlowRecord {
        dst: Some(Endpoint {
            host_id: Some(3),
            host_source: proto::NameSource::Dns.into(),
            ..flows::tcp().dst().clone()
        }),
        ..flows::tcp()
    };
    let (logs, _) = send(&mut encoder(plain()), &batch, &[flow]);
    let records = records(&logs[0]);
    let of = |key: &str| value(&records[0].attributes, key);
    let text = |text: &str| Some(Value::StringValue(text.to_owned()));
    assert_eq!(of("flow.destination.host.name"), text("www.example"));
    assert_eq!(of("flow.destination.host.name_source"), text("dns"));
    assert_eq!(of("flow.source.host.name"), None);
}

#[test]
fn an_interface_that_is_renamed_has_its_other_name_at_once() {
    let mut encoder = encoder(plain());
    let name = |encoder: &mut Otlp, batch: &FlowBatch| {
        let (logs, _) = send(encoder, batch, &[flows::tcp()]);
        value(&records(&logs[0])[0].attributes, "network.interface.name")
    };
    let mut batch = batch();
    let text = |name: &str| Some(Value::StringValue(name.to_owned()));
    assert_eq!(name(&mut encoder, &batch), text("eth0"));
    batch.interfaces[0].name = "uplink".to_owned();
    assert_eq!(name(&mut encoder, &batch), text("uplink"));
}

#[test]
fn gzip_unpacks_to_the_same() {
    let flows = vec![flows::tcp(); 100];
    let (as_it_is, _) = send(&mut encoder(plain()), &batch(), &flows);
    let mut compressing = encoder(Settings::default());
    let message = compressing.message(&batch(), &flows);
    assert!(message.call.is_gzip);
    let mut unpacked = Vec::new();
    let mut gzip = GzDecoder::new(&message.bytes[..]);
    gzip.read_to_end(&mut unpacked).unwrap();
    assert_eq!(unpacked, as_it_is[0]);
}

/// The sum of a metric's points.
fn sum(requests: &[Bytes], name: &str) -> i64 {
    let mut sum = 0;
    for request in requests {
        let request = ExportMetricsServiceRequest::decode(&request[..]).unwrap();
        for metric in &request.resource_metrics[0].scope_metrics[0].metrics {
            if metric.name != name {
                continue;
            }
            let Some(Data::Sum(of_metric)) = &metric.data else {
                panic!("{metric:?}")
            };
            assert!(of_metric.is_monotonic);
            for point in &of_metric.data_points {
                assert!(point.start_time_unix_nano < point.time_unix_nano);
                let value = format!("{:?}", point.value);
                let digits: String = value.chars().filter(char::is_ascii_digit).collect();
                sum += digits.parse::<i64>().unwrap();
            }
        }
    }
    sum
}

#[test]
fn the_account_closes_and_losses_come_once_however_many_interfaces_there_are() {
    for hooks in [0, 1, 256, 257, 1_000] {
        let mut encoder = Otlp::new(plain(), move || accounts(hooks));
        let (logs, metrics) = send(&mut encoder, &closing(), &[flows::tcp()]);
        assert_eq!(logs.len(), 1);
        assert_eq!(metrics.len(), (hooks as usize).div_ceil(256).max(1));
        let seen = 10 * i64::from(hooks) + 5;
        assert_eq!(sum(&metrics, "flow.account.seen.packets"), seen);
        assert_eq!(sum(&metrics, "flow.account.fate.packets"), seen);
        assert_eq!(sum(&metrics, "flow.account.seen.bytes"), 100 * seen);
        assert_eq!(sum(&metrics, "flow.account.fate.bytes"), 100 * seen);
        for metric in ["seen", "fate"] {
            let departed =
                |unit: &str| sum(&metrics, &format!("flow.account.departed.{metric}.{unit}"));
            assert_eq!((departed("packets"), departed("bytes")), (7, 700));
        }
        assert_eq!(sum(&metrics, "flow.output.lost.records"), 4);
        assert_eq!(sum(&metrics, "flow.output.lost.packets"), 50);
        assert_eq!(sum(&metrics, "flow.output.lost.bytes"), 6_000);
    }
}

/// When the output's losses began, and how many records there are.
fn lost_records(encoder: &mut Otlp, batch: &FlowBatch) -> (u64, i64) {
    let (_, metrics) = send(encoder, batch, &[]);
    let request = ExportMetricsServiceRequest::decode(&metrics[0][..]).unwrap();
    let mut metrics = request.resource_metrics[0].scope_metrics[0].metrics.iter();
    let metric = metrics.find(|metric| metric.name == "flow.output.lost.records");
    let Some(Data::Sum(of_metric)) = &metric.unwrap().data else {
        panic!("{metric:?}")
    };
    let point = &of_metric.data_points[0];
    (
        point.start_time_unix_nano,
        sum(
            &[request.encode_to_vec().into()],
            "flow.output.lost.records",
        ),
    )
}

#[test]
fn losses_have_the_same_start_until_the_output_is_another_or_the_clock_is_set_before_it() {
    const SECOND: u64 = 1_000_000_000;
    let first = accounts(1);
    let start = first.window_start_unix_ns;
    let latest = Arc::new(Mutex::new(Arc::clone(&first)));
    let begun = || {
        let latest = Arc::clone(&latest);
        Otlp::new(plain(), move || Arc::clone(&latest.lock().unwrap()))
    };
    let closing_batch = |scan: u64, until_unix_ns: u64, lost_records: u64| {
        let window_start_unix_ns = until_unix_ns - SECOND;
        *latest.lock().unwrap() = Arc::new(Accounts {
            window_start_unix_ns,
            until_unix_ns,
            since_unix_ns: window_start_unix_ns.min(first.since_unix_ns),
            ..accounts(0).as_ref().clone()
        });
        FlowBatch {
            scan_id: scan,
            lost_records,
            ..closing()
        }
    };
    let mut encoder = begun();
    let batch = closing_batch(1, start + SECOND, 4);
    assert_eq!(lost_records(&mut encoder, &batch), (start, 4));
    // It is set forward, and back to a time at which they had begun.
    for (scan, later) in [(2, 100 * SECOND), (3, 2 * SECOND)] {
        let batch = closing_batch(scan, start + later, 5);
        assert_eq!(lost_records(&mut encoder, &batch), (start, 5));
    }
    let back = start - 100 * SECOND;
    for (scan, later, lost) in [(4, SECOND, 7), (5, 2 * SECOND, 7), (6, 3 * SECOND, 9)] {
        let batch = closing_batch(scan, back + later, lost);
        assert_eq!(
            lost_records(&mut encoder, &batch),
            (back, i64::try_from(lost).unwrap() - 5)
        );
    }
    // A reload begins the output anew, whose losses are none then.
    let mut reloaded = begun();
    let batch = closing_batch(7, back + 10 * SECOND, 1);
    let expected = (back + 9 * SECOND, 1);
    assert_eq!(lost_records(&mut reloaded, &batch), expected);
}

#[test]
fn metrics_that_did_not_get_there_are_told_again_and_others_only_at_the_next_scan() {
    let mut encoder = encoder(plain());
    let first = encoder.message(&closing(), &[]);
    let again = encoder.message(&closing(), &[]);
    assert_eq!(first.bytes, again.bytes);
    encoder.sent();
    assert!(encoder.message(&closing(), &[]).bytes.is_empty());
    let next = FlowBatch {
        scan_id: 2,
        ..closing()
    };
    assert_eq!(encoder.message(&next, &[]).bytes, first.bytes);
    // What a stream loses at its end.
    let end = FlowBatch {
        scan_id: 0,
        last_of_scan: false,
        ..closing()
    };
    assert_eq!(send(&mut encoder, &end, &[]).1.len(), 1);
}

#[test]
fn a_receiver_without_metrics_gets_none_for_a_while() {
    let mut encoder = encoder(plain());
    assert!(
        !encoder
            .message(&closing(), &[flows::tcp()])
            .bytes
            .is_empty()
    );
    // It is not about metrics.
    assert_eq!(encoder.unknown(), None);
    encoder.sent();
    let first = encoder.message(&closing(), &[]);
    assert!(!first.bytes.is_empty());
    let without = |pause| {
        let what = "metrics";
        Some(Without { what, pause })
    };
    assert_eq!(encoder.unknown(), without(Duration::from_hours(1)));
    let (logs, metrics) = send(&mut encoder, &closing(), &[flows::tcp()]);
    assert_eq!((logs.len(), metrics.len()), (1, 0));
    encoder.metrics_not_before = Some(Instant::now());
    assert_eq!(encoder.message(&closing(), &[]).bytes, first.bytes);
    encoder.unknown_pause = Duration::ZERO;
    assert_eq!(encoder.unknown(), without(Duration::ZERO));
    let (logs, metrics) = send(&mut encoder, &closing(), &[flows::tcp()]);
    assert_eq!((logs.len(), metrics.len()), (1, 1));
}

#[test]
fn an_answer_says_how_many_records_are_refused() {
    let mut encoder = encoder(plain());
    encoder.message(&batch(), &[flows::tcp()]);
    let mut answered = |refused, said: &str| {
        let answer = ExportLogsServiceResponse {
            partial_success: Some(ExportLogsPartialSuccess {
                rejected_log_records: refused,
                error_message: said.to_owned(),
            }),
        };
        let Answer {
            refused,
            why,
            warning,
        } = encoder.answered(&answer.encode_to_vec()).unwrap();
        (refused, why, warning)
    };
    let why = |why: &str| why.to_owned();
    assert_eq!(answered(3, "too old"), (3, why("too old"), None));
    assert_eq!(answered(3, " "), (3, why("it does not say why"), None));
    // Without a number it is a warning.
    for number in [0, -5] {
        let (refused, _, warning) = answered(number, "nearly\nfull");
        assert_eq!((refused, warning), (0, Some(why("nearly full"))));
        assert_eq!(answered(number, "").2, None);
    }
    let empty = encoder.answered(&[]).unwrap();
    assert_eq!((empty.refused, empty.warning), (0, None));
    assert!(encoder.answered(b"<html>").is_err());
}

#[test]
fn what_is_said_of_metrics_is_a_warning() {
    let mut encoder = encoder(plain());
    encoder.message(&closing(), &[]);
    let mut answered = |refused, said: &str| {
        let answer = ExportMetricsServiceResponse {
            partial_success: Some(ExportMetricsPartialSuccess {
                rejected_data_points: refused,
                error_message: said.to_owned(),
            }),
        };
        let answer = encoder.answered(&answer.encode_to_vec()).unwrap();
        // Points are no flows.
        assert_eq!(answer.refused, 0);
        answer.warning
    };
    let warning = |text: &str| Some(text.to_owned());
    let refused = warning("it refuses 3 points: it does not say why");
    assert_eq!(answered(3, ""), refused);
    assert_eq!(answered(3, "old"), warning("it refuses 3 points: old"));
    assert_eq!(answered(0, "slow down"), warning("slow down"));
    assert_eq!(answered(0, ""), None);
}

#[test]
fn a_flow_says_what_it_is_in_one_line() {
    let all = [flows::tcp(), flows::ping6(), flows::fragments()];
    let of_v6 = FlowRecord {
        src: Some(Endpoint {
            addr: flows::v6(1),
            ..flows::tcp().src().clone()
        }),
        dst: Some(Endpoint {
            addr: flows::v6(2),
            ..flows::tcp().dst().clone()
        }),
        ip_version: 6,
        protocol: 200,
        ..flows::tcp()
    };
    let all = [&all[..], &[of_v6]].concat();
    let (logs, _) = send(&mut encoder(plain()), &batch(), &all);
    let bodies = records(&logs[0]).into_iter().map(|record| {
        assert_eq!(record.event_name, record::EVENT);
        match record.body.unwrap().value {
            Some(Value::StringValue(body)) => body,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(
        bodies.collect::<Vec<_>>(),
        [
            "tcp 192.0.2.1:40000 > 192.0.2.2:443",
            "icmp6 2001:db8::1 > 2001:db8::2",
            "udp 192.0.2.1 > 192.0.2.2",
            "200 [2001:db8::1]:40000 > [2001:db8::2]:443",
        ]
    );
}
