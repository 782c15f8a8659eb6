//! A SIGKILL at any moment loses no packet and counts none twice.

use std::{collections::BTreeSet, time::Duration};

use lab::privilege::is_root_or_skip;

use super::{CLSACT, FLOWS, Line, Random, Traffic, has_links_or_skip, wait_until};
use crate::support::{Agent, hook::Hook};

const KILLS: usize = 10;
/// Longer than a scan takes, and than most starts.
const UP_TO: Duration = Duration::from_millis(700);

/// Kills agents at random moments under steady traffic, every second one not before it counts. Returns the last one,
/// which counts.
pub fn kill_at_random(line: &Line, mut agent: Agent, kills: usize) -> Agent {
    let mut random = Random::new();
    for number in 0..kills {
        if number.is_multiple_of(2) {
            agent.wait_until_counting();
        }
        random.wait(UP_TO);
        agent.kill();
        random.wait(UP_TO);
        if number.is_multiple_of(3) {
            // As `systemctl daemon-reload` does.
            line.store.change(|fds| fds.reverse()).unwrap();
        }
        agent = line.begin();
    }
    agent.wait_until_counting();
    agent
}

/// Returns what the agents have reported, to the packet and byte of the interface.
fn kills_lose_nothing(line: &Line) {
    let agent = line.start();
    let before = line.counters();
    let traffic = line.traffic();
    let agent = kill_at_random(line, agent, KILLS);
    traffic.wait_for(10);
    let rounds = traffic.end();
    let counted = line.counted(before);
    assert_eq!(counted.packets, rounds * u64::from(FLOWS));
    let books = line.end(agent, counted);
    for port in 1000..1000 + FLOWS {
        assert_eq!(books.packets_from(port), rounds, "of the flow from {port}");
    }
}

#[test]
fn ten_kills_lose_no_packet_on_tcx() {
    if has_links_or_skip("agent::ten_kills_lose_no_packet_on_tcx") {
        kills_lose_nothing(&Line::new(Hook::TcIngress, &[]));
    }
}

#[test]
fn ten_kills_lose_no_packet_on_native_xdp() {
    if has_links_or_skip("agent::ten_kills_lose_no_packet_on_native_xdp") {
        kills_lose_nothing(&Line::new(Hook::NativeXdp, &[]));
    }
}

/// The filters are in no store: the kernel keeps them, and the next agent knows them by their names.
#[test]
fn ten_kills_lose_no_packet_on_clsact() {
    if is_root_or_skip("agent::ten_kills_lose_no_packet_on_clsact") {
        kills_lose_nothing(&Line::new(Hook::TcIngress, CLSACT));
    }
}

#[test]
fn kills_lose_no_packet_of_either_direction() {
    if !has_links_or_skip("agent::kills_lose_no_packet_of_either_direction") {
        return;
    }
    let line = Line::new(Hook::TcIngress, &[]);
    let agent = line.start();
    let before = line.counters();
    let arriving = line.traffic();
    let (here, peer) = (&line.lab.agent, &line.lab.peer);
    let leaving = Traffic::start(here, peer, 3000, FLOWS, super::PACE);
    let agent = kill_at_random(&line, agent, 4);
    let sent = arriving.end_all() + leaving.end_all();
    let counted = line.counted(before);
    assert_eq!(counted.packets, sent);
    line.end(agent, counted);
}

/// The second and the third agent are killed as soon as they have stored something, before they drain the first one's
/// flows.
#[test]
fn agents_that_are_killed_before_they_have_drained_the_last_ones_maps_lose_nothing() {
    const TEST: &str =
        "agent::agents_that_are_killed_before_they_have_drained_the_last_ones_maps_lose_nothing";
    if !has_links_or_skip(TEST) {
        return;
    }
    let line = Line::new(Hook::TcIngress, &[]);
    let agent = line.start();
    let before = line.counters();
    let traffic = line.traffic();
    traffic.wait_for(100);
    agent.kill();
    for _ in 0..2 {
        let earlier = instances(&line);
        assert!(!earlier.is_empty());
        traffic.wait_for(50);
        let agent = line.begin();
        wait_until("another agent stores something", || {
            !instances(&line).is_subset(&earlier)
        });
        agent.kill();
    }
    traffic.wait_for(50);
    let agent = line.start();
    traffic.wait_for(50);
    drop(traffic);
    let counted = line.counted(before);
    line.end(agent, counted);
}

/// Agents whose maps are stored.
pub fn instances(line: &Line) -> BTreeSet<String> {
    let names = line.store.names().unwrap();
    let files = names
        .iter()
        .filter_map(|name| name.strip_prefix("carry-map."));
    let instances = files.filter_map(|file| file.split('.').next());
    instances.map(str::to_owned).collect()
}

#[test]
fn nothing_of_an_earlier_agent_stays_in_the_store_once_the_next_one_counts() {
    const TEST: &str =
        "agent::nothing_of_an_earlier_agent_stays_in_the_store_once_the_next_one_counts";
    if !has_links_or_skip(TEST) {
        return;
    }
    let line = Line::new(Hook::TcIngress, &[]);
    let agent = line.start();
    let first = instances(&line);
    assert_eq!(first.len(), 1, "{first:?}");
    let names = line.store.names().unwrap();
    let stored = names.len();
    // The unit's `FileDescriptorStoreMax=` assumes this many.
    assert!(names.iter().all(|name| name.len() <= 62), "{names:?}");
    agent.kill();
    let agent = line.start();
    wait_until("only the second one's are stored", || {
        let stored = instances(&line);
        stored.len() == 1 && stored != first
    });
    assert_eq!(line.store.count().unwrap(), stored);
    agent.stop();
}
