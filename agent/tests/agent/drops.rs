//! What the kernel drops, by its own reasons.

use lab::{Lab, privilege::is_root_or_skip};

use crate::support::{Agent, as_the_service, wait_until};

/// A header whose checksum is wrong. Drops are of the whole host, so other tests may make some at the same time.
const REASON: &str = "ip_csum";
const SENT: u64 = 977;

#[test]
fn what_the_kernel_drops_is_counted_by_its_reason() {
    const TEST: &str = "agent::what_the_kernel_drops_is_counted_by_its_reason";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let settings = ["--enrich", "drops"];
    let agent = Agent::start_by(as_the_service(&lab.agent), &lab.agent.interface, &settings);
    let dropped = || {
        let drops = agent.status(&lab.agent)["kernel_drops"].clone();
        let missed = drops["missed"].as_u64().unwrap();
        (
            drops["by_reason"][REASON].as_u64().unwrap_or_default(),
            missed,
        )
    };
    agent.wait_for_scans(&lab.agent, 1);
    let before = dropped();
    let mut frame = lab
        .peer
        .frame_v4(&lab.agent)
        .udp(4000, 4001, b"broken")
        .unwrap();
    // Of the IP header.
    frame[14 + 10] ^= 0xff;
    let socket = lab.peer.frame_socket().unwrap();
    let frames = std::iter::repeat_n(&frame, SENT as usize);
    assert_eq!(socket.send_many(frames).unwrap() as u64, SENT);
    wait_until("all were dropped", || {
        agent.wait_for_scans(&lab.agent, 1);
        let (after, missed) = dropped();
        // The kernel may have come to another drop while it counted one.
        after - before.0 + (missed - before.1).min(SENT / 10) >= SENT
    });
    let report = agent.stop();
    assert!(report.flows.iter().any(|line| line["dst_port"] == 4001));
}

#[test]
fn without_being_asked_the_agent_counts_no_drops() {
    const TEST: &str = "agent::without_being_asked_the_agent_counts_no_drops";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[]);
    agent.wait_for_scans(&lab.agent, 1);
    assert!(agent.status(&lab.agent)["kernel_drops"].is_null());
}
