//! The example consumers in `deploy/consumers`: each must add up every packet that was sent.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use agent_common::Pair;
use lab::{
    Lab, Process,
    privilege::{is_root_or_skip, skip},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    clients::install,
    support::{Agent, count, patience, wait_for_packets, wait_until},
};

/// Enough for more than one batch in a scan.
const FLOWS: u16 = 4000;

/// A command that wants an agent's address.
pub type Program = Vec<PathBuf>;

#[test]
fn the_consumer_in_rust_adds_up_every_packet() {
    const TEST: &str = "agent::the_consumer_in_rust_adds_up_every_packet";
    if is_root_or_skip(TEST)
        && let Some(program) = in_rust_or_skip(TEST)
    {
        adds_up_every_packet(&program);
    }
}

#[test]
fn the_consumer_in_python_adds_up_every_packet() {
    const TEST: &str = "agent::the_consumer_in_python_adds_up_every_packet";
    let folder = TempDir::new().unwrap();
    if is_root_or_skip(TEST)
        && let Some(program) = in_python_or_skip(TEST, folder.path())
    {
        adds_up_every_packet(&program);
    }
}

#[test]
fn the_consumer_in_go_adds_up_every_packet() {
    const TEST: &str = "agent::the_consumer_in_go_adds_up_every_packet";
    if is_root_or_skip(TEST)
        && let Some(program) = in_go_or_skip(TEST)
    {
        adds_up_every_packet(&program);
    }
}

#[test]
fn the_page_shows_the_programs_as_they_are() {
    let page = consumers().join("../../docs/consumers.md");
    let page = fs::read_to_string(page).unwrap();
    for (language, file) in [
        ("python", "python/observe.py"),
        ("rust", "rust/examples/observe.rs"),
        ("go", "go/main.go"),
    ] {
        let program = fs::read_to_string(consumers().join(file)).unwrap();
        let shown = format!("\n```{language}\n{program}```\n");
        assert!(
            page.contains(&shown),
            "docs/consumers.md does not show {file}"
        );
    }
}

pub fn in_rust_or_skip(test: &str) -> Option<Program> {
    // `cargo test` builds examples beside the binaries.
    let binaries = Path::new(env!("CARGO_BIN_EXE_flow-agent"))
        .parent()
        .unwrap();
    let observe = binaries.join("examples/observe");
    if !observe.exists() {
        skip(
            test,
            "no example observe; cargo test --package flow-consumer builds it",
        );
        return None;
    }
    Some(vec![observe])
}

/// Its modules are generated in the folder.
pub fn in_python_or_skip(test: &str, folder: &Path) -> Option<Program> {
    let python = install::python_with_tools_or_skip(test)?;
    let mut generate = Command::new(&python);
    generate
        .args(["-m", "grpc_tools.protoc", "-I", install::PROTO_FOLDER])
        .args([
            "--python_out=.",
            "--grpc_python_out=.",
            "flow/v1/flow.proto",
        ])
        .current_dir(folder);
    assert!(generate.status().unwrap().success());
    let script = folder.join("observe.py");
    fs::copy(consumers().join("python/observe.py"), &script).unwrap();
    Some(vec![python, script])
}

pub fn in_go_or_skip(test: &str) -> Option<Program> {
    let observe = install::go_consumer_or_skip(test)?;
    Some(vec![observe])
}

fn consumers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/consumers")
}

fn adds_up_every_packet(program: &[PathBuf]) {
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[]);
    let folder = TempDir::new().unwrap();
    let file = |name| File::create(folder.path().join(name)).unwrap();
    let read = |name| fs::read_to_string(folder.path().join(name)).unwrap();
    let mut command = lab.agent.command(&program[0]);
    command
        .args(&program[1..])
        .arg(agent.address())
        .stdout(file("stdout"))
        .stderr(file("stderr"));
    let mut process = Process::spawn(&mut command).unwrap();
    wait_until("it observes", || {
        assert!(process.exited().unwrap().is_none(), "{}", read("stderr"));
        let status = agent.status(&lab.agent);
        let mut known = status["consumers"].as_array().unwrap().iter();
        known.any(|one| one["name"].as_str().unwrap().starts_with("example in"))
    });
    let sent = send(&lab);
    agent.wait_for_scans(&lab.agent, 2);
    let report = agent.stop();
    assert_eq!(report.seen(), sent);

    let status = process.wait(patience()).unwrap();
    assert!(status.success(), "{status}: {}", read("stderr"));
    let lines = read("stdout");
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let expected = json!({
        "records": report.flows.len(), "packets": sent.packets, "bytes": sent.bytes,
        "lost_records": 0, "lost_packets": 0, "lost_bytes": 0,
    });
    assert_eq!(lines.last(), Some(&expected));
    // One for each scan, and one at the end.
    assert!(lines.len() > 2, "{lines:?}");
}

fn send(lab: &Lab) -> Pair {
    let before = lab.agent.counters().unwrap();
    let to_agent = lab.peer.frame_v4(&lab.agent);
    let socket = lab.peer.frame_socket().unwrap();
    let mut sent = Pair::default();
    for port in 1..=FLOWS {
        let frame = to_agent.udp(port, 53, &[0; 40]).unwrap();
        for _ in 0..2 {
            socket.send(&frame).unwrap();
        }
        sent += count(2, &frame);
    }
    wait_for_packets(&lab.agent, before, 2 * u64::from(FLOWS));
    sent
}
