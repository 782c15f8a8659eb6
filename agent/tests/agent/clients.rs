//! gRPC clients that are not ours, unmodified, on the Unix socket and on TCP: each must get every packet that
//! was sent. From 1.57 on, gRPC's C core sends a Unix socket's path as the authority. The Python client does
//! so; the C++ client is Debian's and older.

pub mod install;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::Path,
    process::Command,
};

use agent_common::Pair;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use lab::{Host, Lab, Process, certificates::Issued, privilege::is_root_or_skip};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    support::{Agent, Both, Report, count, name, patience, wait_for_packets, wait_until},
    tls::{Certificates, texts},
};

/// No other test can have this address, since the agent has a network namespace of its own.
const TCP: &str = "127.0.0.1:50051";

/// Enough flows for more than one batch in a scan.
const FLOWS: u16 = 4000;
const ROUNDS: u64 = 3;

/// Makes the command of a client: on this host, for this target, under this name.
type Client<'a> = &'a dyn Fn(&Host, &str, &str) -> Command;

#[test]
fn python_has_every_packet_over_both_sockets() {
    let test = "agent::python_has_every_packet_over_both_sockets";
    if !is_root_or_skip(test) {
        return;
    }
    let directory = TempDir::new().unwrap();
    let Some((python, descriptors)) = install::python_or_skip(test, directory.path()) else {
        return;
    };
    let script = install::folder().join("python/observe.py");
    has_every_packet(&|host, target, name| {
        let mut command = host.command(&python);
        command.args([&script, Path::new(target), Path::new(name), &descriptors]);
        command
    });
}

/// On the Unix socket without TLS.
#[test]
fn python_has_every_packet_over_mutual_tls() {
    let test = "agent::python_has_every_packet_over_mutual_tls";
    if !is_root_or_skip(test) {
        return;
    }
    let directory = TempDir::new().unwrap();
    let Some((python, descriptors)) = install::python_or_skip(test, directory.path()) else {
        return;
    };
    let script = install::folder().join("python/observe.py");
    let certificates = Certificates::new();
    let settings = certificates.mutual();
    has_every_packet_with(&texts(&settings), &|host, target, name| {
        let mut command = host.command(&python);
        command.args([&script, Path::new(target), Path::new(name), &descriptors]);
        if target == TCP {
            let Issued { certificate, key } = &certificates.client;
            command.args([&certificates.ca.file(), certificate, key]);
        }
        command
    });
}

#[test]
fn grpcurl_has_every_packet_over_tls() {
    let test = "agent::grpcurl_has_every_packet_over_tls";
    if !is_root_or_skip(test) {
        return;
    }
    let Some(grpcurl) = install::grpcurl_or_skip(test) else {
        return;
    };
    let certificates = Certificates::new();
    let settings = certificates.settings();
    has_every_packet_with(&texts(&settings), &|host, target, name| {
        let mut command = host.command(&grpcurl);
        if target == TCP {
            command.arg("-cacert").arg(certificates.ca.file());
        } else {
            command.arg("-plaintext");
        }
        command
            .arg(format!("-d={{\"consumer\": \"{name}\"}}"))
            .args([target, "flow.v1.FlowAgent/Observe"]);
        command
    });
}

#[test]
fn cpp_has_every_packet_over_both_sockets() {
    let test = "agent::cpp_has_every_packet_over_both_sockets";
    if !is_root_or_skip(test) {
        return;
    }
    let directory = TempDir::new().unwrap();
    let Some(program) = install::cpp_or_skip(test, directory.path()) else {
        return;
    };
    has_every_packet(&|host, target, name| {
        let mut command = host.command(&program);
        command.args([target, name]);
        command
    });
}

#[test]
fn grpcurl_has_every_packet_over_both_sockets() {
    let test = "agent::grpcurl_has_every_packet_over_both_sockets";
    if !is_root_or_skip(test) {
        return;
    }
    let Some(grpcurl) = install::grpcurl_or_skip(test) else {
        return;
    };
    has_every_packet(&|host, target, name| {
        let mut command = host.command(&grpcurl);
        command
            .args(install::GRPCURL_OPTIONS)
            .arg(format!("-d={{\"consumer\": \"{name}\"}}"))
            .args([target, "flow.v1.FlowAgent/Observe"]);
        command
    });
}

/// Swift and old versions of Go send it like this.
#[test]
fn a_path_in_huffmans_code_is_answered_on_the_unix_socket() {
    let test = "agent::a_path_in_huffmans_code_is_answered_on_the_unix_socket";
    if !is_root_or_skip(test) {
        return;
    }
    let Some(grpcurl) = install::grpcurl_or_skip(test) else {
        return;
    };
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[]);
    for authority in ["%2Frun%2Fx%3a.sock", "/run/x.sock", "unix:///run/x.sock"] {
        let mut command = lab.agent.command(&grpcurl);
        command
            .args(install::GRPCURL_OPTIONS)
            .args(["-authority", authority, &agent.address()])
            .arg("flow.v1.FlowAgent/GetStatus");
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{authority}: {stderr}");
    }
    agent.stop();
}

/// A tool that has no copy of flow.proto asks the agent for it.
#[test]
fn grpcurl_finds_all_services_and_their_messages_unprepared() {
    let test = "agent::grpcurl_finds_all_services_and_their_messages_unprepared";
    if !is_root_or_skip(test) {
        return;
    }
    let Some(grpcurl) = install::grpcurl_or_skip(test) else {
        return;
    };
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--listen", TCP]);
    let unix = agent.address();
    for target in [&unix, TCP] {
        let asked = |arguments: &[&str]| {
            let mut command = lab.agent.command(&grpcurl);
            let output = command.arg("-plaintext").arg(target).args(arguments);
            let output = output.output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{target} {arguments:?}: {stderr}");
            String::from_utf8(output.stdout).unwrap()
        };
        let mut services: Vec<_> = asked(&["list"]).lines().map(str::to_owned).collect();
        services.sort();
        assert_eq!(
            services,
            [
                "flow.v1.FlowAgent",
                "flow.v1.FlowControl",
                "grpc.health.v1.Health",
                "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection",
            ]
        );
        // All calls.
        let described = asked(&["describe"]);
        for service in services {
            let head = format!("{service} is a service:");
            assert!(described.contains(&head), "{described}");
        }
        let record = asked(&["describe", "flow.v1.Endpoint"]);
        assert!(record.contains("uint64 delta_packets"), "{record}");
        let status = asked(&["flow.v1.FlowAgent/GetStatus"]);
        let status: Value = serde_json::from_str(&status).unwrap();
        assert!(status["settings"].is_object(), "{status}");
        let listed = asked(&["flow.v1.FlowAgent/ListFlows"]);
        let listed: Value = serde_json::from_str(&listed).unwrap();
        assert_eq!(listed["snapshot"], true, "{listed}");
        for service in ["", "flow.v1.FlowAgent"] {
            let request = format!("-d={{\"service\": \"{service}\"}}");
            let mut command = lab.agent.command(&grpcurl);
            let command = command.args(["-plaintext", &request, target]);
            let health = command.arg("grpc.health.v1.Health/Check").output().unwrap();
            let health = String::from_utf8(health.stdout).unwrap();
            assert!(health.contains("\"SERVING\""), "{service:?}: {health}");
        }
        let request = "-d={\"service\": \"nobody\"}";
        let mut command = lab.agent.command(&grpcurl);
        let command = command.args(["-plaintext", request, target]);
        let unknown = command.arg("grpc.health.v1.Health/Check").output().unwrap();
        let told = String::from_utf8(unknown.stderr).unwrap();
        assert!(told.contains("Code: NotFound"), "{told}");
    }
    agent.stop();
}

/// The rules of `agent/proto/buf.yaml`.
#[test]
fn the_protocol_keeps_the_rules_of_buf() {
    let Some(buf) = install::buf_or_skip("agent::the_protocol_keeps_the_rules_of_buf") else {
        return;
    };
    let mut lint = Command::new(buf);
    let output = lint.arg("lint").current_dir(install::PROTO_FOLDER).output();
    let output = output.unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&said)
    );
}

fn has_every_packet(client: Client) {
    has_every_packet_with(&["--listen", TCP], client);
}

fn has_every_packet_with(settings: &[&str], client: Client) {
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, settings);
    let mut consumers = [
        Consumer::start(client(&lab.agent, &agent.address(), "unix"), "unix"),
        Consumer::start(client(&lab.agent, TCP, "tcp"), "tcp"),
    ];
    wait_until("both observe", || {
        consumers.iter_mut().for_each(Consumer::assert_runs);
        let status = agent.status(&lab.agent);
        let known = status["consumers"].as_array().unwrap();
        let is_known = |name| known.iter().any(|consumer| consumer["name"] == name);
        is_known("unix") && is_known("tcp")
    });

    let sent = send(&lab);
    let report = agent.stop();
    assert_eq!(report.sums(), sent);
    for consumer in consumers {
        let name = consumer.name;
        assert_eq!(consumer.sums(), sent, "{name}");
    }
}

pub fn send(lab: &Lab) -> BTreeMap<String, Both> {
    let before = lab.agent.counters().unwrap();
    let to_agent = lab.peer.frame_v4(&lab.agent);
    let socket = lab.peer.frame_socket().unwrap();
    let (src, dst) = (lab.peer.ipv4.to_string(), lab.agent.ipv4.to_string());
    let mut sent = BTreeMap::new();
    for _ in 0..ROUNDS {
        for port in 1..=FLOWS {
            let payload = vec![0; 18 + usize::from(port % 100)];
            let frame = to_agent.udp(port, 53, &payload).unwrap();
            socket.send(&frame).unwrap();
            let flow = name("[]", 17, (&src, port.into()), (&dst, 53));
            sent.entry(flow).or_insert([Pair::default(); 2])[0] += count(1, &frame);
        }
    }
    wait_for_packets(&lab.agent, before, ROUNDS * u64::from(FLOWS));
    sent
}

/// A client that observes, with its output.
struct Consumer {
    name: &'static str,
    process: Process,
    directory: TempDir,
}

impl Consumer {
    fn start(mut command: Command, name: &'static str) -> Self {
        let directory = TempDir::new().unwrap();
        let file = |name| File::create(directory.path().join(name)).unwrap();
        command.stdout(file("stdout")).stderr(file("stderr"));
        Self {
            name,
            process: Process::spawn(&mut command).unwrap(),
            directory,
        }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).unwrap()
    }

    fn assert_runs(&mut self) {
        if let Some(status) = self.process.exited().unwrap() {
            panic!("{}: {status}: {}", self.name, self.read("stderr"));
        }
    }

    /// Waits for the end of its stream, which ends with the agent, and adds up the flows that arrived.
    fn sums(mut self) -> BTreeMap<String, Both> {
        let status = self.process.wait(patience()).unwrap();
        let stderr = self.read("stderr");
        assert!(status.success(), "{}: {status}: {stderr}", self.name);
        let stdout = self.read("stdout");
        let batches = serde_json::Deserializer::from_str(&stdout).into_iter::<Value>();
        let batches: Vec<Value> = batches.collect::<Result<_, _>>().unwrap();
        let mut flows = Vec::new();
        for (batch, seq) in batches.iter().zip(1..) {
            assert_eq!(number(batch, "streamSeq"), seq, "{}", self.name);
            assert_eq!(number(batch, "lostBatches"), 0, "{}", self.name);
            let records = batch["records"].as_array().into_iter().flatten();
            flows.extend(records.map(as_flow_line));
        }
        let report = Report {
            accounts: Vec::new(),
            flows,
            log: String::new(),
        };
        report.sums()
    }
}

/// A 64-bit number in protobuf's JSON is text, and absent where it is 0.
fn number(message: &Value, name: &str) -> u64 {
    let value = &message[name];
    let digits = value.as_str().map(|digits| digits.parse().unwrap());
    digits.or(value.as_u64()).unwrap_or_else(|| {
        assert!(value.is_null(), "{name}: {value}");
        0
    })
}

/// A record in protobuf's JSON, with the names of `--output json`.
fn as_flow_line(record: &Value) -> Value {
    let [src, dst] = ["src", "dst"].map(|end| &record[end]);
    let address = |end: &Value| {
        let bytes = BASE64_STANDARD
            .decode(end["addr"].as_str().unwrap())
            .unwrap();
        let bytes: [u8; 4] = bytes.try_into().unwrap();
        std::net::Ipv4Addr::from(bytes).to_string()
    };
    serde_json::json!({
        "vlan_ids": [],
        "protocol": number(record, "protocol"),
        "src_addr": address(src),
        "src_port": number(src, "port"),
        "dst_addr": address(dst),
        "dst_port": number(dst, "port"),
        "packets": number(src, "deltaPackets"),
        "bytes": number(src, "deltaBytes"),
        "reverse_packets": number(dst, "deltaPackets"),
        "reverse_bytes": number(dst, "deltaBytes"),
    })
}
