//! More new flows than the table has room for: with early scans none is lost, and without what is lost
//! is counted.

#![expect(
    clippy::unwrap_used,
    reason = "clippy takes only functions marked as tests for tests"
)]

mod support;

use std::{fs, net::Ipv4Addr, process::Stdio, thread, time::Duration};

use agent_common::Pair;
use lab::{Lab, privilege::is_root_or_skip};
use support::{Agent, Report, count, flow_agent, pair, wait_for_packets, wait_until};

/// As many flows of one frame each, at this pace at most: what a busy machine holds up is not made up
/// for.
struct Offer {
    flows: u32,
    per_second: u32,
}

const PAUSE: Duration = Duration::from_millis(5);

impl Offer {
    /// Returns the length of a frame.
    fn send(&self, lab: &Lab) -> usize {
        let socket = lab.peer.frame_socket().unwrap();
        let to = lab.agent.ipv4;
        let frames: Vec<_> = (0..self.flows)
            .map(|flow| {
                let from = Ipv4Addr::from_bits(Ipv4Addr::new(10, 1, 0, 0).to_bits() + flow / 1000);
                let frame = lab.peer.frame_v4(&lab.agent).between(from, to);
                frame.udp((flow % 1000) as u16 + 1, 53, &[0; 18]).unwrap()
            })
            .collect();
        let a_pause = self.per_second / (1000 / PAUSE.as_millis() as u32);
        for part in frames.chunks(a_pause as usize) {
            socket.send_many(part).unwrap();
            thread::sleep(PAUSE);
        }
        frames[0].len()
    }
}

/// What an agent with these settings says of the flows, and how many of its scans came early.
fn count_offer(offer: &Offer, settings: &[&str]) -> (Report, u64, usize) {
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, settings);
    let before = lab.agent.counters().unwrap();
    let frame_len_bytes = offer.send(&lab);
    wait_for_packets(&lab.agent, before, offer.flows.into());
    let status = agent.status(&lab.agent);
    let early = status["scans"]["early"].as_u64().unwrap();
    assert_eq!(status["scans"]["count"], early, "no interval was over");
    let seldom = agent.stderr().matches("it is drained early").count();
    assert!(
        seldom <= 2,
        "a line a scan would be too many: {}",
        agent.stderr()
    );
    (agent.stop(), early, frame_len_bytes)
}

fn none_is_lost(offer: &Offer, settings: &[&str], least_scans: u64) {
    let (report, early, frame_len_bytes) = count_offer(offer, settings);
    assert!(early >= least_scans, "{early} early scans");
    let frame = vec![0; frame_len_bytes];
    assert_eq!(report.seen(), count(offer.flows.into(), &frame));
    let one = [count(1, &frame), Pair::default()];
    let sums = report.sums();
    assert_eq!(sums.len(), offer.flows as usize, "{}", report.last());
    assert!(sums.values().all(|sum| *sum == one));
    for reason in ["table_full", "busy", "no_memory", "vanished", "refused"] {
        let refused = pair(&report.last()["not_inserted"][reason]);
        assert_eq!(refused, Pair::default(), "{reason}");
    }
}

#[test]
fn ten_tables_of_new_flows_in_one_interval_are_all_counted() {
    if is_root_or_skip("agent::ten_tables_of_new_flows_in_one_interval_are_all_counted") {
        let offer = Offer {
            flows: 40_960,
            per_second: 10_000,
        };
        let settings = ["--max-flows", "4096", "--scan-interval", "60s"];
        none_is_lost(&offer, &settings, 10);
    }
}

#[test]
fn four_tables_of_65536_new_flows_in_one_interval_are_all_counted() {
    if is_root_or_skip("agent::four_tables_of_65536_new_flows_in_one_interval_are_all_counted") {
        let offer = Offer {
            flows: 262_144,
            per_second: 100_000,
        };
        let settings = ["--max-flows", "65536", "--scan-interval", "60s"];
        none_is_lost(&offer, &settings, 4);
    }
}

/// A set takes its time to be made ready; the scans do not wait for it.
#[test]
fn a_large_set_of_rules_holds_up_no_scan() {
    const NETWORKS: u32 = 200_000;
    if !is_root_or_skip("agent::a_large_set_of_rules_holds_up_no_scan") {
        return;
    }
    let offer = Offer {
        flows: 81_920,
        per_second: 10_000,
    };
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules");
    // None of them is the traffic's.
    let networks: Vec<String> = (0..NETWORKS)
        .map(|number| Ipv4Addr::from_bits(0x6300_0000 + number * 2).to_string())
        .collect();
    fs::write(&rules, format!("exclude net {}", networks.join(","))).unwrap();
    let settings = ["--max-flows", "4096", "--scan-interval", "60s"];
    let agent = Agent::start(&lab, &settings);
    let before = lab.agent.counters().unwrap();
    let early = || agent.status(&lab.agent)["scans"]["early"].as_u64().unwrap();
    let scans = thread::scope(|scope| {
        let set = scope.spawn(|| {
            wait_until("the table fills", || early() > 0);
            let before = early();
            let mut set = flow_agent(&lab.agent);
            set.args(["filter", "set", "--connect", &agent.address(), "--file"]);
            assert!(
                set.arg(&rules)
                    .stdout(Stdio::null())
                    .status()
                    .unwrap()
                    .success()
            );
            early() - before
        });
        offer.send(&lab);
        set.join().unwrap()
    });
    assert!(scans > 0, "the set was there before a page filled");
    wait_for_packets(&lab.agent, before, offer.flows.into());
    let report = agent.stop();
    assert_eq!(report.sums().len(), offer.flows as usize);
    let refused = pair(&report.last()["not_inserted"]["table_full"]);
    assert_eq!(refused, Pair::default());
}

#[test]
fn without_early_scans_a_full_table_loses_and_counts_what_it_loses() {
    if !is_root_or_skip("agent::without_early_scans_a_full_table_loses_and_counts_what_it_loses") {
        return;
    }
    let offer = Offer {
        flows: 40_960,
        per_second: 100_000,
    };
    let settings = ["--max-flows", "4096", "--scan-interval", "60s"];
    let off = [&settings[..], &["--early-scan", "0"]].concat();
    let (report, early, frame_len_bytes) = count_offer(&offer, &off);
    let frame = vec![0; frame_len_bytes];
    assert_eq!(early, 0);
    assert_eq!(report.sums().len(), 4096);
    assert_eq!(report.seen(), count(40_960, &frame));
    let refused = pair(&report.last()["not_inserted"]["table_full"]);
    assert_eq!(refused, count(40_960 - 4096, &frame));
}

#[test]
fn a_page_that_is_full_at_its_mark_is_drained_all_the_same() {
    if !is_root_or_skip("agent::a_page_that_is_full_at_its_mark_is_drained_all_the_same") {
        return;
    }
    let offer = Offer {
        flows: 2000,
        per_second: 2000,
    };
    let settings = ["--max-flows", "10", "--scan-interval", "60s"];
    let settings = [&settings[..], &["--early-scan", "99"]].concat();
    let (report, early, frame_len_bytes) = count_offer(&offer, &settings);
    assert!(early > 2, "{early} early scans");
    assert_eq!(report.seen(), count(2000, &vec![0; frame_len_bytes]));
    assert!(report.sums().len() > 30);
}
