//! Observers of all agents' flows, and the views for people.

use std::{
    sync::mpsc::{self, TryRecvError},
    thread,
    time::Duration,
};

use lab::traffic::{self, IpVersion};

use super::*;
use crate::{support::as_the_service, terminal::AtTerminal};

/// Starts `watch` on a collector, with its lines in a file.
fn watch(host: &Host, collector: &Collector, lines: &Path) -> Process {
    let address = collector.address.to_string();
    let mut command: Command = flow_agent(host);
    command
        .args(["watch", "--output", "json", "--connect", &address])
        .stdout(File::create(lines).unwrap());
    Process::spawn(&mut command).unwrap()
}

fn read(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines = whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

#[test]
fn whoever_observes_a_collector_gets_the_flows_of_all_agents_and_knows_whose_they_are() {
    const TEST: &str =
        "agent::whoever_observes_a_collector_gets_the_flows_of_all_agents_and_knows_whose_they_are";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let seen = folder.path().join("seen");
    let files = tempfile::tempdir().unwrap();
    let collector = Collector::start(&lab.agent, 0, &["--output", &jsonl(files.path())]);
    let mut watching = watch(&lab.agent, &collector, &seen);
    wait_until("it observes", || {
        let status = collector.status(&lab.agent);
        !status["consumers"].as_array().unwrap().is_empty()
    });
    let to = collector.setting();
    let agents = [(); 2].map(|()| Agent::start(&lab, &["--output", "json", "--output", &to]));
    let sent = send(&lab, 200, 3);
    for agent in &agents {
        wait_until_acknowledged(agent, &lab, sent);
    }
    let sums = || {
        let mut sums = BTreeMap::new();
        for line in read(&seen) {
            if line["type"] == "flow" {
                assert_ne!(line["hostname"], "");
                let stream = line["stream_id"].as_str().unwrap().to_owned();
                *sums.entry(stream).or_insert_with(Pair::default) +=
                    outputs::jsonl::sum(std::slice::from_ref(&line));
            }
        }
        sums.into_values().collect::<Vec<_>>()
    };
    wait_until("all is shown", || sums() == [sent, sent]);
    // The numbers of its own stream.
    let numbers: Vec<_> = read(&seen)
        .iter()
        .map(|line| line["stream_seq"].as_u64().unwrap())
        .collect();
    assert!(numbers.is_sorted());
    for agent in agents {
        agent.stop();
    }
    collector.stop();
    drop(watching.terminate(patience()));
}

#[test]
fn people_see_whose_flows_are_stored_and_a_table_of_flows_is_refused_with_the_reason() {
    const TEST: &str =
        "agent::people_see_whose_flows_are_stored_and_a_table_of_flows_is_refused_with_the_reason";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(&lab.agent, 0, &["--output", &jsonl(folder.path())]);
    let address = collector.address.to_string();
    let asked = |arguments: &[&str]| {
        answered(|| {
            let mut command = flow_agent(&lab.agent);
            command.args(arguments).args(["--connect", &address]);
            command
        })
    };
    let text = |arguments: &[&str]| {
        let output = asked(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        String::from_utf8(output.stdout).unwrap()
    };
    let nobody = text(&["status"]);
    assert!(nobody.contains("no agent has called yet"), "{nobody}");
    let to = collector.setting();
    let agent = Agent::start(&lab, &["--output", "json", "--output", &to]);
    let sent = send(&lab, 20, 1);
    wait_until_acknowledged(&agent, &lab, sent);
    let shown = text(&["status"]);
    for part in [
        "flow-agent ",
        " collects on ",
        "stores in jsonl=",
        "agents: 1 connected",
        "connected  ",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let row = shown.lines().last().unwrap();
    let columns: Vec<_> = row.split_whitespace().collect();
    assert!(columns.ends_with(&["20", "20", "0"]), "{shown}");
    let table = asked(&["watch"]);
    let told = String::from_utf8_lossy(&table.stderr);
    assert!(
        !table.status.success() && told.contains("--output json"),
        "{told}"
    );
    agent.stop();
    collector.stop();
}

#[test]
fn what_only_an_agent_can_answer_is_refused_in_the_name_of_the_collector() {
    const TEST: &str =
        "agent::what_only_an_agent_can_answer_is_refused_in_the_name_of_the_collector";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let files = tempfile::tempdir().unwrap();
    let collector = Collector::start(&lab.agent, 0, &["--output", &jsonl(files.path())]);
    let address = collector.address.to_string();
    let connect = ["--connect", &address];
    for (command, instead) in [
        (
            [&["flows"], &connect[..]].concat(),
            "flow-agent watch --output json",
        ),
        (
            [&["audit"], &connect[..]].concat(),
            "flow-agent status --connect",
        ),
        (
            [&["filter", "show"], &connect[..]].concat(),
            "those of agents",
        ),
        (
            [&["config", "show"], &connect[..]].concat(),
            "`flow-agent collect`",
        ),
    ] {
        let output = answered(|| {
            let mut asked = flow_agent(&lab.agent);
            asked.args(&command);
            asked
        });
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
        let begin = format!("flow-agent: a collector listens on {address}, not an agent: ");
        assert!(said.starts_with(&begin), "{command:?}: {said}");
        assert!(said.contains(instead), "{command:?}: {said}");
    }
    collector.stop();
}

/// The agent's own lines on stdout, and the lines that the collector writes for its stream.
#[test]
fn every_line_is_as_the_json_schema_says() {
    const TEST: &str = "agent::every_line_is_as_the_json_schema_says";
    if !is_root_or_skip(TEST) {
        return;
    }
    let Some(python) = install::json_schema_or_skip(TEST) else {
        return;
    };
    let lab = Lab::addressed().unwrap();
    let files = tempfile::tempdir().unwrap();
    let stored = files.path().join("stored");
    fs::create_dir(&stored).unwrap();
    let collector = Collector::start(&lab.agent, 0, &["--output", &jsonl(&stored)]);
    let to_collector = collector.setting();
    let agent = Agent::start_by(
        as_the_service(&lab.agent),
        &lab.agent.interface,
        &[
            "--output",
            "json",
            "--output",
            &to_collector,
            "--enrich",
            "process,tcp,rtt,drops,icmp,dns,dns-exchanges",
        ],
    );
    for version in [IpVersion::V4, IpVersion::V6] {
        traffic::tcp(&lab.agent, &lab.peer, version, 5001, 100_000).unwrap();
        traffic::udp(&lab.agent, &lab.peer, version, 5002, 3, 100).unwrap();
        traffic::ping(&lab.agent, &lab.peer, version, 2).unwrap();
    }
    // A query for the type A of `lost.example` (RFC 1035), answered only by an ICMP error.
    let query = b"\0\x09\x01\0\0\x01\0\0\0\0\0\0\x04lost\x07example\0\0\x01\0\x01";
    let asking = lab.agent.namespace.enter(|| {
        let socket = std::net::UdpSocket::bind((lab.agent.ipv4, 0))?;
        Ok(socket.send_to(query, (lab.peer.ipv4, 53))?)
    });
    assert_eq!(asking.unwrap(), query.len());
    wait_until("the query is given up", || {
        agent.status(&lab.agent)["dns"]["unanswered"] == 1
    });
    agent.wait_for_scans(&lab.agent, 2);
    let own = files.path().join("own");
    fs::write(&own, agent.stdout()).unwrap();
    agent.stop();
    collector.stop();
    let lines = outputs::jsonl::lines(&stored);
    assert!(lines.iter().all(|line| line["hostname"].is_string()));
    assert!(lines.iter().any(|line| line["final"] == true));
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/records.schema.json");
    let mut validate = Command::new(python);
    validate
        .arg(install::python_folder().join("schema.py"))
        .args([schema, own])
        .args(
            fs::read_dir(&stored)
                .unwrap()
                .map(|file| file.unwrap().path()),
        );
    let output = validate.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let counts: Value = serde_json::from_slice(&output.stdout).unwrap();
    for kind in ["flow", "dns", "account"] {
        assert!(counts[kind].as_u64() >= Some(2), "{counts}");
    }
}

/// What `top --once` prints about a collector, line by line.
fn top_of(host: &Host, collector: &Collector, view: &str) -> Vec<Value> {
    let address = collector.address.to_string();
    let output = answered(|| {
        let mut command = flow_agent(host);
        command.args(["top", "--once", "--output", "json", "--connect", &address]);
        command.args(["--view", view]);
        command
    });
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let lines = std::str::from_utf8(&output.stdout).unwrap().lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn top_shows_all_hosts_of_a_collector_and_adds_up_what_they_see() {
    const TEST: &str = "agent::top_shows_all_hosts_of_a_collector_and_adds_up_what_they_see";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(&lab.agent, 0, &["--output", &jsonl(folder.path())]);
    let to = collector.setting();
    let settings = [
        "--scan-interval",
        "3s",
        "--idle-timeout",
        "1h",
        "--output",
        &to,
    ];
    let agents = [(); 2].map(|()| Agent::start(&lab, &settings));
    let top = format!("top --connect {} --view hosts", collector.address);
    let mut top = AtTerminal::start(&lab.agent, (24, 100), &top);
    top.shows("collector  2 hosts  0 flows tracked");
    let sent = send(&lab, 3, 200);
    for agent in &agents {
        wait_until_acknowledged(agent, &lab, sent);
    }
    // Both see every packet.
    top.shows("collector  2 hosts  6 flows tracked");
    top.press("1");
    top.shows("HOST");
    top.press("7\r");
    let total = format!("back in all          {} packets", 2 * sent.packets);
    top.shows(&total);
    // Dropped at the end, also by a panic.
    let (alive, end) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let lab = &lab;
        scope.spawn(move || {
            while end.try_recv() == Err(TryRecvError::Empty) {
                send(lab, 3, 1);
                thread::sleep(Duration::from_millis(20));
            }
        });
        let _alive = alive;
        for (view, rows) in [
            ("flows", 6),
            ("hosts", 2),
            ("services", 1),
            ("interfaces", 2),
        ] {
            let mut lines = top_of(&lab.agent, &collector, view);
            let total = lines.pop().unwrap();
            assert_eq!(total["hosts"], 2, "{total}");
            assert_eq!(total["tracked_flows"], 6, "{total}");
            assert_eq!(total["account_closes"], true, "{total}");
            assert_eq!(lines.len(), rows, "{view}: {lines:?}");
            let packets = |line: &Value| {
                let both = ["packets", "reverse_packets"].map(|name| line[name].as_u64().unwrap());
                both[0] + both[1]
            };
            let sum: u64 = lines.iter().map(packets).sum();
            assert!(sum > 0 && sum == packets(&total), "{total}: {lines:?}");
        }
    });
    for agent in agents {
        agent.stop_silent();
    }
    collector.stop();
    // Closes the row that is open.
    top.press("q");
    top.shows("waiting for the collector to come back");
    top.press("q");
    assert!(top.ended().success());
}
