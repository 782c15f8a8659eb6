//! More new flows than the table has room for: with early scans none may be lost, and without them the lost
//! ones must be counted.

use std::{
    collections::BTreeMap, fs, net::Ipv4Addr, ops::Range, process::Stdio, thread, time::Instant,
};

use agent_common::Pair;
use lab::{Lab, privilege::is_root_or_skip};
use serde_json::Value;

use crate::support::{Agent, Both, count, flow_agent, pair, wait_for_packets, wait_until};

/// Sends flows of one frame each, `at_once` at a time, however long the machine takes for them.
struct Offer {
    flows: u32,
    at_once: u32,
    next: Next,
}

/// When to send the next ones.
#[derive(Clone, Copy)]
enum Next {
    /// When at most this many flows are left in the kernel's table.
    WithLeft(u32),
    /// When another early scan was logged.
    AfterAScan,
}

/// How many flows a page may hold without an early scan: the mark of 50 %, plus what the CPUs count
/// privately, which is at most an eighth of that.
const fn without_a_scan(max_flows: u32) -> u32 {
    max_flows / 16 * 9
}

/// How many flows fit into a page besides [`without_a_scan`].
const fn beside(max_flows: u32) -> u32 {
    max_flows / 8 * 3
}

impl Offer {
    /// Returns the length of a frame.
    fn send(&self, lab: &Lab, agent: &Agent) -> usize {
        let mut frame_len_bytes = 0;
        let mut sent = 0;
        while sent < self.flows {
            let before = early_scans(lab, agent);
            let next = self.flows.min(sent + self.at_once);
            frame_len_bytes = send(lab, sent..next);
            sent = next;
            match self.next {
                Next::WithLeft(most) => wait_for_room(lab, agent, sent, most),
                Next::AfterAScan => wait_until("a page is drained early", || {
                    early_scans(lab, agent) > before
                }),
            }
        }
        frame_len_bytes
    }
}

/// Waits until at most `most` of the flows that were sent are left in the kernel's table. The status may lag,
/// but never says too much.
fn wait_for_room(lab: &Lab, agent: &Agent, sent: u32, most: u32) {
    wait_until("early scans make room", || {
        let drained = &agent.status(&lab.agent)["account"]["flows"]["packets"];
        u64::from(sent) - drained.as_u64().unwrap() <= u64::from(most)
    });
}

/// Sends a frame of each of these flows. Returns its length.
fn send(lab: &Lab, flows: Range<u32>) -> usize {
    let to = lab.agent.ipv4;
    let frames: Vec<_> = flows
        .map(|flow| {
            let from = Ipv4Addr::from_bits(Ipv4Addr::new(10, 1, 0, 0).to_bits() + flow / 1000);
            let frame = lab.peer.frame_v4(&lab.agent).between(from, to);
            frame.udp((flow % 1000) as u16 + 1, 53, &[0; 18]).unwrap()
        })
        .collect();
    lab.peer.frame_socket().unwrap().send_many(&frames).unwrap();
    frames[0].len()
}

fn early_scans(lab: &Lab, agent: &Agent) -> u64 {
    agent.status(&lab.agent)["scans"]["early"].as_u64().unwrap()
}

/// A summary of an agent's report: all of its records would take gigabytes.
struct Counted {
    account: Value,
    sums: BTreeMap<String, Both>,
}

impl Counted {
    fn by(agent: Agent) -> Self {
        let (mut accounts, sums) = agent.stop_and_sum();
        let account = accounts.pop().expect("an account");
        Self { account, sums }
    }

    fn seen(&self) -> Pair {
        pair(&self.account["seen"])
    }

    fn refused(&self, reason: &str) -> Pair {
        pair(&self.account["not_inserted"][reason])
    }
}

/// Runs an agent with these settings on the offer. Returns what it counted, how many of its scans came early, and
/// the length of a frame.
fn count_offer(offer: &Offer, settings: &[&str]) -> (Counted, u64, usize) {
    let lab = Lab::quiet().unwrap();
    let begin = Instant::now();
    let agent = Agent::start(&lab, settings);
    let before = lab.agent.counters().unwrap();
    let frame_len_bytes = offer.send(&lab, &agent);
    wait_for_packets(&lab.agent, before, offer.flows.into());
    let status = agent.status(&lab.agent);
    let early = status["scans"]["early"].as_u64().unwrap();
    assert_eq!(status["scans"]["count"], early, "no interval was over");
    let told = agent.stderr().matches("it is drained early").count() as u64;
    // At most one in ten seconds.
    let most = begin.elapsed().as_secs() / 10 + 1;
    assert!(
        told <= most,
        "a line a scan would be too many: {}",
        agent.stderr()
    );
    (Counted::by(agent), early, frame_len_bytes)
}

fn none_is_lost(offer: &Offer, settings: &[&str], least_scans: u64) {
    let (report, early, frame_len_bytes) = count_offer(offer, settings);
    assert!(early >= least_scans, "{early} early scans");
    let frame = vec![0; frame_len_bytes];
    assert_eq!(report.seen(), count(offer.flows.into(), &frame));
    let one = [count(1, &frame), Pair::default()];
    let flows = report.sums.len();
    assert_eq!(flows, offer.flows as usize, "{}", report.account);
    assert!(report.sums.values().all(|sum| *sum == one));
    for reason in ["table_full", "busy", "no_memory", "vanished", "refused"] {
        assert_eq!(report.refused(reason), Pair::default(), "{reason}");
    }
}

#[test]
fn ten_tables_of_new_flows_in_one_interval_are_all_counted() {
    if is_root_or_skip("agent::ten_tables_of_new_flows_in_one_interval_are_all_counted") {
        let offer = Offer {
            flows: 40_960,
            at_once: beside(4096),
            next: Next::WithLeft(without_a_scan(4096)),
        };
        let settings = ["--max-flows", "4096", "--scan-interval", "1h"];
        none_is_lost(&offer, &settings, 10);
    }
}

#[test]
fn four_tables_of_65536_new_flows_in_one_interval_are_all_counted() {
    if is_root_or_skip("agent::four_tables_of_65536_new_flows_in_one_interval_are_all_counted") {
        let offer = Offer {
            flows: 262_144,
            at_once: beside(65_536),
            next: Next::WithLeft(without_a_scan(65_536)),
        };
        // A page that has to grow first has room for fewer flows at once.
        let settings = ["--max-flows", "65536", "--min-flows", "65536"];
        none_is_lost(
            &offer,
            &[&settings[..], &["--scan-interval", "1h"]].concat(),
            4,
        );
    }
}

/// Preparing a large set takes long, and the scans must not wait for it.
#[test]
fn a_large_set_of_rules_holds_up_no_scan() {
    const NETWORKS: u32 = 200_000;
    if !is_root_or_skip("agent::a_large_set_of_rules_holds_up_no_scan") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules");
    // None of them matches the traffic.
    let networks: Vec<String> = (0..NETWORKS)
        .map(|number| Ipv4Addr::from_bits(0x6300_0000 + number * 2).to_string())
        .collect();
    fs::write(&rules, format!("exclude net {}", networks.join(","))).unwrap();
    let settings = ["--max-flows", "4096", "--scan-interval", "1h"];
    let agent = Agent::start(&lab, &settings);
    let before = lab.agent.counters().unwrap();
    let early = || early_scans(&lab, &agent);
    let mut flows = 0;
    let scans = thread::scope(|scope| {
        let set = scope.spawn(|| {
            wait_until("the table fills", || early() > 0);
            let before = early();
            let mut set = flow_agent(&lab.agent);
            set.args(["filter", "set", "--connect", &agent.address(), "--file"]);
            set.arg(&rules).stdout(Stdio::null());
            assert!(set.status().unwrap().success());
            early() - before
        });
        while !set.is_finished() {
            send(&lab, flows..flows + beside(4096));
            flows += beside(4096);
            wait_for_room(&lab, &agent, flows, without_a_scan(4096));
        }
        set.join().unwrap()
    });
    // One that was held up could come once the set is there.
    assert!(scans > 2, "{scans} scans while the set was made ready");
    wait_for_packets(&lab.agent, before, flows.into());
    let report = Counted::by(agent);
    assert_eq!(report.sums.len(), flows as usize);
    assert_eq!(report.refused("table_full"), Pair::default());
}

#[test]
fn without_early_scans_a_full_table_loses_and_counts_what_it_loses() {
    if !is_root_or_skip("agent::without_early_scans_a_full_table_loses_and_counts_what_it_loses") {
        return;
    }
    let offer = Offer {
        flows: 40_960,
        at_once: 40_960,
        next: Next::WithLeft(40_960),
    };
    let settings = ["--max-flows", "4096", "--scan-interval", "1h"];
    let off = [&settings[..], &["--early-scan", "0"]].concat();
    let (report, early, frame_len_bytes) = count_offer(&offer, &off);
    let frame = vec![0; frame_len_bytes];
    assert_eq!(early, 0);
    let kept = report.sums.len() as u64;
    assert!((4096..8192).contains(&kept), "{kept}");
    assert_eq!(report.seen(), count(40_960, &frame));
    assert_eq!(report.refused("table_full"), count(40_960 - kept, &frame));
}

#[test]
fn a_page_that_is_full_at_its_mark_is_drained_all_the_same() {
    if !is_root_or_skip("agent::a_page_that_is_full_at_its_mark_is_drained_all_the_same") {
        return;
    }
    let offer = Offer {
        flows: 2000,
        at_once: 100,
        next: Next::AfterAScan,
    };
    let settings = ["--max-flows", "10", "--scan-interval", "1h"];
    let settings = [&settings[..], &["--early-scan", "99"]].concat();
    let (report, early, frame_len_bytes) = count_offer(&offer, &settings);
    assert!(early > 2, "{early} early scans");
    assert_eq!(report.seen(), count(2000, &vec![0; frame_len_bytes]));
    assert!(report.sums.len() > 30);
}
