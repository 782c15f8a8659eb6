//! `flow-agent top`, on stdout and at a terminal.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use agent_common::Pair;
use lab::{Host, Lab, privilege::is_root_or_skip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    support::{
        Agent, attached::nothing_is_attached, count, flow_agent, wait_for_packets, wait_until,
    },
    terminal::AtTerminal,
};

const SIZE: (u16, u16) = (24, 100);

/// Sends packets of these source ports, the more the higher the port, and waits until they are counted.
fn send(lab: &Lab, ports: std::ops::RangeInclusive<u16>) -> Pair {
    let before = lab.agent.counters().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    let socket = lab.peer.frame_socket().unwrap();
    let mut sent = Pair::default();
    for port in ports {
        let frame = frame.udp(port, 53, &[7; 100]).unwrap();
        for _ in 0..=port % 10 {
            socket.send(&frame).unwrap();
            sent += count(1, &frame);
        }
    }
    wait_for_packets(&lab.agent, before, sent.packets);
    sent
}

/// The counts whose names begin with this.
fn pair(line: &Value, prefix: &str) -> Pair {
    let of = |what: &str| line[format!("{prefix}{what}")].as_u64().unwrap();
    Pair {
        packets: of("packets"),
        bytes: of("bytes"),
    }
}

/// The rows, and their total.
fn once(agent: &Agent, host: &Host, view: &str) -> (Vec<Value>, Value) {
    let arguments = [
        "top", "--once", "--output", "json", "--every", "200ms", "--view", view,
    ];
    let answer = agent.asked(host, &arguments);
    let stderr = String::from_utf8_lossy(&answer.stderr);
    assert!(answer.status.success(), "{stderr}");
    let lines = std::str::from_utf8(&answer.stdout).unwrap().lines();
    let mut lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let total = lines.pop().unwrap();
    assert_eq!(total["type"], "total");
    (lines, total)
}

#[test]
fn one_scan_on_stdout_has_every_packet_in_each_view() {
    if !is_root_or_skip("agent::one_scan_on_stdout_has_every_packet_in_each_view") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let settings = [
        "--scan-interval",
        "1h",
        "--idle-timeout",
        "1h",
        "--output",
        "none",
    ];
    let agent = Agent::start(&lab, &settings);
    let sent = send(&lab, 1001..=1005);
    let peer = lab.peer.ipv4.to_string();
    for (view, rows, name, prefix) in [
        ("flows", 5, None, "total_"),
        ("peers", 1, Some(peer.as_str()), "total_reverse_"),
        (
            "interfaces",
            1,
            Some(lab.agent.interface.as_str()),
            "total_reverse_",
        ),
        ("services", 1, Some("53/udp"), "total_reverse_"),
        ("names", 1, None, "total_reverse_"),
        ("units", 1, None, "total_reverse_"),
        ("processes", 1, None, "total_reverse_"),
    ] {
        let (lines, total) = once(&agent, &lab.agent, view);
        assert_eq!(lines.len(), rows, "{view}: {lines:?}");
        let sum: Pair = lines.iter().map(|line| pair(line, prefix)).sum();
        assert_eq!(sum, sent, "{view}: {lines:?}");
        assert_eq!(lines[0]["name"].as_str(), name, "{view}");
        assert_eq!(total["account_closes"], true);
        assert_eq!(total["tracked_flows"], 5);
    }
    let table = agent.asked(
        &lab.agent,
        &["top", "--once", "--every", "200ms", "--limit", "2"],
    );
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.contains("INITIATOR") && table.ends_with("… and 3 more\n"),
        "{table}"
    );
    // Without a terminal it names the alternatives.
    let refused = agent.asked(&lab.agent, &["top"]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(error.contains("--once"), "{error}");
    for (arguments, said) in [
        (&["--limit", "2"][..], "--once"),
        (
            &["--once", "--connect", "unix:/x", "--", "--interface", "lo"],
            "leave one of them out",
        ),
        (
            &["--once", "--view", "peers", "--sort", "rtt"],
            "it has rate, sent, received",
        ),
    ] {
        let mut refused = flow_agent(&lab.agent);
        let refused = refused.arg("top").args(arguments).output().unwrap();
        let error = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{error}");
        assert!(error.contains(said), "{error}");
    }
    agent.stop_silent();
}

#[test]
fn a_rate_covers_about_the_time_between_requests_though_the_agent_scans_more_often() {
    let name =
        "agent::a_rate_covers_about_the_time_between_requests_though_the_agent_scans_more_often";
    if !is_root_or_skip(name) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--scan-interval", "100ms", "--output", "none"]);
    let arguments = ["top", "--once", "--output", "json", "--every", "1s"];
    let answer = agent.asked(&lab.agent, &arguments);
    let lines = String::from_utf8(answer.stdout).unwrap();
    let total: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    let covered = total["window_ns"].as_u64().unwrap();
    assert!(covered >= 750_000_000, "{total}");
    agent.stop_silent();
}

#[test]
fn a_terminal_shows_what_is_chosen_and_is_given_back() {
    if !is_root_or_skip("agent::a_terminal_shows_what_is_chosen_and_is_given_back") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--scan-interval", "1h", "--output", "none"]);
    send(&lab, 1001..=1005);
    let arguments = format!("top --every 300ms --connect {}", agent.address());
    let mut top = AtTerminal::start(&lab.agent, SIZE, &arguments);
    let peer = lab.peer.ipv4;
    top.shows(&format!("{peer}:1005"));
    // Packets that arrive while it is open are shown with the next scan.
    send(&lab, 1009..=1009);
    top.shows(&format!("{peer}:1009"));
    top.press("2");
    top.shows("TX BIT/S");
    assert!(!top.shown().contains(":1009"), "{}", top.shown());
    top.press("1/port 1003\r");
    // Not the prompt, which the agent has not answered.
    top.shows("by rate  filter: port 1003");
    top.shows(&format!("{peer}:1003"));
    assert!(!top.shown().contains(":1005"), "{}", top.shown());
    top.press("\r");
    top.shows("sent in all        4 packets");
    agent.stop_silent();
    top.shows("initiator");
    top.press("\x1b");
    top.shows("waiting for the agent to come back");
    top.press("q");
    assert!(top.ended().success());
    let written = top.written();
    for gives_back in ["\x1b[?1049l", "\x1b[?25h", "\x1b[?1000l"] {
        assert!(written.contains(gives_back), "{gives_back:?}");
    }
}

/// `flow-agent top` with an agent of its own, whose first scan is over and whose second one is far away.
fn with_own_agent(host: &Host, folder: &Path) -> Command {
    let mut command = flow_agent(host);
    command
        .args([
            "top",
            "--once",
            "--output",
            "json",
            "--every",
            "1h",
            "--",
            "--interface",
        ])
        .arg(&host.interface)
        .env("TMPDIR", folder)
        // Not of this agent.
        .env("FLOW_AGENT_OUTPUT", "nonsense")
        .stdout(Stdio::null());
    command
}

#[test]
fn an_agent_of_its_own_counts_and_ends_with_it_however_that_is() {
    if !is_root_or_skip("agent::an_agent_of_its_own_counts_and_ends_with_it_however_that_is") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let host = &lab.agent;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::KILL] {
        let mut top = with_own_agent(host, folder.path()).spawn().unwrap();
        wait_until("it counts", || !nothing_is_attached(host));
        let pid = Pid::from_child(&top);
        kill_process(pid, signal).unwrap();
        let status = top.wait().unwrap();
        if signal == Signal::KILL {
            wait_until("the agent ended, too", || nothing_is_attached(host));
            for left in fs::read_dir(folder.path()).unwrap() {
                fs::remove_dir_all(left.unwrap().path()).unwrap();
            }
        } else {
            // It was told to end before it had anything to show.
            assert_eq!(status.code(), Some(1), "{signal:?}: {status}");
            assert!(nothing_is_attached(host), "{signal:?}");
        }
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            0,
            "{signal:?}"
        );
    }
    // One that cannot start says why.
    for (arguments, said) in [
        (
            &["--", "--interface", "nowhere0"][..],
            "there is no interface 'nowhere0'",
        ),
        (&["--"], "no interface carries a default route"),
        // A user who names an agent does not want another one.
        (&["--connect", "unix:/nowhere"], "/nowhere: start one"),
    ] {
        let mut refused = flow_agent(host);
        refused
            .args(["top", "--once"])
            .args(arguments)
            .env("TMPDIR", folder.path());
        let refused = refused.output().unwrap();
        let error = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{error}");
        assert!(error.contains(said), "{error}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
