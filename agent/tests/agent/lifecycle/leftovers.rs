//! The next start removes what a killed agent left on clsact, and nothing else.

use std::os::{
    linux::net::SocketAddrExt as _,
    unix::net::{SocketAddr, UnixDatagram},
};

use lab::{Host, Lab, kernel, privilege::is_root_or_skip};
use serde_json::Value;

use super::{CLSACT, TCX, here};
use crate::support::{
    Agent,
    attached::{add_filter, filters, tc},
    count, flow_agent, wait_for_packets,
};

/// A second wire whose ends both lie on the host.
fn add_wire(host: &Host) -> &'static str {
    let link = "link add other0 type veth peer name other1";
    let arguments: Vec<&str> = link.split(' ').collect();
    host.namespace.ip(&arguments).unwrap();
    "other0"
}

fn agents_on(lab: &Lab) -> usize {
    let shown = filters(&lab.agent, &lab.agent.interface);
    shown.matches("flow-agent:tc_ingress").count()
}

#[test]
fn the_next_start_removes_what_a_killed_agent_left_on_any_interface() {
    if !is_root_or_skip("agent::the_next_start_removes_what_a_killed_agent_left_on_any_interface") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let (host, interface) = (&lab.agent, &lab.agent.interface);
    let other = add_wire(host);
    tc(host, &format!("qdisc add dev {interface} clsact"));
    // Each of these differs from ours in one of: priority, upper half of the handle, name.
    add_filter(host, "ingress prio 8 handle 0xf10a0001", -1);
    add_filter(host, "ingress prio 7 handle 0x1", -1);
    add_filter(host, "ingress prio 7 handle 0xf10a0009", -1);
    add_filter(host, "egress prio 49374 handle 0xf10a0009", -1);
    let before = filters(host, interface);
    for next in here([TCX, CLSACT]) {
        let killed = Agent::start(&lab, CLSACT);
        killed.kill();
        assert_eq!(agents_on(&lab), 1, "a filter outlives its agent");
        let agent = Agent::start_on(host, other, next);
        assert_eq!(filters(host, interface), before);
        agent.stop();
        assert_eq!(filters(host, interface), before);
    }
}

#[test]
fn a_check_names_what_a_killed_agent_left_and_removes_it_if_it_is_told_to() {
    if !is_root_or_skip(
        "agent::a_check_names_what_a_killed_agent_left_and_removes_it_if_it_is_told_to",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let leftovers = |arguments: &[&str]| {
        let mut check = flow_agent(&lab.agent);
        check.args(["check", "--output", "json"]).args(arguments);
        let output = check.output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        let lines = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        let mut found = lines.filter(|line: &Value| line["name"] == "leftovers");
        found.next().map(|line| {
            let text = |name: &str| line[name].as_str().unwrap().to_owned();
            [text("status"), text("detail")]
        })
    };
    let agent = Agent::start(&lab, CLSACT);
    assert_eq!(leftovers(&[]), None, "of a living agent");
    agent.kill();
    let [status, detail] = leftovers(&[]).unwrap();
    assert!(status == "warn" && detail.contains(": 2;"), "{detail}");
    assert_eq!(agents_on(&lab), 1);
    let living = Agent::start_on(&lab.agent, add_wire(&lab.agent), CLSACT);
    // It has removed them on all interfaces.
    assert_eq!(agents_on(&lab), 0);

    let agent = Agent::start(&lab, CLSACT);
    agent.kill();
    let [status, detail] = leftovers(&["--cleanup"]).unwrap();
    assert!(status == "ok" && detail.ends_with(": 2"), "{detail}");
    assert_eq!(agents_on(&lab), 0);
    let other = filters(&lab.agent, "other0");
    assert_eq!(other.matches("flow-agent:").count(), 2, "of a living agent");
    let [status, _] = leftovers(&["--cleanup"]).unwrap();
    assert_eq!(status, "ok");
    living.stop();
}

#[test]
fn a_start_leaves_the_filters_of_living_agents_alone() {
    if !is_root_or_skip("agent::a_start_leaves_the_filters_of_living_agents_alone") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let first = Agent::start(&lab, CLSACT);
    let killed = Agent::start(&lab, CLSACT);
    let second = Agent::start(&lab, CLSACT);
    killed.kill();
    assert_eq!(agents_on(&lab), 3);
    let third = Agent::start(&lab, CLSACT);
    assert_eq!(agents_on(&lab), 3);

    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    let before = lab.agent.counters().unwrap();
    let frames = std::iter::repeat_n(&frame, 1000);
    lab.peer.frame_socket().unwrap().send_many(frames).unwrap();
    wait_for_packets(&lab.agent, before, 1000);
    for (agent, left) in [(first, 2), (second, 1), (third, 0)] {
        assert_eq!(agent.stop().seen(), count(1000, &frame));
        assert_eq!(agents_on(&lab), left);
    }
}

#[test]
fn an_agent_of_another_namespace_is_neither_seen_nor_needed() {
    if !is_root_or_skip("agent::an_agent_of_another_namespace_is_neither_seen_nor_needed") {
        return;
    }
    let (lab, elsewhere) = (Lab::quiet().unwrap(), Lab::quiet().unwrap());
    // Both are the first of their namespace, so that only the namespace tells them apart.
    let other = Agent::start(&elsewhere, CLSACT);
    let killed = Agent::start(&lab, CLSACT);
    killed.kill();
    assert_eq!((agents_on(&lab), agents_on(&elsewhere)), (1, 1));
    // With TCX where the kernel has it.
    let agent = Agent::start(&lab, &[]);
    let ours = usize::from(!kernel::has_tcx());
    assert_eq!((agents_on(&lab), agents_on(&elsewhere)), (ours, 1));
    agent.stop();
    other.stop();
}

/// Holds the names that earlier agents claimed, which must not keep an agent out.
#[test]
fn nobody_without_privilege_can_keep_an_agent_out() {
    if !is_root_or_skip("agent::nobody_without_privilege_can_keep_an_agent_out") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let held = lab.agent.namespace.enter(|| {
        become_nobody();
        let names = (0..=64).map(|number| format!("flow-agent/clsact/{number}"));
        let sockets =
            names.map(|name| UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?));
        Ok(sockets.collect::<Result<Vec<_>, _>>()?)
    });
    let held = held.unwrap();
    let killed = Agent::start(&lab, CLSACT);
    killed.kill();
    let agent = Agent::start(&lab, CLSACT);
    assert_eq!(agents_on(&lab), 1);
    agent.stop();
    assert_eq!(agents_on(&lab), 0);
    drop(held);
}

/// Changes the calling thread only.
fn become_nobody() {
    const NOBODY: libc::c_long = 65_534;
    // SAFETY: no pointers; the raw system call changes the calling thread alone.
    let refused = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
    assert_eq!(refused, 0);
}
