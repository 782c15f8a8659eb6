//! A store that is empty, full, or holds other things than an agent stored: the start is clean, and no number is wrong.

use std::{
    fs::File,
    os::{fd::OwnedFd, unix::fs::FileExt as _},
};

use agent_common::Pair;
use lab::{Counters, Store};

use super::{Line, Random, has_links_or_skip, kills::instances, wait_until, warns_of_carrying};
use crate::support::{
    Agent,
    attached::{nothing_is_attached, strange_map, tcx_programs},
    hook::Hook,
};

/// Other objects stored under our names.
const FOREIGN: [fn() -> OwnedFd; 4] = [
    || File::open("/proc/self/cmdline").unwrap().into(),
    || std::io::pipe().unwrap().0.into(),
    || tempfile::tempfile().unwrap().into(),
    strange_map,
];

/// A line whose first agent was killed under traffic that has ended, and the interface's counters before it.
fn after_a_kill() -> (Line, Counters) {
    let line = Line::new(Hook::TcIngress, &[]);
    let agent = line.start();
    let before = line.counters();
    let traffic = line.traffic();
    traffic.wait_for(100);
    agent.kill();
    traffic.wait_for(50);
    drop(traffic);
    (line, before)
}

/// Lets the next agent count. Asserts that the accounts have at least what passed while it counted, and at most what the
/// interface counted since `before`. Returns the packets that are in no account.
fn packets_lacking(line: &Line, agent: Agent, before: Counters) -> u64 {
    let own = own_packets(line);
    let counted = line.counted(before);
    let mut found = Pair::default();
    wait_until("the last packets are in accounts", || {
        let books = line.books();
        found = books.seen();
        books.packets_from(LAST_PORT) == own
    });
    agent.stop();
    let books = line.books();
    books.assert_close();
    assert_eq!(books.packets_from(LAST_PORT), own);
    assert!(found.packets <= counted.packets, "{found:?} of {counted:?}");
    assert_eq!(books.seen(), found);
    counted.packets - found.packets
}

const LAST_PORT: u16 = 5000;

/// Sends some packets of a separate flow.
fn own_packets(line: &Line) -> u64 {
    let (peer, here) = (&line.lab.peer, &line.lab.agent);
    let traffic = super::Traffic::start(peer, here, LAST_PORT, 1, super::PACE);
    traffic.wait_for(50);
    traffic.end_all()
}

#[test]
fn after_a_full_stop_the_programs_are_gone_and_the_next_start_is_as_the_first() {
    const TEST: &str =
        "agent::after_a_full_stop_the_programs_are_gone_and_the_next_start_is_as_the_first";
    if !has_links_or_skip(TEST) {
        return;
    }
    let (line, _) = after_a_kill();
    assert_eq!(tcx_programs(&line.lab.agent), [1, 1]);
    line.store.close_all().unwrap();
    wait_until("nothing is attached", || {
        nothing_is_attached(&line.lab.agent)
    });
    let first = line.books().seen().packets;
    let agent = line.start();
    assert!(!warns_of_carrying(&agent), "{}", agent.stderr());
    let own = own_packets(&line);
    let own_are_stored = || line.books().packets_from(LAST_PORT) == own;
    wait_until("the next agent's packets are stored", own_are_stored);
    agent.stop();
    let books = line.books();
    // The first agent may have brought one more batch to its spool.
    assert!(books.seen().packets >= first + own);
    assert_eq!(books.packets_from(LAST_PORT), own);
    assert_eq!(books.instances.len(), 2);
}

/// Each kind in the place of all maps, then of all links, then of each with even odds.
#[test]
fn foreign_descriptors_under_our_names_are_told_and_nothing_is_counted_wrong() {
    const TEST: &str =
        "agent::foreign_descriptors_under_our_names_are_told_and_nothing_is_counted_wrong";
    if !has_links_or_skip(TEST) {
        return;
    }
    let mut random = Random::new();
    for open in FOREIGN {
        for part in ["carry-map.", "carry-link.", ""] {
            let (line, before) = after_a_kill();
            let mut replaced = Vec::new();
            line.store
                .change(|fds| {
                    for (name, fd) in fds {
                        let is_chosen = !part.is_empty() || random.below(2) == 0;
                        if is_chosen && name.starts_with(part) {
                            *fd = open();
                            replaced.push(name.clone());
                        }
                    }
                })
                .unwrap();
            let first = instances(&line);
            let agent = line.start();
            let log = agent.stderr();
            assert!(
                warns_of_carrying(&agent) || replaced.is_empty(),
                "{replaced:?}: {log}"
            );
            assert!(instances(&line).is_disjoint(&first), "{replaced:?}: {log}");
            packets_lacking(&line, agent, before);
        }
    }
}

/// By place and name.
type IsMissing = fn(usize, &str) -> bool;

#[test]
fn what_is_missing_in_the_store_is_told_and_nothing_is_counted_wrong() {
    const TEST: &str = "agent::what_is_missing_in_the_store_is_told_and_nothing_is_counted_wrong";
    if !has_links_or_skip(TEST) {
        return;
    }
    let cases: [(IsMissing, bool); 4] = [
        // Every second map.
        (
            |place, name| place.is_multiple_of(2) && name.starts_with("carry-map."),
            true,
        ),
        (|_, name| name.starts_with("carry-map."), true),
        // Without links, the programs are gone, and the maps have all that they counted.
        (|_, name| name.starts_with("carry-link."), false),
        // With one link, one direction keeps counting.
        (|_, name| name.contains(".tcx_egress_"), false),
    ];
    for (is_missing, is_told) in cases {
        let (line, before) = after_a_kill();
        let mut place = 0;
        line.store
            .change(|fds| {
                fds.retain(|(name, _)| {
                    place += 1;
                    !is_missing(place, name)
                });
            })
            .unwrap();
        let agent = line.start();
        assert!(warns_of_carrying(&agent) || !is_told, "{}", agent.stderr());
        packets_lacking(&line, agent, before);
    }
}

/// Replaces a text in the state of a ledger by one of the same length, as another version would have written it.
fn rewrite(ledger: &File, from: &str, to: &str) {
    const HEADER_LEN_BYTES: usize = 40;
    const STATE_AT: usize = 48;
    let mut bytes = vec![0; ledger.metadata().unwrap().len() as usize];
    ledger.read_exact_at(&mut bytes, 0).unwrap();
    if bytes.len() < STATE_AT || bytes[..8] == [0; 8] {
        return;
    }
    let len = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) as usize;
    let state = String::from_utf8(bytes[STATE_AT..][..len].to_vec()).unwrap();
    assert!(state.contains(from), "{state}");
    let state = state.replace(from, to);
    let crc = |bytes: &[u8]| u64::from(crc32fast::hash(bytes)).to_le_bytes();
    bytes[24..32].copy_from_slice(&crc(state.as_bytes()));
    let of_header = crc(&bytes[..32]);
    bytes[32..HEADER_LEN_BYTES].copy_from_slice(&of_header);
    bytes[STATE_AT..][..len].copy_from_slice(state.as_bytes());
    ledger.write_all_at(&bytes, 0).unwrap();
}

#[test]
fn tables_of_another_layout_are_given_up_and_their_packets_told() {
    const TEST: &str = "agent::tables_of_another_layout_are_given_up_and_their_packets_told";
    if !has_links_or_skip(TEST) {
        return;
    }
    let flows = [("\"layout\":\"1 ", "\"layout\":\"9 ")];
    let accounts = ("\"layout_of_accounts\":\"1 ", "\"layout_of_accounts\":\"9 ");
    for (changes, is_number_known) in [(&flows[..], true), (&[flows[0], accounts], false)] {
        let (line, before) = after_a_kill();
        line.store
            .change(|fds| {
                for (name, fd) in fds {
                    if name.contains(".ledger.") {
                        let ledger = File::from(fd.try_clone().unwrap());
                        for (from, to) in changes {
                            rewrite(&ledger, from, to);
                        }
                    }
                }
            })
            .unwrap();
        let agent = line.start();
        assert!(warns_of_carrying(&agent), "{}", agent.stderr());
        let carried = || agent.status(&line.lab.agent)["carried_over"].clone();
        wait_until("the tables are given up", || carried()["orphans"] == 1);
        let orphaned = carried()["orphaned_packets"].as_u64().unwrap_or(0);
        let lacking = packets_lacking(&line, agent, before);
        assert!(lacking > 0);
        assert_eq!(orphaned, if is_number_known { lacking } else { 0 });
    }
}

#[test]
fn descriptors_under_each_others_names_count_nothing_wrong() {
    if !has_links_or_skip("agent::descriptors_under_each_others_names_count_nothing_wrong") {
        return;
    }
    for part in ["carry-map.", "carry-link."] {
        let (line, before) = after_a_kill();
        line.store
            .change(|fds| {
                let of_part = fds.iter_mut().filter(|(name, _)| name.starts_with(part));
                let mut names: Vec<_> = of_part.map(|(name, _)| name).collect();
                let (first, rest) = names.split_first_mut().unwrap();
                for name in rest {
                    std::mem::swap(*first, *name);
                }
            })
            .unwrap();
        let agent = line.start();
        // The kernel says where a link counts, whatever its name.
        let is_told = part == "carry-map.";
        assert!(warns_of_carrying(&agent) || !is_told, "{}", agent.stderr());
        packets_lacking(&line, agent, before);
    }
}

#[test]
fn names_that_no_agent_has_stored_do_not_hinder_a_first_start() {
    if !has_links_or_skip("agent::names_that_no_agent_has_stored_do_not_hinder_a_first_start") {
        return;
    }
    let line = Line::new(Hook::TcIngress, &[]);
    let netns = line.lab.agent.namespace.inode().unwrap();
    let ifindex = line.lab.agent.ifindex;
    let our_link = format!("carry-link.{netns}.{ifindex}.tcx_ingress_first");
    line.store
        .change(|fds| {
            for (number, open) in FOREIGN.iter().enumerate() {
                for name in [
                    "carry-".to_owned(),
                    "carry-map.".to_owned(),
                    format!("carry-map.nobody-{number}.ledger"),
                    "carry-link.1.2.elsewhere".to_owned(),
                    our_link.clone(),
                ] {
                    fds.push((name, open()));
                }
            }
        })
        .unwrap();
    let before = line.counters();
    let agent = line.start();
    assert!(warns_of_carrying(&agent), "{}", agent.stderr());
    assert_eq!(packets_lacking(&line, agent, before), 0);
}

/// Without room for all tables nothing is stored, and without room for all links some.
#[test]
fn a_full_store_is_told_and_nothing_is_counted_wrong() {
    if !has_links_or_skip("agent::a_full_store_is_told_and_nothing_is_counted_wrong") {
        return;
    }
    for limit in [0, 1, 3, 8] {
        let line = Line::of(Store::with_limit(limit).unwrap(), Hook::TcIngress, &[]);
        let agent = line.start();
        assert!(warns_of_carrying(&agent), "{limit}: {}", agent.stderr());
        assert_eq!(line.store.refused().unwrap(), 0, "{limit}");
        let before = line.counters();
        let traffic = line.traffic();
        traffic.wait_for(100);
        agent.kill();
        traffic.wait_for(50);
        drop(traffic);
        let agent = line.start();
        packets_lacking(&line, agent, before);
    }
}
