//! Flows as a receiver of netobserv's records gets them, served with gRPC's own library for Python.

use std::{fs::File, process::Stdio};

use lab::{Process, certificates::Ca};
use serde_json::json;

use super::*;
use crate::{
    clients::install,
    outputs::ipfix,
    support::{Report, patience},
};

const ADDRESS: &str = "127.0.0.1:9999";

/// A receiver with its output.
struct Collector {
    process: Process,
    folder: TempDir,
}

impl Collector {
    fn start_or_skip(test: &str, lab: &Lab) -> Option<Self> {
        Self::start_with_or_skip(test, lab, &[])
    }

    /// Over TLS with the files of a key, of its certificate, and of the CA that clients need.
    fn start_with_or_skip(test: &str, lab: &Lab, secrets: &[&Path]) -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let (python, descriptors) = install::python_with_or_skip(
            test,
            "pbflow.proto",
            &install::python_folder(),
            folder.path(),
        )?;
        let mut command = lab.agent.command(&python);
        let file = |name| File::create(folder.path().join(name)).unwrap();
        command
            .arg(install::python_folder().join("pbflow.py"))
            .arg(ADDRESS)
            .arg(descriptors)
            .args(secrets)
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("stderr"));
        let process = Process::spawn(&mut command).unwrap();
        let mut collector = Self { process, folder };
        wait_until("it listens", || {
            let log = collector.read("stderr");
            assert!(collector.process.exited().unwrap().is_none(), "{log}");
            log.contains("listening")
        });
        Some(collector)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    /// Ends it. An answer follows its records' lines, so they are complete when the agent has ended.
    fn records(mut self) -> Vec<Value> {
        self.process.terminate(patience()).unwrap();
        let text = self.read("stdout");
        let lines = text.lines().filter(|line| !line.is_empty());
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

fn number(value: &Value) -> u64 {
    // 64 bits are text in protobuf's JSON, and 0 is absent.
    let digits = value.as_str().map(|digits| digits.parse().unwrap());
    digits.or(value.as_u64()).unwrap_or_default()
}

fn sum<'a>(records: impl IntoIterator<Item = &'a Value>) -> Pair {
    let sums = records.into_iter().map(|record| Pair {
        packets: number(&record["packets"]),
        bytes: number(&record["bytes"]),
    });
    sums.sum()
}

fn v4(host: &lab::Host) -> u64 {
    host.ipv4.to_bits().into()
}

#[test]
fn netobservs_records_have_every_packet_in_both_directions() {
    const TEST: &str = "agent::netobservs_records_have_every_packet_in_both_directions";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let Some(collector) = Collector::start_or_skip(TEST, &lab) else {
        return;
    };
    let output = format!(
        r#"{{"kind": "pbflow", "address": "http://{ADDRESS}", "agent_ip": "198.51.100.7"}}"#
    );
    let agent = Agent::start(&lab, &["--output", "json", "--output", &output]);
    let sent = ipfix::send(&lab);
    let report = agent.stop();
    let records = collector.records();
    assert_eq!(report.seen(), sum(&records));
    let counted = sum(&records);
    assert_eq!(
        (counted.packets, counted.bytes),
        (sent.packets, sent.layer2)
    );
    assert_eq!(records.len(), with_packets(&report));
    for record in &records {
        assert_eq!(record["interface"], lab.agent.interface.as_str());
        assert_eq!(record["agent_ip"], json!({ "ipv4": 0xc633_6407_u32 }));
        let seen_at = &record["dup_list"][0];
        assert_eq!(seen_at["interface"], record["interface"]);
        assert_eq!(seen_at["direction"], record["direction"]);
        assert!(record["time_flow_start"].as_str() <= record["time_flow_end"].as_str());
    }
    // The peer's packets arrive, and the answers leave.
    for (direction, source) in [(0, &lab.peer), (1, &lab.agent)] {
        let of_side: Vec<_> = records
            .iter()
            .filter(|record| number(&record["direction"]) == direction)
            .collect();
        assert!(of_side.len() > 200);
        let v4_records = of_side
            .iter()
            .filter(|record| record["eth_protocol"] == 0x0800);
        for record in v4_records {
            assert_eq!(number(&record["network"]["src_addr"]["ipv4"]), v4(source));
        }
    }
    let v6 = records
        .iter()
        .filter(|record| record["eth_protocol"] == 0x86dd);
    assert_eq!(sum(v6).packets, 40);
    let flags = |port: &str| {
        let of_port = records
            .iter()
            .filter(|record| record["transport"][port] == 443);
        of_port.fold(0, |flags, record| flags | number(&record["flags"]))
    };
    // SYN and ACK of the initiators, and the bit for both together of the responders.
    assert_eq!((flags("dst_port"), flags("src_port")), (0x12, 0x110));
    let echoes = records
        .iter()
        .filter(|record| record["transport"]["protocol"] == 1);
    let types: BTreeMap<_, _> = echoes
        .map(|record| (number(&record["direction"]), number(&record["icmp_type"])))
        .collect();
    assert_eq!(types, [(0, 8), (1, 0)].into());
}

/// How many directions of flows with packets were reported.
fn with_packets(report: &Report) -> usize {
    let directions = report.flows.iter().flat_map(|flow| {
        let counts = ["packets", "reverse_packets"].map(|name| flow[name].as_u64().unwrap());
        counts.into_iter().filter(|&packets| packets != 0)
    });
    directions.count()
}

#[test]
fn a_receiver_of_netobserv_that_comes_late_has_every_packet() {
    const TEST: &str = "agent::a_receiver_of_netobserv_that_comes_late_has_every_packet";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let output = format!("pbflow=http://{ADDRESS}");
    let agent = Agent::start(&lab, &["--output", "json", "--output", &output]);
    let sent = send(&lab, 50, 2);
    wait_until_counted(&agent, &lab, sent.packets);
    wait_until("nobody listens", || {
        let output = output_of(&agent, &lab);
        fates(&output, sent);
        output["failing"] == true
    });
    let Some(collector) = Collector::start_or_skip(TEST, &lab) else {
        return;
    };
    wait_until("all is sent", || {
        fates(&output_of(&agent, &lab), sent)["sent"] == sent
    });
    let log = agent.stop().log;
    assert_eq!(sum(&collector.records()), sent);
    assert_eq!(log.matches("cannot deliver flows to").count(), 1, "{log}");
    assert_eq!(log.matches("delivering flows to").count(), 1, "{log}");
}

#[test]
fn a_receiver_with_another_library_of_tls_has_every_packet() {
    const TEST: &str = "agent::a_receiver_with_another_library_of_tls_has_every_packet";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let ca = Ca::new().unwrap();
    let issued = ca.issue("receiver", "127.0.0.1").unwrap();
    let own = ca.issue("agent", "an agent").unwrap();
    let secrets = [&*issued.key, &issued.certificate, &ca.file()];
    let Some(collector) = Collector::start_with_or_skip(TEST, &lab, &secrets) else {
        return;
    };
    let output = json!({
        "kind": "pbflow",
        "address": format!("https://{ADDRESS}"),
        "tls_ca": ca.file(),
        "tls_client_certificate": own.certificate,
        "tls_client_key": own.key,
    });
    let output = output.to_string();
    let agent = Agent::start(&lab, &["--output", "json", "--output", &output]);
    let sent = send(&lab, 50, 2);
    wait_until_counted(&agent, &lab, sent.packets);
    wait_until("all is sent", || {
        let output = output_of(&agent, &lab);
        assert_eq!(output["failures"], 0, "{output}");
        fates(&output, sent)["sent"] == sent
    });
    agent.stop();
    assert_eq!(sum(&collector.records()), sent);
}

fn output_of(agent: &Agent, lab: &Lab) -> Value {
    output(agent, lab, "pbflow")
}
