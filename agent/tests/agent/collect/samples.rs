//! A collector that asks agents to count fewer flows.

use lab::{Lab, privilege::is_root_or_skip};
use serde_json::{Value, json};

use super::{Collector, jsonl, stored, to, wait_until_acknowledged};
use crate::{
    outputs::{self, send},
    support::{Agent, answered, flow_agent, pair, wait_until},
};

const FLOWS: u16 = 200;

/// The sample rate that is in force, and the one that the collector asks for.
fn wait_until_in_force(agent: &Agent, lab: &Lab, rates: [u32; 2]) {
    wait_until("the rate is in force", || {
        let status = agent.status(&lab.agent);
        let output = outputs::output(agent, lab, "collector");
        let in_force = status["settings"]["sample_rate"].clone();
        [in_force, output["asked_sample_rate"].clone()] == rates.map(Value::from)
    });
}

/// The sums of the flow lines with this rate.
fn at_rate(lines: &[Value], rate: u32) -> agent_common::Pair {
    let lines = lines.iter().filter(|line| line["sample_rate"] == rate);
    outputs::jsonl::sum(&lines.cloned().collect::<Vec<_>>())
}

#[test]
fn a_collector_that_wants_fewer_flows_gets_them_whole_and_each_record_says_so() {
    const TEST: &str =
        "agent::a_collector_that_wants_fewer_flows_gets_them_whole_and_each_record_says_so";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let into = jsonl(folder.path());
    let settings = ["--output", &into, "--report-interval", "1h"];
    let first = Collector::start(&lab.agent, 0, &settings);
    let port = first.address.port();
    let output = to(
        &first,
        r#", "max_report_interval": "1h", "max_sample_rate": 10"#,
    );
    let mut agent = Agent::start(&lab, &["--output", "json", "--output", &output]);
    agent.wait_until_logged("a collector asks for fewer reports");
    // These flows are counted in full and wait for their report.
    let whole = send(&lab, FLOWS, 3);
    agent.wait_for_scans(&lab.agent, 2);
    first.kill();

    let settings = [&settings[..], &["--sample", "4"]].concat();
    let second = Collector::start(&lab.agent, port, &settings);
    wait_until_in_force(&agent, &lab, [4, 4]);
    agent.wait_until_logged("a collector asks to count only some flows");
    // Packets of the same flows and of new ones.
    let mut sampled = agent_common::Pair::default();
    for _ in 0..2 {
        sampled += send(&lab, 2 * FLOWS, 1);
        agent.wait_for_scans(&lab.agent, 2);
    }
    second.kill();
    let third = Collector::start(&lab.agent, port, &["--output", &into]);
    wait_until_in_force(&agent, &lab, [0, 0]);
    let again = send(&lab, FLOWS, 1);
    let scanned = || {
        let stream = third.status(&lab.agent)["streams"][0].clone();
        pair(&stream["account"]["seen"]) == whole + sampled + again
    };
    wait_until("all of it is told", scanned);
    let report = agent.stop();
    third.stop();

    let last = report.last();
    let (flows, left_out) = (pair(&last["flows"]), pair(&last["sampled_out"]));
    assert_eq!(report.seen(), whole + sampled + again);
    assert_eq!(flows + left_out, report.seen());
    let counted = sampled - left_out;
    // Of 400 flows a hundred, give or take four standard deviations.
    assert!((65..=135).contains(&(counted.packets / 2)), "{counted:?}");
    assert_eq!(counted.packets % 2, 0, "both packets of a flow, or none");
    let was_asked = |account: &Value| account["sample_rate_asked"] == true;
    assert!(report.accounts.iter().any(was_asked));
    assert!(!was_asked(last));
    let lines = outputs::jsonl::lines(folder.path());
    assert_eq!(at_rate(&lines, 0), whole + again);
    assert_eq!(at_rate(&lines, 4), counted);
    assert_eq!(
        stored(&[folder.path()]).into_values().collect::<Vec<_>>(),
        [flows]
    );
}

#[test]
fn an_agent_counts_every_flow_unless_its_settings_allow_less() {
    const TEST: &str = "agent::an_agent_counts_every_flow_unless_its_settings_allow_less";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let into = jsonl(folder.path());
    let settings = ["--output", &into, "--sample", "1000"];
    let collector = Collector::start(&lab.agent, 0, &settings);
    let deaf = to(&collector, "");
    let agent = Agent::start(&lab, &["--output", "json", "--output", &deaf]);
    let mut sent = send(&lab, FLOWS, 2);
    // With this it has asked.
    wait_until_acknowledged(&agent, &lab, sent);
    agent.wait_for_scans(&lab.agent, 2);
    sent += send(&lab, FLOWS, 1);
    wait_until_acknowledged(&agent, &lab, sent);
    wait_until_in_force(&agent, &lab, [0, 0]);
    assert_eq!(collector.status(&lab.agent)["sample_rate"], json!(1000));
    let shown = answered(|| {
        let mut command = flow_agent(&lab.agent);
        command.args(["status", "--connect", &collector.address.to_string()]);
        command
    });
    let shown = String::from_utf8(shown.stdout).unwrap();
    let line = "asks to count one flow in 1000; connected streams that have counted more so far: 1";
    assert!(shown.contains(line), "{shown}");
    let report = agent.stop();
    assert_eq!(pair(&report.last()["flows"]), sent);
    collector.stop();
    assert_eq!(
        stored(&[folder.path()]).into_values().collect::<Vec<_>>(),
        [sent]
    );
}
