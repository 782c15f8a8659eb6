//! The senders of flows, with real sockets of processes in control groups: records name the unit, the container and the
//! process, and the counts do not change.

mod bounded;
mod connections;
mod counted_again;
mod everything;
mod handed_over;
mod processes;
mod sockets;
mod unit_traffic;

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdout, Stdio},
};

use lab::{ControlGroup, Counters, Host, Lab, privilege::is_root_or_skip};
use serde_json::{Value, json};

use crate::support::{Agent, Report, as_the_service, pair, wait_until};

const UNIT: &[&str] = &["--enrich", "unit"];
/// The fields that each of them adds, behind `src_` and `dst_`.
const OF_UNIT: &[&str] = &[
    "cgroup",
    "unit",
    "slice",
    "container_id",
    "container_runtime",
];
const OF_PROCESS: &[&str] = &["process", "pid", "uid"];
const WHO: &[&str] = &["--enrich", "unit,process"];
/// A table for 16 flows, with 24 slots and room for 16 more flows behind them. It is drained on request.
const SMALL: &[&str] = &[
    "--max-flows",
    "16",
    "--early-scan",
    "0",
    "--scan-interval",
    "1h",
];
const CONTAINER: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const PORT: &str = "7000";

/// Reports that it listens, and echoes on each connection.
const SERVER: &str = r#"
use IO::Socket::INET; $| = 1;
my $server = IO::Socket::INET->new(LocalAddr => $ARGV[0], LocalPort => $ARGV[1], Listen => 5, ReuseAddr => 1) or die "$!";
print "ready\n";
while (my $client = $server->accept) { while (sysread($client, my $text, 100)) { syswrite($client, $text) } close $client }
"#;

/// Connects. For each line of its input, sends a word and reads the echo. So it keeps a socket as long as the test
/// wants.
const CLIENT: &str = r#"
use IO::Socket::INET; $| = 1;
my $socket = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => $ARGV[1]) or die "$!";
print $socket->sockport, "\n";
while (<STDIN>) { syswrite($socket, "hello"); sysread($socket, my $text, 100); print "answered\n" }
"#;

/// Sends a datagram from each of the given number of ports, starting at the first one.
const SENDER: &str = r#"
use IO::Socket::INET;
for my $number (0 .. $ARGV[3] - 1) {
    my $socket = IO::Socket::INET->new(Proto => 'udp', PeerAddr => $ARGV[0], PeerPort => $ARGV[1], LocalPort => $ARGV[2] + $number)
        or die "$!";
    $socket->send("hello") or die "$!";
}
"#;

/// A program of these in a control group.
struct Program {
    process: Child,
    says: BufReader<ChildStdout>,
}

impl Program {
    fn start(
        group: &ControlGroup,
        name: &str,
        host: &Host,
        script: &str,
        arguments: &[&str],
    ) -> Self {
        let mut command = host.command("sh");
        group
            .run_below(name, &mut command)
            .unwrap()
            .args(["perl", "-e", script])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let says = BufReader::new(process.stdout.take().unwrap());
        Self { process, says }
    }

    fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The next line of its output.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn goes_on(&mut self) {
        self.process
            .stdin
            .as_mut()
            .unwrap()
            .write_all(b"\n")
            .unwrap();
        assert_eq!(self.line(), "answered");
    }

    /// Ends when its input does.
    fn ends(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// The fields with these names at both ends of flows to or from a port. All records must agree.
fn ends_of(report: &Report, port: u16, names: &[&str]) -> Value {
    let is_of_it = |line: &&Value| line["src_port"] == port || line["dst_port"] == port;
    let ends = report.flows.iter().filter(is_of_it).map(|line| {
        let line = line.as_object().unwrap();
        let is_wanted = |name: &str| {
            let name = name.trim_start_matches("src_").trim_start_matches("dst_");
            names.contains(&name)
        };
        let ends = line.iter().filter(|(name, _)| is_wanted(name));
        Value::Object(
            ends.map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
        )
    });
    let mut ends: Vec<_> = ends.collect();
    ends.dedup();
    assert_eq!(ends.len(), 1, "{ends:#?}");
    ends.remove(0)
}

/// Packets that arrived and left since then.
fn packets(host: &Host, before: Counters) -> u64 {
    let since = host.counters().unwrap() - before;
    since.rx_packets + since.tx_packets
}

#[test]
fn both_ends_of_a_flow_have_the_unit_and_the_container_that_sent_its_packets() {
    const TEST: &str =
        "agent::both_ends_of_a_flow_have_the_unit_and_the_container_that_sent_its_packets";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let group = ControlGroup::slice().unwrap();
    let slice = group.path().file_name().unwrap().to_str().unwrap();
    let (address, container) = (
        lab.agent.ipv4.to_string(),
        format!("docker-{CONTAINER}.scope"),
    );
    let to = [address.as_str(), PORT];
    // Both sockets are there before the agent.
    let mut server = Program::start(&group, "web.service", &lab.agent, SERVER, &to);
    assert_eq!(server.line(), "ready");
    let mut client = Program::start(&group, &container, &lab.peer, CLIENT, &to);
    let port: u16 = client.line().parse().unwrap();
    client.goes_on();
    // With the service's capabilities: no privilege for files.
    let before = lab.agent.counters().unwrap();
    let agent = Agent::start_by(as_the_service(&lab.agent), &lab.agent.interface, UNIT);
    for _ in 0..3 {
        client.goes_on();
        agent.wait_for_scans(&lab.agent, 2);
    }
    client.ends();
    // FIN, FIN, ACK. The last one may be on its way.
    wait_until("the connection is closed", || {
        packets(&lab.agent, before) >= 3 * 3 + 3
    });
    agent.wait_for_scans(&lab.agent, 2);
    let report = agent.stop();
    assert_eq!(
        ends_of(&report, port, OF_UNIT),
        json!({
            "src_cgroup": format!("/{slice}/{container}"),
            "src_unit": container,
            "src_slice": slice,
            "src_container_id": CONTAINER,
            "src_container_runtime": "docker",
            "dst_cgroup": format!("/{slice}/web.service"),
            "dst_unit": "web.service",
            "dst_slice": slice,
        })
    );
    assert_eq!(report.seen().packets, packets(&lab.agent, before));
    assert_eq!(pair(&report.last()["flows"]), report.seen());
}

#[test]
fn a_unit_that_is_gone_before_its_flow_is_reported_is_named() {
    if !is_root_or_skip("agent::a_unit_that_is_gone_before_its_flow_is_reported_is_named") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let group = ControlGroup::slice().unwrap();
    let settings = [UNIT, &["--scan-interval", "1h"]].concat();
    let agent = Agent::start(&lab, &settings);
    let to = lab.peer.ipv4.to_string();
    for (unit, port) in [("one.service", "5001"), ("two.service", "5002")] {
        let arguments = [&*to, "9", port, "1"];
        Program::start(&group, unit, &lab.agent, SENDER, &arguments).ends();
        if unit == "one.service" {
            // By then the agent has heard of the first one, and the second is gone when the agent looks it up.
            agent.flows(&lab.agent);
        }
        wait_until("the control group can be removed", || {
            fs::remove_dir(group.path().join(unit)).is_ok()
        });
    }
    let report = agent.stop();
    assert_eq!(ends_of(&report, 5001, OF_UNIT)["src_unit"], "one.service");
    // Whether the agent heard of it in time depends on the scheduler. The end counts as nameless.
    let second = report
        .flows
        .iter()
        .find(|line| line["src_port"] == 5002)
        .unwrap();
    assert!(second["src_cgroup_id"].is_u64(), "{second}");
    let unit = &second["src_unit"];
    assert!(unit.is_null() || unit == "two.service", "{second}");
}

/// For a cgroup below one with too long a path, only the id is known.
#[test]
fn flows_whose_unit_is_unknown_are_counted() {
    const FLOWS: u64 = 20;
    if !is_root_or_skip("agent::flows_whose_unit_is_unknown_are_counted") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let group = ControlGroup::slice().unwrap();
    fs::create_dir(group.path().join("known.service")).unwrap();
    let agent = Agent::start(&lab, UNIT);
    let deep = vec!["d".repeat(250); 5].join("/");
    let to = lab.peer.ipv4.to_string();
    for (unit, port) in [("known.service", "5001"), (&deep, "6001")] {
        let arguments = [&*to, "9", port, &FLOWS.to_string()];
        Program::start(&group, unit, &lab.agent, SENDER, &arguments).ends();
    }
    let nameless = || agent.status(&lab.agent)["replica"]["nameless_ends"].as_u64();
    wait_until("they are counted", || nameless().unwrap() >= FLOWS);
    // Each once, however often they are reported.
    agent.flows(&lab.agent);
    agent.wait_for_scans(&lab.agent, 2);
    assert_eq!(nameless(), Some(FLOWS));
    agent.stop();
}

#[test]
fn flows_that_find_no_slot_have_their_unit_too() {
    const FLOWS: u64 = 30;
    if !is_root_or_skip("agent::flows_that_find_no_slot_have_their_unit_too") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let group = ControlGroup::slice().unwrap();
    let agent = Agent::start(&lab, &[WHO, SMALL].concat());
    let arguments = [&*lab.peer.ipv4.to_string(), "9", "5000", &FLOWS.to_string()];
    Program::start(&group, "many.service", &lab.agent, SENDER, &arguments).ends();
    let report = agent.stop();
    let refused = report.last()["not_inserted"]["table_full"]["packets"]
        .as_u64()
        .unwrap();
    let mut named = 0;
    for line in report.flows.iter().filter(|line| line["dst_port"] == 9) {
        assert_eq!(line["src_unit"], "many.service", "{line}");
        assert_eq!(line["src_process"], "perl", "{line}");
        for end in ["dst_unit", "dst_pid"] {
            assert!(line.get(end).is_none(), "{line}");
        }
        named += line["packets"].as_u64().unwrap();
    }
    assert_eq!(named + refused, FLOWS);
    assert!(named > 24, "{named}");
}

#[test]
fn a_slot_that_another_flow_had_names_nobody() {
    const FLOWS: u16 = 20;
    if !is_root_or_skip("agent::a_slot_that_another_flow_had_names_nobody") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    // The generator's packets arrive only then, and have no socket.
    lab.agent.set_offloads(&["gro"], true).unwrap();
    let group = ControlGroup::slice().unwrap();
    let agent = Agent::start(&lab, &[WHO, SMALL].concat());
    let to = lab.peer.ipv4.to_string();
    let generator = lab.peer.generator().unwrap();
    for round in 0..4_u16 {
        let first = 5000 + round * FLOWS;
        let arguments = [&*to, "9", &first.to_string(), &FLOWS.to_string()];
        Program::start(&group, "one.service", &lab.agent, SENDER, &arguments).ends();
        agent.flows(&lab.agent);
        let before = lab.agent.counters().unwrap().rx_packets;
        for port in first..first + FLOWS {
            let frame = lab
                .peer
                .frame_v4(&lab.agent)
                .udp(port, 10, &[0; 18])
                .unwrap();
            generator.send(&frame, 1, None).unwrap();
        }
        wait_until("the frames arrive", || {
            lab.agent.counters().unwrap().rx_packets >= before + u64::from(FLOWS)
        });
        // So that each page has flows of both kinds.
        for _ in 0..2 {
            agent.flows(&lab.agent);
        }
    }
    let report = agent.stop();
    let of = |port: u16| {
        let lines = report.flows.iter();
        let lines = lines.filter(move |line| line["dst_port"] == port && line["packets"] != 0);
        lines.collect::<Vec<_>>()
    };
    // Sometimes both find their places taken.
    assert!(
        of(9).len() > 60 && of(10).len() > 60,
        "{} and {}",
        of(9).len(),
        of(10).len()
    );
    for line in of(9) {
        assert_eq!(line["src_unit"], "one.service", "{line}");
        assert_eq!(line["src_process"], "perl", "{line}");
    }
    for line in of(10) {
        for end in ["src_cgroup_id", "dst_cgroup_id", "src_pid", "dst_pid"] {
            assert!(line.get(end).is_none(), "{line}");
        }
    }
}

#[test]
fn pages_that_grow_name_all_of_their_flows() {
    const FLOWS: u64 = 1_000;
    if !is_root_or_skip("agent::pages_that_grow_name_all_of_their_flows") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let group = ControlGroup::slice().unwrap();
    let settings = [
        "--min-flows",
        "16",
        "--max-flows",
        "8000",
        "--scan-interval",
        "1h",
    ];
    let agent = Agent::start(&lab, &[WHO, &settings].concat());
    let to = lab.peer.ipv4.to_string();
    let room = || {
        let status = agent.status(&lab.agent);
        status["table"]["room"].as_u64().unwrap()
    };
    let before = room();
    for round in 0..4 {
        let first = 5000 + round * FLOWS;
        let arguments = [&*to, "9", &first.to_string(), &FLOWS.to_string()];
        Program::start(&group, "many.service", &lab.agent, SENDER, &arguments).ends();
        // A page gets its size when it is idle, and there are two.
        for _ in 0..2 {
            agent.flows(&lab.agent);
        }
    }
    assert!(room() >= FLOWS && before < 100, "{before} and {}", room());
    let report = agent.stop();
    let refused = report.last()["not_inserted"]["table_full"]["packets"]
        .as_u64()
        .unwrap();
    let mut named = 0;
    for line in report.flows.iter().filter(|line| line["dst_port"] == 9) {
        assert_eq!(line["src_unit"], "many.service", "{line}");
        assert_eq!(line["src_process"], "perl", "{line}");
        named += line["packets"].as_u64().unwrap();
    }
    assert_eq!(named + refused, 4 * FLOWS);
}

#[test]
fn without_the_setting_nobody_is_named() {
    if !is_root_or_skip("agent::without_the_setting_nobody_is_named") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let group = ControlGroup::slice().unwrap();
    let agent = Agent::start(&lab, &[]);
    let arguments = [&*lab.peer.ipv4.to_string(), "9", "5000", "1"];
    Program::start(&group, "one.service", &lab.agent, SENDER, &arguments).ends();
    let report = agent.stop();
    assert_eq!(ends_of(&report, 5000, OF_UNIT), json!({}));
    assert_eq!(ends_of(&report, 5000, OF_PROCESS), json!({}));
}
