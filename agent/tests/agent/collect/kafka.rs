//! Kafka as a store, with Apache's own broker, and librdkafka to read what is there.

use std::{process::Stdio, rc::Rc};

use lab::{Broker, BrokerOptions};
use proto::{AgentIdentity, FlowBatch};
use tonic::Code;

use super::{
    calls::{batch, call, connect, runtime},
    *,
};
use crate::clients::install;

mod broken;
mod refused;
mod secured;

pub(super) const TOPIC: &str = "flows";

/// A host with what it takes to run a broker and to read from it.
pub(super) struct Kafka {
    pub lab: Rc<Lab>,
    jars: PathBuf,
    pub python: PathBuf,
    descriptors: PathBuf,
    pub folder: TempDir,
}

impl Kafka {
    fn or_skip(test: &str) -> Option<Self> {
        Self::on_or_skip(test, || Rc::new(Lab::quiet().unwrap()))
    }

    /// On hosts that may be there already.
    pub fn on_or_skip(test: &str, lab: impl FnOnce() -> Rc<Lab>) -> Option<Self> {
        if !is_root_or_skip(test) {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let (jars, python, descriptors) = install::kafka_or_skip(test, folder.path())?;
        Some(Self {
            lab: lab(),
            jars,
            python,
            descriptors,
            folder,
        })
    }

    pub fn broker(&self, options: &BrokerOptions) -> Broker<'_> {
        let namespace = &self.lab.agent.namespace;
        Broker::start(namespace, &self.jars, patience(), options).unwrap()
    }

    /// A collector that stores in the topic, and its address for clients of the test.
    fn collector(&self, setting: &str) -> (Collector, String) {
        let socket = format!("unix:{}", self.folder.path().join("socket").display());
        let settings = ["--output", setting, "--listen", &socket];
        (Collector::start(&self.lab.agent, 0, &settings), socket)
    }

    /// The error of a collector that does not start. If the broker answers too slowly, the collector starts; then
    /// another one is tried.
    fn refusal(&self, setting: &str) -> String {
        let log = self.folder.path().join("refusal");
        let mut refusal = None;
        wait_until("it does not start", || {
            let mut command = flow_agent(&self.lab.agent);
            command
                .args(["collect", "--listen", "127.0.0.1:0", "--output", setting])
                .stdout(Stdio::null())
                .stderr(File::create(&log).unwrap());
            let mut process = Process::spawn(&mut command).unwrap();
            wait_until("it ends or listens", || {
                let ended = process.exited().unwrap();
                assert!(ended.is_none_or(|status| !status.success()));
                let said = fs::read_to_string(&log).unwrap();
                let is_up = said.contains("listening");
                refusal = ended.map(|_| said);
                is_up || refusal.is_some()
            });
            refusal.is_some()
        });
        refusal.unwrap()
    }

    /// Runs the client of librdkafka. Returns its lines.
    fn client(&self, address: &str, arguments: &[&str]) -> Vec<String> {
        let mut command = self.lab.agent.command(&self.python);
        command
            .arg(install::python_folder().join("kafka.py"))
            .arg(address)
            .args(arguments);
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// All messages of the topic, by partition and offset.
    pub fn messages(&self, broker: &Broker<'_>) -> Vec<Value> {
        let descriptors = self.descriptors.to_str().unwrap();
        let arguments = ["read", TOPIC, descriptors];
        let lines = self.client(&broker.plain_address(), &arguments);
        let read = lines.iter().map(|line| serde_json::from_str(line).unwrap());
        read.collect()
    }
}

pub(super) fn setting(broker: &str, more: &str) -> String {
    format!(r#"{{"kind": "kafka", "address": "tcp://{broker}/{TOPIC}"{more}}}"#)
}

/// The sums of the records by stream, each once. Fails if a batch was repeated with other content, or first came after
/// a later one. The batches of a stream are in one partition.
fn sums(messages: &[Value]) -> BTreeMap<String, Pair> {
    let mut batches = BTreeMap::<(String, u64), &Value>::new();
    let mut last = BTreeMap::new();
    for message in messages {
        let headers = &message["headers"];
        let seq: u64 = headers["stream_seq"].as_str().unwrap().parse().unwrap();
        let stream = headers["stream_id"].as_str().unwrap().to_owned();
        let before = batches.insert((stream.clone(), seq), &message["batch"]);
        if let Some(before) = before {
            assert_eq!(*before, message["batch"]);
            continue;
        }
        let before = last.insert(stream, seq);
        assert!(before < Some(seq), "{before:?} and then {seq}");
    }
    let mut sums = BTreeMap::new();
    for ((stream, _), batch) in batches {
        for record in batch["records"].as_array().into_iter().flatten() {
            let number = |name: &str| -> u64 {
                let ends = ["src", "dst"].map(|end| record[end][name].as_str().unwrap_or("0"));
                ends.map(|text| text.parse::<u64>().unwrap()).iter().sum()
            };
            *sums.entry(stream.clone()).or_insert_with(Pair::default) += Pair {
                packets: number("delta_packets"),
                bytes: number("delta_bytes"),
            };
        }
    }
    sums
}

/// A batch of another agent, on a stream of its own.
fn of_agent(agent_id: &str, stream_id: u64, seq: u64) -> FlowBatch {
    FlowBatch {
        agent: Some(AgentIdentity {
            agent_id: agent_id.to_owned(),
            hostname: "there".to_owned(),
            ..AgentIdentity::default()
        }),
        stream_id,
        ..batch(seq, 2)
    }
}

fn store(collector: &Collector, kafka: &Kafka) -> Value {
    collector.status(&kafka.lab.agent)["stores"][0].clone()
}

#[test]
fn every_packet_of_two_agents_is_in_the_topic_in_order_and_where_kafka_itself_would_put_it() {
    const TEST: &str = "agent::every_packet_of_two_agents_is_in_the_topic_in_order_and_where_kafka_itself_would_put_it";
    let Some(kafka) = Kafka::or_skip(TEST) else {
        return;
    };
    let lab = &kafka.lab;
    let broker = kafka.broker(&BrokerOptions::default());
    let output = setting(&broker.address(), r#", "create_topic": true"#);
    let (collector, socket) = kafka.collector(&output);
    let to = collector.setting();
    let agents = [(); 2].map(|()| Agent::start(lab, &["--output", "json", "--output", &to]));
    let mut sent = Pair::default();
    for _ in 0..3 {
        sent += send(lab, 300, 2);
    }
    for agent in agents {
        wait_until_acknowledged(&agent, lab, sent);
        assert_eq!(agent.stop().seen(), sent);
    }
    let names: Vec<_> = (0..12).map(|number| format!("agent-{number}")).collect();
    runtime().block_on(async {
        let mut client = connect(&socket).await;
        for (name, stream_id) in names.iter().map(String::as_str).chain([""]).zip(1..) {
            let batches = (1..=3).map(|seq| of_agent(name, stream_id, seq));
            let (acks, ended) = call(&mut client, batches.collect()).await;
            assert_eq!(acks.last(), Some(&3), "{ended:?}");
        }
    });
    let stored = store(&collector, &kafka);
    assert_eq!(stored["kind"], "kafka");
    assert_eq!(stored["failing"], false);
    assert_eq!(
        pair(&stored["stored"]).packets,
        2 * sent.packets + 13 * 3 * 6
    );
    let log = collector.stop();
    assert!(
        warns_of_slowness_alone(&log) && log.contains("created the topic"),
        "{log}"
    );
    let messages = kafka.messages(&broker);
    let mut sums = sums(&messages).into_values().collect::<Vec<_>>();
    sums.sort_by_key(|sum| sum.packets);
    assert_eq!(sums[13..], [sent, sent]);
    check_layout(&messages);
    // Machines that were cloned with a spool share a stream and its numbers.
    let (collector, socket) = kafka.collector(&output);
    runtime().block_on(async {
        let batches = (1..=3).map(|seq| {
            let mut batch = of_agent(&names[0], 1, seq);
            batch.agent.as_mut().unwrap().instance_id = "of a clone".to_owned();
            batch
        });
        let (acks, ended) = call(&mut connect(&socket).await, batches.collect()).await;
        assert_eq!(acks.last(), Some(&3), "{ended:?}");
    });
    collector.stop();
    example_adds_up(&kafka, &broker, 2 * sent.packets + 14 * 3 * 6);
    // Kafka's own hash, of keys on another topic with as many partitions.
    let mut arguments = vec!["partitions", "other"];
    arguments.extend(names.iter().map(String::as_str));
    let address = broker.address();
    kafka.client(&address, &["create", "other", "3"]);
    let places = kafka.client(&address, &arguments);
    assert!(places.iter().any(|place| *place != places[0]));
    for (name, place) in names.iter().zip(places) {
        let of_it = messages.iter().filter(|message| message["key"] == **name);
        let of_it: Vec<_> = of_it.collect();
        assert_eq!(of_it.len(), 3);
        for message in of_it {
            assert_eq!(message["partition"].to_string(), place, "{name}");
        }
    }
}

/// The example of a consumer gets all packets.
fn example_adds_up(kafka: &Kafka, broker: &Broker<'_>, packets: u64) {
    let folder = kafka.folder.path();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/consumers/python/kafka.py");
    let example = folder.join("kafka.py");
    fs::copy(source, &example).unwrap();
    let mut generate = Command::new(&kafka.python);
    generate
        .args(["-m", "grpc_tools.protoc", "-I", install::PROTO_FOLDER])
        .args(["--python_out=.", "flow/v1/flow.proto"])
        .current_dir(folder);
    assert!(generate.status().unwrap().success());
    let told = folder.join("told");
    let mut command = kafka.lab.agent.command(&kafka.python);
    command
        .arg(&example)
        .args([&broker.address(), TOPIC])
        .stdout(File::create(&told).unwrap());
    let mut consumer = Process::spawn(&mut command).unwrap();
    wait_until("the example adds up", || {
        assert!(consumer.exited().unwrap().is_none());
        let told = fs::read_to_string(&told).unwrap();
        let last = told.lines().last().map(serde_json::from_str::<Value>);
        last.is_some_and(|last| last.is_ok_and(|sums| sums["packets"] == packets))
    });
}

/// Key, headers and time are as documented, and the batches of a stream are in one partition and in order.
fn check_layout(messages: &[Value]) {
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    let mut last = BTreeMap::new();
    for message in messages {
        let (headers, batch) = (&message["headers"], &message["batch"]);
        let stream: u64 = batch["stream_id"].as_str().unwrap().parse().unwrap();
        let stream_text = format!("{stream:016x}");
        let agent_id = batch["agent"]["agent_id"].as_str();
        assert_eq!(message["key"], agent_id.unwrap_or(&stream_text));
        assert_eq!(headers["stream_id"], stream_text);
        assert_eq!(headers["stream_seq"], batch["stream_seq"]);
        assert_eq!(headers["hostname"], batch["agent"]["hostname"]);
        assert_eq!(headers["identity"], batch["agent"]["identity"]);
        assert_eq!(headers.as_object().unwrap().len(), 4);
        // CreateTime, in milliseconds.
        assert_eq!(message["timestamp"][0], 1);
        let age = now.as_millis() - u128::from(message["timestamp"][1].as_u64().unwrap());
        assert!(age < 3_600_000, "{message}");
        let seq: u64 = headers["stream_seq"].as_str().unwrap().parse().unwrap();
        let place = message["partition"].as_u64().unwrap();
        if let Some((before, its_place)) = last.insert(stream, (seq, place)) {
            assert!(before < seq && its_place == place, "{message}");
        }
    }
}

#[test]
#[ignore = "cargo xtask test-consumers"]
fn messages_are_read_by_others_however_they_are_packed() {
    const TEST: &str = "agent::messages_are_read_by_others_however_they_are_packed";
    let Some(kafka) = Kafka::or_skip(TEST) else {
        return;
    };
    let broker = kafka.broker(&BrokerOptions::default());
    let address = broker.address();
    kafka.client(&address, &["create", TOPIC, "1"]);
    for (packing, stream_id) in ["none", "gzip", "zstd"].into_iter().zip(1..) {
        let packed = setting(&address, &format!(r#", "compression": "{packing}""#));
        let (collector, socket) = kafka.collector(&packed);
        runtime().block_on(async {
            let mut client = connect(&socket).await;
            let batches = (1..=2).map(|seq| FlowBatch {
                stream_id,
                ..batch(seq, 1000)
            });
            let (acks, ended) = call(&mut client, batches.collect()).await;
            assert_eq!(acks.last(), Some(&2), "{ended:?}");
        });
        collector.stop();
    }
    let messages = kafka.messages(&broker);
    assert_eq!(messages.len(), 6);
    let sums: Vec<_> = sums(&messages).into_values().collect();
    let all = Pair {
        packets: 6000,
        bytes: 600_000,
    };
    assert_eq!(sums, [all; 3]);
}
