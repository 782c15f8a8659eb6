//! What the agent logs on request.

use std::time::{Duration, Instant};

use lab::{Lab, privilege::is_root_or_skip};

use super::many::add_wires;
use crate::support::{Agent, wait_until};

#[test]
fn the_programs_log_is_off_by_default_and_reaches_ours_where_it_is_on() {
    if !is_root_or_skip("agent::the_programs_log_is_off_by_default_and_reaches_ours_where_it_is_on")
    {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let unknown = lab.peer.frame_v4(&lab.agent);
    let unknown = unknown.ether_type(0x88cc, &[0; 50]).unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    let agent = Agent::start(&lab, &["--bpf-log-level", "debug"]);
    socket.send(&unknown).unwrap();
    wait_until("the log has the packet", || {
        agent.stderr().contains("not in a flow")
    });
    agent.stop();

    let agent = Agent::start(&lab, &[]);
    socket.send(&unknown).unwrap();
    let stderr = agent.stderr();
    assert_eq!(agent.stop().seen().packets, 1);
    assert!(!stderr.contains("not in a flow"), "{stderr}");
}

/// Generic XDP misses tags on a veth, so each of these is counted at TC, for which there is a line.
#[test]
fn many_that_come_do_not_fill_the_log() {
    const WIRES: usize = 30;
    const EVERY: Duration = Duration::from_secs(10);
    if !is_root_or_skip("agent::many_that_come_do_not_fill_the_log") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let at_xdp = ["--ingress-hook", "xdp", "--xdp-mode", "generic"];
    let settings = [&at_xdp[..], &["--tc-attach", "clsact"]].concat();
    let started = Instant::now();
    let agent = Agent::start_on(&lab.agent, "many*", &settings);
    add_wires(&lab, WIRES);
    wait_until("all are watched", || {
        let status = agent.status(&lab.agent);
        status["hooks"].as_array().unwrap().len() == 2 * WIRES
    });
    let log = agent.stderr();
    // There may be one more of each kind at the beginning of every interval.
    let most = started.elapsed().as_secs() / EVERY.as_secs() + 1;
    for line in [
        "counting at TC and not at XDP",
        "added a clsact qdisc",
        "on an interface that came",
    ] {
        let lines = log.matches(line).count() as u64;
        assert!((1..=most).contains(&lines), "{most}: {log}");
    }
    agent.stop_silent();
}
