//! `flow-agent keep`, which starts the agent again and keeps its descriptors where there is no systemd.

use std::{fs, process::Command};

use lab::privilege::is_root_or_skip;
use rustix::process::{Pid, Signal, kill_process};

use super::{CLSACT, Line, has_links_or_skip, wait_until};
use crate::support::{Agent, BINARY, attached::nothing_is_attached, hook::Hook};

/// Starts a keeper in place of the service manager of `line`.
fn keep(line: &Line) -> Agent {
    let mut command = line.lab.agent.namespace.command(BINARY);
    command.arg("keep");
    let settings: Vec<_> = line.settings.iter().map(String::as_str).collect();
    let mut keeper = Agent::begin(command, &line.interfaces, &settings);
    keeper.wait_until_counting();
    keeper
}

/// The process that the keeper has started.
fn agent_of(keeper: &mut Agent) -> Option<Pid> {
    let pid = keeper.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    Pid::from_raw(children.split_whitespace().next()?.parse().unwrap())
}

/// How many agents have begun to count.
fn started(keeper: &Agent) -> usize {
    keeper.stderr().matches("counting max_flows").count()
}

fn wait_until_started(keeper: &Agent, agents: usize) {
    wait_until("the next agent counts", || started(keeper) == agents);
}

fn a_kept_agent_loses_nothing(line: &Line) {
    let mut keeper = keep(line);
    let before = line.counters();
    let traffic = line.traffic();
    for number in 0..6 {
        traffic.wait_for(50);
        if number % 2 == 0 {
            let agent = agent_of(&mut keeper).unwrap();
            kill_process(agent, Signal::KILL).unwrap();
        } else {
            keeper.signal(libc::SIGUSR1);
        }
        wait_until_started(&keeper, number + 2);
    }
    traffic.wait_for(50);
    let sent = traffic.end_all();
    let counted = line.counted(before);
    assert_eq!(counted.packets, sent);
    line.wait_until_in_accounts(counted.packets);
    keeper.stop_silent();
    assert!(nothing_is_attached(&line.lab.agent));
    let books = line.books();
    books.assert_close();
    assert_eq!(books.seen(), counted);
    // An agent that was killed before its first scan has reported nothing itself.
    assert!((4..=7).contains(&books.instances.len()));
}

#[test]
fn a_kept_agent_loses_no_packet_on_tcx() {
    if has_links_or_skip("agent::a_kept_agent_loses_no_packet_on_tcx") {
        a_kept_agent_loses_nothing(&Line::new(Hook::TcIngress, &[]));
    }
}

#[test]
fn a_kept_agent_loses_no_packet_on_clsact() {
    if is_root_or_skip("agent::a_kept_agent_loses_no_packet_on_clsact") {
        a_kept_agent_loses_nothing(&Line::new(Hook::TcIngress, CLSACT));
    }
}

/// The keeper starts another agent, which reports what the last one has left, and detaches.
fn a_stop_after_a_kill_loses_nothing(line: &Line) {
    let mut keeper = keep(line);
    let before = line.counters();
    let traffic = line.traffic();
    traffic.wait_for(50);
    let agent = agent_of(&mut keeper).unwrap();
    kill_process(agent, Signal::KILL).unwrap();
    wait_until("the keeper knows", || agent_of(&mut keeper).is_none());
    traffic.wait_for(50);
    let sent = traffic.end_all();
    keeper.stop_silent();
    let counted = line.counted(before);
    assert_eq!(counted.packets, sent);
    assert!(nothing_is_attached(&line.lab.agent));
    let books = line.books();
    books.assert_close();
    assert_eq!(books.seen(), counted);
}

#[test]
fn a_stop_after_a_kill_loses_no_packet_on_tcx() {
    if has_links_or_skip("agent::a_stop_after_a_kill_loses_no_packet_on_tcx") {
        a_stop_after_a_kill_loses_nothing(&Line::new(Hook::TcIngress, &[]));
    }
}

#[test]
fn a_stop_after_a_kill_loses_no_packet_on_clsact() {
    if is_root_or_skip("agent::a_stop_after_a_kill_loses_no_packet_on_clsact") {
        a_stop_after_a_kill_loses_nothing(&Line::new(Hook::TcIngress, CLSACT));
    }
}

/// The agent that ends has left its programs to another one, which detaches them.
#[test]
fn a_stop_during_a_restart_loses_no_packet() {
    if !is_root_or_skip("agent::a_stop_during_a_restart_loses_no_packet") {
        return;
    }
    for step in 0..4 {
        let line = Line::new(Hook::TcIngress, CLSACT);
        let mut keeper = keep(&line);
        let before = line.counters();
        let traffic = line.traffic();
        traffic.wait_for(50);
        let sent = traffic.end_all();
        keeper.signal(libc::SIGUSR1);
        match step {
            0 => {}
            1 => keeper.wait_until_logged("counting has stopped"),
            2 => keeper.wait_until_logged("final account"),
            _ => wait_until_started(&keeper, 2),
        }
        keeper.stop_silent();
        let counted = line.counted(before);
        assert_eq!(counted.packets, sent);
        assert!(nothing_is_attached(&line.lab.agent), "step {step}");
        let books = line.books();
        books.assert_close();
        assert_eq!(books.seen(), counted, "step {step}");
    }
}

#[test]
fn an_agent_that_hangs_is_killed_and_loses_no_packet() {
    if !is_root_or_skip("agent::an_agent_that_hangs_is_killed_and_loses_no_packet") {
        return;
    }
    let line = Line::new(Hook::TcIngress, CLSACT);
    let mut keeper = keep(&line);
    let before = line.counters();
    let traffic = line.traffic();
    traffic.wait_for(50);
    kill_process(agent_of(&mut keeper).unwrap(), Signal::STOP).unwrap();
    keeper.wait_until_logged("does not answer, and is killed");
    wait_until_started(&keeper, 2);
    traffic.wait_for(50);
    let sent = traffic.end_all();
    let counted = line.counted(before);
    assert_eq!(counted.packets, sent);
    line.end(keeper, counted);
}

#[test]
fn an_agent_whose_keeper_is_gone_stops() {
    if !has_links_or_skip("agent::an_agent_whose_keeper_is_gone_stops") {
        return;
    }
    let line = Line::new(Hook::TcIngress, &[]);
    let keeper = keep(&line);
    assert!(!nothing_is_attached(&line.lab.agent));
    keeper.kill();
    wait_until("its programs are gone", || {
        nothing_is_attached(&line.lab.agent)
    });
}

#[test]
fn settings_that_cannot_work_end_the_keeper_with_their_status() {
    for (arguments, status, error) in [
        (&["keep"][..], 2, "<COMMAND>"),
        (&["keep", "status"], 2, "flow-agent keep run -i eth0"),
        (
            &["keep", "run", "--scan-interval", "soon"],
            2,
            "--scan-interval",
        ),
    ] {
        let output = Command::new(BINARY).args(arguments).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{stderr}");
        assert!(stderr.contains(error), "{stderr}");
    }
}
