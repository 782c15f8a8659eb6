//! All enrichment at once: the counts do not change, and many short connections have their process.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read as _,
    net::{Shutdown, TcpListener, TcpStream},
    thread,
    time::Instant,
};

use lab::{
    Lab,
    kernel::packets,
    privilege::is_root_or_skip,
    traffic::{self, IpVersion},
};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::Value;

use crate::support::{Agent, as_the_service, pair, patience, wait_for_silence, wait_until};

const ALL: &[&str] = &["--enrich", "unit,process,tcp,rtt,dns-exchanges,icmp,drops"];
const PORT: u16 = 7000;
/// At once.
const CLIENTS: usize = 4;
/// Nothing is left out while the machine is slow.
const PATIENT: &[&str] = &["--idle-timeout", "1h", "--linger", "1h"];

/// Two agents see the same packets at the same interface. One of them runs all enrichment.
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
    // Flows from before both agents counted have ended by now.
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
        // To a closed port: answered by an ICMP error, and dropped. And a packet that could be a DNS answer.
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
    // One agent has more packets of flows that began before both ran.
    let of_test = |sums: BTreeMap<String, [agent_common::Pair; 2]>| {
        let is_of_test = |name: &String| !name.contains(" 58 ");
        sums.into_iter()
            .filter(|(name, _)| is_of_test(name))
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(of_test(plain.sums()), of_test(all.sums()));
}

/// Connections as fast as possible: each one's process is reported, or counted as unknown.
#[test]
fn many_short_connections_have_their_process() {
    if !is_root_or_skip("agent::many_short_connections_have_their_process") {
        return;
    }
    let of_each = packets(5_000, 80) as usize;
    let count = CLIENTS * of_each;
    let lab = Lab::addressed().unwrap();
    // Where the kernel gives ports again that have just been used, two connections are one flow.
    let ports = ("net/ipv4/ip_local_port_range", "10000 60000");
    lab.peer.namespace.set_sysctl(ports.0, ports.1).unwrap();
    let settings = [PATIENT, ALL, &["--output", "json"]].concat();
    let agent = Agent::start_by(as_the_service(&lab.agent), &lab.agent.interface, &settings);
    let here = lab.agent.ipv4;
    let bind = || Ok(TcpListener::bind((here, PORT))?);
    let listener = lab.agent.namespace.enter(bind).unwrap();
    // Where a client fails, those that wait for it end, too.
    set_socket_timeout(&listener, Timeout::Recv, Some(patience())).unwrap();
    let accept = || {
        for _ in 0..of_each {
            let (mut accepted, _) = listener.accept().unwrap();
            // The client closes first, so that its end waits, and not this one.
            assert_eq!(accepted.read(&mut [0; 8]).unwrap(), 0);
        }
    };
    let connect = || {
        let mut ports = BTreeSet::new();
        for _ in 0..of_each {
            let mut stream = TcpStream::connect((here, PORT))?;
            ports.insert(stream.local_addr()?.port());
            stream.shutdown(Shutdown::Write)?;
            stream.read_exact(&mut [0; 0])?;
            assert_eq!(stream.read(&mut [0; 8])?, 0);
        }
        Ok(ports)
    };
    let begin = Instant::now();
    let of_clients = thread::scope(|scope| {
        let clients = [(); CLIENTS].map(|()| {
            scope.spawn(accept);
            scope.spawn(|| lab.peer.namespace.enter(connect).unwrap())
        });
        let ports = clients.map(|client| client.join().unwrap());
        ports.into_iter().flatten().collect::<BTreeSet<u16>>()
    });
    eprintln!("{count} connections took {:?}", begin.elapsed());
    wait_for_silence(&lab.agent);
    wait_until("all are drained", || {
        let account = &agent.status(&lab.agent)["account"];
        // To open it three, and a FIN and its ACK of each side, which may be in one.
        pair(&account["flows"]).packets >= 6 * count as u64
    });
    let nameless = agent.status(&lab.agent)["replica"]["nameless_processes"].clone();
    let report = agent.stop();
    let mut last = BTreeMap::<u64, &Value>::new();
    for line in report.flows.iter().filter(|line| line["dst_port"] == PORT) {
        last.insert(line["src_port"].as_u64().unwrap(), line);
    }
    assert_eq!(last.len(), of_clients.len());
    let this = std::process::id();
    for line in last.values() {
        for end in ["src", "dst"] {
            assert_eq!(line[format!("{end}_pid")], this, "{line}");
            assert!(line[format!("{end}_process")].is_string(), "{line}");
        }
        assert!(line["src_cgroup_id"].is_u64(), "{line}");
        assert!(
            line["dst_handshake_rtt_us"].is_u64() || line["src_handshake_rtt_us"].is_u64(),
            "{line}"
        );
    }
    assert_eq!(nameless, 0);
    assert_eq!(pair(&report.last()["flows"]), report.seen());
}
