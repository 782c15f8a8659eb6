//! One agent in several network namespaces, with one table.

use std::{fs, os::unix::fs::MetadataExt as _};

use agent_common::Pair;
use lab::{Counters, FrameSocket, Host, Lab, Namespace, Process, privilege::is_root_or_skip};
use serde_json::Value;

use super::{
    CLSACT, TCX, here,
    refusals::{assert_says, refusal, with_capabilities},
};
use crate::support::{
    Agent, NATIVE_XDP, Report,
    attached::{nothing_is_attached, xdp_native},
    count, flow_agent, pair, wait_for_packets, wait_until,
};

/// An agent that was started on the peer of the first lab, where it counts nothing.
pub fn start(lab: &Lab, netns: &str, interface: &str, settings: &[&str]) -> Agent {
    let settings = [&["--netns", netns], settings].concat();
    Agent::start_on(&lab.peer, interface, &settings)
}

pub fn names(labs: &[&Lab]) -> String {
    let names: Vec<_> = labs.iter().map(|lab| lab.agent.namespace.name()).collect();
    names.join(",")
}

pub fn number(host: &Host) -> u64 {
    host.namespace.inode().unwrap()
}

pub fn send(from: &Host, to: &Host, frame: &[u8], packets: u64) {
    let before = to.counters().unwrap();
    let frames = std::iter::repeat_n(frame, packets as usize);
    from.frame_socket().unwrap().send_many(frames).unwrap();
    wait_for_packets(to, before, packets);
}

/// The sums of a namespace's records, forward and reverse together.
pub fn sum_in(report: &Report, netns: u64) -> Pair {
    let here = report.flows.iter().filter(|flow| flow["netns"] == netns);
    let count = |flow: &Value, name: &str| flow[name].as_u64().unwrap();
    here.map(|flow| Pair {
        packets: count(flow, "packets") + count(flow, "reverse_packets"),
        bytes: count(flow, "bytes") + count(flow, "reverse_bytes"),
    })
    .sum()
}

pub fn status(lab: &Lab, agent: &Agent) -> Value {
    agent.status(&lab.peer)
}

fn hooks_in(status: &Value, host: &Host, interface: &str) -> usize {
    let (netns, hooks) = (number(host), status["hooks"].as_array().unwrap().iter());
    hooks
        .map(|hook| &hook["interface"])
        .filter(|one| one["netns"] == netns && one["name"] == interface)
        .count()
}

#[test]
fn a_namespace_is_given_by_its_name_a_path_a_process_or_as_the_agents_own() {
    if !is_root_or_skip(
        "agent::a_namespace_is_given_by_its_name_a_path_a_process_or_as_the_agents_own",
    ) {
        return;
    }
    let labs = [(); 4].map(|()| Lab::quiet().unwrap());
    let [named, pathed, processed, own] = &labs;
    let mut process = Process::spawn(processed.agent.command("sleep").arg("inf")).unwrap();
    let id = process.child().id();
    let inode = processed.agent.namespace.inode().unwrap();
    wait_until("it has entered", || {
        let entered = fs::metadata(format!("/proc/{id}/ns/net")).unwrap();
        entered.ino() == inode
    });
    let process = format!("pid:{id}");
    let path = pathed.agent.namespace.path().display().to_string();
    let name = named.agent.namespace.name();
    // The first again, by its path.
    let again = named.agent.namespace.path().display().to_string();
    let netns = [name, &path, &process, "self", &again].join(",");
    let settings = ["--netns", &netns];
    let agent = Agent::start_on(&own.agent, &own.agent.interface, &settings);
    let called = [name, &path, &process, "self"];
    let frame = own.peer.frame_v4(&own.agent).udp(1, 2, &[0; 18]).unwrap();
    for (lab, packets) in labs.iter().zip([10, 20, 30, 40]) {
        send(&lab.peer, &lab.agent, &frame, packets);
    }
    let text = agent.asked(&own.agent, &["status"]).stdout;
    let text = String::from_utf8(text).unwrap();
    for (lab, name) in labs.iter().zip(called) {
        let line = format!("network namespace {name} ({})\n", number(&lab.agent));
        assert_eq!(text.matches(&line).count(), 1, "{text}");
    }
    let log = agent.stderr();
    let one = format!("{name} and {again} are one network namespace");
    assert!(log.contains(&one), "{log}");

    let report = agent.stop();
    for ((lab, packets), name) in labs.iter().zip([10, 20, 30, 40]).zip(called) {
        let netns = number(&lab.agent);
        assert_eq!(sum_in(&report, netns), count(packets, &frame), "{name}");
        let mut here = report.flows.iter().filter(|flow| flow["netns"] == netns);
        assert!(here.all(|flow| flow["netns_name"] == name), "{name}");
    }
    assert_eq!(report.seen(), count(100, &frame));
}

#[test]
fn a_namespace_that_cannot_be_watched_is_told_and_nothing_is_attached_anywhere() {
    if !is_root_or_skip(
        "agent::a_namespace_that_cannot_be_watched_is_told_and_nothing_is_attached_anywhere",
    ) {
        return;
    }
    let (a, b) = (Lab::quiet().unwrap(), Lab::quiet().unwrap());
    let (name_a, name_b) = (a.agent.namespace.name(), b.agent.namespace.name());
    let interface = &a.agent.interface;
    let refused = |netns: &str, settings: &[&str]| {
        let mut command = flow_agent(&a.peer);
        command.args(["run", "--max-flows", "1000", "--netns", netns]);
        command.args(["--listen", "127.0.0.1:0"]).args(settings);
        let error = refusal(&mut command);
        assert!(nothing_is_attached(&a.agent), "{error}");
        error
    };
    let here = ["--interface", interface.as_str()];
    let error = refused(&format!("{name_a},nowhere7"), &here);
    assert_says(&error, &["'nowhere7'", "ip netns list", name_a, "pid:N"]);
    let error = refused(&format!("{name_a},/proc/version"), &here);
    assert_says(&error, &["/proc/version is not a network namespace"]);
    let error = refused(&format!("{name_a},pid:4194304"), &here);
    assert_says(&error, &["no process 4194304"]);
    let error = refused(&names(&[&a, &b]), &["--interface", "nowhere7"]);
    assert_says(
        &error,
        &["network namespace", name_a, "'nowhere7'", interface],
    );

    let stranger = xdp_native(&b.agent);
    let xdp = [&here[..], NATIVE_XDP].concat();
    let error = refused(&names(&[&a, &b]), &xdp);
    assert_says(
        &error,
        &["network namespace", name_b, "another XDP program"],
    );
    drop(stranger);
    assert!(nothing_is_attached(&b.agent));
}

#[test]
fn without_sys_admin_another_namespace_is_refused_and_the_own_one_is_not() {
    if !is_root_or_skip(
        "agent::without_sys_admin_another_namespace_is_refused_and_the_own_one_is_not",
    ) {
        return;
    }
    let (a, b) = (Lab::quiet().unwrap(), Lab::quiet().unwrap());
    let run = |capabilities: &str, netns: &str| {
        let mut command = with_capabilities(&a.agent, capabilities);
        command.args(["run", "--netns", netns, "--interface", &a.agent.interface]);
        command.args(["--listen", "127.0.0.1:0", "--duration", "300ms"]);
        command.env("FLOW_AGENT_CONFIG", "/dev/null");
        command
    };
    let three = "+bpf,+net_admin,+perfmon";
    let other = format!("self,{}", b.agent.namespace.name());
    let error = refusal(&mut run(three, &other));
    assert_says(
        &error,
        &[b.agent.namespace.name(), "CAP_SYS_ADMIN", "netns.conf"],
    );
    assert!(nothing_is_attached(&a.agent));
    for (capabilities, netns) in [
        (three, "self"),
        (three, a.agent.namespace.name()),
        ("+bpf,+net_admin,+perfmon,+sys_admin", &other),
    ] {
        let served = run(capabilities, netns).status().unwrap();
        assert!(served.success(), "{capabilities} {netns}");
    }
}

#[test]
fn an_interface_that_comes_and_leaves_in_one_namespace_is_another_than_that_of_the_other() {
    if !is_root_or_skip(
        "agent::an_interface_that_comes_and_leaves_in_one_namespace_is_another_than_that_of_the_other",
    ) {
        return;
    }
    let (a, b) = (Lab::quiet().unwrap(), Lab::quiet().unwrap());
    let selection = format!("{},new*", a.agent.interface);
    let agent = start(&a, &names(&[&a, &b]), &selection, &[]);
    let frame = a.peer.frame_v4(&a.agent).udp(1, 2, &[0; 18]).unwrap();
    let [near, far] = ["new0", "far0"];
    let ifindexes = [&a, &b].map(|lab| {
        lab.agent.namespace.add_wire([near, far]).unwrap();
        wait_until("it is watched", || {
            hooks_in(&status(&a, &agent), &lab.agent, near) == 2
        });
        lab.agent.namespace.ifindex(near).unwrap()
    });
    assert_eq!(ifindexes[0], ifindexes[1]);
    send_over(&a.agent, [far, near], &frame, 100);
    send_over(&b.agent, [far, near], &frame, 20);
    b.agent.namespace.ip(&["link", "del", near]).unwrap();
    wait_until("it is forgotten", || {
        hooks_in(&status(&a, &agent), &b.agent, near) == 0
    });
    let after = status(&a, &agent);
    assert_eq!(after["interfaces"]["departed"], 1);
    let of_departed = &after["interfaces"]["departed_account"];
    assert_eq!(pair(&of_departed["seen"]), count(20, &frame));
    assert_eq!(hooks_in(&after, &a.agent, near), 2);
    send_over(&a.agent, [far, near], &frame, 3);

    let report = agent.stop();
    assert_eq!(sum_in(&report, number(&a.agent)), count(103, &frame));
    assert_eq!(sum_in(&report, number(&b.agent)), count(20, &frame));
    let ends = report
        .flows
        .iter()
        .filter(|flow| !flow["end_reason"].is_null());
    let totals: Vec<_> = ends.map(|flow| flow["total_packets"].clone()).collect();
    assert_eq!(totals, [20, 103]);
}

/// Sends over a wire that has both ends on the host.
fn send_over(host: &Host, [from, to]: [&str; 2], frame: &[u8], packets: u64) {
    let namespace = &host.namespace;
    let before = Counters::read(namespace, to).unwrap();
    let frames = std::iter::repeat_n(frame, packets as usize);
    let socket = FrameSocket::new(namespace, from).unwrap();
    socket.send_many(frames).unwrap();
    wait_until("the packets arrive", || {
        (Counters::read(namespace, to).unwrap() - before).rx_packets >= packets
    });
}

#[test]
fn an_interface_that_moves_between_two_watched_namespaces_is_counted_in_both() {
    if !is_root_or_skip(
        "agent::an_interface_that_moves_between_two_watched_namespaces_is_counted_in_both",
    ) {
        return;
    }
    for hooks in here([TCX, CLSACT]) {
        let lab = Lab::quiet().unwrap();
        let other = Namespace::new("other").unwrap();
        for scope in ["all", "default"] {
            let setting = format!("net/ipv6/conf/{scope}/disable_ipv6");
            other.set_sysctl(&setting, "1").unwrap();
        }
        // So that it gets another index there.
        for wire in [["one0", "one1"], ["two0", "two1"]] {
            other.add_wire(wire).unwrap();
        }
        let netns = format!("{},{}", lab.agent.namespace.name(), other.name());
        let agent = start(&lab, &netns, "agent*", hooks);
        let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
        send(&lab.peer, &lab.agent, &frame, 100);
        let interface = lab.agent.interface.as_str();
        let set = ["link", "set", interface, "netns", other.name()];
        lab.agent.namespace.ip(&set).unwrap();
        let there = Host {
            ifindex: other.ifindex(interface).unwrap(),
            namespace: other,
            interface: interface.to_owned(),
            ..lab.agent
        };
        wait_until("it is watched there", || {
            let status = status(&lab, &agent);
            hooks_in(&status, &there, interface) == 2
                && hooks_in(&status, &lab.agent, interface) == 0
        });
        there
            .namespace
            .ip(&["link", "set", interface, "up"])
            .unwrap();
        let before = there.counters().unwrap();
        let socket = lab.peer.frame_socket().unwrap();
        wait_until("frames pass again", || {
            // May fail: without a carrier the qdisc takes no frame (`noop_qdisc`).
            let _ = socket.send(&frame);
            there.counters().unwrap().rx_packets > before.rx_packets
        });
        send(&lab.peer, &there, &frame, 50);
        let arrived = (there.counters().unwrap() - before).rx_packets;
        let report = agent.stop();
        let here = number(&lab.agent);
        assert_eq!(sum_in(&report, here), count(100, &frame), "{hooks:?}");
        assert_eq!(
            sum_in(&report, number(&there)),
            count(arrived, &frame),
            "{hooks:?}"
        );
        assert_eq!(report.seen(), count(100 + arrived, &frame), "{hooks:?}");
        assert!(nothing_is_attached(&there));
    }
}

#[test]
fn a_reload_selects_anew_in_every_namespace_and_other_namespaces_need_a_restart() {
    if !is_root_or_skip(
        "agent::a_reload_selects_anew_in_every_namespace_and_other_namespaces_need_a_restart",
    ) {
        return;
    }
    let (a, b) = (Lab::quiet().unwrap(), Lab::quiet().unwrap());
    for lab in [&a, &b] {
        lab.agent.namespace.add_wire(["new0", "far0"]).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    let write = |labs: &[&Lab], interface: &str| {
        let settings = format!(
            "output = ['json']\nscan_interval = '100ms'\nmax_flows = 1000\nnetns = [{}]\n\
             interface = ['{interface}']\n",
            labs.iter()
                .map(|lab| format!("'{}'", lab.agent.namespace.name()))
                .collect::<Vec<_>>()
                .join(", ")
        );
        fs::write(&file, settings).unwrap();
    };
    let interface = &a.agent.interface;
    write(&[&a, &b], interface);
    let mut agent = Agent::start_by_file(&a.peer, "", &file);
    write(&[&b], "new*");
    agent.signal(libc::SIGHUP);
    wait_until("the others are watched in both", || {
        let status = status(&a, &agent);
        [&a, &b].into_iter().all(|lab| {
            hooks_in(&status, &lab.agent, "new0") == 2
                && hooks_in(&status, &lab.agent, interface) == 0
        })
    });
    agent.wait_until_logged("this setting needs a restart setting=\"netns\"");

    // Another namespace has the name of one that is watched.
    let name = b.agent.namespace.name();
    a.agent.namespace.ip(&["netns", "delete", name]).unwrap();
    a.agent.namespace.ip(&["netns", "add", name]).unwrap();
    agent.signal(libc::SIGHUP);
    agent.wait_until_logged(&format!(
        "{name} is another network namespace than at the start"
    ));
    agent.stop();
}

#[test]
fn the_ends_of_a_cable_between_watched_namespaces_and_a_device_that_moved_are_told_of() {
    if !is_root_or_skip(
        "agent::the_ends_of_a_cable_between_watched_namespaces_and_a_device_that_moved_are_told_of",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let [here, there] = [&lab.agent, &lab.peer].map(|host| host.namespace.name());
    let add = [
        "link", "add", "link", "agent0", "name", "mac0", "type", "macvlan",
    ];
    lab.agent.namespace.ip(&add).unwrap();
    let away = ["link", "set", "mac0", "netns", there];
    lab.agent.namespace.ip(&away).unwrap();
    let ends = format!("agent0 in {here} and peer0 in {there} are the ends of one cable");
    let stacked = format!("what passes mac0 in {there} passes agent0 in {here}, too");

    let netns = format!("{here},{there}");
    let agent = Agent::start_on(&lab.agent, "*0", &["--netns", &netns]);
    let log = agent.stderr();
    let told = log.lines().filter(|line| line.contains("counted twice"));
    let told: Vec<_> = told.collect();
    assert_eq!(told.len(), 2, "{log}");
    for (line, expected) in told.iter().zip([&ends, &stacked]) {
        assert!(line.contains("WARN") && line.contains(expected), "{line}");
        assert!(line.contains("--exclude-interface agent0"), "{line}");
    }
    agent.stop();

    let checked = |interface: &str| {
        let mut command = flow_agent(&lab.agent);
        command.env("FLOW_AGENT_NETNS", &netns);
        let command = command.args(["check", "--interface", interface]);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let text = checked("*0");
    assert!(text.contains(&ends) && text.contains(&stacked), "{text}");
    for one in ["agent0", "?a*0,peer0"] {
        let text = checked(one);
        assert!(!text.contains("twice"), "{text}");
    }

    let agent = Agent::start_on(&lab.agent, "agent0", &["--netns", &netns]);
    let log = agent.stderr();
    assert!(!log.contains("twice"), "{log}");
    agent.stop();
}
