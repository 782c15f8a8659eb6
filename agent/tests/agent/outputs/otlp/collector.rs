//! An OpenTelemetry Collector: it has every flow, and the account.

use std::{collections::BTreeMap, fs::File, process::Stdio};

use lab::Process;

use super::{super::ipfix, *};
use crate::{
    clients::install,
    support::{patience, unix_ns_of},
};

/// The agent's host has a network namespace of its own, so the ports are free.
const SETTINGS: &str = "\
receivers:
  otlp:
    protocols:
      grpc: { endpoint: 127.0.0.1:4317 }
      http: { endpoint: 127.0.0.1:4318 }
exporters:
  file/logs: { path: FOLDER/logs }
  file/metrics: { path: FOLDER/metrics }
service:
  telemetry: { metrics: { level: none } }
  pipelines:
    logs: { receivers: [otlp], exporters: [file/logs] }
    metrics: { receivers: [otlp], exporters: [file/metrics] }
";

/// A Collector's output: each line is a request in JSON.
struct Written {
    logs: Vec<Value>,
    metrics: Vec<Value>,
}

/// Lets an agent send all traffic to a Collector, and ends both. `None` if there is no Collector.
fn collected(test: &str, output: &str) -> Option<(Pair, Report, Written)> {
    let collector = install::collector_or_skip(test)?;
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let settings = folder.path().join("settings.yaml");
    let yaml = SETTINGS.replace("FOLDER", folder.path().to_str().unwrap());
    fs::write(&settings, yaml).unwrap();
    let log = File::create(folder.path().join("log")).unwrap();
    let mut command = lab.agent.command(collector);
    command
        .arg("--config")
        .arg(&settings)
        .stdout(Stdio::null())
        .stderr(log);
    let mut collector = Process::spawn(&mut command).unwrap();
    wait_until("the Collector listens", || {
        let log = fs::read_to_string(folder.path().join("log")).unwrap();
        log.contains("Everything is ready")
    });
    let agent = Agent::start(&lab, &["--output", "json", "--output", output]);
    let (sent, report) = ipfix::traffic(&lab, agent);
    let status = collector.terminate(patience()).unwrap();
    assert!(status.success(), "{status}");
    let lines = |name: &str| {
        let written = fs::read_to_string(folder.path().join(name)).unwrap();
        let lines = written
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    };
    let written = Written {
        logs: lines("logs"),
        metrics: lines("metrics"),
    };
    Some((sent, report, written))
}

/// The elements of arrays within arrays.
fn inner<'a>(values: &[&'a Value], name: &str) -> Vec<&'a Value> {
    let arrays = values.iter().map(|value| value[name].as_array().unwrap());
    arrays.flatten().collect()
}

/// 64-bit numbers are text in this JSON.
fn attribute<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    let attributes = value["attributes"].as_array()?;
    let found = attributes.iter().find(|one| one["key"] == key)?;
    let value = &found["value"];
    value["intValue"].as_str().or(value["stringValue"].as_str())
}

fn records(written: &Written) -> Vec<&Value> {
    let all: Vec<_> = written.logs.iter().collect();
    let scopes = inner(&inner(&all, "resourceLogs"), "scopeLogs");
    inner(&scopes, "logRecords")
}

/// The name of a side of the agent's own stream in the semantic conventions.
fn io_direction(side: &Value) -> &'static str {
    match side.as_str() {
        Some("ingress") => "receive",
        Some("egress") => "transmit",
        _ => panic!("{side}"),
    }
}

/// The sum of a metric's points in the last line that has it.
fn last_sum(written: &Written, name: &str) -> u64 {
    last_points(written, name).into_iter().map(value).sum()
}

fn value(point: &Value) -> u64 {
    point["asInt"].as_str().unwrap().parse().unwrap()
}

/// A metric's points in the last line that has it.
fn last_points<'a>(written: &'a Written, name: &str) -> Vec<&'a Value> {
    let mut found = written.metrics.iter().filter_map(|line| {
        let scopes = inner(&inner(&[line], "resourceMetrics"), "scopeMetrics");
        let metrics = inner(&scopes, "metrics");
        let metric = metrics.into_iter().find(|metric| metric["name"] == name)?;
        assert_eq!(metric["sum"]["isMonotonic"], true);
        assert_eq!(metric["sum"]["aggregationTemporality"], 2);
        Some(inner(&[&metric["sum"]], "dataPoints"))
    });
    found.next_back().unwrap_or_else(|| panic!("no {name}"))
}

/// The flows' counts at each interface and side, from the account's metrics. The point that has no side is that of
/// hooks which are gone, and here none is.
fn flows_by_side_of_metrics(written: &Written) -> BTreeMap<[String; 2], Pair> {
    let mut sides = BTreeMap::<_, Pair>::new();
    let mut add = |unit: &str, field: fn(&mut Pair) -> &mut u64| {
        for point in last_points(written, &format!("flow.account.fate.{unit}")) {
            if attribute(point, "flow.fate") == Some("flows") {
                let side = ["network.interface.name", "network.io.direction"];
                match side.map(|key| attribute(point, key)) {
                    [Some(name), Some(direction)] => {
                        let side = [name, direction].map(str::to_owned);
                        *field(sides.entry(side).or_default()) += value(point);
                    }
                    [None, None] => assert_eq!(value(point), 0, "{point}"),
                    _ => panic!("half a side: {point}"),
                }
            }
        }
    };
    add("packets", |pair| &mut pair.packets);
    add("bytes", |pair| &mut pair.bytes);
    sides
}

/// The same of the agent's own records.
fn flows_by_side_of(report: &Report) -> BTreeMap<[String; 2], Pair> {
    let mut sides = BTreeMap::<_, Pair>::new();
    for flow in &report.flows {
        for (direction, packets, bytes) in [
            ("direction", "packets", "bytes"),
            ("reverse_direction", "reverse_packets", "reverse_bytes"),
        ] {
            let number = |name: &str| flow[name].as_u64().unwrap();
            let interface = flow["interface"].as_str().unwrap().to_owned();
            let side = [interface, io_direction(&flow[direction]).to_owned()];
            *sides.entry(side).or_default() += Pair {
                packets: number(packets),
                bytes: number(bytes),
            };
        }
    }
    sides
}

fn has_every_flow(test: &str, output: &str) {
    let Some((sent, report, written)) = collected(test, output) else {
        return;
    };
    let records = records(&written);
    let number =
        |record: &Value, key: &str| attribute(record, key).unwrap().parse::<u64>().unwrap();
    let both = |what: &str| {
        let reverse = format!("flow.reverse.{what}");
        let forward = format!("flow.{what}");
        let of = |record: &&Value| number(record, &forward) + number(record, &reverse);
        records.iter().map(of).sum()
    };
    let read = Pair {
        packets: both("packets"),
        bytes: both("bytes"),
    };
    assert_eq!(read, sent);
    // Each report is there, equal to the agent's own.
    let mut here: Vec<_> = records
        .iter()
        .map(|record| {
            [
                attribute(record, "source.address").unwrap().to_owned(),
                attribute(record, "source.port")
                    .unwrap_or("null")
                    .to_owned(),
                attribute(record, "network.interface.name")
                    .unwrap()
                    .to_owned(),
                attribute(record, "network.io.direction")
                    .unwrap()
                    .to_owned(),
                attribute(record, "flow.first_seen").unwrap().to_owned(),
                attribute(record, "flow.community_id").unwrap().to_owned(),
                attribute(record, "flow.vlan.id")
                    .unwrap_or("null")
                    .to_owned(),
                record["timeUnixNano"].as_str().unwrap().to_owned(),
            ]
        })
        .collect();
    let mut there: Vec<_> = report
        .flows
        .iter()
        .map(|flow| {
            let shown = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
            [
                shown(&flow["src_addr"]),
                shown(&flow["src_port"]),
                shown(&flow["interface"]),
                io_direction(&flow["direction"]).to_owned(),
                unix_ns_of(&flow["first_seen"]).to_string(),
                shown(&flow["community_id"]),
                shown(&flow["vlan_ids"][0]),
                unix_ns_of(&flow["last_seen"]).to_string(),
            ]
        })
        .collect();
    here.sort();
    there.sort();
    assert_eq!(here, there);
    for unit in ["packets", "bytes"] {
        let of = |name: &str| last_sum(&written, &format!("flow.account.{name}.{unit}"));
        assert_eq!(of("seen"), of("fate"), "{unit}");
        let seen = report.last()["seen"][unit].as_u64();
        assert_eq!(Some(of("seen")), seen, "{unit}");
    }
    assert_eq!(
        flows_by_side_of_metrics(&written),
        flows_by_side_of(&report)
    );
    let all: Vec<_> = written.logs.iter().collect();
    for resource in inner(&all, "resourceLogs") {
        let name = attribute(&resource["resource"], "service.name");
        assert_eq!(name, Some("flow-agent"));
    }
}

#[test]
#[ignore = "cargo xtask test-consumers"]
fn a_collector_has_every_flow_over_grpc() {
    const TEST: &str = "agent::a_collector_has_every_flow_over_grpc";
    if is_root_or_skip(TEST) {
        has_every_flow(TEST, "otlp=http://127.0.0.1:4317");
    }
}

#[test]
#[ignore = "cargo xtask test-consumers"]
fn a_collector_has_every_flow_over_http() {
    const TEST: &str = "agent::a_collector_has_every_flow_over_http";
    if is_root_or_skip(TEST) {
        has_every_flow(TEST, "otlp=http://127.0.0.1:4318");
    }
}
