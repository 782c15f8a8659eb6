//! Rules that change while the agent runs, by gRPC and by SIGHUP: under traffic, and with rules that are
//! refused.

use std::{
    fs,
    net::Ipv4Addr,
    process::Output,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use agent_common::Pair;
use lab::{AtEnd, Lab, kernel, privilege::is_root_or_skip};

use crate::support::{
    Agent, NATIVE_XDP, count, flow_agent, pair, wait_for_packets, wait_for_silence, wait_until,
};

/// `flow-agent filter` against a running agent.
fn filter(lab: &Lab, address: &str, arguments: &[&str]) -> Output {
    let mut command = flow_agent(&lab.agent);
    command.arg("filter").args(arguments);
    command.args(["--connect", address]).output().unwrap()
}

pub fn in_force(lab: &Lab, address: &str) -> String {
    let output = filter(lab, address, &["show"]);
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// Two senders never stop while rule sets come and go that exclude one of them, the other, or both. Every
/// packet must be in the flows or filtered.
fn rules_change_under_traffic(settings: &[&str]) {
    const SETS: [&[&str]; 5] = [
        &["set", "exclude src net 10.1.0.0/16"],
        &["set", "exclude src net 10.2.0.0/16; exclude dst port 9"],
        &["clear"],
        &["set", "include port 53 proto udp ingress; exclude all"],
        &["set", "exclude proto udp"],
    ];
    // The senders leave little of an emulated CPU for changing rules.
    let changes = kernel::packets(40, SETS.len() as u64) as usize;
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, settings);
    let before = lab.agent.counters().unwrap();
    let to = lab.agent.ipv4;
    let frames = [[10, 1, 0, 0], [10, 2, 0, 0]].map(|from| {
        let from = Ipv4Addr::from(from).to_bits();
        let frame = |host: u32| {
            let from = Ipv4Addr::from(from + host);
            let frame = lab.peer.frame_v4(&lab.agent).between(from, to);
            frame.udp(1000, 53, &[0; 18]).unwrap()
        };
        (0..500).map(frame).collect::<Vec<_>>()
    });
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let senders = frames.each_ref().map(|frames| {
            let (is_over, socket) = (&is_over, lab.peer.frame_socket().unwrap());
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    socket.send_many(frames).unwrap();
                }
            })
        });
        let over = AtEnd(|| is_over.store(true, Ordering::Relaxed));
        for set in SETS.iter().cycle().take(changes) {
            let output = filter(&lab, &agent.address(), set);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{set:?}: {stderr}");
        }
        drop(over);
        for sender in senders {
            sender.join().unwrap();
        }
    });
    let counted = wait_for_silence(&lab.agent);
    let report = agent.stop();

    // A polling end drops frames while its ring is full.
    let arrived = (counted - before).rx_packets;
    assert_eq!(report.seen(), count(arrived, &frames[0][0]));
    let filtered = pair(&report.last()["filtered"]);
    let flows: Pair = report.sums().into_values().flatten().sum();
    assert_eq!(filtered + flows, report.seen());
    assert!(
        filtered.packets > 0 && flows.packets > 0,
        "{filtered:?} {flows:?}"
    );
}

#[test]
fn rules_change_under_traffic_without_a_gap_over_tc() {
    if is_root_or_skip("agent::rules_change_under_traffic_without_a_gap_over_tc") {
        rules_change_under_traffic(&[]);
    }
}

#[test]
fn rules_change_under_traffic_without_a_gap_over_xdp() {
    if is_root_or_skip("agent::rules_change_under_traffic_without_a_gap_over_xdp") {
        rules_change_under_traffic(NATIVE_XDP);
    }
}

#[test]
fn a_set_with_a_fault_is_refused_as_a_whole_and_the_old_one_stays() {
    if !is_root_or_skip("agent::a_set_with_a_fault_is_refused_as_a_whole_and_the_old_one_stays") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("filters");
    fs::write(&file, "exclude dst port 1\n").unwrap();
    let agent = Agent::start(&lab, &["--filter-file", file.to_str().unwrap()]);
    let show = || in_force(&lab, &agent.address());
    let first = "exclude dst port 1\n# 1 rule; set 1 of this agent\n";
    assert_eq!(show(), first);

    let target = agent.address().parse().unwrap();
    let set = ["exclude all", "exclude port 1 nett ::/0"].map(str::to_owned);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let error = runtime.block_on(view::client::set_filters(&target, set.into()));
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("rule 2:16: no term begins like this"),
        "{error}"
    );
    let set = ["set", "exclude all; exclude net 10.0.0.1/8"];
    let refused = filter(&lab, &agent.address(), &set);
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success());
    assert!(
        stderr.contains("^^^^^^^^^^") && stderr.contains("10.0.0.0/8"),
        "{stderr}"
    );
    assert_eq!(show(), first);

    // SIGHUP reads the file again. It takes effect only if all of it is valid.
    fs::write(&file, "exclude dst port 2\nexclude dst prt 3\n").unwrap();
    agent.signal(libc::SIGHUP);
    wait_until("the fault is told", || {
        agent.stderr().contains("filters:2:13: ")
    });
    assert_eq!(show(), first);
    fs::write(&file, "exclude dst port 2\n").unwrap();
    agent.signal(libc::SIGHUP);
    wait_until("the file is in force", || {
        show() == "exclude dst port 2\n# 1 rule; set 2 of this agent\n"
    });

    let frame = lab.peer.frame_v4(&lab.agent);
    let frames = [1, 2, 2].map(|port| frame.udp(9, port, &[0; 18]).unwrap());
    let before = lab.agent.counters().unwrap();
    lab.peer.frame_socket().unwrap().send_many(&frames).unwrap();
    wait_for_packets(&lab.agent, before, 3);
    let report = agent.stop();
    assert_eq!(pair(&report.last()["filtered"]), count(2, &frames[0]));
    assert_eq!(pair(&report.last()["flows"]), count(1, &frames[0]));
}

/// Sixteen rules that tell each port from every other one take more rows than a set has.
#[test]
fn a_set_that_does_not_fit_is_logged_once() {
    if !is_root_or_skip("agent::a_set_that_does_not_fit_is_logged_once") {
        return;
    }
    let rules: Vec<String> = (0..16)
        .map(|bit| {
            let firsts = (1_u32 << bit..1 << 16).step_by(2 << bit);
            let ranges = firsts.map(|first| format!("{first}-{}", first + (1 << bit) - 1));
            format!("exclude port {}", ranges.collect::<Vec<_>>().join(","))
        })
        .collect();
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("filters");
    fs::write(&file, "").unwrap();
    let agent = Agent::start(&lab, &["--filter-file", file.to_str().unwrap()]);
    let told = || {
        agent
            .stderr()
            .matches("more different ranges of ports")
            .count()
    };
    let target = agent.address().parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let set = view::client::set_filters(&target, rules.clone());
    let error = runtime.block_on(set).unwrap_err().to_string();
    assert!(error.contains("more different ranges of ports"), "{error}");
    wait_until("it is logged", || told() > 0);
    assert_eq!(told(), 1, "{}", agent.stderr());

    fs::write(&file, rules.join("\n")).unwrap();
    agent.signal(libc::SIGHUP);
    wait_until("the reload is refused", || {
        agent.stderr().contains("keeping the settings")
    });
    assert_eq!(told(), 2, "{}", agent.stderr());
    agent.stop();
}

/// The set is far larger than gRPC's default limit for a message.
#[test]
fn a_large_set_is_set_shown_and_cleared_over_grpc() {
    if !is_root_or_skip("agent::a_large_set_is_set_shown_and_cleared_over_grpc") {
        return;
    }
    let networks = kernel::packets(400_000, 20_000) as u32;
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("filters");
    let file = file.to_str().unwrap();
    let network = |number: u32| format!("{}/32", Ipv4Addr::from_bits(0x0a00_0000 + number * 2));
    let list: Vec<String> = (0..networks).map(network).collect();
    let rule = format!("exclude src net {}\n", list.join(","));
    fs::write(file, &rule).unwrap();
    let set = filter(&lab, &agent.address(), &["set", "--file", file]);
    let stderr = String::from_utf8(set.stderr).unwrap();
    assert!(set.status.success(), "{stderr}");
    let shown = format!("{rule}# 1 rule; set 2 of this agent\n");
    assert!(set.stdout == shown.as_bytes());
    assert!(in_force(&lab, &agent.address()) == shown);

    let from = |host: u32| {
        let from = Ipv4Addr::from_bits(0x0a00_0000 + host);
        let frame = lab.peer.frame_v4(&lab.agent);
        let frame = frame.between(from, lab.agent.ipv4);
        frame.udp(9, 1, &[0; 18]).unwrap()
    };
    let frames = [0, 1, networks, 2 * networks - 2, 2 * networks].map(from);
    let before = lab.agent.counters().unwrap();
    lab.peer.frame_socket().unwrap().send_many(&frames).unwrap();
    wait_for_packets(&lab.agent, before, 5);
    assert!(filter(&lab, &agent.address(), &["clear"]).status.success());
    let report = agent.stop();
    assert_eq!(pair(&report.last()["filtered"]), count(3, &frames[0]));
    assert_eq!(report.sums().len(), 2);
}

#[test]
fn who_sets_rules_is_told_of_interfaces_that_are_not_watched() {
    if !is_root_or_skip("agent::who_sets_rules_is_told_of_interfaces_that_are_not_watched") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut agent = Agent::start(&lab, &[]);
    let address = agent.address();
    let set = |rules: &str| {
        let output = filter(&lab, &address, &["set", rules]);
        assert!(output.status.success());
        let stderr = String::from_utf8(output.stderr).unwrap();
        // Says so if the agent is slow to answer.
        let lines = stderr.split_inclusive('\n');
        let mut lines: Vec<&str> = lines
            .filter(|line| !line.starts_with("flow-agent: waiting for the agent"))
            .collect();
        let kept = lines.pop().unwrap();
        let line = format!("filter = [\"{}\"]\n", rules.replace("; ", "\",\""));
        assert!(
            kept.contains("forgets this change") && kept.ends_with(&line),
            "{kept}"
        );
        lines.concat()
    };
    let here = &lab.agent.interface;
    assert_eq!(
        set(&format!("exclude on {here}; exclude on eht0")),
        "flow-agent: warning: filter rule 2: no interface that is watched is named eht0\n"
    );
    agent.wait_until_logged("named eht0");
    assert_eq!(set(&format!("exclude on {here}")), "");
    agent.stop();
}

#[test]
fn rules_are_neither_read_nor_changed_over_tcp() {
    if !is_root_or_skip("agent::rules_are_neither_read_nor_changed_over_tcp") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let up = ["link", "set", "lo", "up"];
    lab.agent.namespace.ip(&up).unwrap();
    let agent = Agent::start(&lab, &["--listen", "127.0.0.1:5999"]);
    for arguments in [&["show"][..], &["set", "exclude all"], &["clear"]] {
        let output = filter(&lab, "127.0.0.1:5999", arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && stderr.contains("Unix socket"),
            "{stderr}"
        );
    }
    assert_eq!(
        in_force(&lab, &agent.address()),
        "# no rules: every packet is counted; set 1 of this agent\n"
    );
    agent.stop();
}
