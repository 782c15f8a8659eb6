//! Two rule sets that exclude the same packets by different rules take turns under full load. A packet that
//! met no set, or only a part of one, would be counted.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use agent_common::Pair;
use lab::{AtEnd, Lab, kernel};
use tokio::runtime::Runtime;
use view::client;

use crate::support::{
    Agent, NATIVE_XDP, count, has_generator_or_skip, pair, wait_for_silence, wait_until,
};

/// The set in the file. The networks after the first one make storing it slow.
fn by_networks() -> String {
    let others: Vec<String> = (0..2000)
        .map(|number| format!("172.16.{}.{}", number / 250, number % 250))
        .collect();
    let others = others.join(",");
    format!("include src net 203.0.113.0/24\nexclude src net 10.77.0.0/16,{others}\n")
}

/// The set sent by gRPC. The rule that would count the frame stands behind the one that excludes it.
const BY_PORTS: [&str; 3] = [
    "include port 1-52,54-999 proto udp",
    "exclude dst port 53 proto udp ingress",
    "include src net 10.77.0.0/16",
];

fn no_packet_passes_between_two_sets(settings: &[&str]) {
    let changes = kernel::packets(100, 10);
    let at_once = kernel::packets(50_000, 500) as u32;
    let lab = Lab::quiet().unwrap();
    // A veth end takes generated frames only where it polls.
    lab.agent.set_offloads(&["gro"], true).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("filters");
    fs::write(&file, by_networks()).unwrap();
    let settings = [&["--filter-file", file.to_str().unwrap()], settings].concat();
    let agent = Agent::start(&lab, &settings);
    let target = agent.address().parse().unwrap();
    let runtime = Runtime::new().unwrap();
    let before = lab.agent.counters().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    let frame = frame.udp(1000, 53, &[0; 18]).unwrap();
    let generator = lab.peer.generator().unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                generator.send(&frame, at_once, None).unwrap();
            }
        });
        let over = AtEnd(|| is_over.store(true, Ordering::Relaxed));
        let generation = || {
            runtime
                .block_on(client::filters(&target))
                .unwrap()
                .generation
        };
        for number in 2..2 + changes {
            if number % 2 == 0 {
                let rules = BY_PORTS.map(str::to_owned).into();
                let set = runtime.block_on(client::set_filters(&target, rules));
                assert_eq!(set.unwrap().generation, number);
            } else {
                // A reload takes over rules that differ from those that it read before.
                let other = format!("include src net 203.0.113.{number}\n");
                fs::write(&file, by_networks() + &other).unwrap();
                agent.signal(libc::SIGHUP);
                wait_until("the file is in force", || generation() == number);
            }
        }
        drop(over);
    });
    let counted = wait_for_silence(&lab.agent);
    let report = agent.stop();

    // The wire drops frames while its ring is full.
    let arrived = count((counted - before).rx_packets, &frame);
    assert!(arrived.packets > 0);
    assert_eq!(report.seen(), arrived);
    assert_eq!(pair(&report.last()["filtered"]), arrived);
    assert_eq!(pair(&report.last()["flows"]), Pair::default());
    assert!(report.flows.is_empty());
    eprintln!("{changes} changes under {} packets", arrived.packets);
}

#[test]
fn no_packet_passes_between_two_sets_that_exclude_it_over_tc() {
    if has_generator_or_skip("agent::no_packet_passes_between_two_sets_that_exclude_it_over_tc") {
        no_packet_passes_between_two_sets(&[]);
    }
}

#[test]
fn no_packet_passes_between_two_sets_that_exclude_it_over_xdp() {
    if has_generator_or_skip("agent::no_packet_passes_between_two_sets_that_exclude_it_over_xdp") {
        no_packet_passes_between_two_sets(NATIVE_XDP);
    }
}
