//! A collector that asks agents for fewer reports.

use lab::{Lab, privilege::is_root_or_skip};
use serde_json::Value;

use super::{Collector, jsonl, stored, to, wait_until_acknowledged};
use crate::{
    outputs::{self, send},
    support::{Agent, pair, wait_until},
};

const SECOND: u64 = 1_000_000_000;

/// The report interval that is in force, in nanoseconds, and the one that the collector asks for.
fn intervals(agent: &Agent, lab: &Lab) -> [Value; 2] {
    let status = agent.status(&lab.agent);
    let output = outputs::output(agent, lab, "collector");
    [
        status["settings"]["report_interval_ns"].clone(),
        output["asked_report_interval_ns"].clone(),
    ]
}

fn wait_until_in_force(agent: &Agent, lab: &Lab, in_force: u64, asked: u64) {
    wait_until("the interval is in force", || {
        intervals(agent, lab) == [in_force, asked]
    });
}

#[test]
fn a_collector_that_wants_fewer_reports_gets_every_packet_in_fewer_records() {
    const TEST: &str =
        "agent::a_collector_that_wants_fewer_reports_gets_every_packet_in_fewer_records";
    const FLOWS: u16 = 10;
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let into = jsonl(folder.path());
    let asks = ["--output", &into, "--report-interval", "1h"];
    let first = Collector::start(&lab.agent, 0, &asks);
    let port = first.address.port();
    let output = to(&first, r#", "max_report_interval": "1h""#);
    let mut agent = Agent::start(&lab, &["--output", "json", "--output", &output]);
    // Every scan makes a batch, also without flows.
    wait_until_in_force(&agent, &lab, 3600 * SECOND, 3600 * SECOND);
    agent.wait_until_logged("a collector asks for fewer reports");
    let mut sent = agent_common::Pair::default();
    for _ in 0..5 {
        sent += send(&lab, FLOWS, 2);
        agent.wait_for_scans(&lab.agent, 2);
    }
    // The batch of the last of these scans is stored, too.
    let scanned = || pair(&first.status(&lab.agent)["streams"][0]["account"]["flows"]);
    wait_until("the scans are stored", || scanned() == sent);
    let records = &outputs::output(&agent, &lab, "collector")["sent"]["records"];
    assert_eq!(records, 0, "all of it waits for the interval");
    let stream = &first.status(&lab.agent)["streams"][0];
    assert_eq!(stream["report_interval_ns"], 3600 * SECOND, "{stream}");

    // While no collector answers, the last one's interval holds.
    first.kill();
    sent += send(&lab, FLOWS, 1);
    agent.wait_for_scans(&lab.agent, 3);
    assert_eq!(intervals(&agent, &lab), [3600 * SECOND; 2]);
    // This collector asks for nothing.
    let second = Collector::start(&lab.agent, port, &["--output", &into]);
    wait_until_in_force(&agent, &lab, 0, 0);
    sent += send(&lab, FLOWS, 1);
    wait_until_acknowledged(&agent, &lab, sent);
    let report = agent.stop();
    assert_eq!(report.seen(), sent);
    let was_asked = |account: &Value| account["report_interval_asked"] == true;
    assert!(report.accounts.iter().any(was_asked));
    assert!(!was_asked(report.last()));
    second.stop();
    let sums: Vec<_> = stored(&[folder.path()]).into_values().collect();
    assert_eq!(sums, [sent]);
    let lines = outputs::jsonl::lines(folder.path());
    let records = lines.iter().filter(|line| line["type"] == "flow").count();
    // Packets came seven times. One report may have the packets that waited, another one the last ones.
    let each = records / usize::from(FLOWS);
    assert!((1..=3).contains(&each), "{records} records");
}

#[test]
fn what_an_agents_settings_say_goes_before_what_a_collector_asks_for() {
    const TEST: &str = "agent::what_an_agents_settings_say_goes_before_what_a_collector_asks_for";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let into = jsonl(folder.path());
    let asks = ["--output", &into, "--report-interval", "10m"];
    let collector = Collector::start(&lab.agent, 0, &asks);
    let deaf = to(&collector, r#", "max_report_interval": "0s""#);
    let willing = to(&collector, "");
    // The settings, the interval in force, and whether a collector asked for it.
    let agents = [
        (vec!["--output", &deaf], [0, 0], false),
        (vec!["--output", &willing], [300 * SECOND; 2], true),
        (
            vec!["--output", &willing, "--report-interval", "1h"],
            [3600 * SECOND, 300 * SECOND],
            false,
        ),
    ];
    let agents = agents.map(|(settings, intervals, is_asked)| {
        let settings = [&["--output", "json"][..], &settings].concat();
        (Agent::start(&lab, &settings), intervals, is_asked)
    });
    for (agent, [in_force, asked], _) in &agents {
        wait_until_in_force(agent, &lab, *in_force, *asked);
    }
    wait_until("each has told what is in force", || {
        let status = collector.status(&lab.agent);
        let streams = status["streams"].as_array().unwrap().clone();
        let told = streams
            .iter()
            .map(|stream| stream["report_interval_ns"].as_u64());
        let mut told: Vec<_> = told.flatten().collect();
        told.sort_unstable();
        told == [0, 300 * SECOND, 3600 * SECOND]
    });
    let sent = send(&lab, 10, 3);
    for (agent, [in_force, _], is_asked) in agents {
        agent.wait_for_scans(&lab.agent, 2);
        let report = agent.stop();
        assert_eq!(report.seen(), sent);
        assert_eq!(report.last()["report_interval_ns"], in_force);
        assert_eq!(report.last()["report_interval_asked"], is_asked);
    }
    collector.stop();
    let sums: Vec<_> = stored(&[folder.path()]).into_values().collect();
    assert_eq!(sums, [sent; 3]);
}
