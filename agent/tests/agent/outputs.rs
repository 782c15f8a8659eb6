//! Outputs: they send exactly the counted flows, and count those that they cannot send.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use agent_common::Pair;
use lab::{Lab, privilege::is_root_or_skip};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    clients::install,
    support::{Agent, count, pair, wait_until},
};

pub mod collector;
mod full_disk;
mod hostile;
mod ipfix;
pub mod jsonl;
mod kills;
mod messages;
mod otlp;
pub mod parquet;
mod pbflow;
mod query;
mod secured;
mod serve;
pub mod spool;

/// The output of this name in the agent's status.
pub fn output(agent: &Agent, lab: &Lab, name: &str) -> Value {
    let status = agent.status(&lab.agent);
    let outputs = status["outputs"].as_array().unwrap();
    let found = outputs.iter().find(|output| output["name"] == name);
    found
        .unwrap_or_else(|| panic!("{name}: {outputs:?}"))
        .clone()
}

/// The fates of an output's flows. Asserts that the sums cover all flows.
fn fates(output: &Value, counted: Pair) -> BTreeMap<&'static str, Pair> {
    let fates = ["sent", "refused", "lost", "left_out", "queued"];
    let fates: BTreeMap<_, _> = fates.map(|fate| (fate, pair(&output[fate]))).into();
    let sum: Pair = fates.values().copied().sum();
    assert_eq!(sum, counted, "{output}");
    fates
}

/// Sends frames of this many UDP flows to the agent's host, `each` times. Returns what they sum to.
pub fn send(lab: &Lab, flows: u16, each: u64) -> Pair {
    let mut sent = Pair::default();
    let socket = lab.peer.frame_socket().unwrap();
    for flow in 0..flows {
        let frame = lab.peer.frame_v4(&lab.agent);
        let frame = frame.udp(1000 + flow, 9, &[0; 18]).unwrap();
        for _ in 0..each {
            socket.send(&frame).unwrap();
        }
        sent += count(each, &frame);
    }
    sent
}

/// The windows of the flow table, which become resident in the process as they are read.
fn kernel_map_bytes(agent: &Agent, lab: &Lab) -> u64 {
    let status = agent.status(&lab.agent);
    status["memory"]["kernel_map_bytes"].as_u64().unwrap()
}

/// A script's output about the folder, as one line of JSON.
fn read_with(python: &Path, script: &str, folder: &Path) -> Value {
    let mut command = Command::new(python);
    command
        .arg(install::python_folder().join(script))
        .arg(folder);
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Waits until the status has this many packets in flows.
fn wait_until_counted(agent: &Agent, lab: &Lab, packets: u64) {
    wait_until("the packets are counted", || {
        pair(&agent.status(&lab.agent)["account"]["flows"]).packets == packets
    });
}

/// For tests of other modules.
pub use jsonl::{lines, sum};
