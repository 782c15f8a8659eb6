//! Where XDP would count wrong: TC counts there, or the account says so.

#![expect(
    clippy::unwrap_used,
    reason = "clippy takes only functions marked as tests for tests"
)]

mod support;

use agent_common::Pair;
use lab::{Lab, privilege::is_root_or_skip};
use support::{Agent, GENERIC_XDP, Report, pair, wait_for_silence};

const ACK: u8 = 0x10;

fn beside(report: &Report, fact: &str) -> Pair {
    report.last()["beside"]
        .get(fact)
        .map(pair)
        .unwrap_or_default()
}

/// A program there cannot tell a super-frame from a frame: each may be more than was counted.
#[test]
fn all_that_generic_xdp_counts_is_inexact() {
    if !is_root_or_skip("agent::all_that_generic_xdp_counts_is_inexact") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    // The veth hands super-frames over whole.
    lab.peer.set_offloads(&["tx", "sg", "tso"], true).unwrap();
    let agent = Agent::start(&lab, GENERIC_XDP);
    let log = agent.stderr();
    for part in ["one frame", "without their Ethernet header"] {
        assert!(log.contains(part), "{part}: {log}");
    }
    let before = lab.agent.counters().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    let frame = frame.tcp(1, 80, ACK, &[0; 10_000]).unwrap();
    let socket = lab.peer.super_frame_socket().unwrap();
    for _ in 0..100 {
        socket.send(&frame, 1000).unwrap();
    }
    let counted = wait_for_silence(&lab.agent) - before;
    let report = agent.stop();
    // Not one in ten of the frames.
    assert_eq!(report.seen().packets, 100);
    assert_eq!(report.seen().packets, counted.rx_packets);
    assert_eq!(beside(&report, "inexact"), report.seen());
}
