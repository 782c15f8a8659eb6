//! SIGKILL at each step of a scan, and of taking over from the last agent, loses no packet and counts none twice.

use std::{collections::BTreeMap, time::Duration};

use lab::{kill_at, privilege::is_root_or_skip};

use super::{CLSACT, Line, Random, has_links_or_skip, wait_until};
use crate::support::{Agent, hook::Hook};

/// The calls by which an agent changes what the next one finds: the ledger, the store, filters, and maps and links. When
/// it starts, the last of them load hundreds of programs.
const CALLS: [libc::c_long; 5] = [
    libc::SYS_pwrite64,
    libc::SYS_ftruncate,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_bpf,
];
const AT_START: &[libc::c_long] = CALLS.split_at(4).0;
const KILLS: usize = 24;
/// More steps than storing everything, taking over and a first scan have.
const STEPS_OF_A_START: usize = 3 * KILLS;
/// Between two calls, pages are read and emptied.
const UP_TO: Duration = Duration::from_millis(1);

/// Kills agents, each a step later than the one before it.
struct Killer {
    random: Random,
    calls: BTreeMap<libc::c_long, usize>,
}

impl Killer {
    fn new() -> Self {
        Self {
            random: Random::new(),
            calls: BTreeMap::new(),
        }
    }

    /// Before the step, or a moment after it.
    fn kill(&mut self, mut agent: Agent, calls: &[libc::c_long], step: usize) {
        let later = if step.is_multiple_of(2) {
            Duration::ZERO
        } else {
            self.random.duration(UP_TO)
        };
        let call = kill_at(agent.pid(), calls, step, later).unwrap();
        *self.calls.entry(call).or_insert(0) += 1;
        agent.kill();
    }

    /// Asserts that some of the kills were at calls of this kind.
    fn assert_killed_at(&self, call: libc::c_long) {
        let kills = self.calls.get(&call).copied().unwrap_or_default();
        assert!(kills > 2, "{:?}", self.calls);
    }
}

fn kills_at_any_step_of_a_scan(line: &Line) {
    let mut killer = Killer::new();
    let mut agent = line.start();
    let before = line.counters();
    let traffic = line.traffic();
    for step in 1..=KILLS {
        killer.kill(agent, &CALLS, step);
        agent = line.start();
        wait_until("it has taken over", || {
            agent.stderr().contains("carried over what")
        });
    }
    killer.assert_killed_at(libc::SYS_pwrite64);
    killer.assert_killed_at(libc::SYS_bpf);
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
    let mut killer = Killer::new();
    let agent = line.start();
    let before = line.counters();
    let traffic = line.traffic();
    traffic.wait_for(50);
    agent.kill();
    for step in (1..=STEPS_OF_A_START).step_by(STEPS_OF_A_START / KILLS) {
        killer.kill(line.begin(), AT_START, step);
    }
    killer.assert_killed_at(libc::SYS_sendmsg);
    killer.assert_killed_at(libc::SYS_pwrite64);
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
