//! An agent on many interfaces.

use lab::{
    Lab, RtnlHold, kernel,
    privilege::{is_root_or_skip, skip},
};

use crate::{
    attached::tcx_programs_on,
    support::{Agent, wait_until},
};

/// Wires with both ends on the agent's host.
fn add_wires(lab: &Lab, count: usize) -> Vec<u32> {
    let namespace = &lab.agent.namespace;
    for number in 0..count {
        let (near, far) = (format!("many{number}"), format!("far{number}"));
        let link = ["link", "add", &near, "type", "veth", "peer", "name", &far];
        namespace.ip(&link).unwrap();
        namespace.ip(&["link", "set", &near, "up"]).unwrap();
    }
    let ifindexes = (0..count).map(|number| namespace.ifindex(&format!("many{number}")));
    ifindexes.collect::<Result<_, _>>().unwrap()
}

/// Each link's end takes a grace period under RTNL: with that held by somebody else, an agent that
/// waited for one of them would not end.
#[test]
fn the_end_waits_for_no_link_of_many() {
    const NAME: &str = "agent::the_end_waits_for_no_link_of_many";
    if !kernel::is_at_least(6, 6) {
        return skip(NAME, "the kernel has TCX from 6.6");
    }
    if !is_root_or_skip(NAME) {
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
    let settings = ["--scan-interval", "1h"];
    let agent = Agent::start_on(&lab.agent, "many*", &settings);
    assert_eq!(attached(), 40);
    let held = match RtnlHold::take() {
        Ok(held) => held,
        Err(error) => return skip(NAME, &format!("RTNL cannot be held: {error:#}")),
    };
    agent.stop();
    assert!(held.release(), "it ends while RTNL is held");
    wait_until("the kernel has detached them", || attached() == 0);
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
