//! What `flow-agent audit` says about real interfaces whose counters differ from the agent's.

use std::process::Output;

use lab::{Lab, privilege::is_root_or_skip};

use crate::support::{Agent, NATIVE_XDP, attached::tc, flow_agent, wait_for_packets};

/// Runs the audit some scans after the last packet was sent.
fn audit(lab: &Lab, agent: &Agent) -> (String, bool) {
    agent.wait_for_scans(&lab.agent, 2);
    let Output { status, stdout, .. } = agent.asked(&lab.agent, &["audit"]);
    (String::from_utf8(stdout).unwrap(), status.success())
}

fn verdict<'a>(audit: &'a str, direction: &str) -> &'a str {
    let wanted = format!(" {direction} (");
    let line = audit.lines().find(|line| line.contains(&wanted)).unwrap();
    line.rsplit(": ").next().unwrap()
}

#[test]
fn an_audit_knows_a_plain_wire_and_one_that_polls() {
    if !is_root_or_skip("agent::an_audit_knows_a_plain_wire_and_one_that_polls") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 100]).unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    for (settings, expected) in [(&[][..], "exact"), (NATIVE_XDP, "explained")] {
        let agent = Agent::start(&lab, settings);
        // After a while without packets, too.
        for ours in ["50 packets, 7100 bytes", "100 packets, 14200 bytes"] {
            let before = lab.agent.counters().unwrap();
            socket.send_many(vec![&frame; 50]).unwrap();
            wait_for_packets(&lab.agent, before, 50);
            let (text, is_good) = audit(&lab, &agent);
            assert!(is_good, "{text}");
            assert_eq!(verdict(&text, "ingress"), expected, "{text}");
            assert!(text.contains(&format!("ours        {ours}")), "{text}");
            let says_header = text.contains("without their Ethernet header");
            assert_eq!(says_header, expected == "explained", "{text}");
        }
        agent.stop();
    }
}

#[test]
fn an_audit_scans_first_and_says_so_where_it_may_not_and_nothing_was_scanned() {
    const TCP: &str = "127.0.0.1:4500";
    if !is_root_or_skip(
        "agent::an_audit_scans_first_and_says_so_where_it_may_not_and_nothing_was_scanned",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 100]).unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    let send = || {
        let before = lab.agent.counters().unwrap();
        socket.send_many(vec![&frame; 50]).unwrap();
        wait_for_packets(&lab.agent, before, 50);
    };
    // The interface has counted before the agent does.
    send();
    let agent = Agent::start(&lab, &["--scan-interval", "1h", "--listen", TCP]);
    send();
    // Clients over TCP may not request a scan.
    let mut by_tcp = flow_agent(&lab.agent);
    let by_tcp = by_tcp.args(["audit", "--connect", TCP]).output().unwrap();
    let text = String::from_utf8(by_tcp.stdout).unwrap();
    assert_eq!(by_tcp.status.code(), Some(3), "{text}");
    assert_eq!(verdict(&text, "ingress"), "not scanned yet", "{text}");
    let output = agent.asked(&lab.agent, &["audit"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert_eq!(verdict(&text, "ingress"), "exact", "{text}");
    assert!(
        text.contains("ours        50 packets, 7100 bytes"),
        "{text}"
    );
    agent.stop();
}

#[test]
fn an_audit_names_what_the_queueing_discipline_dropped() {
    if !is_root_or_skip("agent::an_audit_names_what_the_queueing_discipline_dropped") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let interface = &lab.agent.interface;
    let queue = "root handle 1: tbf rate 1mbit burst 2k limit 2k";
    tc(&lab.agent, &format!("qdisc add dev {interface} {queue}"));
    let frame = lab.agent.frame_v4(&lab.peer).udp(1, 2, &[0; 400]).unwrap();
    let socket = lab.agent.frame_socket().unwrap();
    // The socket sends again what the queue dropped (ENOBUFS), so all of these arrive in the end.
    let send = || socket.send_many(vec![&frame; 20]).unwrap();
    // The audit must ignore drops from before the agent's start.
    send();
    let agent = Agent::start(&lab, &[]);
    send();
    let (text, is_good) = audit(&lab, &agent);
    assert!(is_good, "{text}");
    assert_eq!(verdict(&text, "egress"), "explained", "{text}");
    let dropped = text.split_once("qdiscs dropped ").unwrap().1;
    let dropped: u64 = dropped.split(' ').next().unwrap().parse().unwrap();
    assert!(dropped > 0, "{text}");
    let ours = format!("ours        {} packets", 20 + dropped);
    assert!(text.contains(&ours), "{text}");
    agent.stop();
}
