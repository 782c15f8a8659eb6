//! Interfaces that appear and leave while the agent runs.

use std::{collections::BTreeMap, fs, process::Command};

use lab::{Counters, FrameSocket, Lab, Namespace, kernel, privilege::is_root_or_skip};
use serde_json::Value;

use super::{CLSACT, TCX};
use crate::{
    metrics,
    support::{
        Agent, NATIVE_XDP, Report,
        attached::{filters, nothing_is_attached, tcx_programs_on, xdp_id, xdp_native},
        count, pair, wait_until,
    },
};

/// Runs a line of `ip`.
pub(super) fn ip(namespace: &Namespace, line: &str) {
    namespace
        .ip(&line.split(' ').collect::<Vec<_>>())
        .unwrap_or_else(|error| panic!("{line}: {error:#}"));
}

/// Selects the lab's own interface, and those that a test adds.
pub fn selection(lab: &Lab) -> String {
    format!("{},new*", lab.agent.interface)
}

pub(super) fn status(lab: &Lab, agent: &Agent) -> Value {
    agent.status(&lab.agent)
}

pub(super) fn hooks_of(status: &Value, interface: &str) -> usize {
    let hooks = status["hooks"].as_array().unwrap().iter();
    hooks
        .filter(|hook| hook["interface"]["name"] == interface)
        .count()
}

pub fn wait_until_watched(lab: &Lab, agent: &Agent, interface: &str) {
    wait_until("it is watched", || {
        hooks_of(&status(lab, agent), interface) == 2
    });
}

/// Sends from the far end of a wire, and returns when the near end has counted every packet.
pub fn send(lab: &Lab, [near, far]: [&str; 2], frame: &[u8], packets: u64) {
    let namespace = &lab.agent.namespace;
    let before = Counters::read(namespace, near).unwrap();
    let socket = FrameSocket::new(namespace, far).unwrap();
    let frames = std::iter::repeat_n(frame, packets as usize);
    socket.send_many(frames).unwrap();
    wait_until("the packets arrive", || {
        (Counters::read(namespace, near).unwrap() - before).rx_packets >= packets
    });
}

fn departed(status: &Value) -> u64 {
    status["interfaces"]["departed"].as_u64().unwrap()
}

pub fn packets_on(report: &Report, interface: &str) -> u64 {
    let sums = report.sums_on(interface);
    sums.values().map(|both| both[0].packets).sum()
}

#[test]
fn an_interface_that_comes_is_counted_and_its_flows_end_with_it() {
    if !is_root_or_skip("agent::an_interface_that_comes_is_counted_and_its_flows_end_with_it") {
        return;
    }
    for hooks in [TCX, CLSACT, NATIVE_XDP] {
        let lab = Lab::quiet().unwrap();
        let namespace = &lab.agent.namespace;
        let agent = Agent::start_on(&lab.agent, &selection(&lab), hooks);
        let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();

        namespace.add_wire(["new0", "far0"]).unwrap();
        wait_until_watched(&lab, &agent, "new0");
        send(&lab, ["new0", "far0"], &frame, 100);
        ip(namespace, "link del new0");
        wait_until("it is forgotten", || {
            hooks_of(&status(&lab, &agent), "new0") == 0
        });
        let after = status(&lab, &agent);
        assert_eq!(departed(&after), 1);
        let of_departed = &after["interfaces"]["departed_account"];
        assert_eq!(pair(&of_departed["seen"]), count(100, &frame));
        assert_eq!(pair(&of_departed["flows"]), count(100, &frame));

        let report = agent.stop();
        assert_eq!(report.seen(), count(100, &frame), "{hooks:?}");
        assert_eq!(packets_on(&report, "new0"), 100);
        let name = crate::support::flow_name(&report.flows[0]);
        assert_eq!(report.end_reason(&name), "forced_end");
    }
}

#[test]
fn an_index_that_comes_back_is_another_interface_with_flows_of_its_own() {
    if !is_root_or_skip(
        "agent::an_index_that_comes_back_is_another_interface_with_flows_of_its_own",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let namespace = &lab.agent.namespace;
    // Only a requested scan drains the first one.
    let settings = ["--scan-interval", "1h"];
    let agent = Agent::start_on(&lab.agent, &selection(&lab), &settings);
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    for packets in [10, 200] {
        let add = format!("link add new0 index {IFINDEX} type veth peer name far0");
        ip(namespace, &add);
        for end in ["new0", "far0"] {
            ip(namespace, &format!("link set {end} up"));
        }
        wait_until("both hooks are attached", || programs_on_new0(&lab) == 2);
        send(&lab, ["new0", "far0"], &frame, packets);
        ip(namespace, "link del new0");
    }
    let report = agent.stop();
    assert_eq!(report.seen(), count(210, &frame));
    let ends = report
        .flows
        .iter()
        .filter(|flow| !flow["end_reason"].is_null());
    let totals: Vec<_> = ends.map(|flow| flow["total_packets"].clone()).collect();
    assert_eq!(totals, [10, 200]);
}

pub(super) const IFINDEX: u32 = 4000;

fn programs_on_new0(lab: &Lab) -> u32 {
    if kernel::has_tcx() {
        tcx_programs_on(&lab.agent, IFINDEX).iter().sum()
    } else {
        filters(&lab.agent, "new0").matches("flow-agent:").count() as u32
    }
}

#[test]
fn rules_apply_by_name_to_an_interface_that_comes_or_is_renamed() {
    if !is_root_or_skip("agent::rules_apply_by_name_to_an_interface_that_comes_or_is_renamed") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let namespace = &lab.agent.namespace;
    let rules = ["--filter", "exclude on new0; exclude on newer"];
    let agent = Agent::start_on(&lab.agent, &selection(&lab), &rules);
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    for number in [0, 1] {
        let (near, far) = (format!("new{number}"), format!("far{number}"));
        namespace.add_wire([&near, &far]).unwrap();
        wait_until_watched(&lab, &agent, &near);
        send(&lab, [&near, &far], &frame, 100);
    }
    // Records have the name that the interface has when they are made.
    agent.wait_for_scans(&lab.agent, 2);
    ip(namespace, "link set new1 down");
    ip(namespace, "link set new1 name newer");
    wait_until("the agent has the name", || {
        hooks_of(&status(&lab, &agent), "newer") == 2
    });
    ip(namespace, "link set newer up");
    let filtered = || pair(&status(&lab, &agent)["account"]["filtered"]).packets;
    wait_until("those on new0 are left out", || filtered() == 100);
    wait_until("frames pass and are left out", || {
        let socket = FrameSocket::new(namespace, "far1").unwrap();
        // Without a carrier the qdisc takes no frame.
        let _ = socket.send(&frame);
        filtered() > 100
    });
    agent.wait_for_scans(&lab.agent, 2);
    let flows = pair(&status(&lab, &agent)["account"]["flows"]).packets;
    send(&lab, ["newer", "far1"], &frame, 100);
    let report = agent.stop();
    assert_eq!(packets_on(&report, "new0"), 0);
    assert_eq!(packets_on(&report, "new1"), 100);
    assert_eq!(pair(&report.last()["flows"]).packets, flows);
}

#[test]
fn an_interface_that_is_renamed_into_the_selection_is_counted() {
    if !is_root_or_skip("agent::an_interface_that_is_renamed_into_the_selection_is_counted") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let namespace = &lab.agent.namespace;
    // No existing interface is selected.
    let agent = Agent::start_on(&lab.agent, "new*", &[]);
    assert!(agent.stderr().contains("waiting for one that is selected"));
    namespace.add_wire(["other0", "far0"]).unwrap();
    ip(namespace, "link set other0 down");
    ip(namespace, "link set other0 name new0");
    wait_until_watched(&lab, &agent, "new0");
    agent.stop();
}

/// Verifying them takes longer than attaching them.
#[test]
fn the_first_interface_that_comes_waits_for_no_verifier() {
    if !is_root_or_skip("agent::the_first_interface_that_comes_waits_for_no_verifier") {
        return;
    }
    for settings in [&[][..], NATIVE_XDP] {
        let lab = Lab::quiet().unwrap();
        let mut agent = Agent::start_on(&lab.agent, "new*", settings);
        let before = agent.programs();
        lab.agent.namespace.add_wire(["new0", "far0"]).unwrap();
        wait_until_watched(&lab, &agent, "new0");
        assert_eq!(agent.programs(), before);
        assert!(before >= 2);
        agent.stop();
    }
}

#[test]
fn interfaces_are_selected_anew_by_the_file_and_no_packet_is_lost() {
    if !is_root_or_skip("agent::interfaces_are_selected_anew_by_the_file_and_no_packet_is_lost") {
        return;
    }
    for tc_attach in ["auto", "clsact"] {
        let lab = Lab::quiet().unwrap();
        let namespace = &lab.agent.namespace;
        namespace.add_wire(["new0", "far0"]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        let select = |interface: &str| {
            let settings = format!(
                "output = ['json']\ninterface = ['{interface}']\ntc_attach = '{tc_attach}'\n\
                 max_flows = 1000\nscan_interval = '100ms'\n"
            );
            fs::write(&file, settings).unwrap();
        };
        let here = &lab.agent.interface;
        select(here);
        let agent = Agent::start_by_file(&lab.agent, "", &file);
        let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
        let to_agent = |packets: u64| {
            let before = lab.agent.counters().unwrap();
            let frames = std::iter::repeat_n(&frame, packets as usize);
            lab.peer.frame_socket().unwrap().send_many(frames).unwrap();
            crate::support::wait_for_packets(&lab.agent, before, packets);
        };
        to_agent(100);

        select("new*");
        agent.signal(libc::SIGHUP);
        wait_until_watched(&lab, &agent, "new0");
        wait_until("the other one is drained", || {
            hooks_of(&status(&lab, &agent), here) == 0
        });
        assert!(nothing_is_attached(&lab.agent));
        let log = agent.stderr();
        assert!(
            log.contains("the interface is not selected any more"),
            "{log}"
        );
        assert!(!log.contains("the interface is gone"), "{log}");
        to_agent(70);
        send(&lab, ["new0", "far0"], &frame, 50);

        // The agent waits for a missing name as if the interface had left. Only a start by hand refuses it.
        select("late0");
        agent.signal(libc::SIGHUP);
        wait_until("it is waited for", || {
            let log = agent.stderr();
            log.contains("waiting for late0: there is no interface 'late0'")
        });
        wait_until("the other one is drained", || {
            hooks_of(&status(&lab, &agent), "new0") == 0
        });
        namespace.add_wire(["late0", "far1"]).unwrap();
        wait_until_watched(&lab, &agent, "late0");
        send(&lab, ["late0", "far1"], &frame, 20);

        // And back, with the same index.
        select(here);
        agent.signal(libc::SIGHUP);
        wait_until_watched(&lab, &agent, here);
        to_agent(30);
        let report = agent.stop();
        assert_eq!(packets_on(&report, here), 130, "{tc_attach}");
        assert_eq!(packets_on(&report, "new0"), 50, "{tc_attach}");
        assert_eq!(packets_on(&report, "late0"), 20, "{tc_attach}");
        assert_eq!(report.seen(), count(200, &frame), "{tc_attach}");
    }
}

fn descriptors(agent: &mut Agent) -> usize {
    let folder = format!("/proc/{}/fd", agent.pid());
    fs::read_dir(folder).unwrap().count()
}

/// Many commands of `ip`, a line each.
pub(super) fn batch(namespace: &Namespace, lines: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lines");
    fs::write(&path, lines).unwrap();
    let mut command: Command = namespace.command("ip");
    let status = command.arg("-batch").arg(&path).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_thousand_that_come_and_go_leave_nothing_behind() {
    const ROUNDS: u64 = 20;
    const WIRES: u64 = 50;
    /// The interfaces of each round that carry packets.
    const BUSY: u64 = 5;
    /// 8 KiB for each interface of the second half of the rounds.
    const SPREAD_BYTES: u64 = 4 << 20;
    if !is_root_or_skip("agent::a_thousand_that_come_and_go_leave_nothing_behind") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let namespace = &lab.agent.namespace;
    // The programs' table has 512 places then. Each hook costs grace periods for which all other tests wait, too.
    let settings = [
        "--output",
        "none",
        "--max-interfaces",
        "51",
        "--direction",
        "ingress",
        "--metrics",
        "0",
    ];
    let mut agent = Agent::start_on(&lab.agent, &selection(&lab), &settings);
    let address = metrics::address(&agent);
    let samples = || metrics::samples(&metrics::get(&lab.agent, &address, "/metrics").body);
    // These come with the first window in which programs are timed.
    let series = |samples: &BTreeMap<String, String>| -> Vec<String> {
        let series = samples.keys().cloned();
        series
            .filter(|name| !name.starts_with("flow_agent_program_"))
            .collect()
    };
    let series_before = series(&samples());
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    let mut before = None;
    let mut resident_bytes = Vec::new();
    for round in 1..=ROUNDS {
        let wires = (0..WIRES).map(|number| {
            format!(
                "link add new{number} type veth peer name far{number}\nlink set new{number} up\n\
                 link set far{number} up\n"
            )
        });
        batch(namespace, &wires.collect::<String>());
        wait_until("all are watched", || {
            status(&lab, &agent)["hooks"].as_array().unwrap().len() as u64 == WIRES + 1
        });
        for number in 0..BUSY {
            let (near, far) = (format!("new{number}"), format!("far{number}"));
            send(&lab, [&near, &far], &frame, 2);
        }
        let removed = (0..WIRES).map(|number| format!("link del new{number}\n"));
        batch(namespace, &removed.collect::<String>());
        wait_until("all are forgotten", || {
            let status = status(&lab, &agent);
            departed(&status) == round * WIRES && status["hooks"].as_array().unwrap().len() == 1
        });
        let memory = status(&lab, &agent)["memory"].clone();
        resident_bytes.push(memory["resident_bytes"].as_u64().unwrap());
        let memory = memory["kernel_map_bytes"].clone();
        let replica = status(&lab, &agent)["replica"]["tracked"].clone();
        assert_eq!(replica, 0);
        let now = (descriptors(&mut agent), memory);
        wait_until("the links are closed", || {
            let now = descriptors(&mut agent);
            before.as_ref().is_none_or(|(before, _)| now <= *before)
        });
        let (_, memory_before) = before.get_or_insert_with(|| now.clone());
        assert_eq!(now.1, *memory_before);
    }
    let (early, late) = resident_bytes.split_at(resident_bytes.len() / 2);
    let most = |bytes: &[u64]| *bytes.iter().max().unwrap();
    let is_flat = most(late) <= most(early) + SPREAD_BYTES;
    assert!(is_flat, "{resident_bytes:?}");
    let seen = pair(&status(&lab, &agent)["account"]["seen"]);
    assert_eq!(seen, count(ROUNDS * BUSY * 2, &frame));
    // Their series left with them, and their counts are in the sums.
    let udp = r#"flow_agent_traffic_packets_total{direction="ingress",protocol="udp"}"#;
    wait_until("the metrics have them", || {
        samples()[udp] == seen.packets.to_string()
    });
    let found = samples();
    assert_eq!(
        found["flow_agent_departed_interfaces_total"],
        (ROUNDS * WIRES).to_string()
    );
    let departed = ["packets", "bytes"]
        .map(|unit| found[&format!("flow_agent_departed_seen_{unit}_total")].clone());
    assert_eq!(
        departed,
        [seen.packets, seen.bytes].map(|sum| sum.to_string())
    );
    assert_eq!(series(&found), series_before);
    agent.stop_silent();
}

#[test]
fn a_strangers_native_xdp_is_let_alone_and_arriving_packets_count_at_tc() {
    if !is_root_or_skip(
        "agent::a_strangers_native_xdp_is_let_alone_and_arriving_packets_count_at_tc",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let theirs = xdp_native(&lab.agent);
    let their_id = xdp_id(&lab.agent);
    let settings = ["--ingress-hook", "xdp", "--xdp-without-tags"];
    let agent = Agent::start(&lab, &settings);
    assert_eq!(xdp_id(&lab.agent), their_id, "beside us");
    assert!(agent.stderr().contains("another XDP program is there"));
    let hooks = &status(&lab, &agent)["hooks"];
    assert_eq!(hooks[0]["instead_of_xdp"], "taken");
    assert_eq!(hooks[0]["hook"], "tc_ingress");
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    let before = lab.agent.counters().unwrap();
    let frames = std::iter::repeat_n(&frame, 100);
    lab.peer.frame_socket().unwrap().send_many(frames).unwrap();
    crate::support::wait_for_packets(&lab.agent, before, 100);
    assert_eq!(agent.stop().seen(), count(100, &frame));
    assert_eq!(xdp_id(&lab.agent), their_id, "after us");
    drop(theirs);
}
