//! What the kernel drops, by its own reasons.

use lab::{Lab, privilege::is_root_or_skip};

use serde_json::Value;

use crate::support::{Agent, as_the_service, pair, wait_until};

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
    wait_until("all have arrived", || {
        let flows = agent.status(&lab.agent)["account"]["flows"].clone();
        pair(&flows).packets >= SENT
    });
    // The kernel drops each right after that.
    let are_counted = (0..100).any(|_| {
        agent.wait_for_scans(&lab.agent, 1);
        let (after, missed) = dropped();
        // The kernel may have come to another drop while it counted one.
        after - before.0 + (missed - before.1).min(SENT / 10) >= SENT
    });
    assert!(are_counted, "{before:?} {:?}", dropped());
    // Each of them with its flow, in the direction in which it came.
    let drops = agent.status(&lab.agent)["kernel_drops"].clone();
    let [of_flows, missed] = ["of_flows", "missed"].map(|name| drops[name].as_u64().unwrap());
    assert!(of_flows + missed >= SENT, "{drops}");
    let of_no_flow = drops["of_no_flow"].as_object().unwrap();
    assert_eq!(of_no_flow["no_room"], 0, "{drops}");
    let report = agent.stop();
    let last = report
        .flows
        .iter()
        .rfind(|line| line["dst_port"] == 4001)
        .unwrap();
    let dropped = last["total_dropped_packets"].as_u64().unwrap();
    assert!((SENT - SENT / 10..=SENT).contains(&dropped), "{last}");
    assert!(
        last.get("total_reverse_dropped_packets").is_none(),
        "{last}"
    );
    assert_eq!(last["total_packets"], SENT);
}

/// Nobody listens, and what is dropped is the question of the one and the answer to the other, each at its own interface.
#[test]
fn what_is_dropped_of_many_flows_is_with_each_of_them() {
    const TEST: &str = "agent::what_is_dropped_of_many_flows_is_with_each_of_them";
    const FLOWS: u16 = 200;
    if !is_root_or_skip(TEST) {
        return;
    }
    for (hook, version) in [("tc", 4), ("xdp", 6)] {
        let lab = Lab::addressed().unwrap();
        let settings = ["--enrich", "drops", "--ingress-hook", hook];
        let agent = Agent::start_by(as_the_service(&lab.agent), &lab.agent.interface, &settings);
        let frame = match version {
            4 => lab.peer.frame_v4(&lab.agent),
            _ => lab.peer.frame_v6(&lab.agent),
        };
        let socket = lab.peer.frame_socket().unwrap();
        let mut sent = 0;
        for flow in 0..FLOWS {
            // To a port where nobody listens: each flow has a number of its own.
            let packets = usize::from(flow % 7 + 1);
            let frame = frame.udp(5000 + flow, 9, b"nobody").unwrap();
            socket
                .send_many(std::iter::repeat_n(&frame, packets))
                .unwrap();
            sent += packets as u64;
        }
        let drops = || agent.status(&lab.agent)["kernel_drops"].clone();
        wait_until("all are with their flows", || {
            agent.wait_for_scans(&lab.agent, 1);
            let drops = drops();
            drops["of_flows"].as_u64().unwrap() + drops["missed"].as_u64().unwrap() >= sent
        });
        let missed = drops()["missed"].as_u64().unwrap();
        let report = agent.stop();
        let mut with_flows = 0;
        for flow in 0..FLOWS {
            let is_its = |line: &&Value| line["src_port"] == 5000 + flow && line["dst_port"] == 9;
            let last = report.flows.iter().rfind(is_its).unwrap();
            let packets = u64::from(flow % 7 + 1);
            let dropped = last["total_dropped_packets"].as_u64().unwrap_or_default();
            assert!(dropped <= packets, "{last}");
            with_flows += dropped;
        }
        assert!(
            with_flows <= sent && with_flows + missed >= sent,
            "{with_flows} {missed}"
        );
    }
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
