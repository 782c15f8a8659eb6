//! Unix time that is set while the agent runs.

use std::{env, time::Duration};

use lab::{
    FrameSocket, Lab, kernel,
    privilege::{is_root_or_skip, skip},
};
use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};

use crate::support::{Agent, Report, count, wait_for_packets, wait_until};

const HOUR: Duration = Duration::from_hours(1);

/// Only a virtual machine has a clock for itself.
#[test]
fn a_clock_that_is_set_is_told_and_no_packet_is_lost() {
    const TEST: &str = "agent::a_clock_that_is_set_is_told_and_no_packet_is_lost";
    if env::var_os(kernel::EMULATED).is_none() {
        return skip(
            TEST,
            "it sets the clock: `cargo xtask test-kernels` runs it in a virtual machine",
        );
    }
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--scan-interval", "500ms", "--idle-timeout", "1h"]);
    let frame = lab
        .peer
        .frame_v4(&lab.agent)
        .udp(1, 2, b"before and after")
        .unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    send(&lab, &socket, &frame);

    let before_ns = unix_ns();
    set_forward(HOUR);
    wait_until("it is told", || agent.stderr().contains("clock was set"));
    send(&lab, &socket, &frame);
    let log = agent.stderr();
    let report = agent.stop();

    assert_eq!(report.seen(), count(20, &frame));
    let flows: u64 = of(&report, "packets").iter().sum();
    assert_eq!(flows, 20, "{:?}", report.flows);
    let last_seen_ns = of(&report, "last_seen_ns").into_iter().max().unwrap();
    assert!(
        last_seen_ns > before_ns + HOUR.as_secs() * 1_000_000_000,
        "{:?}",
        report.flows
    );
    // Between reading the clock and setting it the machine may have stood still.
    let (_, seconds) = log.split_once(" seconds=").unwrap();
    let seconds: f64 = seconds.lines().next().unwrap().parse().unwrap();
    assert!((3540.0..3660.0).contains(&seconds), "{log}");
    assert_eq!(log.matches("clock was set").count(), 1, "{log}");
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

fn set_forward(by: Duration) {
    let now = clock_gettime(ClockId::Realtime);
    let later = Timespec {
        tv_sec: now.tv_sec + by.as_secs().cast_signed(),
        ..now
    };
    clock_settime(ClockId::Realtime, later).unwrap();
}
