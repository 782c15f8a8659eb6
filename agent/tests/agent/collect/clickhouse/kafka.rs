//! From a topic of Kafka to ClickHouse, by the program that ships with the schema.

use lab::{Broker, BrokerOptions};

use super::{
    super::{kafka::TOPIC, tokens::new_token},
    *,
};

const GROUP: &str = "flow-agent-clickhouse";

/// The program, with what is generated for it.
pub(in super::super) struct Bringer {
    python: PathBuf,
    folder: PathBuf,
}

impl Bringer {
    pub fn new(python: &Path, folder: &Path) -> Self {
        let generated = Command::new(python)
            .args(["-m", "grpc_tools.protoc", "-I", install::PROTO_FOLDER])
            .args(["--python_out=.", "flow/v1/flow.proto"])
            .current_dir(folder)
            .status();
        assert!(generated.unwrap().success());
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../deploy/clickhouse/kafka_to_collector.py");
        fs::copy(source, folder.join("bring.py")).unwrap();
        Self {
            python: python.to_owned(),
            folder: folder.to_owned(),
        }
    }

    pub fn log(&self) -> PathBuf {
        self.folder.join("bring.log")
    }

    /// Feeds the collector at this port.
    pub fn start(&self, host: &Host, broker: &Broker<'_>, port: u16) -> Process {
        self.start_with(host, broker, port, &[])
    }

    /// The same with more arguments.
    fn start_with(
        &self,
        host: &Host,
        broker: &Broker<'_>,
        port: u16,
        arguments: &[&str],
    ) -> Process {
        let log = File::options()
            .append(true)
            .create(true)
            .open(self.log())
            .unwrap();
        let mut command = host.command(&self.python);
        command
            .arg(self.folder.join("bring.py"))
            .args([&broker.address(), TOPIC, &format!("127.0.0.1:{port}")])
            .args(arguments)
            .stderr(log);
        Process::spawn(&mut command).unwrap()
    }
}

#[test]
#[ignore = "cargo xtask test-consumers"]
fn what_is_in_the_topic_gets_into_clickhouse_and_offsets_follow() {
    const TEST: &str = "agent::what_is_in_the_topic_gets_into_clickhouse_and_offsets_follow";
    let Some(clickhouse) = ClickHouse::or_skip(TEST) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let Some((jars, python, _)) = install::kafka_or_skip(TEST, folder.path()) else {
        return;
    };
    let lab = &clickhouse.lab;
    let namespace = &lab.agent.namespace;
    let broker = Broker::start(namespace, &jars, patience(), &BrokerOptions::default()).unwrap();
    let topic = format!(
        r#"{{"kind": "kafka", "address": "tcp://{}/{TOPIC}", "create_topic": true}}"#,
        broker.address()
    );
    let first_socket = format!("unix:{}", folder.path().join("socket").display());
    let settings = ["--output", &topic, "--listen", &first_socket];
    let first = Collector::start(&lab.agent, 0, &settings);
    first.wait_until_logged(&format!("address={first_socket}"));
    let agent = Agent::start(lab, &["--output", "json", "--output", &first.setting()]);
    let mut sent = send(lab, 300, 2);
    wait_until_acknowledged(&agent, lab, sent);

    let (mut second, _) = clickhouse.collector(&output(""));
    let port = second.address.port();
    let bringer = Bringer::new(&python, folder.path());
    let log = bringer.log();
    let mut program = bringer.start(&lab.agent, &broker, port);
    let there = |clickhouse: &ClickHouse| clickhouse.sums().into_values().sum::<Pair>();
    wait_until("it is in ClickHouse", || {
        assert!(program.exited().unwrap().is_none());
        there(&clickhouse) == sent
    });

    // ClickHouse fails, then the collector is away, and then the program itself is killed.
    clickhouse.behaves("cut", -1);
    sent += send(lab, 200, 1);
    wait_until("it says so", || {
        fs::read_to_string(&log).unwrap().contains("tried again")
    });
    second.kill();
    clickhouse.behaves("well", 0);
    sent += send(lab, 100, 1);
    wait_until_acknowledged(&agent, lab, sent);
    program.signal(libc::SIGKILL).unwrap();
    program.wait(patience()).unwrap();
    let socket = format!("unix:{}", folder.path().join("other").display());
    let to_clickhouse = output("");
    // This collector wants a token, which the program gets late.
    let [tokens, token] = ["tokens", "token"].map(|name| folder.path().join(name));
    let known = new_token(&tokens, "bringer", "relay");
    fs::write(&token, "other-0123456789abcdef\n").unwrap();
    let settings = ["--output", &to_clickhouse, "--listen", &socket];
    let wants = ["--token-file", tokens.to_str().unwrap()];
    second = Collector::start(&lab.agent, port, &[&settings[..], &wants].concat());
    let shows = ["--token-file", token.to_str().unwrap()];
    let mut program = bringer.start_with(&lab.agent, &broker, port, &shows);
    wait_until("it is told that the token is another one", || {
        assert!(program.exited().unwrap().is_none());
        fs::read_to_string(&log).unwrap().contains("unknown token")
    });
    fs::write(&token, known).unwrap();
    assert_eq!(agent.stop().seen(), sent);
    // What comes again with a number that was there before is behind others.
    runtime().block_on(async {
        let mut client = connect(&first_socket).await;
        call(&mut client, batches(1..=3)).await.1.unwrap();
    });
    first.stop();
    sent += Pair {
        packets: 18,
        bytes: 1800,
    };
    wait_until("all of it is in ClickHouse", || {
        assert!(program.exited().unwrap().is_none());
        there(&clickhouse) == sent
    });

    // A program that starts later has nothing to send.
    wait_until("all offsets are committed", || {
        lag(lab, &python, &broker) == "0"
    });
    program.signal(libc::SIGKILL).unwrap();
    program.wait(patience()).unwrap();
    second.stop();
    let whole = clickhouse.number("SELECT sum(packets) FROM flows_streams");
    assert_eq!(whole, sent.packets);
    // Including batches without flows, which may be the only ones while something is away.
    for row in clickhouse.ask(
        "SELECT count() AS batches, max(stream_seq) AS last FROM flows_batches FINAL GROUP BY stream_id",
    ) {
        assert_eq!(row["batches"], row["last"]);
    }
}

/// How many messages the group has not committed yet.
fn lag(lab: &Lab, python: &Path, broker: &Broker<'_>) -> String {
    let script = "import sys, confluent_kafka as k
broker, topic, group = sys.argv[1:]
consumer = k.Consumer({'bootstrap.servers': broker, 'group.id': group})
parts = [k.TopicPartition(topic, part) for part in consumer.list_topics(topic).topics[topic].partitions]
done = {part.partition: max(part.offset, 0) for part in consumer.committed(parts)}
print(sum(consumer.get_watermark_offsets(part)[1] - done[part.partition] for part in parts))";
    let mut command = lab.agent.command(python);
    command.args(["-c", script, &broker.address(), TOPIC, GROUP]);
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
