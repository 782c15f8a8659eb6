//! The first minute with `flow-agent`: a person's commands, and the screen's reaction.

use lab::{Host, Lab, privilege::is_root_or_skip};

use crate::{
    support::{BINARY, attached::nothing_is_attached, flow_agent, wait_for_packets, wait_until},
    terminal::AtTerminal,
};

const WIDE: (u16, u16) = (30, 120);
const CTRL_C: &str = "\x03";

/// The arguments of an agent on the laboratory's interface, at a socket of its own.
fn run(host: &Host, folder: &tempfile::TempDir, more: &str) -> String {
    let socket = folder.path().join("a.sock");
    let (interface, socket) = (&host.interface, socket.display());
    format!("run --interface {interface} --listen unix:{socket} {more}")
}

fn send(lab: &Lab, packets: usize) {
    let frame = lab.peer.frame_v4(&lab.agent).udp(1000, 443, &[0; 100]);
    let frame = frame.unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    socket.send_many((0..packets).map(|_| &frame)).unwrap();
}

#[test]
fn run_says_in_plain_words_what_it_does_and_ctrl_c_how_it_went() {
    if !is_root_or_skip("agent::run_says_in_plain_words_what_it_does_and_ctrl_c_how_it_went") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let host = &lab.agent;
    let mut agent = AtTerminal::start(host, WIDE, &run(host, &folder, ""));
    let interface = &host.interface;
    agent.shows(&format!(
        "counting packets at {interface}, with a scan every 10s; Ctrl-C stops"
    ));
    agent.shows("`flow-agent top --connect unix:");
    let screen = agent.shown();
    for module in ["kernel::", "agent::", "INFO", "max_flows"] {
        assert!(!screen.contains(module), "{screen}");
    }
    let before = host.counters().unwrap();
    send(&lab, 7);
    wait_for_packets(host, before, 7);
    agent.press(CTRL_C);
    agent.shows("counted 7 packets in 1 flow");
    assert!(agent.ended().success());
    assert!(nothing_is_attached(host));
}

#[test]
fn a_table_fits_a_narrow_terminal_and_ends_with_the_sum() {
    if !is_root_or_skip("agent::a_table_fits_a_narrow_terminal_and_ends_with_the_sum") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let host = &lab.agent;
    let settings = run(host, &folder, "--scan-interval 200ms --output table");
    let mut agent = AtTerminal::start(host, (24, 60), &settings);
    agent.shows("account closes");
    send(&lab, 5);
    agent.shows("total: 1 flow, 5 packets, 710 bytes");
    let screen = agent.shown();
    assert!(screen.contains("INITIATOR"), "{screen}");
    agent.press(CTRL_C);
    agent.shows("1 flow began, 5 packets, 710 bytes");
    assert!(agent.ended().success());
}

#[test]
fn a_pipe_that_closes_ends_the_agent_quietly() {
    if !is_root_or_skip("agent::a_pipe_that_closes_ends_the_agent_quietly") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let host = &lab.agent;
    let settings = run(host, &folder, "--scan-interval 200ms --output json");
    let line = format!("{BINARY} {settings} | head -1; echo status ${{PIPESTATUS[0]}}");
    let line = format!("exec bash -c '{line}'");
    let mut agent = AtTerminal::shell(host, WIDE, &line);
    agent.shows("\"type\":\"account\"");
    agent.shows("status 0");
    assert!(!agent.shown().contains("error"), "{}", agent.shown());
    assert!(agent.ended().success());
    wait_until("nothing is left", || nothing_is_attached(host));
}

#[test]
fn whoever_lacks_an_agent_a_privilege_or_a_terminal_reads_one_line_that_says_what_to_do() {
    const TEST: &str = "agent::whoever_lacks_an_agent_a_privilege_or_a_terminal_reads_one_line_that_says_what_to_do";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let host = &lab.agent;
    let mut top = AtTerminal::start(host, WIDE, "top --connect unix:/nowhere/a.sock");
    top.shows("/nowhere/a.sock");
    assert!(!top.ended().success());
    let mut unprivileged = AtTerminal::shell(
        host,
        WIDE,
        &format!("exec setpriv --bounding-set=-all --inh-caps=-all {BINARY} run --interface lo"),
    );
    unprivileged.shows("run as root, or with the capabilities");
    assert!(!unprivileged.ended().success());
    let written = unprivileged.written();
    assert_eq!(written.trim().lines().count(), 1, "{written}");
    let refused = flow_agent(host).arg("top").output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(error.contains("--once"), "{error}");
}
