//! Programs whose agent does not come back stop counting, and the agent that comes after all says so.

use std::{thread, time::Duration};

use lab::privilege::is_root_or_skip;

use super::{CLSACT, Line, PACE, Traffic, has_links_or_skip, wait_until};
use crate::support::{Agent, hook::Hook};

/// On a slow machine, a second may pass between two scans.
const LEASE: [&str; 2] = ["--lease", "3s"];
/// The lease and a scan are over after this.
const LONGER: Duration = Duration::from_secs(4);
/// The ports of the flows before, in between and after.
const PORTS: [u16; 3] = [1000, 2000, 3000];

/// Sends some packets of a flow. Returns how many.
fn send(line: &Line, port: u16) -> u64 {
    let traffic = Traffic::start(&line.lab.peer, &line.lab.agent, port, 1, PACE);
    traffic.wait_for(50);
    traffic.end_all()
}

/// `pause` returns the agent that scans again, after `while_none_scans`.
fn counts_nothing_in_between(
    settings: &[&str],
    pause: impl FnOnce(&Line, Agent, &dyn Fn()) -> Agent,
) {
    let line = Line::new(Hook::TcIngress, &[settings, &LEASE].concat());
    let agent = line.start();
    let before = send(&line, PORTS[0]);
    line.wait_until_in_accounts(before);
    let agent = pause(&line, agent, &|| {
        thread::sleep(LONGER);
        send(&line, PORTS[1]);
    });
    let host = &line.lab.agent;
    let lapsed_ns = || {
        agent.status(host)["scans"]["lapsed_ns"]
            .as_u64()
            .unwrap_or(0)
    };
    wait_until("the agent has noted the lapse", || lapsed_ns() > 0);
    assert!(lapsed_ns() < 600_000_000_000, "{}", lapsed_ns());
    let log = agent.stderr();
    assert!(log.contains("--lease"), "{log}");
    let after = send(&line, PORTS[2]);
    line.wait_until_in_accounts(before + after);
    agent.stop();
    let books = line.books();
    books.assert_close();
    let found = PORTS.map(|port| books.packets_from(port));
    assert_eq!(found, [before, 0, after]);
}

fn after_a_kill(line: &Line, agent: Agent, while_none_scans: &dyn Fn()) -> Agent {
    agent.kill();
    while_none_scans();
    line.start()
}

#[test]
fn programs_without_an_agent_count_only_as_long_as_their_lease_on_tcx() {
    const TEST: &str = "agent::programs_without_an_agent_count_only_as_long_as_their_lease_on_tcx";
    if has_links_or_skip(TEST) {
        counts_nothing_in_between(&[], after_a_kill);
    }
}

#[test]
fn programs_without_an_agent_count_only_as_long_as_their_lease_on_clsact() {
    const TEST: &str =
        "agent::programs_without_an_agent_count_only_as_long_as_their_lease_on_clsact";
    if is_root_or_skip(TEST) {
        counts_nothing_in_between(CLSACT, after_a_kill);
    }
}

#[test]
fn an_agent_that_stood_still_for_longer_than_its_lease_says_so() {
    if !is_root_or_skip("agent::an_agent_that_stood_still_for_longer_than_its_lease_says_so") {
        return;
    }
    counts_nothing_in_between(&[], |_, agent, while_none_scans| {
        agent.signal(libc::SIGSTOP);
        while_none_scans();
        agent.signal(libc::SIGCONT);
        agent
    });
}

/// Each scan renews it, and it includes the time until the next one is due.
#[test]
fn no_lease_ends_while_an_agent_scans() {
    if !is_root_or_skip("agent::no_lease_ends_while_an_agent_scans") {
        return;
    }
    for interval in ["200ms", "4s"] {
        let settings = [&LEASE[..], &["--scan-interval", interval]].concat();
        let line = Line::new(Hook::TcIngress, &settings);
        let agent = line.start();
        let sent = send(&line, PORTS[0]);
        thread::sleep(LONGER);
        let sent = sent + send(&line, PORTS[1]);
        line.wait_until_in_accounts(sent);
        assert!(!agent.stderr().contains("--lease"), "{}", agent.stderr());
        agent.stop();
    }
}
