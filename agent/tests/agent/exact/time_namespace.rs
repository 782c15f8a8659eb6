//! A process in a time namespace reads other clocks than the programs in the kernel.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lab::{Lab, privilege::is_root_or_skip};

use crate::support::{Agent, BINARY, count, unix_ns_of, wait_for_packets};

const OFFSET_S: &str = "1000000";

#[test]
fn an_agent_in_a_time_namespace_tells_the_time_of_the_packets() {
    if !is_root_or_skip("agent::an_agent_in_a_time_namespace_tells_the_time_of_the_packets") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    for offset in [OFFSET_S.to_owned(), format!("-{}", uptime_s() / 2)] {
        let mut command = lab.agent.command("unshare");
        command.args(["--time", "--boottime", &offset]);
        // Before Linux 6.3, exec alone does not enter the namespace that unshare made, and a process outside of it starts no thread.
        let enter = "--time=/proc/self/ns/time_for_children";
        command.args(["nsenter", "--no-fork", enter, BINARY]);
        command.envs([("NO_COLOR", "1"), ("FLOW_AGENT_CONFIG", "/dev/null")]);
        let begin_ns = unix_ns();
        let agent = Agent::start_by(command, &lab.agent.interface, &["--idle-timeout", "1h"]);
        let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, b"when").unwrap();
        let before = lab.agent.counters().unwrap();
        let socket = lab.peer.frame_socket().unwrap();
        socket.send_many([&frame; 10]).unwrap();
        wait_for_packets(&lab.agent, before, 10);
        let status = agent.status(&lab.agent);
        let report = agent.stop();

        // A tick of the kernel, and what the clocks are steered by.
        let margin_ns = 1_000_000_000;
        let while_it_ran = begin_ns - margin_ns..=unix_ns() + margin_ns;
        assert_eq!(report.seen(), count(10, &frame));
        let times = report
            .flows
            .iter()
            .flat_map(|flow| ["first_seen", "last_seen"].map(|name| unix_ns_of(&flow[name])));
        let windows = report.accounts.iter().flat_map(|account| {
            ["window_start", "window_end"].map(|name| unix_ns_of(&account[name]))
        });
        let started = status["started_unix_ns"].as_u64();
        for time_ns in times.chain(windows).chain(started) {
            assert!(
                while_it_ran.contains(&time_ns),
                "{offset}: {time_ns} is not in {while_it_ran:?}: {:?}",
                report.flows
            );
        }
        assert!(status["uptime_ns"].as_u64().unwrap() < unix_ns() - begin_ns + margin_ns);
    }
}

fn unix_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now: Duration = now.unwrap();
    now.as_nanos().try_into().unwrap()
}

fn uptime_s() -> u64 {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    uptime.split('.').next().unwrap().parse().unwrap()
}
