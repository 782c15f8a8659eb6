//! Response times of connections, measured from passing packets: records have the time between the two packets that
//! count, and nothing where it is uncertain.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    thread,
    time::{Duration, Instant},
};

use lab::{Extension, Frame, FrameSocket, Lab, Tun, kernel::packets, privilege::is_root_or_skip};
use serde_json::Value;

use crate::support::{Agent, Report, as_the_service, pair, wait_until};

const RTT: &[&str] = &["--enrich", "rtt"];
/// Scans come when they are asked for.
const RARELY: &[&str] = &["--scan-interval", "1h"];
const DEVICE: &str = "wire0";
const V4: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1)),
    IpAddr::V4(Ipv4Addr::new(10, 79, 0, 1)),
];
const V6: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd79, 0, 0, 0, 0, 0, 0, 1)),
];
const SERVER: u16 = 443;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// Long enough to be told from the next one.
const PAUSE: Duration = Duration::from_millis(10);

/// An interface between a client and a server that are both elsewhere.
struct Wire<'a> {
    arriving: Arriving<'a>,
    leaving: FrameSocket,
    interface: String,
}

/// How packets arrive.
enum Arriving<'a> {
    /// They pass the programs within the call that sends them.
    Tun(Tun),
    /// They pass XDP before they are counted.
    Xdp(FrameSocket, &'a Lab),
}

/// Before and after a packet passed.
type Passed = [Instant; 2];

/// A segment with sequence and acknowledgment numbers.
#[derive(Clone, Copy)]
struct Segment(u8, u32, u32, &'static [u8]);

impl<'a> Wire<'a> {
    fn new(lab: &Lab) -> Self {
        let namespace = &lab.agent.namespace;
        let tun = Tun::new(namespace, DEVICE).unwrap();
        Self {
            arriving: Arriving::Tun(tun),
            leaving: FrameSocket::new(namespace, DEVICE).unwrap(),
            interface: DEVICE.to_owned(),
        }
    }

    fn xdp(lab: &'a Lab) -> Self {
        Self {
            arriving: Arriving::Xdp(lab.peer.frame_socket().unwrap(), lab),
            leaving: lab.agent.frame_socket().unwrap(),
            interface: lab.agent.interface.clone(),
        }
    }

    fn frame(&self, from: IpAddr, to: IpAddr) -> Frame {
        match self.arriving {
            Arriving::Tun(_) => Frame::bare(from, to),
            Arriving::Xdp(_, lab) => lab.peer.frame_v4(&lab.agent).between(from, to),
        }
    }

    fn arrives(&self, packet: &[u8]) -> Passed {
        let before = Instant::now();
        match &self.arriving {
            Arriving::Tun(tun) => tun.send(packet).unwrap(),
            Arriving::Xdp(socket, lab) => {
                let arrived = || lab.agent.counters().unwrap().rx_packets;
                let so_far = arrived();
                socket.send(packet).unwrap();
                wait_until("it has arrived", || arrived() > so_far);
            }
        }
        [before, Instant::now()]
    }

    fn leaves(&self, packet: &[u8]) -> Passed {
        let before = Instant::now();
        self.leaving.send(packet).unwrap();
        [before, Instant::now()]
    }
}

/// A connection whose client's packets arrive, and whose server's leave.
struct Connection<'a> {
    wire: &'a Wire<'a>,
    frame: [Frame; 2],
    client: u16,
}

impl<'a> Connection<'a> {
    fn new(wire: &'a Wire<'a>, [client, server]: [IpAddr; 2], port: u16) -> Self {
        Self {
            wire,
            frame: [wire.frame(client, server), wire.frame(server, client)],
            client: port,
        }
    }

    fn bytes(&self, end: usize, Segment(flags, sequence, ack, payload): Segment) -> Vec<u8> {
        let frame = self.frame[end].clone().tcp_numbers(sequence, ack);
        let mut ports = [self.client, SERVER];
        ports.rotate_left(end);
        frame.tcp(ports[0], ports[1], flags, payload).unwrap()
    }

    fn client(&self, segment: Segment) -> Passed {
        self.wire.arrives(&self.bytes(0, segment))
    }

    fn server(&self, segment: Segment) -> Passed {
        self.wire.leaves(&self.bytes(1, segment))
    }

    /// The last record's figures: handshake and acknowledgment of the client, and of the server.
    fn told(&self, report: &Report) -> [Option<u64>; 4] {
        let is_its = |line: &&Value| line["src_port"] == self.client;
        let last = report.flows.iter().rfind(is_its).unwrap();
        [
            "src_handshake_rtt_us",
            "src_ack_rtt_us",
            "dst_handshake_rtt_us",
            "dst_ack_rtt_us",
        ]
        .map(|name| last.get(name).map(|us| us.as_u64().unwrap()))
    }
}

/// The time between two packets that passed the programs at some moment of these. Both readings of the clock are cut to microseconds.
fn assert_between(us: Option<u64>, first: Passed, second: Passed) {
    let us = us.expect("it was measured");
    let least = second[0].duration_since(first[1]).as_micros() as u64;
    let most = second[1].duration_since(first[0]).as_micros() as u64;
    assert!(least <= us + 1 && us <= most + 1, "{least} {us} {most}");
}

fn start(lab: &Lab, wire: &Wire<'_>, settings: &[&[&str]]) -> Agent {
    let settings = [&[RTT, RARELY], settings].concat().concat();
    Agent::start_by(as_the_service(&lab.agent), &wire.interface, &settings)
}

/// SYN, SYN with ACK, and ACK, at numbers that wrap.
fn handshake(connection: &Connection<'_>) -> [Passed; 3] {
    let syn = connection.client(Segment(SYN, u32::MAX, 0, b""));
    thread::sleep(2 * PAUSE);
    let answer = connection.server(Segment(SYN | ACK, u32::MAX - 1, 0, b""));
    thread::sleep(PAUSE);
    let ack = connection.client(Segment(ACK, 0, u32::MAX, b""));
    [syn, answer, ack]
}

#[test]
fn a_connection_that_passes_says_how_long_each_end_takes() {
    if !is_root_or_skip("agent::a_connection_that_passes_says_how_long_each_end_takes") {
        return;
    }
    for (hook, ends) in [("tc", V4), ("tc", V6), ("xdp", V4), ("xdp", V6)] {
        let lab = Lab::quiet().unwrap();
        let wire = match hook {
            "tc" => Wire::new(&lab),
            _ => Wire::xdp(&lab),
        };
        // A kernel before 6.8 cannot tell tags that a driver takes out.
        let at_hook = ["--ingress-hook", "xdp", "--xdp-without-tags"];
        let at_hook = if hook == "xdp" { &at_hook[..] } else { &[] };
        let agent = start(&lab, &wire, &[at_hook]);
        let status = agent.status(&lab.agent);
        let attached = status["hooks"][0]["hook"].as_str().unwrap();
        assert!(attached.starts_with(hook), "{attached}");
        let connection = Connection::new(&wire, ends, 40_000);
        let [syn, answer, ack] = handshake(&connection);
        agent.flows(&lab.agent);

        // On a new page: the first segment may be answered elsewhere, so it is not a sample.
        connection.server(Segment(ACK, u32::MAX, 0, b"zero"));
        connection.client(Segment(ACK, 0, 3, b""));
        let from_server = connection.server(Segment(ACK, 3, 0, b"one"));
        thread::sleep(PAUSE);
        // Covers a part of it.
        connection.client(Segment(ACK, 0, 5, b""));
        thread::sleep(PAUSE);
        let from_client = connection.client(Segment(ACK, 0, 6, b"two"));
        thread::sleep(PAUSE);
        // Goes on, which spoils nothing.
        connection.client(Segment(ACK, 3, 6, b"three"));
        // A reset does not tell when the segment arrived.
        connection.server(Segment(RST | ACK, 6, 8, b""));
        thread::sleep(PAUSE);
        let to_client = connection.server(Segment(ACK, 6, 8, b""));

        let report = agent.stop();
        let [client_first, client_last, server_first, server_last] = connection.told(&report);
        assert_between(server_first, syn, answer);
        assert_between(client_first, answer, ack);
        assert_between(client_last, from_server, from_client);
        assert_between(server_last, from_client, to_client);
        let first = &report.flows[0];
        assert_eq!(first["src_ack_rtt_us"], first["src_handshake_rtt_us"]);
        assert_eq!(first["dst_ack_rtt_us"], first["dst_handshake_rtt_us"]);
        assert_eq!(pair(&report.last()["flows"]), report.seen());
    }
}

#[test]
fn what_cannot_be_told_is_not_said() {
    if !is_root_or_skip("agent::what_cannot_be_told_is_not_said") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let wire = Wire::new(&lab);
    let agent = start(&lab, &wire, &[]);
    let new = |number: u16| Connection::new(&wire, V4, 40_000 + number);
    let syn = Segment(SYN, 9, 0, b"");
    let syn_ack = Segment(SYN | ACK, 99, 10, b"");
    let ack = Segment(ACK, 10, 100, b"");

    let syn_again = new(0);
    syn_again.client(syn);
    syn_again.client(syn);
    syn_again.server(syn_ack);
    syn_again.client(ack);

    let answer_again = new(1);
    answer_again.client(syn);
    answer_again.server(syn_ack);
    answer_again.server(syn_ack);
    answer_again.client(ack);

    let refused = new(2);
    refused.client(syn);
    refused.server(Segment(RST | ACK, 0, 10, b""));

    // One direction takes another way.
    let one_way = new(3);
    one_way.client(syn);
    for sequence in 10..20 {
        one_way.client(Segment(ACK, sequence, 100, b"x"));
    }

    // Older than the agent, and each end retransmits.
    let data_again = new(4);
    data_again.client(Segment(ACK, 10, 100, b""));
    data_again.server(Segment(ACK, 100, 10, b"one"));
    data_again.server(Segment(ACK, 103, 10, b"two"));
    data_again.server(Segment(ACK, 100, 10, b"one"));
    data_again.client(Segment(ACK, 10, 106, b"three"));
    data_again.client(Segment(ACK, 10, 106, b"th"));
    data_again.server(Segment(ACK, 106, 15, b""));

    // The answer is of an earlier connection, whose numbers are ahead.
    let earlier = new(6);
    earlier.client(syn);
    earlier.server(Segment(ACK, 5, 5000, b""));
    earlier.client(Segment(RST, 5000, 0, b""));

    // Only numbers that have been sent are acknowledged.
    let stale = new(5);
    stale.client(Segment(ACK, 10, 100, b""));
    stale.server(Segment(ACK, 100, 10, b"one"));
    stale.client(Segment(ACK, 10, 100, b""));
    stale.client(Segment(FIN | ACK, 10, 102, b""));

    let report = agent.stop();
    let nothing = [None; 4];
    let told = |connection: &Connection<'_>| connection.told(&report);
    let [client, _, server, _] = told(&syn_again);
    assert!(client.is_some() && server.is_none());
    let [client, _, server, _] = told(&answer_again);
    assert!(client.is_none() && server.is_some());
    for (what, connection) in [
        ("refused", refused),
        ("one way", one_way),
        ("data again", data_again),
        ("stale", stale),
        ("earlier", earlier),
    ] {
        assert_eq!(told(&connection), nothing, "{what}");
    }
    assert_eq!(pair(&report.last()["flows"]), report.seen());
}

/// The programs know nothing of segments sent before a scan.
#[test]
fn a_syn_that_was_sent_before_the_scan_and_again_after_it_is_not_measured() {
    const TEST: &str =
        "agent::a_syn_that_was_sent_before_the_scan_and_again_after_it_is_not_measured";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let wire = Wire::new(&lab);
    let agent = start(&lab, &wire, &[]);
    let [syn_again, answer_again] =
        [0, 1].map(|number| Connection::new(&wire, V4, 40_000 + number));
    let (syn, answer) = (Segment(SYN, 9, 0, b""), Segment(SYN | ACK, 99, 10, b""));
    syn_again.client(syn);
    answer_again.client(syn);
    answer_again.server(answer);
    agent.flows(&lab.agent);
    for connection in [&syn_again, &answer_again] {
        if connection.client == syn_again.client {
            connection.client(syn);
        }
        connection.server(answer);
        connection.client(Segment(ACK, 10, 100, b""));
    }
    let report = agent.stop();
    let [client, _, server, last] = syn_again.told(&report);
    assert!(client.is_some() && server.is_none() && last.is_none());
    let [client, last, server, _] = answer_again.told(&report);
    assert!(client.is_none() && last.is_none() && server.is_some());
    assert_eq!(pair(&report.last()["flows"]), report.seen());
}

/// The agent does not look for TCP behind them, and a fragment may be acknowledged before the rest of its datagram has passed.
#[test]
fn headers_that_are_not_read_make_no_wrong_time() {
    if !is_root_or_skip("agent::headers_that_are_not_read_make_no_wrong_time") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let wire = Wire::new(&lab);
    let agent = start(&lab, &wire, &[]);
    let plain = Connection::new(&wire, V6, 40_000);
    let extended = Connection {
        frame: plain
            .frame
            .clone()
            .map(|frame| frame.extension(Extension::DestinationOptions { length_bytes: 8 })),
        ..Connection::new(&wire, V6, 40_001)
    };
    handshake(&extended);
    // Only the answer has one. The next one is later than what it would have been measured by.
    let answered = Connection {
        frame: [plain.frame[0].clone(), extended.frame[1].clone()],
        ..Connection::new(&wire, V6, 40_002)
    };
    let plain = Connection::new(&wire, V6, 40_002);
    plain.client(Segment(ACK, 10, 100, b""));
    plain.server(Segment(ACK, 100, 10, b""));
    plain.client(Segment(ACK, 10, 100, b"x"));
    answered.server(Segment(ACK, 100, 11, b""));
    plain.server(Segment(ACK, 100, 11, b""));
    let report = agent.stop();
    assert_eq!(extended.told(&report), [None; 4]);
    assert_eq!(answered.told(&report), [None; 4]);
    assert_eq!(pair(&report.last()["flows"]), report.seen());
}

/// Some of them find no slot. With all that can be noted beside them, and with nothing else.
#[test]
fn many_connections_have_times_of_their_own() {
    const CONNECTIONS: u16 = 30;
    if !is_root_or_skip("agent::many_connections_have_times_of_their_own") {
        return;
    }
    for kinds in ["rtt", "unit,rtt", "unit,process,tcp,rtt"] {
        let lab = Lab::quiet().unwrap();
        let wire = Wire::new(&lab);
        let small = ["--max-flows", "16", "--early-scan", "0", "--enrich", kinds];
        let settings = [RARELY, &small].concat();
        let agent = Agent::start_by(as_the_service(&lab.agent), DEVICE, &settings);
        let all: Vec<_> = (0..CONNECTIONS)
            .map(|number| Connection::new(&wire, V4, 40_000 + number))
            .collect();
        let syns: Vec<_> = all
            .iter()
            .map(|one| one.client(Segment(SYN, 9, 0, b"")))
            .collect();
        let answers: Vec<_> = all
            .iter()
            .map(|one| {
                thread::sleep(Duration::from_millis(1));
                one.server(Segment(SYN | ACK, 99, 10, b""))
            })
            .collect();
        let acks: Vec<_> = all
            .iter()
            .map(|one| one.client(Segment(ACK, 10, 100, b"")))
            .collect();
        agent.flows(&lab.agent);
        assert_ne!(agent.status(&lab.agent)["table"]["behind"], 0);
        let report = agent.stop();
        for (number, one) in all.iter().enumerate() {
            let [client, _, server, _] = one.told(&report);
            assert_between(server, syns[number], answers[number]);
            assert_between(client, answers[number], acks[number]);
        }
        assert_eq!(pair(&report.last()["flows"]), report.seen());
    }
}

/// Two CPUs send both directions of one connection as fast as they can. Every reported time must be possible.
#[test]
fn two_cpus_make_no_wrong_time() {
    const TEST: &str = "agent::two_cpus_make_no_wrong_time";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let wire = Wire::new(&lab);
    let agent = start(&lab, &wire, &[]);
    let connection = Connection::new(&wire, V4, 40_000);
    let count = packets(20_000, 500) as u32;
    let begun = Instant::now();
    connection.client(Segment(ACK, 10, 100, b""));
    connection.server(Segment(ACK, 100, 10, b""));
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..count {
                connection.client(Segment(ACK, 10 + number, 100 + number, b"x"));
            }
        });
        for number in 0..count {
            connection.server(Segment(ACK, 100 + number, 10 + number, b"x"));
            // Every now and then a page of its own.
            if number % (count / 5) == 0 {
                agent.flows(&lab.agent);
            }
        }
    });
    let most = begun.elapsed().as_micros() as u64;
    let report = agent.stop();
    let times = report.flows.iter().flat_map(|line| {
        ["src_ack_rtt_us", "dst_ack_rtt_us"].map(|name| line.get(name).and_then(Value::as_u64))
    });
    let times: Vec<_> = times.flatten().collect();
    assert!(
        !times.is_empty() && times.iter().all(|&us| us <= most),
        "{most} {times:?}"
    );
    let no_handshake = |line: &Value| line.get("src_handshake_rtt_us").is_none();
    assert!(report.flows.iter().all(no_handshake));
    let sent = 2 + 2 * u64::from(count);
    assert_eq!(report.seen().packets, sent);
    assert_eq!(pair(&report.last()["flows"]), report.seen());
}
