//! SIGKILL at each step of a scan, and of taking over from the last agent, loses no packet and counts none twice.

use std::time::Duration;

use lab::{kill_at, privilege::is_root_or_skip};

use super::{CLSACT, Line, Random, has_links_or_skip, wait_until};
use crate::support::{Agent, hook::Hook};

/// The calls by which an agent changes what the next one finds, in groups that take turns: how many calls of one kind come
/// between two of another depends on the moment.
const LEDGER: &[libc::c_long] = &[libc::SYS_pwrite64, libc::SYS_ftruncate];
/// With filters, which are changed by messages as well.
const STORE: &[libc::c_long] = &[libc::SYS_sendmsg, libc::SYS_sendto];
const MAPS_AND_LINKS: &[libc::c_long] = &[libc::SYS_bpf];
const KILLS: usize = 24;
/// Between two calls, pages are read and emptied.
const UP_TO: Duration = Duration::from_millis(1);

/// Kills an agent at this step, or a moment after it.
fn kill(mut agent: Agent, calls: &[libc::c_long], step: usize, random: &mut Random) {
    let later = if step.is_multiple_of(2) {
        Duration::ZERO
    } else {
        random.duration(UP_TO)
    };
    kill_at(agent.pid(), calls, step, later).unwrap();
    agent.kill();
}

/// Calls and the number of the step, for each kill: one group after the other, and each time a step later.
fn steps<const GROUPS: usize>(
    groups: [(&'static [libc::c_long], usize); GROUPS],
) -> impl Iterator<Item = (&'static [libc::c_long], usize)> {
    let rounds = 0..KILLS / GROUPS;
    rounds.flat_map(move |round| groups.map(|(calls, stride)| (calls, 1 + round * stride)))
}

fn kills_at_any_step_of_a_scan(line: &Line) {
    let mut random = Random::new();
    let mut agent = line.start();
    let before = line.counters();
    let traffic = line.traffic();
    for (calls, step) in steps([(LEDGER, 1), (MAPS_AND_LINKS, 2)]) {
        kill(agent, calls, step, &mut random);
        agent = line.start();
        wait_until("it has taken over", || {
            agent.stderr().contains("carried over what")
        });
    }
    let sent = traffic.end_all();
    let counted = line.counted(before);
    assert_eq!(counted.packets, sent);
    line.end(agent, counted);
}

#[test]
fn a_kill_at_any_step_of_a_scan_loses_no_packet_on_tcx() {
    if has_links_or_skip("agent::a_kill_at_any_step_of_a_scan_loses_no_packet_on_tcx") {
        kills_at_any_step_of_a_scan(&Line::new(Hook::TcIngress, &[]));
    }
}

/// The next agent reports what waited, and what that one had not reported either if it is killed in turn.
#[test]
fn a_kill_at_any_step_of_a_scan_loses_no_packet_that_waits_for_its_report() {
    const TEST: &str =
        "agent::a_kill_at_any_step_of_a_scan_loses_no_packet_that_waits_for_its_report";
    if has_links_or_skip(TEST) {
        let settings = ["--report-interval", "500ms"];
        kills_at_any_step_of_a_scan(&Line::new(Hook::TcIngress, &settings));
    }
}

#[test]
fn a_kill_at_any_step_of_a_scan_loses_no_packet_on_clsact() {
    if is_root_or_skip("agent::a_kill_at_any_step_of_a_scan_loses_no_packet_on_clsact") {
        kills_at_any_step_of_a_scan(&Line::new(Hook::TcIngress, CLSACT));
    }
}

/// Most of them are killed before they have drained what the last one left.
fn kills_at_any_step_of_a_start(line: &Line) {
    let mut random = Random::new();
    let agent = line.start();
    let before = line.counters();
    let traffic = line.traffic();
    traffic.wait_for(50);
    agent.kill();
    // The maps are not among them: the first hundreds of calls load programs.
    for (calls, step) in steps([(LEDGER, 1), (STORE, 3)]) {
        kill(line.begin(), calls, step, &mut random);
    }
    let agent = line.start();
    traffic.wait_for(50);
    let sent = traffic.end_all();
    let counted = line.counted(before);
    assert_eq!(counted.packets, sent);
    line.end(agent, counted);
}

#[test]
fn a_kill_at_any_step_of_a_start_loses_no_packet_on_native_xdp() {
    if has_links_or_skip("agent::a_kill_at_any_step_of_a_start_loses_no_packet_on_native_xdp") {
        kills_at_any_step_of_a_start(&Line::new(Hook::NativeXdp, &[]));
    }
}

#[test]
fn a_kill_at_any_step_of_a_start_loses_no_packet_on_clsact() {
    if is_root_or_skip("agent::a_kill_at_any_step_of_a_start_loses_no_packet_on_clsact") {
        kills_at_any_step_of_a_start(&Line::new(Hook::TcIngress, CLSACT));
    }
}
