//! The initiator of a flow, with real sockets: records name it, or say that they assume it.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd as _,
    time::Duration,
};

use lab::{Host, Lab, kernel, privilege::is_root_or_skip};
use serde_json::{Value, json};

use crate::support::{Agent, Report, as_the_service, wait_until};

const PORT: u16 = 7000;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// Long enough to look at the agent several times, and short enough to wait for. An emulator needs up to ten seconds for
/// a look.
fn short() -> String {
    format!("{}s", kernel::packets(1, 60))
}

/// Scans that take longer than [`short`].
fn long_after() -> u64 {
    kernel::packets(20, 700)
}

/// A scan ends before a closed flow does, and a quiet flow outlives every test.
fn short_linger() -> [String; 6] {
    let short = short();
    let settings = [
        "--scan-interval",
        "100ms",
        "--linger",
        &short,
        "--idle-timeout",
        "1h",
    ];
    settings.map(str::to_owned)
}

/// A connection with one byte of each end.
struct Talk {
    client: TcpStream,
    server: TcpStream,
}

impl Talk {
    fn begin(client: &Host, server: &Host) -> Self {
        let address = server.ipv4.into();
        Self::with(client, server, address, |_| {})
    }

    /// `prepare` changes the listening socket.
    fn with(
        client: &Host,
        server: &Host,
        address: IpAddr,
        prepare: impl FnOnce(&TcpListener),
    ) -> Self {
        let listener = server
            .namespace
            .enter(|| Ok(TcpListener::bind((address, PORT))?))
            .unwrap();
        prepare(&listener);
        let client = client
            .namespace
            .enter(|| Ok(TcpStream::connect((address, PORT))?))
            .unwrap();
        let (server, _) = listener.accept().unwrap();
        let mut talk = Self { client, server };
        talk.ask();
        talk
    }

    /// The client speaks, and is answered.
    fn ask(&mut self) {
        exchange(&mut self.client, &mut self.server);
        self.tell();
    }

    /// The server speaks.
    fn tell(&mut self) {
        exchange(&mut self.server, &mut self.client);
    }

    fn port(&self) -> u16 {
        self.client.local_addr().unwrap().port()
    }
}

fn exchange(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(b"x").unwrap();
    to.read_exact(&mut [0]).unwrap();
}

/// The records of the flow between this port and [`PORT`].
fn records(report: &Report, port: u16) -> Vec<&Value> {
    let is_it = |line: &&Value| {
        let ports = [&line["src_port"], &line["dst_port"]];
        ports.iter().any(|&end| *end == port) && ports.iter().any(|&end| *end == PORT)
    };
    report.flows.iter().filter(is_it).collect()
}

/// The source's port, and whether it is assumed to be the initiator.
fn initiator(record: &Value) -> Value {
    json!([record["src_port"], record["initiator_assumed"]])
}

fn tracked(agent: &Agent, host: &Host) -> u64 {
    agent.status(host)["replica"]["tracked"].as_u64().unwrap()
}

#[test]
fn segments_out_of_nowhere_are_no_connection_and_prove_no_initiator() {
    const TEST: &str = "agent::segments_out_of_nowhere_are_no_connection_and_prove_no_initiator";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let agent = Agent::start(&lab, &short_linger().each_ref().map(String::as_str));
    let wire = lab.peer.frame_socket().unwrap();
    let stray = |port: u16, flags: u8| {
        let frame = lab.peer.frame_v4(&lab.agent);
        wire.send(&frame.tcp(PORT, port, flags, &[]).unwrap())
            .unwrap();
    };
    let (reset, both, answer) = (40_001, 40_002, 40_003);
    stray(reset, RST | ACK);
    stray(both, RST | ACK);
    stray(both, RST | ACK);
    // The kernel answers it by an RST.
    stray(answer, SYN | ACK);
    agent.wait_for_scans(&lab.agent, 2);
    wait_until("the flows have ended", || tracked(&agent, &lab.agent) == 0);
    let failed = agent.status(&lab.agent)["replica"]["failed_flows"]["reset"].clone();
    let report = agent.stop();
    for (port, source) in [(reset, PORT), (both, PORT), (answer, answer)] {
        let records = records(&report, port);
        assert!(records.last().unwrap()["end_reason"] == "end_of_flow");
        for record in records {
            assert!(record.get("failure").is_none(), "{record}");
            assert_eq!(initiator(record), json!([source, true]), "{record}");
        }
    }
    assert_eq!(failed, 0);
}

#[test]
fn a_forged_rst_ends_no_flow_of_a_connection_that_goes_on() {
    const TEST: &str = "agent::a_forged_rst_ends_no_flow_of_a_connection_that_goes_on";
    if !is_root_or_skip(TEST) {
        return;
    }
    // Within the linger, and also after it if the socket shows the state.
    let after = long_after();
    a_forged_rst(&[], [2, after]);
    a_forged_rst(&["--enrich", "tcp"], [after, after]);
}

/// The client speaks this many scans after a forged RST, and the server some scans later.
fn a_forged_rst(more: &[&str], scans: [u64; 2]) {
    let lab = Lab::addressed().unwrap();
    let linger = short_linger();
    let settings = [&linger.each_ref().map(String::as_str), more].concat();
    let agent = Agent::start_by(as_the_service(&lab.agent), &lab.agent.interface, &settings);
    let mut talk = Talk::begin(&lab.agent, &lab.peer);
    agent.wait_for_scans(&lab.agent, 2);
    let forged = lab.peer.frame_v4(&lab.agent).tcp_numbers(0, 0);
    let forged = forged.tcp(PORT, talk.port(), RST, &[]).unwrap();
    lab.peer.frame_socket().unwrap().send(&forged).unwrap();
    agent.wait_for_scans(&lab.agent, scans[0]);
    talk.ask();
    agent.wait_for_scans(&lab.agent, scans[1]);
    talk.tell();
    agent.wait_for_scans(&lab.agent, 2);
    let (port, report) = (talk.port(), agent.stop());
    let records = records(&report, port);
    let reset = records.iter().find(|it| {
        let flags = it["reverse_tcp_flags"].as_u64().unwrap();
        flags & u64::from(RST) != 0 && it["end_reason"].is_null()
    });
    assert!(reset.is_some(), "the RST was counted");
    let first = records[0]["first_seen"].clone();
    for record in &records {
        assert_eq!(initiator(record), json!([port, false]), "{record}");
        assert_eq!(record["first_seen"], first, "{record}");
        assert!(record.get("failure").is_none(), "{record}");
    }
    let (last, others) = records.split_last().unwrap();
    assert_eq!(last["end_reason"], "forced_end");
    assert!(others.iter().all(|record| record["end_reason"].is_null()));
}

#[test]
fn a_connection_keeps_its_ends_over_a_pause_and_a_younger_agent_assumes_them() {
    const TEST: &str =
        "agent::a_connection_keeps_its_ends_over_a_pause_and_a_younger_agent_assumes_them";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let short = short();
    let settings = ["--scan-interval", "100ms", "--idle-timeout", &short];
    for [client, server] in [[&lab.agent, &lab.peer], [&lab.peer, &lab.agent]] {
        let agent = Agent::start(&lab, &settings);
        let mut talk = Talk::begin(client, server);
        agent.wait_for_scans(&lab.agent, 2);
        wait_until("the flow has ended", || tracked(&agent, &lab.agent) == 0);
        talk.tell();
        agent.wait_for_scans(&lab.agent, 2);
        let (port, report) = (talk.port(), agent.stop());
        let seen = records(&report, port);
        let ends = seen.iter().filter(|record| !record["end_reason"].is_null());
        assert_eq!(ends.count(), 2);
        for record in seen {
            assert_eq!(initiator(record), json!([port, false]), "{record}");
        }

        let younger = Agent::start(&lab, &settings);
        talk.tell();
        younger.wait_for_scans(&lab.agent, 2);
        let report = younger.stop();
        let seen = records(&report, port);
        assert!(!seen.is_empty());
        for record in seen {
            assert_eq!(initiator(record), json!([PORT, true]), "{record}");
        }
    }
}

/// An agent that has watched these hooks for longer than its idle timeout.
fn watching(lab: &Lab, interface: &str, more: &[&str]) -> Agent {
    let settings = [&["--idle-timeout", "1s"], more].concat();
    let agent = Agent::start_on(&lab.agent, interface, &settings);
    // After too short a pause the initiator would be assumed.
    std::thread::sleep(Duration::from_secs(2));
    agent.wait_for_scans(&lab.agent, 1);
    agent
}

/// The client asks from a port of its own, and is answered. Returns that port.
fn ask_over_udp(client: &Host, server: &Host, address: IpAddr) -> u16 {
    let bind = |host: &Host, port| {
        let bound = host
            .namespace
            .enter(|| Ok(UdpSocket::bind(("0.0.0.0", port))?));
        let socket = bound.unwrap();
        socket
            .set_read_timeout(Some(Duration::from_mins(1)))
            .unwrap();
        socket
    };
    let (client, server) = (bind(client, 0), bind(server, PORT));
    client.send_to(b"x", (address, PORT)).unwrap();
    let (_, from) = server.recv_from(&mut [0]).unwrap();
    server.send_to(b"y", from).unwrap();
    client.recv(&mut [0]).unwrap();
    client.local_addr().unwrap().port()
}

#[test]
fn the_initiator_of_a_flow_on_lo_is_known() {
    if !is_root_or_skip("agent::the_initiator_of_a_flow_on_lo_is_known") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    lab.agent
        .namespace
        .ip(&["link", "set", "lo", "up"])
        .unwrap();
    let agent = watching(&lab, "lo", &[]);
    let port = ask_over_udp(&lab.agent, &lab.agent, Ipv4Addr::LOCALHOST.into());
    agent.wait_for_scans(&lab.agent, 2);
    let report = agent.stop();
    let last = *records(&report, port).last().unwrap();
    assert_eq!(initiator(last), json!([port, false]), "{last}");
}

#[test]
fn an_answer_whose_question_the_rules_leave_out_proves_no_initiator() {
    if !is_root_or_skip("agent::an_answer_whose_question_the_rules_leave_out_proves_no_initiator") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    for (rule, is_left_out) in [
        ("exclude dst port 7000", true),
        ("exclude dst port 7001", false),
    ] {
        let agent = watching(&lab, &lab.agent.interface, &["--filter", rule]);
        let port = ask_over_udp(&lab.agent, &lab.peer, lab.peer.ipv4.into());
        agent.wait_for_scans(&lab.agent, 2);
        let report = agent.stop();
        let last = *records(&report, port).last().unwrap();
        let source = if is_left_out { PORT } else { port };
        assert_eq!(
            initiator(last),
            json!([source, is_left_out]),
            "{rule}: {last}"
        );
    }
}

#[test]
fn a_socket_of_the_host_shows_who_opened_a_connection_that_is_older_than_the_agent() {
    const TEST: &str =
        "agent::a_socket_of_the_host_shows_who_opened_a_connection_that_is_older_than_the_agent";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let of_the_peer = |address: IpAddr| match address {
        IpAddr::V4(_) => lab.peer.ipv4.into(),
        IpAddr::V6(_) => IpAddr::from(lab.peer.ipv6),
    };
    // Where the port has the room that it has by default, and where one connection may wait.
    let usual = |_: &TcpListener| {};
    let short = |listener: &TcpListener| {
        // SAFETY: the descriptor is open.
        let refused = unsafe { libc::listen(listener.as_raw_fd(), 0) };
        assert_eq!(refused, 0);
    };
    for address in [IpAddr::from(lab.agent.ipv4), lab.agent.ipv6.into()] {
        for is_short in [false, true] {
            let prepare: fn(&TcpListener) = if is_short { short } else { usual };
            for is_server in [true, false] {
                let mut talk = if is_server {
                    Talk::with(&lab.peer, &lab.agent, address, prepare)
                } else {
                    Talk::with(&lab.agent, &lab.peer, of_the_peer(address), prepare)
                };
                let settings = ["--enrich", "tcp", "--scan-interval", "100ms"];
                let agent =
                    Agent::start_by(as_the_service(&lab.agent), &lab.agent.interface, &settings);
                talk.tell();
                let is_known = || {
                    let flows = agent.flows(&lab.agent);
                    flows.iter().any(|flow| flow["src_port"] == talk.port())
                };
                wait_until("the client is the initiator", is_known);
                talk.tell();
                let (port, report) = (talk.port(), agent.stop());
                let last = *records(&report, port).last().unwrap();
                let told = initiator(last);
                assert_eq!(told, json!([port, false]), "{is_server} {is_short} {last}");
            }
        }
    }
}
