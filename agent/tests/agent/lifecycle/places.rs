//! Selected interfaces that are not counted: all places are taken, or a hook is refused.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Instant,
};

use lab::{Counters, FrameSocket, Lab, kernel, privilege::is_root_or_skip};
use serde_json::Value;

use super::{
    CLSACT,
    coming::{hooks_of, ip, packets_on, selection, send, status, wait_until_watched},
    many::add_wires,
};
use crate::support::{
    Agent,
    attached::{filters, tc, tcx_programs_on},
    count, flow_agent, pair, patience, wait_until,
};

#[test]
fn an_interface_beyond_the_most_is_said_and_counted_when_another_leaves() {
    if !is_root_or_skip(
        "agent::an_interface_beyond_the_most_is_said_and_counted_when_another_leaves",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let namespace = &lab.agent.namespace;
    let settings = ["--max-interfaces", "2"];
    let agent = Agent::start_on(&lab.agent, &selection(&lab), &settings);
    for number in [0, 1] {
        let (near, far) = (format!("new{number}"), format!("far{number}"));
        namespace.add_wire([&near, &far]).unwrap();
        wait_until("it is known", || {
            let status = status(&lab, &agent);
            hooks_of(&status, &near) == 2 || status["interfaces"]["not_counted"] == 1
        });
    }
    wait_until("the log names the setting", || {
        agent.stderr().contains("--max-interfaces")
    });
    assert_eq!(hooks_of(&status(&lab, &agent), "new1"), 0);
    let text = agent.asked(&lab.agent, &["status"]).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("1 selected interfaces are not counted"),
        "{text}"
    );
    let why = format!(
        "  new1 (ifindex {}, netns {}): 2 interfaces are counted already: raise --max-interfaces",
        namespace.ifindex("new1").unwrap(),
        status(&lab, &agent)["hooks"][0]["interface"]["netns"]
    );
    assert!(text.contains(&why), "{why}: {text}");
    let uncounted = &status(&lab, &agent)["interfaces"]["uncounted"];
    assert_eq!(uncounted.as_array().unwrap().len(), 1);
    assert_eq!(uncounted[0]["interface"]["name"], "new1");
    assert_eq!(uncounted[0]["reason"], "no_place");
    // The log limits lines about single interfaces. A later line counts the ones without a line of their own.
    namespace.add_wire(["new2", "far2"]).unwrap();
    wait_until("it is told how many there are", || {
        let log = agent.stderr();
        let mut lines = log.lines().filter(|line| line.contains("names them"));
        lines.any(|line| line.contains("interfaces=2"))
    });
    ip(namespace, "link del new2");
    wait_until("it is forgotten", || {
        status(&lab, &agent)["interfaces"]["not_counted"] == 1
    });
    ip(namespace, "link del new0");
    wait_until_watched(&lab, &agent, "new1");
    let interfaces = &status(&lab, &agent)["interfaces"];
    assert_eq!(interfaces["not_counted"], 0);
    assert_eq!(interfaces["uncounted"], Value::Array(Vec::new()));
    agent.stop();

    for (interfaces, told) in [
        ("new1,far1", "2 interfaces are named"),
        ("*1", "are selected"),
    ] {
        let mut command = flow_agent(&lab.agent);
        command.args(["run", "--interface", interfaces, "--max-interfaces", "1"]);
        let refused = command.output().unwrap();
        let stderr = String::from_utf8(refused.stderr).unwrap();
        assert!(stderr.contains(told), "{stderr}");
    }
}

/// A container host boots with few interfaces.
#[test]
fn a_pattern_that_matches_nothing_yet_leaves_room_for_the_interfaces_of_containers() {
    const WIRES: usize = 80;
    if !is_root_or_skip(
        "agent::a_pattern_that_matches_nothing_yet_leaves_room_for_the_interfaces_of_containers",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let settings = [CLSACT, &["--direction", "ingress"]].concat();
    let agent = Agent::start_on(&lab.agent, "many*", &settings);
    add_wires(&lab, WIRES);
    wait_until("each of them is known", || {
        let status = status(&lab, &agent);
        let hooks = status["hooks"].as_array().unwrap().len() as u64;
        let not_counted = status["interfaces"]["not_counted"].as_u64().unwrap();
        hooks + not_counted == WIRES as u64
    });
    assert_eq!(status(&lab, &agent)["interfaces"]["not_counted"], 0);
    agent.stop();
}

/// All places are taken until the first ones are given up, and only a requested scan frees them.
#[test]
fn a_reload_gives_the_places_of_the_first_interfaces_to_others_before_it_is_over() {
    if !is_root_or_skip(
        "agent::a_reload_gives_the_places_of_the_first_interfaces_to_others_before_it_is_over",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let namespace = &lab.agent.namespace;
    for number in 0..4 {
        let (near, far) = (format!("new{number}"), format!("far{number}"));
        namespace.add_wire([&near, &far]).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    let select = |interfaces: &str| {
        let settings = format!(
            "output = ['json']\ninterface = [{interfaces}]\nmax_interfaces = 2\nmax_flows = 1000\n\
             scan_interval = '1h'\n"
        );
        fs::write(&file, settings).unwrap();
    };
    let nothing_is_on = |interface: &str| {
        let ifindex = namespace.ifindex(interface).unwrap();
        let has_tcx = kernel::has_tcx();
        !filters(&lab.agent, interface).contains("flow-agent")
            && (!has_tcx || tcx_programs_on(&lab.agent, ifindex) == [0, 0])
    };
    select("'new0', 'new1'");
    let agent = Agent::start_by_file(&lab.agent, "", &file);
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    send(&lab, ["new0", "far0"], &frame, 10);
    select("'new2', 'new3'");
    agent.signal(libc::SIGHUP);
    wait_until("the settings are in force", || {
        agent.stderr().contains("read the settings again")
    });
    assert!(nothing_is_on("new0") && nothing_is_on("new1"));
    send(&lab, ["new2", "far2"], &frame, 20);
    send(&lab, ["new3", "far3"], &frame, 30);
    assert!(
        !agent.stderr().contains("not counted"),
        "{}",
        agent.stderr()
    );
    let report = agent.stop();
    assert_eq!(report.seen(), count(60, &frame));
    assert_eq!(packets_on(&report, "new2"), 20);
}

/// The kernel takes no filter on the egress side of somebody's ingress qdisc.
#[test]
fn an_interface_of_which_one_hook_is_refused_keeps_no_program() {
    if !is_root_or_skip("agent::an_interface_of_which_one_hook_is_refused_keeps_no_program") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let namespace = &lab.agent.namespace;
    let agent = Agent::start_on(&lab.agent, &selection(&lab), CLSACT);
    namespace.add_wire(["other0", "far0"]).unwrap();
    tc(&lab.agent, "qdisc add dev other0 ingress");
    for line in ["set other0 down", "set other0 name new0", "set new0 up"] {
        ip(namespace, &format!("link {line}"));
    }
    // Each change of it causes another attempt, after a scan has drained the packets counted meanwhile.
    let mut uncounted = Value::Null;
    wait_until("it is refused", || {
        uncounted = status(&lab, &agent)["interfaces"]["uncounted"][0].clone();
        uncounted["reason"] == "refused"
    });
    wait_until("the log says so, too", || {
        agent.stderr().contains("not counted")
    });
    assert_eq!(uncounted["interface"]["name"], "new0");
    let detail = uncounted["detail"].as_str().unwrap();
    assert!(
        detail.contains("another program's ingress qdisc"),
        "{detail}"
    );
    wait_until("no program is kept", || {
        !filters(&lab.agent, "new0").contains("flow-agent:")
    });
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    wait_until("frames pass", || {
        let before = Counters::read(namespace, "new0").unwrap();
        let socket = FrameSocket::new(namespace, "far0").unwrap();
        // Without a carrier the qdisc takes no frame.
        let _ = socket.send(&frame);
        Counters::read(namespace, "new0").unwrap().rx_packets > before.rx_packets
    });

    // One hook counts until the other is refused. Scans do not cause another attempt.
    wait_until("the last change is over", || {
        let link = namespace
            .command("ip")
            .args(["link", "show", "new0"])
            .output();
        String::from_utf8_lossy(&link.unwrap().stdout).contains("state UP")
    });
    let scans = |more: u64| {
        let count = || status(&lab, &agent)["scans"]["count"].as_u64().unwrap();
        let before = count();
        wait_until("scans go on", || count() >= before + more);
        pair(&status(&lab, &agent)["account"]["seen"]).packets
    };
    let before = scans(20);
    let is_over = AtomicBool::new(false);
    let after = thread::scope(|scope| {
        scope.spawn(|| {
            let socket = FrameSocket::new(namespace, "far0").unwrap();
            let start = Instant::now();
            while !is_over.load(Relaxed) && start.elapsed() < patience() {
                socket.send(&frame).unwrap();
            }
        });
        let after = scans(20);
        is_over.store(true, Relaxed);
        after
    });
    assert_eq!(after, before, "it is tried at scans");
    assert_eq!(agent.stop().seen().packets, before);
}
