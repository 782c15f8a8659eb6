//! Kills under all settings that decide which packets are in flows, and with pages that grow and are drained early.

use std::time::Duration;

use super::{Books, FLOWS, Line, Traffic, has_links_or_skip, kills::kill_at_random};
use crate::support::hook::Hook;

const KILLS: usize = 4;

/// Kills agents with these settings under traffic. Returns their books, and the packets of each flow.
fn killed_with(hook: Hook, settings: &[&str]) -> (Books, u64) {
    let line = Line::new(hook, settings);
    let agent = line.start();
    let before = line.counters();
    let traffic = line.traffic();
    let agent = kill_at_random(&line, agent, KILLS);
    traffic.wait_for(10);
    let rounds = traffic.end();
    let counted = line.counted(before);
    assert_eq!(counted.packets, rounds * u64::from(FLOWS));
    (line.end(agent, counted), rounds)
}

#[test]
fn sampled_packets_and_those_left_out_are_all_packets_after_kills() {
    if !has_links_or_skip("agent::sampled_packets_and_those_left_out_are_all_packets_after_kills") {
        return;
    }
    let (books, rounds) = killed_with(Hook::TcIngress, &["--sample", "2"]);
    let [counted, left_out] = ["flows", "sampled_out"].map(|name| books.sum(name).packets);
    assert_eq!(counted + left_out, rounds * u64::from(FLOWS));
    assert!(counted > 0 && left_out > 0, "{counted} {left_out}");
}

#[test]
fn filtered_packets_are_counted_as_filtered_after_kills() {
    if !has_links_or_skip("agent::filtered_packets_are_counted_as_filtered_after_kills") {
        return;
    }
    let rules = ["--filter", "exclude src port 1003; exclude src port 1004"];
    let (books, rounds) = killed_with(Hook::TcIngress, &rules);
    assert_eq!(books.sum("filtered").packets, 2 * rounds);
    for port in 1000..1000 + FLOWS {
        let expected = if [1003, 1004].contains(&port) {
            0
        } else {
            rounds
        };
        assert_eq!(books.packets_from(port), expected, "{port}");
    }
}

#[test]
fn kills_lose_no_packet_with_everything_that_can_be_found_out() {
    if !has_links_or_skip("agent::kills_lose_no_packet_with_everything_that_can_be_found_out") {
        return;
    }
    let all = "unit,process,tcp,rtt,dns-exchanges,icmp,drops";
    for hook in [Hook::TcIngress, Hook::NativeXdp] {
        let (books, rounds) = killed_with(hook, &["--enrich", all, "--decapsulate"]);
        for port in 1000..1000 + FLOWS {
            assert_eq!(books.packets_from(port), rounds, "{port}");
        }
    }
}

/// The agent that follows reports what waited, for the one that was killed.
#[test]
fn kills_lose_no_packet_that_waits_for_its_report() {
    if !has_links_or_skip("agent::kills_lose_no_packet_that_waits_for_its_report") {
        return;
    }
    for interval in ["500ms", "1h"] {
        let (books, rounds) = killed_with(Hook::TcIngress, &["--report-interval", interval]);
        for port in 1000..1000 + FLOWS {
            assert_eq!(books.packets_from(port), rounds, "{interval}: {port}");
        }
    }
}

/// Enough flows that each page is drained early, grows, and shrinks again in between.
#[test]
fn kills_lose_no_packet_while_pages_grow_and_are_drained_early() {
    const MANY: u16 = 3000;
    if !has_links_or_skip("agent::kills_lose_no_packet_while_pages_grow_and_are_drained_early") {
        return;
    }
    let settings = [
        "--min-flows",
        "200",
        "--max-flows",
        "20000",
        "--scan-interval",
        "1s",
    ];
    let line = Line::new(Hook::TcIngress, &settings);
    let agent = line.start();
    let before = line.counters();
    let pace = Duration::from_millis(100);
    let traffic = Traffic::start(&line.lab.peer, &line.lab.agent, 10_000, MANY, pace);
    let agent = kill_at_random(&line, agent, KILLS);
    traffic.wait_for(2);
    let sent = traffic.end_all();
    let counted = line.counted(before);
    assert_eq!(counted.packets, sent);
    line.end(agent, counted);
}
