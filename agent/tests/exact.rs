//! The real binary on real interfaces: what was sent is what the records and the account say.

#![expect(
    clippy::unwrap_used,
    reason = "clippy takes only functions marked as tests for tests"
)]

mod support;

use std::{collections::BTreeMap, net::TcpListener, thread, time::Duration};

use agent_common::Pair;
use lab::{Frame, Host, Lab, privilege::is_root_or_skip};
use support::{Agent, Both, flow_agent, name, pair, wait_for_packets, wait_until};

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

const NATIVE_XDP: &[&str] = &["--ingress-hook", "xdp", "--xdp-mode", "native"];
const ETHERNET_HEADER_LEN_BYTES: u64 = 14;
/// IEEE 802 experimental: no transport header that anyone parses.
const OTHER_PROTOCOL: u8 = 253;

/// The same frame many times, and the name of its flow.
struct Traffic {
    flow: String,
    frame: Vec<u8>,
    copies: u64,
}

/// Each kind of packet under each kind of tags in both IP versions, as often as its place says.
fn every_kind(from: &Host, to: &Host) -> Vec<Traffic> {
    let mut traffic = Vec::new();
    let versions = [
        (
            from.frame_v4(to),
            from.ipv4.to_string(),
            to.ipv4.to_string(),
            1,
        ),
        (
            from.frame_v6(to),
            from.ipv6.to_string(),
            to.ipv6.to_string(),
            58,
        ),
    ];
    for (untagged, src, dst, icmp) in versions {
        let tagged: [(&str, Frame); 3] = [
            ("[]", untagged.clone()),
            ("[100]", untagged.clone().vlan(100)),
            ("[200,300]", untagged.qinq(200, 300)),
        ];
        for (vlans, frame) in tagged {
            let kinds = [
                (6, 1000, 80, frame.tcp(1000, 80, ACK, &[0; 11])),
                (17, 1001, 53, frame.udp(1001, 53, &[0; 22])),
                (icmp, 77, 77, frame.icmp_echo(true, 77, 1, &[0; 33])),
                (132, 1002, 36412, frame.sctp(1002, 36412, &[0; 44])),
                (
                    OTHER_PROTOCOL.into(),
                    0,
                    0,
                    frame.ip(OTHER_PROTOCOL, &[0; 55]),
                ),
            ];
            for (protocol, src_port, dst_port, frame) in kinds {
                traffic.push(Traffic {
                    flow: name(vlans, protocol, (&src, src_port), (&dst, dst_port)),
                    frame: frame.unwrap(),
                    copies: traffic.len() as u64 + 1,
                });
            }
        }
    }
    traffic
}

fn known_frames_make_exact_records(settings: &[&str], bytes_without_header: bool) {
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, settings);
    let before = lab.agent.counters().unwrap();
    let traffic = every_kind(&lab.peer, &lab.agent);
    let arp = lab
        .peer
        .frame_v4(&lab.agent)
        .pad_to(60)
        .ether_type(0x0806, &[0; 28])
        .unwrap();

    let socket = lab.peer.frame_socket().unwrap();
    socket.send(&arp).unwrap();
    let rounds = traffic.iter().map(|kind| kind.copies).max().unwrap();
    let frames = (0..rounds)
        .flat_map(|round| traffic.iter().filter(move |kind| round < kind.copies))
        .map(|kind| &kind.frame);
    let sent = 1 + socket.send_many(frames).unwrap() as u64;
    let counted = wait_for_packets(&lab.agent, before, sent);
    let report = agent.stop();

    let expected: BTreeMap<String, Both> = traffic
        .iter()
        .map(|kind| {
            (
                kind.flow.clone(),
                [count(kind.copies, &kind.frame), Pair::default()],
            )
        })
        .collect();
    assert_eq!(report.sums(), expected);
    assert_eq!(pair(&report.last()["unparsed"]["arp"]), count(1, &arp));
    let header_bytes = if bytes_without_header {
        ETHERNET_HEADER_LEN_BYTES * counted.rx_packets
    } else {
        0
    };
    let on_interface = Pair {
        packets: counted.rx_packets,
        bytes: counted.rx_bytes + header_bytes,
    };
    assert_eq!(report.seen(), on_interface);
}

fn count(packets: u64, frame: &[u8]) -> Pair {
    Pair {
        packets,
        bytes: packets * frame.len() as u64,
    }
}

#[test]
fn known_frames_make_exact_records_over_tc() {
    if is_root_or_skip("agent::known_frames_make_exact_records_over_tc") {
        known_frames_make_exact_records(&[], false);
    }
}

#[test]
fn known_frames_make_exact_records_over_native_xdp() {
    if is_root_or_skip("agent::known_frames_make_exact_records_over_native_xdp") {
        // See `lab::Counters` for the header.
        known_frames_make_exact_records(NATIVE_XDP, true);
    }
}

#[test]
fn known_frames_make_exact_records_over_generic_xdp() {
    if is_root_or_skip("agent::known_frames_make_exact_records_over_generic_xdp") {
        known_frames_make_exact_records(&["--ingress-hook", "xdp", "--xdp-mode", "generic"], false);
    }
}

#[test]
fn both_directions_are_one_flow_from_the_sender_of_the_syn() {
    if !is_root_or_skip("agent::both_directions_are_one_flow_from_the_sender_of_the_syn") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[]);
    let mut expected = BTreeMap::new();
    let cases = [
        (&lab.peer, &lab.agent, 4000, [ACK, RST]),
        (&lab.agent, &lab.peer, 4001, [ACK, RST]),
        (&lab.peer, &lab.agent, 4002, [FIN | ACK, FIN | ACK]),
        (&lab.agent, &lab.peer, 4003, [FIN | ACK, FIN | ACK]),
    ];
    for (client, server, port, [client_ends, server_ends]) in cases {
        let (there, back) = (client.frame_v4(server), server.frame_v4(client));
        let (up, down) = (
            client.frame_socket().unwrap(),
            server.frame_socket().unwrap(),
        );
        let mut sums = [Pair::default(); 2];
        let talk = [
            (0, SYN, 0),
            (1, SYN | ACK, 0),
            (0, ACK, 10),
            (1, ACK, 1000),
            (0, client_ends, 0),
            (1, server_ends, 0),
        ];
        for (side, flags, payload_len) in talk {
            let payload = vec![0; payload_len];
            let (socket, frame) = if side == 0 {
                (&up, there.tcp(port, 443, flags, &payload).unwrap())
            } else {
                (&down, back.tcp(443, port, flags, &payload).unwrap())
            };
            socket.send(&frame).unwrap();
            sums[side] += count(1, &frame);
        }
        let (client, server) = (client.ipv4.to_string(), server.ipv4.to_string());
        expected.insert(name("[]", 6, (&client, port.into()), (&server, 443)), sums);
    }
    // Some scans, so that the end is the flow's own and not the agent's.
    thread::sleep(Duration::from_millis(500));
    let report = agent.stop();
    assert_eq!(report.sums(), expected);
    for flow in expected.keys() {
        assert_eq!(report.end_reason(flow), "end_of_flow", "{flow}");
    }
}

#[test]
fn a_full_table_keeps_what_it_has_and_counts_what_it_refuses() {
    const FLOWS: u16 = 10_000;
    if !is_root_or_skip("agent::a_full_table_keeps_what_it_has_and_counts_what_it_refuses") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--max-flows", "1000", "--scan-interval", "60s"]);
    let before = lab.agent.counters().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    let frames: Vec<_> = (1..=FLOWS)
        .map(|port| frame.udp(port, 53, &[0; 18]).unwrap())
        .collect();
    lab.peer.frame_socket().unwrap().send_many(&frames).unwrap();
    wait_for_packets(&lab.agent, before, FLOWS.into());
    let report = agent.stop();

    let sums = report.sums();
    let kept = sums.len() as u64;
    assert!((900..=1100).contains(&kept), "{kept} flows");
    assert!(
        sums.values()
            .all(|sum| *sum == [count(1, &frames[0]), Pair::default()])
    );
    assert_eq!(report.seen(), count(FLOWS.into(), &frames[0]));
    let refused = pair(&report.last()["not_inserted"]["table_full"]);
    assert_eq!(refused, count(u64::from(FLOWS) - kept, &frames[0]));
}

#[test]
fn many_flows_are_exact_over_many_scans() {
    const FLOWS: u16 = 20_000;
    const PACKETS: u16 = 7;
    if !is_root_or_skip("agent::many_flows_are_exact_over_many_scans") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[]);
    let before = lab.agent.counters().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    let frames: Vec<_> = (1..=FLOWS)
        .map(|port| frame.udp(port, 53, &[0; 18]).unwrap())
        .collect();
    let mut order: Vec<&[u8]> = (0..PACKETS)
        .flat_map(|_| frames.iter().map(Vec::as_slice))
        .collect();
    shuffle(&mut order);
    let socket = lab.peer.frame_socket().unwrap();
    // Slow enough for some scans to fall in between.
    for part in order.chunks(order.len() / 20) {
        socket.send_many(part).unwrap();
        thread::sleep(Duration::from_millis(50));
    }
    wait_for_packets(&lab.agent, before, order.len() as u64);
    let report = agent.stop();

    assert!(report.accounts.len() > 5, "{} scans", report.accounts.len());
    let sums = report.sums();
    assert_eq!(sums.len(), usize::from(FLOWS));
    let expected = [count(PACKETS.into(), &frames[0]), Pair::default()];
    let wrong: Vec<_> = sums
        .iter()
        .filter(|(_, sum)| **sum != expected)
        .take(5)
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// The same order every time (xorshift, Fisher-Yates).
fn shuffle<T>(items: &mut [T]) {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for last in (1..items.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        items.swap(last, (state % (last as u64 + 1)) as usize);
    }
}

#[test]
fn nothing_stays_attached_after_an_end_of_any_kind() {
    if !is_root_or_skip("agent::nothing_stays_attached_after_an_end_of_any_kind") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let is_attached = || {
        let mut ip = lab.agent.command("ip");
        let output = ip
            .args(["-d", "-j", "link", "show", &lab.agent.interface])
            .output()
            .unwrap();
        let links: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        links[0].get("xdp").is_some()
    };
    for is_killed in [true, false, true] {
        let agent = Agent::start(&lab, NATIVE_XDP);
        assert!(is_attached());
        if is_killed {
            assert!(!agent.kill().success());
        } else {
            agent.stop();
        }
        // The kernel frees the link of a process some time after its end.
        wait_until("XDP is detached", || !is_attached());
    }
    // One packet is seen once: no program of an agent before counts into this one's table either.
    let agent = Agent::start(&lab, &[]);
    let frame = lab.peer.frame_v4(&lab.agent).udp(1, 2, &[0; 18]).unwrap();
    let before = lab.agent.counters().unwrap();
    lab.peer.frame_socket().unwrap().send(&frame).unwrap();
    wait_for_packets(&lab.agent, before, 1);
    assert_eq!(agent.stop().seen(), count(1, &frame));
}

/// Runs an agent that cannot start and gives what it wrote to stderr.
fn refusal(lab: &Lab, arguments: &[&str]) -> String {
    let output = flow_agent(&lab.agent)
        .arg("run")
        .args(arguments)
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{stderr}");
    stderr
}

#[test]
fn a_start_that_fails_says_what_is_wrong() {
    if !is_root_or_skip("agent::a_start_that_fails_says_what_is_wrong") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let unknown = refusal(
        &lab,
        &["--interface", "nowhere7", "--listen", "127.0.0.1:0"],
    );
    assert_eq!(unknown.lines().count(), 1, "{unknown}");
    assert!(unknown.contains("nowhere7"), "{unknown}");

    let ip = lab.agent.ipv4;
    let taken = lab
        .agent
        .namespace
        .enter(|| Ok(TcpListener::bind((ip, 0))?))
        .unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let in_use = refusal(
        &lab,
        &["--interface", &lab.agent.interface, "--listen", &address],
    );
    assert!(
        in_use.contains(&address) && in_use.contains("in use"),
        "{in_use}"
    );

    let pattern = refusal(&lab, &["--interface", "/[/"]);
    assert!(
        pattern.contains("/[/") && pattern.contains("--interface"),
        "{pattern}"
    );
}

#[test]
fn an_elephant_from_two_cpus_is_counted_to_the_packet() {
    const EACH: u32 = 1_000_000;
    if !is_root_or_skip("agent::an_elephant_from_two_cpus_is_counted_to_the_packet") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, NATIVE_XDP);
    let before = lab.agent.counters().unwrap();
    let frame = lab
        .peer
        .frame_v4(&lab.agent)
        .udp(1000, 53, &[0; 18])
        .unwrap();
    let generator = lab.peer.generator().unwrap();
    thread::scope(|scope| {
        for cpu in [0, 1] {
            let (generator, frame) = (&generator, &frame);
            scope.spawn(move || generator.send(frame, EACH, Some(cpu)).unwrap());
        }
    });
    let mut counted = before;
    wait_until("the last frames are through", || {
        let earlier = counted;
        counted = lab.agent.counters().unwrap();
        counted == earlier
    });
    let report = agent.stop();

    let arrived = (counted - before).rx_packets;
    assert!(arrived > u64::from(EACH) / 2, "{arrived} frames");
    assert_eq!(report.seen(), count(arrived, &frame));
    let sums: Vec<Both> = report.sums().into_values().collect();
    let in_flows = pair(&report.last()["flows"]);
    assert_eq!(sums, [[in_flows, Pair::default()]]);
    assert_eq!(in_flows, count(arrived, &frame));
}
