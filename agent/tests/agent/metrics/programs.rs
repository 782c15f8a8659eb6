//! The cost of the programs, timed in short windows.

use std::fs;

use lab::{
    Lab,
    privilege::{is_root_or_skip, skip},
};

use super::{address, get, samples, sum};
use crate::support::{Agent, as_the_service, wait_until};

/// Descriptors for which the kernel counts the runs of programs.
fn counting_runs(pid: u32) -> usize {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links = files.filter_map(|file| fs::read_link(file.path()).ok());
    links
        .filter(|link| link.to_string_lossy().contains("bpf-stats"))
        .count()
}

#[test]
fn programs_are_timed_in_a_window_that_ends() {
    const SECONDS: &str = "flow_agent_program_sampled_seconds_total";
    const RUNS: &str = r#"flow_agent_program_runs_total{hook="tc_ingress"}"#;
    if !is_root_or_skip("agent::programs_are_timed_in_a_window_that_ends") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let settings = ["--metrics", "0", "--output", "none"];
    let mut agent = Agent::start(&lab, &settings);
    let (address, pid) = (address(&agent), agent.pid());
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, b"timed").unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    let samples = || samples(&get(&lab.agent, &address, "/metrics").body);
    assert_eq!(
        samples()[r#"flow_agent_program_sampling{state="pending"}"#],
        "1.0"
    );
    let mut sent = 0;
    // A window may fall between two of these.
    wait_until("runs are timed", || {
        sent += socket.send_many(std::iter::repeat_n(&frame, 1000)).unwrap() as u64;
        sum(&samples(), RUNS) > 0
    });
    let found = samples();
    let number = |series: &str| found[series].parse::<f64>().unwrap();
    assert_eq!(
        found[r#"flow_agent_program_sampling{state="sampled"}"#],
        "1.0"
    );
    assert!(number(SECONDS) >= 0.1, "{}", number(SECONDS));
    assert!(sum(&found, RUNS) <= sent);
    assert_eq!(
        found[r#"flow_agent_program_runs_total{hook="tc_egress"}"#],
        "0"
    );
    let took = number(r#"flow_agent_program_run_seconds_total{hook="tc_ingress"}"#);
    assert!(0.0 < took && took < number(SECONDS) * 64.0, "{took}");
    wait_until("the window ends", || counting_runs(pid) == 0);
    // Another one may begin only after a while.
    for _ in 0..20 {
        samples();
        assert!(counting_runs(pid) <= 1);
    }
    agent.stop_silent();
}

#[test]
fn without_the_right_the_run_times_are_absent_and_a_family_says_so() {
    if !is_root_or_skip("agent::without_the_right_the_run_times_are_absent_and_a_family_says_so") {
        return;
    }
    let setting = fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").unwrap();
    if setting.trim() != "0" {
        skip(
            "agent::without_the_right_the_run_times_are_absent_and_a_family_says_so",
            "kernel.bpf_stats_enabled is set, so nobody needs the right",
        );
        return;
    }
    let lab = Lab::quiet().unwrap();
    let settings = ["--metrics", "0", "--output", "none"];
    let agent = Agent::start_by(as_the_service(&lab.agent), &lab.agent.interface, &settings);
    let address = address(&agent);
    let samples = || samples(&get(&lab.agent, &address, "/metrics").body);
    let refused = r#"flow_agent_program_sampling{state="not_permitted"}"#;
    wait_until("it is refused", || samples()[refused] == "1.0");
    let found = samples();
    let others = found
        .keys()
        .filter(|series| series.starts_with("flow_agent_program_"));
    assert!(
        others
            .clone()
            .all(|series| series.contains("sampling{state=")),
        "{found:?}"
    );
    agent.stop_silent();
}
