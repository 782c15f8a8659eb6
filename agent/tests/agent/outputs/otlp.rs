//! OTLP at receivers: every flow, the account, and the fate of refused flows.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use lab::Lab;
use opentelemetry_proto::tonic::{
    collector::{
        logs::v1::{ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse},
        metrics::v1::{
            ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
        },
    },
    common::v1::{KeyValue, any_value::Value as AttributeValue},
    metrics::v1::{metric::Data, number_data_point},
};
use prost::Message as _;
use receiver::{Answer, Receiver, Request};

use super::*;
use crate::support::Report;

mod collector;
pub mod receiver;
mod series;

fn number(attributes: &[KeyValue], key: &str) -> u64 {
    let found = attributes.iter().find(|one| one.key == key);
    let value = found.and_then(|one| one.value.clone()?.value);
    match value {
        Some(AttributeValue::IntValue(number)) => u64::try_from(number).unwrap(),
        other => panic!("{key}: {other:?}"),
    }
}

/// The attributes of each log record.
pub fn records(request: &Request) -> Vec<Vec<KeyValue>> {
    let request = ExportLogsServiceRequest::decode(&request.body[..]).unwrap();
    let records = request
        .resource_logs
        .into_iter()
        .flat_map(|one| one.scope_logs)
        .flat_map(|one| one.log_records);
    records.map(|record| record.attributes).collect()
}

/// What records report of both directions.
pub fn reported(records: &[Vec<KeyValue>]) -> Pair {
    let of = |attributes: &Vec<KeyValue>| Pair {
        packets: number(attributes, "flow.packets") + number(attributes, "flow.reverse.packets"),
        bytes: number(attributes, "flow.bytes") + number(attributes, "flow.reverse.bytes"),
    };
    records.iter().map(of).sum()
}

pub fn logs(requests: &[Request]) -> Vec<Vec<KeyValue>> {
    let logs = requests.iter().filter(|request| request.path == "/v1/logs");
    logs.flat_map(records).collect()
}

/// The sum of a metric's points in the last request that has it.
fn metric(requests: &[Request], name: &str) -> u64 {
    let mut last = None;
    for request in requests.iter().filter(|one| one.path == "/v1/metrics") {
        let request = ExportMetricsServiceRequest::decode(&request.body[..]).unwrap();
        for metric in &request.resource_metrics[0].scope_metrics[0].metrics {
            if metric.name != name {
                continue;
            }
            let Some(Data::Sum(sum)) = &metric.data else {
                panic!("{metric:?}")
            };
            let value = |value| match value {
                Some(number_data_point::Value::AsInt(number)) => u64::try_from(number).unwrap(),
                other => panic!("{other:?}"),
            };
            let points = sum.data_points.iter();
            last = Some(points.map(|point| value(point.value)).sum());
        }
    }
    last.unwrap_or_else(|| panic!("no metric is called {name}"))
}

fn address(receiver: &Receiver, more: &str) -> String {
    let port = receiver.port;
    format!(r#"{{"kind": "otlp", "address": "http://127.0.0.1:{port}", "protocol": "http"{more}}}"#)
}

fn start(lab: &Lab, receiver: &Receiver, more: &str) -> Agent {
    let output = address(receiver, more);
    Agent::start(lab, &["--output", "json", "--output", &output])
}

fn assert_account(requests: &[Request], report: &Report) {
    for unit in ["packets", "bytes"] {
        let of = |name: &str| metric(requests, &format!("flow.account.{name}.{unit}"));
        assert_eq!(of("seen"), of("fate"), "{unit}");
        let seen = report.last()["seen"][unit].as_u64();
        assert_eq!(Some(of("seen")), seen, "{unit}");
    }
    assert_eq!(metric(requests, "flow.output.lost.packets"), 0);
}

#[test]
fn a_receiver_has_every_flow_and_an_account_that_closes() {
    if !is_root_or_skip("agent::a_receiver_has_every_flow_and_an_account_that_closes") {
        return;
    }
    // With an hour between scans the last one alone counts anything, so the account has to be that of this scan.
    for (more, interval) in [(r#", "compression": "gzip""#, "100ms"), ("", "1h")] {
        let lab = Lab::quiet().unwrap();
        let receiver = Receiver::start(&lab, |_, _| Answer::ok());
        let output = address(&receiver, more);
        let settings = ["--output", "json", "--output", &output];
        let settings = [&settings[..], &["--scan-interval", interval]].concat();
        let agent = Agent::start(&lab, &settings);
        let (sent, report) = ipfix::traffic(&lab, agent);
        let requests = receiver.requests();
        let records = logs(&requests);
        assert_eq!(reported(&records), sent);
        assert_eq!(records.len(), report.flows.len());
        assert_account(&requests, &report);
        // The receiver is on this host.
        assert!(requests.iter().all(|one| one.is_gzip != more.is_empty()));
    }
}

#[test]
fn a_receiver_that_is_full_is_left_alone_as_long_as_it_asks() {
    if !is_root_or_skip("agent::a_receiver_that_is_full_is_left_alone_as_long_as_it_asks") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let receiver = Receiver::start(&lab, |_, number| match number {
        0 => Answer::status("503 Service Unavailable", "retry-after: 2\r\n"),
        1 => Answer::Hangup,
        2 => Answer::Garbage,
        _ => Answer::ok(),
    });
    // Without metrics, so that the first request is about flows.
    let mut agent = start(&lab, &receiver, r#", "metrics": false"#);
    let sent = send(&lab, 20, 1);
    wait_until_counted(&agent, &lab, sent.packets);
    wait_until("all is sent", || {
        fates(&output(&agent, &lab, "otlp"), sent)["sent"] == sent
    });
    agent.wait_until_logged("again");
    let log = agent.stop().log;
    let requests = receiver.requests();
    let waited = requests[1].at - requests[0].at;
    assert!(waited.as_secs() >= 2, "{waited:?}");
    // The same flows, until they are taken.
    assert_eq!(reported(&logs(&requests[3..])), sent);
    for request in &requests[..3] {
        assert!(reported(&records(request)).packets > 0);
    }
    assert_eq!(log.matches("cannot deliver flows to").count(), 1, "{log}");
    assert!(log.contains("HTTP 503"), "{log}");
}

#[test]
fn what_a_receiver_refuses_is_counted_and_what_it_does_not_know_is_not_sent_again() {
    if !is_root_or_skip(
        "agent::what_a_receiver_refuses_is_counted_and_what_it_does_not_know_is_not_sent_again",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    // It refuses two records of each request, or all, and knows no metrics.
    let receiver = Receiver::start(&lab, |request, _| {
        if request.path == "/v1/metrics" {
            return Answer::status("404 Not Found", "");
        }
        let partial = ExportLogsPartialSuccess {
            rejected_log_records: 2,
            error_message: "too late".to_owned(),
        };
        Answer::Ok(
            ExportLogsServiceResponse {
                partial_success: Some(partial),
            }
            .encode_to_vec(),
        )
    });
    let mut agent = start(&lab, &receiver, "");
    agent.wait_until_logged("trying metrics again in 1h");
    // All of one size, so the sum of any two of them is known.
    let sent = send(&lab, 20, 3);
    wait_until_counted(&agent, &lab, sent.packets);
    let each = Pair {
        packets: 3,
        bytes: sent.bytes / 20,
    };
    wait_until("all is answered", || {
        let output = output(&agent, &lab, "otlp");
        let fates = fates(&output, sent);
        if fates["queued"] != Pair::default() {
            return false;
        }
        let refused = output["refused"]["records"].as_u64().unwrap();
        let requests = receiver.requests();
        let expected: usize = requests
            .iter()
            .filter(|one| one.path == "/v1/logs")
            .map(|one| records(one).len().min(2))
            .sum();
        assert_eq!(refused, expected as u64);
        // Where a flow came in two parts its records are not of one size.
        let in_one = logs(&requests).len() == 20;
        if in_one {
            let of_refused = Pair {
                packets: each.packets * refused,
                bytes: each.bytes * refused,
            };
            assert_eq!(fates["refused"], of_refused);
        }
        output["last_error"].as_str().unwrap().contains("too late")
    });
    let log = agent.stop().log;
    assert_eq!(log.matches("takes no metrics").count(), 1, "{log}");
    let requests = receiver.requests();
    let asked = requests.iter().filter(|one| one.path == "/v1/metrics");
    assert_eq!(asked.count(), 1);
}

#[test]
fn what_a_receiver_says_again_and_again_is_told_once() {
    if !is_root_or_skip("agent::what_a_receiver_says_again_and_again_is_told_once") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    // It refuses one record of a request, accepts the next request, and warns about the one after that.
    let asked = AtomicUsize::new(0);
    let receiver = Receiver::start(&lab, move |request, _| {
        if request.path == "/v1/metrics" {
            let partial = ExportMetricsPartialSuccess {
                rejected_data_points: 3,
                error_message: "no room for points".to_owned(),
            };
            let answer = ExportMetricsServiceResponse {
                partial_success: Some(partial),
            };
            return Answer::Ok(answer.encode_to_vec());
        }
        let (refused, said) = match asked.fetch_add(1, Relaxed) % 3 {
            0 => (1, "too late"),
            1 => return Answer::ok(),
            _ => (0, "nearly full"),
        };
        let partial = ExportLogsPartialSuccess {
            rejected_log_records: refused,
            error_message: said.to_owned(),
        };
        let answer = ExportLogsServiceResponse {
            partial_success: Some(partial),
        };
        Answer::Ok(answer.encode_to_vec())
    });
    let agent = start(&lab, &receiver, "");
    let asked = |path| {
        let requests = receiver.requests();
        requests.iter().filter(|one| one.path == path).count()
    };
    let mut sent = Pair::default();
    while asked("/v1/logs") < 9 || asked("/v1/metrics") < 3 {
        sent += send(&lab, 20, 1);
        wait_until_counted(&agent, &lab, sent.packets);
        wait_until("all is answered", || {
            let fates = fates(&output(&agent, &lab, "otlp"), sent);
            fates["sent"] + fates["refused"] == sent
        });
    }
    wait_until("each refusal is counted once", || {
        output(&agent, &lab, "otlp")["refused"]["records"] == asked("/v1/logs").div_ceil(3)
    });
    let log = agent.stop().log;
    for once in [
        "refuses flows: too late; refused records are counted",
        "takes flows, but warns: nearly full; ",
        "but warns: it refuses 3 points: no room for points; ",
    ] {
        assert_eq!(log.matches(once).count(), 1, "{log}");
    }
    assert!(!log.contains("delivering flows to"), "{log}");
}

#[test]
fn a_receiver_that_takes_metrics_alone_is_told_of_once_and_stays_failing() {
    if !is_root_or_skip(
        "agent::a_receiver_that_takes_metrics_alone_is_told_of_once_and_stays_failing",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let receiver = Receiver::start(&lab, |request, _| {
        if request.path == "/v1/metrics" {
            return Answer::Ok(Vec::new());
        }
        Answer::status("400 Bad Request", "")
    });
    let agent = start(&lab, &receiver, "");
    let mut sent = Pair::default();
    for _ in 0..3 {
        sent += send(&lab, 20, 3);
        wait_until("all is refused, and metrics are taken", || {
            let taken = |path| {
                let requests = receiver.requests();
                requests.iter().filter(|one| one.path == path).count()
            };
            let before = taken("/v1/metrics");
            agent.wait_for_scans(&lab.agent, 2);
            let output = output(&agent, &lab, "otlp");
            taken("/v1/metrics") > before
                && output["refused"]["packets"] == sent.packets
                && output["failing"] == true
        });
    }
    let log = agent.stop().log;
    assert_eq!(log.matches("refuses flows").count(), 1, "{log}");
    assert!(!log.contains("delivering flows to"), "{log}");
}

#[test]
fn a_receiver_that_hangs_holds_up_neither_scans_nor_the_end() {
    if !is_root_or_skip("agent::a_receiver_that_hangs_holds_up_neither_scans_nor_the_end") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let receiver = Receiver::start(&lab, |_, _| Answer::Hang);
    let agent = start(&lab, &receiver, "");
    let sent = send(&lab, 20, 1);
    // Scans go on.
    wait_until_counted(&agent, &lab, sent.packets);
    agent.wait_for_scans(&lab.agent, 3);
    let queued = fates(&output(&agent, &lab, "otlp"), sent)["queued"];
    assert_eq!(queued, sent);
    let report = agent.stop();
    assert_eq!(report.seen(), sent);
    let lost = format!("lost_packets={}", sent.packets);
    assert!(report.log.contains(&lost), "{}", report.log);
}
