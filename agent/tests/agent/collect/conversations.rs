//! `flow-agent collect --conversations`: a client and a server behind a router, with an agent at each of them.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
};

use lab::{Broker, BrokerOptions, ControlGroup, Host, Namespace, privilege::is_root_or_skip};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    Collector,
    clickhouse::kafka::Bringer,
    jsonl,
    kafka::TOPIC,
    pairs::{SETTLE, lose_by_dscp, refusal},
};
use crate::{
    clients::install,
    nat::{CABLE, Routed},
    outputs,
    support::{Agent, BINARY, patience, wait_until},
};

/// Where the collector listens. All reach it by wires that no agent watches.
const COLLECTOR: &str = "10.9.9.1";
const CONNECTIONS: u64 = 300;
const TCP: u64 = 6;
const UDP: u64 = 17;
/// Datagrams with this DSCP are lost on the wire behind the router, in the router, and in the server's host.
const LOST: [(u8, u64); 3] = [(8, 3), (16, 5), (24, 9)];

/// Echoes what comes over TCP and UDP.
const SERVER: &str = r#"
use IO::Socket::INET; use IO::Select; $| = 1;
my %at = (LocalAddr => $ARGV[0], LocalPort => 7000);
my $tcp = IO::Socket::INET->new(%at, Listen => 128, ReuseAddr => 1) or die "$!";
my $udp = IO::Socket::INET->new(%at, Proto => 'udp') or die "$!";
my $all = IO::Select->new($tcp, $udp);
print "ready\n";
while (my @ready = $all->can_read) {
    for my $one (@ready) {
        if ($one == $tcp) { $all->add($tcp->accept) }
        elsif ($one == $udp) { my $from = $udp->recv(my $text, 100); $udp->send($text, 0, $from) }
        elsif (sysread($one, my $text, 100)) { syswrite($one, $text) }
        else { $all->remove($one); close $one }
    }
}
"#;

/// Makes connections one after another, then sends datagrams with the DSCPs and in the numbers that follow the number
/// of connections. Only one datagram before them is answered. Prints the port of the datagrams.
const CLIENT: &str = r#"
use IO::Socket::INET; $| = 1;
my ($address, $connections, @lost) = @ARGV;
my %to = (PeerAddr => $address, PeerPort => 7000);
for (1 .. $connections) {
    my $socket = IO::Socket::INET->new(%to) or die "$!";
    syswrite($socket, "hello"); sysread($socket, my $text, 100) or die "$!";
    close $socket;
}
my $udp = IO::Socket::INET->new(%to, Proto => 'udp') or die "$!";
$udp->send("hello"); $udp->recv(my $text, 100);
while (my ($dscp, $count) = splice(@lost, 0, 2)) {
    setsockopt($udp, 0, 1, pack("i", $dscp << 2)) or die "$!";
    $udp->send("lost") for 1 .. $count;
}
print $udp->sockport, "\n";
"#;

/// A perl program in a unit, which is killed at the end. Returns it with the first line of its output.
fn program(
    group: &ControlGroup,
    unit: &str,
    namespace: &Namespace,
    script: &str,
    arguments: &[String],
) -> (Running, String) {
    let mut command = namespace.command("sh");
    group
        .run_below(unit, &mut command)
        .unwrap()
        .args(["perl", "-e", script])
        .args(arguments)
        .stdout(Stdio::piped());
    let mut process = Running(command.spawn().unwrap());
    let mut line = String::new();
    let output = process.0.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    (process, line.trim_end().to_owned())
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn lines(folder: &Path, protocol: u64) -> Vec<Value> {
    let mut lines = outputs::jsonl::lines(folder);
    lines.retain(|line| line["protocol"] == protocol && line["inexact"] != "goes_on");
    lines
}

fn sum<'a>(lines: impl IntoIterator<Item = &'a Value>, end: &str, name: &str) -> u64 {
    let numbers = lines.into_iter().map(|line| line[end][name].as_u64());
    numbers.map(Option::unwrap_or_default).sum()
}

/// A network with a route between client and server, where datagrams are lost at three places.
fn network() -> Routed {
    let [(on_the_wire, _), (at_the_router, _), (at_the_server, _)] = LOST;
    let network = Routed::new(&format!(
        "chain lose {{ type filter hook forward priority 0; ip dscp {at_the_router} drop; }}"
    ));
    let (router, server) = (&network.lab.agent, &network.lab.peer.namespace);
    let via = router.ipv4.to_string();
    server
        .ip(&["route", "add", "10.79.0.0/24", "via", &via])
        .unwrap();
    let rule = format!(
        "table ip lose {{ chain lose {{ type filter hook input priority 0; ip dscp {at_the_server} drop; }}; }}"
    );
    let output = server.command("nft").arg(rule).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    lose_by_dscp(router, on_the_wire);
    let local = format!("{COLLECTOR}/32");
    let ip = |namespace: &Namespace, arguments: &[&str]| namespace.ip(arguments).unwrap();
    ip(&router.namespace, &["address", "add", &local, "dev", "lo"]);
    for (number, namespace) in [&network.client, server].into_iter().enumerate() {
        let ends = [format!("beside{number}"), format!("there{number}")];
        let addresses = [1, 2].map(|end| format!("10.9.{number}.{end}"));
        let [here, there] = ends.each_ref().map(String::as_str);
        router.namespace.add_wire([here, there]).unwrap();
        ip(
            &router.namespace,
            &["link", "set", there, "netns", namespace.name()],
        );
        for (namespace, end, address) in [
            (&router.namespace, here, &addresses[0]),
            (namespace, there, &addresses[1]),
        ] {
            let address = format!("{address}/24");
            ip(namespace, &["address", "add", &address, "dev", end]);
            ip(namespace, &["link", "set", end, "arp", "on", "up"]);
        }
        ip(namespace, &["route", "add", &local, "via", &addresses[0]]);
    }
    network
}

/// The network, and the folder of a collector that makes conversations.
struct Observed {
    network: Routed,
    folder: TempDir,
}

impl Observed {
    fn new() -> Self {
        Self {
            network: network(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn router(&self) -> &Host {
        &self.network.lab.agent
    }

    /// A collector at the router that makes conversations.
    fn collector(&self, more: &[&str]) -> Collector {
        let [flows, conversations] = ["flows", "conversations"].map(|name| {
            let path = self.folder.path().join(name);
            fs::create_dir(&path).unwrap();
            jsonl(&path)
        });
        let settle = format!("{}ms", SETTLE.as_millis());
        let settings = [
            ["--output", &flows],
            ["--conversations", &conversations],
            ["--pairs-settle", &settle],
        ];
        let settings = [settings.as_flattened(), more].concat();
        Collector::start(self.router(), 0, &settings)
    }

    /// Agents at the client, the router and the server, which send to these. Returns once the collector knows them.
    fn agents(&self, to: [&str; 3], known: &Collector) -> [Agent; 3] {
        let (network, router) = (&self.network, self.router());
        let start = |namespace: &Namespace, interface: &str, to: &str, more: &[&str]| {
            let settings = [
                ["--output", "json"],
                ["--output", to],
                ["--enrich", "unit,process,drops"],
            ];
            let settings = [settings.as_flattened(), more].concat();
            Agent::start_by(namespace.command(BINARY), interface, &settings)
        };
        let also = ["--interface", &router.interface];
        let server = &network.lab.peer;
        let agents = [
            start(&network.client, CABLE[1], to[0], &[]),
            start(&router.namespace, CABLE[0], to[1], &also),
            start(&server.namespace, &server.interface, to[2], &[]),
        ];
        wait_until("all are known", || {
            let status = known.status(router);
            let streams = status["streams"].as_array().unwrap().iter();
            let stored = streams.filter(|stream| stream["stored_seq"].as_u64() > Some(0));
            stored.count() == agents.len()
        });
        sleep(2 * SETTLE);
        agents
    }

    /// Runs both programs. Returns the client's port of the datagrams, and the server.
    fn communicate(&self, group: &ControlGroup) -> (String, Running) {
        let server = &self.network.lab.peer;
        let address = server.ipv4.to_string();
        let (serving, ready) = program(
            group,
            "server.service",
            &server.namespace,
            SERVER,
            std::slice::from_ref(&address),
        );
        assert_eq!(ready, "ready");
        let mut arguments = vec![address, CONNECTIONS.to_string()];
        let lost = LOST.iter();
        arguments.extend(lost.flat_map(|(dscp, count)| [dscp.to_string(), count.to_string()]));
        let client = &self.network.client;
        let (_, port) = program(group, "client.service", client, CLIENT, &arguments);
        (port, serving)
    }

    fn connections(&self) -> Vec<Value> {
        lines(&self.folder.path().join("conversations"), TCP)
    }

    fn datagrams(&self, port: &str) -> Vec<Value> {
        let mut lines = lines(&self.folder.path().join("conversations"), UDP);
        let port: u16 = port.parse().unwrap();
        lines.retain(|line| line["client"]["port"] == port);
        lines
    }

    /// Waits until all connections are told, and all datagrams.
    fn wait_until_told(&self, port: &str) {
        wait_until("all connections are told, and all datagrams", || {
            let connections = self.connections();
            let new = connections.iter().map(|line| line["new_flows"].as_u64());
            let closed = connections.iter().filter(|line| line["closed"] == true);
            let datagrams = self.datagrams(port);
            new.map(Option::unwrap).sum::<u64>() == CONNECTIONS
                && closed.count() as u64 >= CONNECTIONS
                && sum(&datagrams, "client", "sent_packets") == sent_datagrams()
                && sum(&datagrams, "server", "dropped_packets") == LOST[2].1
        });
    }

    /// What names each agent.
    fn instances(&self, agents: &[Agent; 3]) -> [Value; 3] {
        let agents = agents.each_ref();
        agents.map(|agent| agent.status(self.router())["agent"]["instance_id"].clone())
    }
}

fn sent_datagrams() -> u64 {
    1 + LOST.iter().map(|(_, count)| count).sum::<u64>()
}

fn assert_proven_between_its_sockets(line: &Value, [client, router, server]: &[Value; 3]) {
    let end = |unit: &str, instance: &Value| json!([unit, "perl", "socket", instance]);
    let told = |end: &str| {
        let end = &line[end];
        let instance = &end["agent"]["instance_id"];
        json!([end["unit"], end["process"], end["owner"], instance])
    };
    assert_eq!(told("client"), end("client.service", client), "{line}");
    assert_eq!(told("server"), end("server.service", server), "{line}");
    // A line of what was known later has no packets, at the router neither.
    if line["since"] != line["until"] || line["new_flows"] != 0 {
        assert_eq!(line["via"][0]["instance_id"], *router, "{line}");
    }
    assert_eq!(
        json!([line["grade"], line["inexact"]]),
        json!(["proven", null]),
        "{line}"
    );
}

/// Runs the query in `docs/conversations.md` over these files.
fn assert_duckdb_adds_up(folder: &Path, test: &str) {
    let Some(python) = install::duckdb_or_skip(test) else {
        return;
    };
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/conversations.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, query) = page.split_once("duckdb -c \"").unwrap();
    let (query, _) = query.split_once('"').unwrap();
    let files = format!("{}/*.jsonl*", folder.display());
    let query = query.replace("/var/lib/flow-agent/conversations*.jsonl*", &files);
    let script = "import duckdb, json, sys; print(json.dumps(duckdb.execute(sys.argv[1]).fetchall(), default=int))";
    let output = Command::new(python)
        .args(["-c", script, &query])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{query}: {stderr}");
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = rows
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row[0] == "client.service");
    let row = row.unwrap_or_else(|| panic!("{rows}"));
    let lost: u64 = LOST.iter().map(|(_, count)| count).sum();
    assert_eq!(
        json!([row[1], row[2], row[4]]),
        json!(["server.service", CONNECTIONS + 1, lost]),
        "{rows}"
    );
}

#[test]
fn each_connection_is_a_proven_conversation_and_each_loss_is_where_it_was_made() {
    const TEST: &str =
        "agent::each_connection_is_a_proven_conversation_and_each_loss_is_where_it_was_made";
    if !is_root_or_skip(TEST) {
        return;
    }
    let observed = Observed::new();
    let listen = format!("{COLLECTOR}:0");
    let collector = observed.collector(&["--insecure-listen", "--listen", &listen]);
    let to = collector.setting();
    let agents = observed.agents([&to; 3], &collector);
    let group = ControlGroup::slice().unwrap();
    let (port, _serving) = observed.communicate(&group);
    observed.wait_until_told(&port);
    let instances = observed.instances(&agents);

    let connections = observed.connections();
    for line in &connections {
        assert_proven_between_its_sockets(line, &instances);
        assert_eq!(line["lost_packets"], 0, "{line}");
    }
    let ports = connections
        .iter()
        .map(|line| line["client"]["port"].as_u64());
    let ports: BTreeSet<_> = ports.collect();
    assert_eq!(ports.len() as u64, CONNECTIONS);
    for [from, to] in [["client", "server"], ["server", "client"]] {
        let left = sum(&connections, from, "sent_packets");
        assert_eq!(left, sum(&connections, to, "received_packets"));
        // At least a SYN, a segment with data, and a FIN.
        assert!(left >= 3 * CONNECTIONS, "{left}");
    }

    let datagrams = observed.datagrams(&port);
    for line in &datagrams {
        assert_proven_between_its_sockets(line, &instances);
    }
    let [_, router, server] = &instances;
    let lost: [u64; 3] = [&Value::Null, router, server].map(|place| {
        let all = datagrams
            .iter()
            .flat_map(|line| line["lost"].as_array().unwrap());
        let here =
            all.filter(|loss| loss["at"]["instance_id"] == *place && loss["sent_by"] == "client");
        here.map(|loss| loss["packets"].as_u64().unwrap()).sum()
    });
    assert_eq!(lost, LOST.map(|(_, count)| count), "{datagrams:#?}");
    let dropped = datagrams
        .iter()
        .map(|line| &line["via"][0]["client"]["dropped_packets"]);
    let dropped: u64 = dropped.filter_map(Value::as_u64).sum();
    assert_eq!(dropped, LOST[1].1);

    let status = collector.status(observed.router());
    let made = &status["conversations"];
    assert!(made["proven"].as_u64() > Some(CONNECTIONS), "{status}");
    assert_eq!(made["not_written"], 0);
    for agent in agents {
        agent.stop();
    }
    let log = collector.stop();
    assert!(!log.contains("WARN"), "{log}");
    assert_duckdb_adds_up(&observed.folder.path().join("conversations"), TEST);
    // Nothing is told again at the end.
    let datagrams = observed.datagrams(&port);
    assert_eq!(sum(&datagrams, "client", "sent_packets"), sent_datagrams());
}

/// Two collectors see one end each, and store in Kafka. A third one gets all batches from there.
#[test]
#[ignore = "cargo xtask test-consumers"]
fn behind_kafka_the_ends_of_several_collectors_are_joined() {
    const TEST: &str = "agent::behind_kafka_the_ends_of_several_collectors_are_joined";
    if !is_root_or_skip(TEST) {
        return;
    }
    let observed = Observed::new();
    let Some((jars, python, _)) = install::kafka_or_skip(TEST, observed.folder.path()) else {
        return;
    };
    let router = observed.router();
    let broker = BrokerOptions::default();
    let broker = Broker::start(&router.namespace, &jars, patience(), &broker).unwrap();
    let topic = format!(
        r#"{{"kind": "kafka", "address": "tcp://{}/{TOPIC}", "create_topic": true}}"#,
        broker.address()
    );
    let listen = format!("{COLLECTOR}:0");
    let settings = ["--insecure-listen", "--listen", &listen, "--output", &topic];
    let [one, other] = [(); 2].map(|()| Collector::start(router, 0, &settings));
    let third = observed.collector(&[]);
    let relay = Bringer::new(&python, observed.folder.path());
    let _relay = relay.start(router, &broker, third.address.port());
    let to = [&one, &other].map(Collector::setting);
    let agents = observed.agents([&to[0], &to[1], &to[1]], &third);
    let group = ControlGroup::slice().unwrap();
    let (port, _serving) = observed.communicate(&group);
    observed.wait_until_told(&port);
    let instances = observed.instances(&agents);
    for line in observed
        .connections()
        .iter()
        .chain(&observed.datagrams(&port))
    {
        assert_proven_between_its_sockets(line, &instances);
    }
}

#[test]
fn conversations_are_refused_where_something_else_is_written() {
    if !is_root_or_skip("agent::conversations_are_refused_where_something_else_is_written") {
        return;
    }
    let lab = lab::Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let flows = jsonl(folder.path());
    let stderr = refusal(&lab, &flows, ["--conversations", &flows]);
    assert!(
        stderr.contains("--conversations jsonl=") && stderr.contains("choose another path"),
        "{stderr}"
    );
}
