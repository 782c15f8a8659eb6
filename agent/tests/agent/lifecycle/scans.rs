//! The status of the scans and of the table that they drain.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use agent_common::Pair;
use lab::{Lab, privilege::is_root_or_skip};

use crate::support::{Agent, Report, count, pair, patience, wait_for_packets, wait_until};

#[test]
fn the_status_tells_what_the_scans_found_and_took() {
    const FLOWS: u16 = 30;
    if !is_root_or_skip("agent::the_status_tells_what_the_scans_found_and_took") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let rules = "exclude dst port 9; exclude dst port 10";
    let agent = Agent::start(&lab, &["--max-flows", "1000", "--filter", rules]);
    let frame = lab.peer.frame_v4(&lab.agent);
    let frames = (1..=FLOWS).map(|port| frame.udp(port, 53, &[0; 18]).unwrap());
    let socket = lab.peer.frame_socket().unwrap();
    socket.send_many(frames).unwrap();
    let status = || agent.status(&lab.agent);
    wait_until("all are counted", || {
        status()["account"]["flows"]["packets"] == FLOWS
    });
    let (first, second) = (status(), {
        agent.wait_for_scans(&lab.agent, 2);
        status()
    });
    agent.stop();

    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    assert_eq!(first["settings"]["max_flows"], 1000);
    assert_eq!(first["settings"]["filter_rules"], 2);
    assert_eq!(first["table"]["capacity"], 1000);
    // Scans may have come while they arrived.
    assert!((1..=u64::from(FLOWS)).contains(&number(&first["table"]["high_water"])));
    assert!(number(&first["memory"]["kernel_map_bytes"]) > 100_000);
    let scans = [first, second].map(|status| status["scans"].clone());
    for scan in &scans {
        let [took, waited] = ["last_duration_ns", "last_flip_wait_ns"].map(|of| number(&scan[of]));
        // A flip always waits longer than that, and so does a drain.
        assert!(waited > 10 && took > waited + 10, "{scan}");
    }
    let [before, after] = scans.map(|scan| number(&scan["cpu_ns"]));
    assert!(0 < before && before < after, "{before} {after}");
}

#[test]
fn a_flow_that_goes_on_is_reported_when_the_interval_is_over_and_at_its_end() {
    if !is_root_or_skip(
        "agent::a_flow_that_goes_on_is_reported_when_the_interval_is_over_and_at_its_end",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 53, &[0; 18]);
    let frame = frame.unwrap();
    // By the interval, and how many records there are of five scans that counted something.
    let records = |interval: &str| -> Report {
        let agent = Agent::start(&lab, &["--report-interval", interval]);
        for packets in 1..=5 {
            lab.peer.frame_socket().unwrap().send(&frame).unwrap();
            wait_until("it is counted", || {
                pair(&agent.status(&lab.agent)["account"]["flows"]).packets == packets
            });
        }
        agent.stop()
    };
    let at_once = records("0s");
    // The last one ends it.
    assert_eq!(at_once.flows.len(), 5 + 1);
    let late = records("1h");
    assert_eq!(late.flows.len(), 1);
    for report in [at_once, late] {
        let [(_, [forward, _])] = report.sums().into_iter().collect::<Vec<_>>()[..] else {
            panic!("{:?}", report.flows)
        };
        assert_eq!(
            (report.seen(), forward),
            (count(5, &frame), count(5, &frame))
        );
    }
}

/// A filling page is drained early, and each time many continuing flows have new counts.
#[test]
fn early_scans_make_no_more_records_of_flows_that_go_on() {
    const FLOWS: u16 = 5000;
    /// Fewer than all flows fill half of it.
    const MAX_FLOWS: u16 = 8000;
    const ROUNDS: u64 = 6;
    if !is_root_or_skip("agent::early_scans_make_no_more_records_of_flows_that_go_on") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let to_agent = lab.peer.frame_v4(&lab.agent);
    let frames: Vec<_> = (1..=FLOWS)
        .map(|port| to_agent.udp(port, 53, &[0; 18]).unwrap())
        .collect();
    let report = |interval: &str| {
        let max_flows = MAX_FLOWS.to_string();
        let settings = [
            ["--max-flows", &max_flows],
            ["--scan-interval", "1h"],
            ["--report-interval", interval],
        ];
        let agent = Agent::start(&lab, settings.as_flattened());
        for round in 1..=ROUNDS {
            let socket = lab.peer.frame_socket().unwrap();
            socket.send_many(&frames).unwrap();
            wait_until("a page is drained early", || {
                agent.status(&lab.agent)["scans"]["early"].as_u64() >= Some(round)
            });
        }
        agent.stop()
    };
    let at_once = report("0s");
    let each_scan = usize::from(MAX_FLOWS / 2);
    let records = at_once.flows.len();
    assert!(records >= each_scan * ROUNDS as usize, "{records}");
    let late = report("1h");
    assert_eq!(late.flows.len(), usize::from(FLOWS));
    for report in [&at_once, &late] {
        assert_eq!(report.seen(), count(ROUNDS * u64::from(FLOWS), &frames[0]));
    }
    assert_eq!(at_once.sums(), late.sums());
}

#[test]
fn an_agent_that_is_stopped_in_the_middle_of_scans_loses_nothing() {
    const FLOWS: u16 = 8000;
    const STOP: Duration = Duration::from_millis(600);
    /// Buckets of the histogram above 0.5 s.
    const LONG: usize = 9;
    if !is_root_or_skip("agent::an_agent_that_is_stopped_in_the_middle_of_scans_loses_nothing") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    // Otherwise most of the time would go into records.
    let agent = Agent::start(&lab, &["--report-interval", "1h"]);
    let before = lab.agent.counters().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    let frames: Vec<_> = (1..=FLOWS)
        .map(|port| frame.udp(port, 53, &[0; 18]).unwrap())
        .collect();
    let goes_on = AtomicBool::new(true);
    let rounds = thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let socket = lab.peer.frame_socket().unwrap();
            let mut rounds = 0;
            let begin = Instant::now();
            while goes_on.load(Ordering::Relaxed) && begin.elapsed() < patience() {
                socket.send_many(&frames).unwrap();
                rounds += 1;
                thread::sleep(Duration::from_millis(50));
            }
            rounds
        });
        wait_until("three scans are stopped", || {
            agent.signal(libc::SIGSTOP);
            thread::sleep(STOP);
            agent.signal(libc::SIGCONT);
            let status = agent.status(&lab.agent);
            let took = status["scans"]["durations"]["counts"].as_array().unwrap();
            let long = took[LONG..].iter().map(|count| count.as_u64().unwrap());
            long.sum::<u64>() >= 3
        });
        goes_on.store(false, Ordering::Relaxed);
        sender.join().unwrap()
    });
    wait_for_packets(&lab.agent, before, rounds * u64::from(FLOWS));
    let (_, sums) = agent.stop_and_sum();
    assert_eq!(sums.len(), usize::from(FLOWS));
    let expected = [count(rounds, &frames[0]), Pair::default()];
    for (flow, sum) in sums {
        assert_eq!(sum, expected, "{flow}");
    }
}
