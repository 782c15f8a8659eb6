//! The clock is set while the agent runs.

use std::sync::atomic::Ordering::Relaxed;

use lab::{
    FrameSocket, Lab,
    privilege::{is_root_or_skip, is_virtual_machine_or_skip},
};
use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};

use crate::{
    outputs::{collector::Store, spool},
    support::{Agent, Report, count, unix_ns_of, wait_for_packets, wait_until},
};

const HOUR_S: i64 = 3600;
const HOUR_NS: u64 = HOUR_S.cast_unsigned() * 1_000_000_000;
const TOLD: &str = "clock was set";

/// Only a virtual machine has its own clock.
#[test]
fn a_clock_that_is_set_is_told_and_no_packet_is_lost() {
    const TEST: &str = "agent::a_clock_that_is_set_is_told_and_no_packet_is_lost";
    if !is_virtual_machine_or_skip(TEST, "sets the clock") || !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    for hours in [1, -1] {
        let agent = Agent::start(&lab, &["--scan-interval", "500ms", "--idle-timeout", "1h"]);
        assert_follows_the_clock(&lab, agent, hours, wait_until_told, || ());
        // Before the first scan.
        let agent = Agent::start(&lab, &["--scan-interval", "1d", "--idle-timeout", "1d"]);
        assert_follows_the_clock(&lab, agent, hours, |_| (), || ());
    }
    // Batches on disk reach the collector, too.
    for hours in [1, -1] {
        let spool = tempfile::tempdir().unwrap();
        let spool = spool.path().join("spool");
        let store = Store::default();
        store.is_away.store(true, Relaxed);
        let setting = spool::setting(store.listen(&lab), &spool);
        let settings = ["--scan-interval", "500ms", "--idle-timeout", "1h"];
        let outputs = ["--output", "json", "--output", &setting];
        let agent = Agent::start(&lab, &[settings, outputs].concat());
        let wait = |agent: &Agent| {
            wait_until_told(agent);
            store.is_away.store(false, Relaxed);
        };
        // At shutdown it would have five seconds for that.
        let arrive = || wait_until("all is there", || store.records().packets == 20);
        assert_follows_the_clock(&lab, agent, hours, wait, arrive);
        assert_eq!((store.records().packets, store.lost().packets), (20, 0));
    }
}

fn wait_until_told(agent: &Agent) {
    wait_until("it is told", || agent.stderr().contains(TOLD));
}

/// Sets the clock by `hours` while the agent counts, lets more be counted after `wait`, and ends it after `arrive`.
fn assert_follows_the_clock(
    lab: &Lab,
    agent: Agent,
    hours: i64,
    wait: impl Fn(&Agent),
    arrive: impl Fn(),
) {
    let frame = lab
        .peer
        .frame_v4(&lab.agent)
        .udp(1, 2, b"before and after")
        .unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    let before_ns = unix_ns();
    send(lab, &socket, &frame);
    set_by(hours);
    wait(&agent);
    send(lab, &socket, &frame);
    let status = agent.status(&lab.agent);
    arrive();
    agent.signal(libc::SIGTERM);
    wait_until_told(&agent);
    let log = agent.stderr();
    let report = agent.ended();

    assert_eq!(report.seen(), count(20, &frame));
    let flows: u64 = of(&report, "packets").iter().sum();
    assert_eq!(flows, 20, "{:?}", report.flows);
    // A scan may have reported the first packets before.
    let then_ns = before_ns.strict_add_signed(hours * HOUR_NS.cast_signed());
    let half_an_hour_later_ns = then_ns + HOUR_NS / 2;
    let last_seen_ns = unix_ns_of(&report.flows.last().unwrap()["last_seen"]);
    let is_after = (then_ns..half_an_hour_later_ns).contains(&last_seen_ns);
    assert!(is_after, "{hours} h: {:?}", report.flows);
    // Between reading the clock and setting it the machine may have stood still.
    let about_then_ns = then_ns - HOUR_NS / 2..half_an_hour_later_ns;
    let first_seen_ns = unix_ns_of(&report.flows.last().unwrap()["first_seen"]);
    let is_moved = about_then_ns.contains(&first_seen_ns);
    assert!(is_moved, "{hours} h: {:?}", report.flows);
    for account in &report.accounts {
        let of = |edge: &str| unix_ns_of(&account[edge]);
        let window_ns = of("window_end") - of("window_start");
        assert!(window_ns < HOUR_NS / 2, "{account}");
    }
    let of = |field: &str| status[field].as_u64().unwrap();
    assert!(of("uptime_ns") < HOUR_NS / 2, "{status}");
    assert!(about_then_ns.contains(&of("started_unix_ns")), "{status}");
    let (_, seconds) = log.split_once(" seconds=").unwrap();
    let seconds: f64 = seconds.lines().next().unwrap().parse().unwrap();
    let expected = (hours * HOUR_S) as f64;
    assert!((seconds - expected).abs() < 60.0, "{log}");
    assert_eq!(log.matches(TOLD).count(), 1, "{log}");
}

fn send(lab: &Lab, socket: &FrameSocket, frame: &[u8]) {
    let before = lab.agent.counters().unwrap();
    socket.send_many((0..10).map(|_| frame)).unwrap();
    wait_for_packets(&lab.agent, before, 10);
}

fn of(report: &Report, field: &str) -> Vec<u64> {
    let flows = report.flows.iter();
    flows.map(|flow| flow[field].as_u64().unwrap()).collect()
}

fn unix_ns() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    let nanoseconds = now.tv_sec * 1_000_000_000 + now.tv_nsec;
    nanoseconds.cast_unsigned()
}

fn set_by(hours: i64) {
    let now = clock_gettime(ClockId::Realtime);
    let then = Timespec {
        tv_sec: now.tv_sec + hours * HOUR_S,
        ..now
    };
    clock_settime(ClockId::Realtime, then).unwrap();
}
