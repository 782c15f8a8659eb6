//! All that can be found out at once: packets count as without.

use std::collections::BTreeMap;

use crate::support::{Agent, as_the_service, pair, wait_for_silence};
use lab::{
    Lab,
    kernel::packets,
    privilege::is_root_or_skip,
    traffic::{self, IpVersion},
};

const ALL: &[&str] = &["--enrich", "unit,process,tcp,rtt,dns-exchanges,icmp,drops"];
/// Nothing is left out while the machine is slow.
const PATIENT: &[&str] = &["--idle-timeout", "1h", "--linger", "1h"];

/// Two agents see the same packets at the same interface, one of which finds out all that it can.
#[test]
fn every_packet_counts_as_it_does_without() {
    if !is_root_or_skip("agent::every_packet_counts_as_it_does_without") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let start = |settings: &[&str]| {
        let settings = [PATIENT, settings].concat();
        Agent::start_by(as_the_service(&lab.agent), &lab.agent.interface, &settings)
    };
    let (plain, all) = (start(&[]), start(ALL));
    // Whatever came while only one of them counted is over by now.
    wait_for_silence(&lab.agent);
    let before = [&plain, &all].map(|agent| {
        agent.wait_for_scans(&lab.agent, 1);
        pair(&agent.status(&lab.agent)["account"]["seen"])
    });
    for version in [IpVersion::V4, IpVersion::V6] {
        traffic::tcp(
            &lab.peer,
            &lab.agent,
            version,
            5001,
            packets(20_000_000, 200_000),
        )
        .unwrap();
        traffic::tcp(&lab.agent, &lab.peer, version, 5002, 100_000).unwrap();
        traffic::udp(&lab.peer, &lab.agent, version, 5003, 100, 1000).unwrap();
        traffic::ping(&lab.agent, &lab.peer, version, 3).unwrap();
    }
    let frame = lab.peer.frame_v4(&lab.agent);
    let socket = lab.peer.frame_socket().unwrap();
    for port in 1..=100 {
        // To nobody: answered by an ICMP error, and dropped. And something that could be an answer of the DNS.
        socket
            .send(&frame.udp(port, 9, b"nobody").unwrap())
            .unwrap();
        socket
            .send(&frame.udp(53, port, &[0; 40]).unwrap())
            .unwrap();
        socket
            .send(&frame.tcp(port, 9, 0x02, b"").unwrap())
            .unwrap();
    }
    wait_for_silence(&lab.agent);
    let [plain, all] = [plain, all].map(Agent::stop);
    let [seen_plain, seen_all] =
        [(&plain, before[0]), (&all, before[1])].map(|(report, before)| {
            let seen = report.seen();
            (seen.packets - before.packets, seen.bytes - before.bytes)
        });
    assert_eq!(seen_plain, seen_all);
    // Of flows that began before both were there, one has more.
    let of_test = |sums: BTreeMap<String, [agent_common::Pair; 2]>| {
        let is_of_test = |name: &String| !name.contains(" 58 ");
        sums.into_iter()
            .filter(|(name, _)| is_of_test(name))
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(of_test(plain.sums()), of_test(all.sums()));
}
