//! An agent must leave nothing on the interface, however it ends.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
};

use lab::{Lab, Process, privilege::is_root_or_skip};
use serde_json::Value;

use super::{CLSACT, TCX};
use crate::support::{
    Agent, GENERIC_XDP, answered,
    attached::{add_filter, filters, has_xdp, nothing_is_attached, qdiscs, tc, tcx_programs},
    count, flow_agent, patience, wait_for_packets, wait_until,
};

#[test]
fn tcx_is_empty_after_an_end_of_any_kind() {
    if !is_root_or_skip("agent::tcx_is_empty_after_an_end_of_any_kind") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGKILL] {
        let agent = Agent::start(&lab, TCX);
        assert_eq!(tcx_programs(&lab.agent), [1, 1]);
        let before = lab.agent.counters().unwrap();
        socket.send(&frame).unwrap();
        wait_for_packets(&lab.agent, before, 1);
        if signal == libc::SIGKILL {
            assert!(!agent.kill().success());
            // The kernel frees the links of a process some time after its end.
            wait_until("the links are gone", || tcx_programs(&lab.agent) == [0, 0]);
        } else {
            agent.signal(signal);
            assert_eq!(agent.ended().seen(), count(1, &frame), "signal {signal}");
        }
        assert!(nothing_is_attached(&lab.agent), "signal {signal}");
    }
}

#[test]
fn a_stdout_that_nobody_reads_does_not_hold_the_end_up() {
    if !is_root_or_skip("agent::a_stdout_that_nobody_reads_does_not_hold_the_end_up") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let interface = &lab.agent.interface;
    let directory = tempfile::TempDir::new().unwrap();
    let log = directory.path().join("stderr");
    let (unread, stdout) = std::io::pipe().unwrap();
    let address = format!("unix:{}", directory.path().join("x.sock").display());
    let mut command = flow_agent(&lab.agent);
    command
        .args(["run", "--interface", interface, "--output", "json"])
        .args(["--listen", &address, "--max-flows", "1000"])
        .args(["--scan-interval", "10ms"])
        .stdout(stdout)
        .stderr(File::create(&log).unwrap());
    let mut process = Process::spawn(&mut command).unwrap();
    drop(command);
    let queued = || -> Option<u64> {
        let mut status = flow_agent(&lab.agent);
        status.args(["status", "--connect", &address]);
        let text = String::from_utf8(status.output().unwrap().stdout).unwrap();
        let consumer = text.split_once("consumer  stdout")?.1;
        let (before, _) = consumer.split_once(" queued")?;
        before.rsplit(' ').next()?.parse().ok()
    };
    // One or two may only be on their way, but this many are stuck.
    wait_until("the pipe is full", || queued() >= Some(20));
    process.signal(libc::SIGTERM).unwrap();
    assert!(process.wait(patience()).unwrap().success());
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("stdout did not take"), "{log}");
    assert!(nothing_is_attached(&lab.agent));
    drop(unread);
}

#[test]
fn a_stdout_that_takes_nothing_is_told_at_once() {
    if !is_root_or_skip("agent::a_stdout_that_takes_nothing_is_told_at_once") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let directory = tempfile::TempDir::new().unwrap();
    let log = directory.path().join("stderr");
    let address = format!("unix:{}", directory.path().join("x.sock").display());
    let mut command = flow_agent(&lab.agent);
    command
        .args(["run", "--interface", &lab.agent.interface])
        .args(["--output", "json", "--listen", &address])
        .args(["--scan-interval", "100ms", "--max-flows", "1000"])
        .stdout(File::options().write(true).open("/dev/full").unwrap())
        .stderr(File::create(&log).unwrap());
    let mut process = Process::spawn(&mut command).unwrap();
    wait_until("the log says it", || {
        let log = fs::read_to_string(&log).unwrap();
        log.contains("cannot write to stdout")
    });
    let scans = || {
        let output = answered(|| {
            let mut status = flow_agent(&lab.agent);
            status.args(["status", "--output", "json", "--connect", &address]);
            status
        });
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        status["scans"]["count"].as_u64().unwrap()
    };
    let before = scans();
    wait_until("it goes on", || scans() > before + 1);
    process.signal(libc::SIGTERM).unwrap();
    assert!(!process.wait(patience()).unwrap().success());
    assert!(nothing_is_attached(&lab.agent));
}

/// Nobody reads the log lines of early scans, of a reload and of the end.
#[test]
fn a_stderr_that_nobody_reads_ends_nothing() {
    const FLOWS: u16 = 5_000;
    /// More than half of a page, so that it is drained early.
    const FILLING: usize = 600;
    if !is_root_or_skip("agent::a_stderr_that_nobody_reads_ends_nothing") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let directory = tempfile::TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("rules"), "exclude port 9").unwrap();
    let address = format!("unix:{}", path("x.sock").display());
    let asked = |arguments: &[&str]| {
        let output = answered(|| {
            let mut command = flow_agent(&lab.agent);
            command.args(arguments).args(["--connect", &address]);
            command
        });
        String::from_utf8(output.stdout).unwrap()
    };
    let early_scans = || -> u64 {
        let status: Value = serde_json::from_str(&asked(&["status", "--output", "json"])).unwrap();
        status["scans"]["early"].as_u64().unwrap()
    };
    let mut command = flow_agent(&lab.agent);
    let (log, stderr) = std::io::pipe().unwrap();
    command
        .args(["run", "--interface", &lab.agent.interface])
        .args(["--output", "json", "--max-flows", "1000"])
        .args(["--scan-interval", "1h", "--listen", &address])
        .arg("--filter-file")
        .arg(path("rules"))
        .stdout(File::create(path("stdout")).unwrap())
        .stderr(stderr);
    let mut process = Process::spawn(&mut command).unwrap();
    drop(command);
    let mut log = BufReader::new(log).lines();
    assert!(log.any(|line| line.unwrap().contains("counting max_flows=")));
    drop(log);

    let before = lab.agent.counters().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    let socket = lab.peer.frame_socket().unwrap();
    for ports in (1000..1000 + FLOWS).collect::<Vec<_>>().chunks(FILLING) {
        let scans = early_scans();
        let frames = ports
            .iter()
            .map(|&port| frame.udp(port, 53, &[0; 18]).unwrap());
        socket.send_many(frames.collect::<Vec<_>>()).unwrap();
        if ports.len() == FILLING {
            wait_until("the page is drained early", || early_scans() > scans);
        }
    }
    wait_for_packets(&lab.agent, before, FLOWS.into());
    fs::write(path("rules"), "exclude port 10").unwrap();
    process.signal(libc::SIGHUP).unwrap();
    wait_until("the rules are read again", || {
        asked(&["filter", "show"]).contains("port 10")
    });
    process.signal(libc::SIGTERM).unwrap();
    assert!(process.wait(patience()).unwrap().success());
    let written = fs::read_to_string(path("stdout")).unwrap();
    let last: Value = serde_json::from_str(written.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["type"], &last["final"]),
        (&"account".into(), &true.into())
    );
    assert_eq!(last["seen"]["packets"], FLOWS);
    assert!(nothing_is_attached(&lab.agent));
}

#[test]
fn a_set_duration_ends_as_a_signal_does() {
    if !is_root_or_skip("agent::a_set_duration_ends_as_a_signal_does") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    for hooks in [TCX, CLSACT, GENERIC_XDP] {
        let agent = Agent::start(&lab, &[hooks, &["--duration", "1s"]].concat());
        // Read from the log: the duration may be over before the kernel could be asked.
        assert!(agent.stderr().contains("attached interface="));
        agent.ended();
        assert!(nothing_is_attached(&lab.agent), "{hooks:?}");
    }
}

#[test]
fn generic_xdp_goes_with_a_killed_agent() {
    if !is_root_or_skip("agent::generic_xdp_goes_with_a_killed_agent") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, GENERIC_XDP);
    assert!(has_xdp(&lab.agent));
    agent.kill();
    wait_until("XDP is detached", || nothing_is_attached(&lab.agent));
}

#[test]
fn clsact_keeps_the_filters_of_others_and_none_of_ours() {
    if !is_root_or_skip("agent::clsact_keeps_the_filters_of_others_and_none_of_ours") {
        return;
    }
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let lab = Lab::quiet().unwrap();
        let interface = &lab.agent.interface;
        tc(&lab.agent, &format!("qdisc add dev {interface} clsact"));
        add_filter(&lab.agent, "ingress prio 100", -1);
        add_filter(&lab.agent, "ingress prio 7 handle 0x1", -1);
        add_filter(&lab.agent, "egress prio 49374 handle 0x1", -1);
        let before = (
            filters(&lab.agent, interface),
            qdiscs(&lab.agent, interface),
        );
        let agent = Agent::start(&lab, CLSACT);
        assert_eq!(tcx_programs(&lab.agent), [0, 0]);
        let during = filters(&lab.agent, interface);
        assert_eq!(during.matches("flow-agent:").count(), 2, "{during}");
        agent.signal(signal);
        agent.ended();
        let after = (
            filters(&lab.agent, interface),
            qdiscs(&lab.agent, interface),
        );
        assert_eq!(after, before);
    }
}

#[test]
fn a_clsact_qdisc_that_the_agent_added_stays_empty() {
    if !is_root_or_skip("agent::a_clsact_qdisc_that_the_agent_added_stays_empty") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, CLSACT);
    // Another owner's filter. Removing the qdisc would remove it, too.
    add_filter(&lab.agent, "ingress prio 100", -1);
    assert!(agent.stderr().contains("added a clsact qdisc; it stays"));
    agent.stop();
    let interface = &lab.agent.interface;
    assert!(qdiscs(&lab.agent, interface).contains("clsact"));
    let left = filters(&lab.agent, interface);
    assert!(left.contains("pref 100"), "{left}");
    assert!(!left.contains("flow-agent"), "{left}");
}
