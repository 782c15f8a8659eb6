//! An agent on many interfaces.

use std::collections::BTreeSet;

use lab::{
    FrameSocket, Lab, RtnlHold,
    privilege::{is_root_or_skip, skip},
};
use serde_json::Value;

use super::{CLSACT, coming::batch, has_tcx_or_skip};
use crate::support::{
    Agent,
    attached::{filters, tcx_programs_on},
    count, flow_agent,
    threads::{status_line, thread_named},
    wait_until,
};

/// Wires with both ends on the agent's host.
pub(super) fn add_wires(lab: &Lab, count: usize) -> Vec<u32> {
    let namespace = &lab.agent.namespace;
    for number in 0..count {
        let (near, far) = (format!("many{number}"), format!("far{number}"));
        namespace.add_wire([&near, &far]).unwrap();
    }
    let ifindexes = (0..count).map(|number| namespace.ifindex(&format!("many{number}")));
    ifindexes.collect::<Result<_, _>>().unwrap()
}

/// Detaching a link takes a grace period under RTNL. Somebody else holds RTNL, so an agent that waited for one
/// of them would not end.
#[test]
fn the_end_waits_for_no_link_of_many() {
    const NAME: &str = "agent::the_end_waits_for_no_link_of_many";
    if !has_tcx_or_skip(NAME) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let ifindexes = add_wires(&lab, 20);
    let attached = || -> u32 {
        let programs = ifindexes
            .iter()
            .map(|&ifindex| tcx_programs_on(&lab.agent, ifindex));
        programs.flatten().sum()
    };
    // The agent gets a notification for each interface that comes up.
    wait_until("they are up", || {
        let links = lab.agent.namespace.ip(&["-json", "link"]).unwrap();
        let links: Value = serde_json::from_slice(&links).unwrap();
        let mut wires = links
            .as_array()
            .unwrap()
            .iter()
            .filter(|link| link["ifname"] != "lo");
        wires.all(|link| link["operstate"] == "UP")
    });
    let settings = ["--scan-interval", "1h"];
    let mut agent = Agent::start_on(&lab.agent, "many*", &settings);
    assert_eq!(attached(), 40);
    // Threads that ask the kernel about interfaces wait for RTNL, also at shutdown. The thread that checks links every
    // five seconds has just finished.
    let looking = thread_named(agent.pid(), "detach").unwrap();
    let looks = || status_line(&looking, "voluntary_ctxt_switches:");
    let before = looks();
    wait_until("links were looked at", || looks() != before);
    agent.wait_until_idle();
    let held = match RtnlHold::take() {
        Ok(held) => held,
        Err(error) => return skip(NAME, &format!("RTNL cannot be held: {error:#}")),
    };
    agent.stop();
    assert!(held.release(), "it ends while RTNL is held");
    wait_until("the kernel has detached them", || attached() == 0);
}

/// With clsact, whose filters need no grace period each.
#[test]
fn two_thousand_interfaces_count_and_leave_nothing_behind() {
    const WIRES: u64 = 1000;
    if !is_root_or_skip("agent::two_thousand_interfaces_count_and_leave_nothing_behind") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let namespace = &lab.agent.namespace;
    let wires = (0..WIRES).map(|number| {
        format!(
            "link add many{number} type veth peer name yonder{number}\n\
             link set many{number} up arp off addrgenmode none\n\
             link set yonder{number} up arp off addrgenmode none\n"
        )
    });
    batch(namespace, &wires.collect::<String>());
    let settings = ["--direction", "egress", "--interface", "yonder*"];
    let agent = Agent::start_on(&lab.agent, "many*", &[CLSACT, &settings].concat());
    let hooks = agent.status(&lab.agent)["hooks"].as_array().unwrap().len();
    assert_eq!(hooks as u64, 2 * WIRES);
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    for number in 0..WIRES {
        for end in ["many", "yonder"] {
            let socket = FrameSocket::new(namespace, &format!("{end}{number}")).unwrap();
            socket.send(&frame).unwrap();
        }
    }
    let report = agent.stop();
    assert_eq!(report.seen(), count(2 * WIRES, &frame));
    let interfaces: BTreeSet<_> = report
        .flows
        .iter()
        .map(|flow| flow["ifindex"].as_u64())
        .collect();
    assert_eq!(interfaces.len() as u64, 2 * WIRES);
    for number in (0..WIRES).step_by(100) {
        let filters = filters(&lab.agent, &format!("yonder{number}"));
        assert!(!filters.contains("flow-agent"), "{filters}");
    }
}

#[test]
fn more_files_than_the_soft_limit_are_opened() {
    if !is_root_or_skip("agent::more_files_than_the_soft_limit_are_opened") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    add_wires(&lab, 20);
    let limits = ["--nofile=48:4096", env!("CARGO_BIN_EXE_flow-agent")];
    let mut command = lab.agent.command("prlimit");
    command.args(limits);
    let agent = Agent::start_by(command, "many*", &[]);
    agent.stop();

    let mut command = lab.agent.command("prlimit");
    command.args(["--nofile=48:64", env!("CARGO_BIN_EXE_flow-agent")]);
    command.args(["run", "--interface", "many*", "--max-flows", "1000"]);
    command.args(["--listen", "127.0.0.1:0"]);
    let refused = command.output().unwrap();
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success());
    assert!(stderr.contains("the limit of open files"), "{stderr}");
}

/// The rest is for consumers and for other parts of the agent.
#[test]
fn interfaces_that_come_leave_some_files_to_open() {
    const NAME: &str = "agent::interfaces_that_come_leave_some_files_to_open";
    const WIRES: usize = 20;
    if !has_tcx_or_skip(NAME) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut command = lab.agent.command("prlimit");
    command.args(["--nofile=124", env!("CARGO_BIN_EXE_flow-agent")]);
    let agent = Agent::start_by(command, "many*", &[]);
    add_wires(&lab, WIRES);
    // 124 are 108 and 16 for hooks.
    wait_until("some are watched", || {
        let status = agent.status(&lab.agent);
        let hooks = status["hooks"].as_array().unwrap().len();
        hooks == 16 && status["interfaces"]["not_counted"] == WIRES - 8
    });
    wait_until("the log names the limit", || {
        agent
            .stderr()
            .contains("the limit of open files is 124: raise it")
    });
    agent.stop();
}

/// An interface without a hook takes no place.
#[test]
fn lo_has_no_place_where_only_egress_is_counted() {
    if !is_root_or_skip("agent::lo_has_no_place_where_only_egress_is_counted") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let settings = ["--direction", "egress", "--max-interfaces", "1"];
    let agent = Agent::start_on(&lab.agent, "l*,new*", &settings);
    lab.agent.namespace.add_wire(["new0", "far0"]).unwrap();
    wait_until("it is watched", || {
        let status = agent.status(&lab.agent);
        let hooks = status["hooks"].as_array().unwrap();
        hooks.len() == 1 && hooks[0]["interface"]["name"] == "new0"
    });
    agent.stop();
}

/// Each attachment takes a grace period under RTNL, which somebody else holds from the first one on.
#[test]
fn an_interface_counts_while_others_are_attached_to() {
    const NAME: &str = "agent::an_interface_counts_while_others_are_attached_to";
    const WIRES: usize = 60;
    if !is_root_or_skip(NAME) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    add_wires(&lab, WIRES);
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    let socket = FrameSocket::new(&lab.agent.namespace, "far0").unwrap();
    let mut agent = Agent::begin(flow_agent(&lab.agent), "many*", &[]);
    agent.wait_until_logged("attached interface=\"many0\" hook=\"tc_egress\"");
    let held = match RtnlHold::take() {
        Ok(held) => held,
        Err(error) => return skip(NAME, &format!("RTNL cannot be held: {error:#}")),
    };
    socket.send_many(std::iter::repeat_n(&frame, 100)).unwrap();
    wait_until("they are counted", || {
        agent.status(&lab.agent)["account"]["seen"]["packets"] == 100
    });
    let hooks = agent.status(&lab.agent)["hooks"].as_array().unwrap().len();
    assert!((2..2 * WIRES).contains(&hooks), "{hooks} are attached");
    assert!(held.release(), "they are counted while RTNL is held");
    agent.wait_until_logged("counting max_flows=");
    let status = agent.status(&lab.agent);
    assert_eq!(status["hooks"].as_array().unwrap().len(), 2 * WIRES);
    assert_eq!(agent.stop().seen(), count(100, &frame));
}
