//! Tests that nothing is lost or counted twice while packets on two CPUs and scans race continuously. The programs
//! pause between their steps (`agent-ebpf/src/pause.rs`).

#![expect(
    clippy::unwrap_used,
    reason = "clippy takes only functions marked as tests for tests"
)]

mod runs;
mod senders;
#[path = "../../../../agent/tests/agent/support/mod.rs"]
mod support;

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use agent_common::Pair;
use lab::{
    AtEnd, Lab, pin_to,
    privilege::{is_root_or_skip, skip},
};
use runs::{Counting, Runs};
use support::{Agent, Both, GENERIC_XDP, NATIVE_XDP, count, name, wait_for_packets, wait_until};

const CPUS: [usize; 2] = [0, 1];

fn can_race_or_skip(test: &str) -> bool {
    let can_race = thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= CPUS.len());
    if !can_race {
        skip(test, "two CPUs are needed");
    }
    can_race && is_root_or_skip(test)
}

/// One frame for each flow.
fn frames(lab: &Lab, flows: u16) -> Vec<Vec<u8>> {
    let frame = lab.peer.frame_v4(&lab.agent);
    let frame = |port| frame.udp(port, 53, &[0; 18]).unwrap();
    (1..=flows).map(frame).collect()
}

/// Serializes the loads, since each keeps every CPU busy.
static LOAD: Mutex<()> = Mutex::new(());

/// Sends the frames repeatedly on these CPUs while `meanwhile` runs. Returns how often all of them were sent.
fn under_full_load(lab: &Lab, cpus: &[usize], frames: &[Vec<u8>], meanwhile: impl FnOnce()) -> u64 {
    let _alone = LOAD.lock().unwrap_or_else(PoisonError::into_inner);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let send = |cpu| {
            let (is_over, socket) = (&is_over, lab.peer.frame_socket().unwrap());
            scope.spawn(move || {
                pin_to(cpu).unwrap();
                let mut rounds = 0;
                while !is_over.load(Ordering::Relaxed) {
                    socket.send_many(frames).unwrap();
                    rounds += 1;
                }
                rounds
            })
        };
        let senders: Vec<_> = cpus.iter().map(|&cpu| send(cpu)).collect();
        let over = AtEnd(|| is_over.store(true, Ordering::Relaxed));
        meanwhile();
        drop(over);
        let rounds = senders.into_iter().map(|sender| sender.join().unwrap());
        rounds.sum()
    })
}

/// Sends a frame for each flow on two CPUs at once, within one scan window. Returns the number of entries in the scan.
fn new_flows_on_two_cpus(settings: &[&str], flows: u16) -> u64 {
    let lab = Lab::quiet().unwrap();
    // A single scan window, so that each flow begins once.
    let agent = Agent::start(&lab, &[settings, &["--scan-interval", "60s"]].concat());
    let before = lab.agent.counters().unwrap();
    let frames = frames(&lab, flows);
    thread::scope(|scope| {
        for cpu in CPUS {
            let (frames, socket) = (&frames, lab.peer.frame_socket().unwrap());
            scope.spawn(move || {
                pin_to(cpu).unwrap();
                socket.send_many(frames).unwrap();
            });
        }
    });
    wait_for_packets(&lab.agent, before, 2 * u64::from(flows));
    let report = agent.stop();
    assert_eq!(report.seen(), count(2 * u64::from(flows), &frames[0]));
    let sums = report.sums();
    assert_eq!(sums.len(), usize::from(flows));
    let both: Both = [count(2, &frames[0]), Pair::default()];
    assert!(sums.values().all(|sum| *sum == both));
    report.last()["table_occupancy"].as_u64().unwrap()
}

/// The pauses make each CPU meet slots that the other one has claimed, so that some flows get two entries. A scan
/// merges these before it passes them on.
#[test]
fn two_cpus_that_bring_the_same_new_flows_at_once_make_one_entry_of_each() {
    const FLOWS: u16 = 500;
    if can_race_or_skip(
        "races::two_cpus_that_bring_the_same_new_flows_at_once_make_one_entry_of_each",
    ) {
        assert_eq!(new_flows_on_two_cpus(&[], FLOWS), u64::from(FLOWS));
    }
}

/// At least half of the flows go to the map behind the slots, which has room for all.
#[test]
fn two_cpus_that_bring_the_same_new_flows_to_a_full_page_are_both_counted() {
    if can_race_or_skip(
        "races::two_cpus_that_bring_the_same_new_flows_to_a_full_page_are_both_counted",
    ) {
        new_flows_on_two_cpus(&["--max-flows", "1", "--early-scan", "0"], 16);
    }
}

/// Most flips happen while each CPU's program is between two of its steps. [`Agent::stop`] compares every scan's
/// account with the drained counts.
#[test]
fn every_account_closes_while_programs_are_on_their_way_at_each_flip() {
    const FLOWS: u16 = 50;
    const SCANS: u64 = 150;
    if !can_race_or_skip("races::every_account_closes_while_programs_are_on_their_way_at_each_flip")
    {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--scan-interval", "10ms"]);
    let before = lab.agent.counters().unwrap();
    let frames = frames(&lab, FLOWS);
    let rounds = under_full_load(&lab, &CPUS, &frames, || {
        wait_until("enough scans", || {
            agent.status(&lab.agent)["scans"]["count"].as_u64() >= Some(SCANS)
        });
    });
    let packets = rounds * u64::from(FLOWS);
    wait_for_packets(&lab.agent, before, packets);
    let report = agent.stop();
    assert_eq!(report.seen(), count(packets, &frames[0]));
    let (src, dst) = (lab.peer.ipv4.to_string(), lab.agent.ipv4.to_string());
    let sums = report.sums();
    for port in 1..=FLOWS {
        let flow = name("[]", 17, (&src, port.into()), (&dst, 53));
        assert_eq!(sums[&flow], [count(rounds, &frames[0]), Pair::default()]);
    }
    assert_eq!(sums.len(), usize::from(FLOWS));
}

/// Windows are replaced while each CPU's program is between two of its steps on the other page.
#[test]
fn pages_that_grow_and_shrink_under_full_load_lose_nothing() {
    const FLOWS: u16 = 50;
    const ROUNDS: usize = 8;
    // The room in one window.
    const LEAST_ROOM: u64 = 6;
    if !can_race_or_skip("races::pages_that_grow_and_shrink_under_full_load_lose_nothing") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let settings = ["--min-flows", "1", "--scan-interval", "30ms"];
    let agent = Agent::start(&lab, &settings);
    let room = || agent.status(&lab.agent)["table"]["room"].as_u64().unwrap();
    let before = lab.agent.counters().unwrap();
    let frames = frames(&lab, FLOWS);
    let mut rounds = 0;
    for _ in 0..ROUNDS {
        wait_until("pages have shrunk", || room() == LEAST_ROOM);
        rounds += under_full_load(&lab, &CPUS, &frames, || {
            wait_until("pages have grown", || room() > LEAST_ROOM);
        });
    }
    let packets = rounds * u64::from(FLOWS);
    wait_for_packets(&lab.agent, before, packets);
    let report = agent.stop();
    assert_eq!(report.seen(), count(packets, &frames[0]));
    let sums = report.sums();
    assert_eq!(sums.len(), usize::from(FLOWS));
    let each = [count(rounds, &frames[0]), Pair::default()];
    assert!(sums.values().all(|sum| *sum == each));
}

/// Compares with the kernel's count of the programs' runs, which includes packets that are missing from every account.
fn an_end_loses_no_packet(settings: &[&str], ends: usize) {
    let lab = Lab::quiet().unwrap();
    let _counting = Counting::begin();
    let frames = frames(&lab, 50);
    under_full_load(&lab, &CPUS[1..], &frames, || {
        for end in 1..=ends {
            let mut agent = Agent::start(&lab, settings);
            let runs = Runs::of(agent.pid());
            wait_until("the programs run", || runs.count() > 100);
            let report = agent.stop();
            assert_eq!(report.seen().packets, runs.count(), "end {end} of {ends}");
        }
    });
}

#[test]
fn no_end_of_clsact_under_full_load_loses_a_packet() {
    if can_race_or_skip("races::no_end_of_clsact_under_full_load_loses_a_packet") {
        // The kernel does not wait for running programs when it removes a filter.
        let settings = ["--tc-attach", "clsact", "--direction", "ingress"];
        an_end_loses_no_packet(&settings, 8);
    }
}

#[test]
fn no_end_of_generic_xdp_under_full_load_loses_a_packet() {
    if can_race_or_skip("races::no_end_of_generic_xdp_under_full_load_loses_a_packet") {
        an_end_loses_no_packet(&[GENERIC_XDP, &["--direction", "ingress"]].concat(), 2);
    }
}

#[test]
fn no_end_of_native_xdp_under_full_load_loses_a_packet() {
    if can_race_or_skip("races::no_end_of_native_xdp_under_full_load_loses_a_packet") {
        an_end_loses_no_packet(&[NATIVE_XDP, &["--direction", "ingress"]].concat(), 4);
    }
}

#[test]
fn no_end_of_tcx_under_full_load_loses_a_packet() {
    if can_race_or_skip("races::no_end_of_tcx_under_full_load_loses_a_packet") {
        an_end_loses_no_packet(&["--direction", "ingress"], 4);
    }
}
