//! TCP's figures of a connection: records have the kernel's own figures of the socket (`getsockopt(TCP_INFO)`, as `ss
//! -ti` shows them).

use std::{
    collections::VecDeque,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use lab::{AtEnd, Host, Lab, Tun, privilege::is_root_or_skip};
use serde_json::{Map, Value, json};

use super::{SMALL, packets};
use crate::support::{
    Agent, Report, as_the_service, attached::programs_of_links, pair, wait_for_silence, wait_until,
};

const TCP: &[&str] = &["--enrich", "tcp"];
/// A slow machine takes its time to take a socket down.
const LINGER: &[&str] = &["--linger", "1m"];
const PORT: u16 = 7000;
/// The ends of the wire that [`relay`] forms.
const NEAR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// How long a packet takes.
const DELAY: Duration = Duration::from_millis(5);

/// The kernel's figures of a socket, under the field names of one end.
fn known(stream: &TcpStream, end: &str) -> Map<String, Value> {
    // linux/tcp.h, `struct tcp_info`.
    const RTT: usize = 68;
    const TOTAL_RETRANS: usize = 100;
    const MIN_RTT: usize = 148;
    const DATA_SEGS_OUT: usize = 156;
    const SND_CWND: usize = 80;
    const DELIVERY_RATE: usize = 160;
    const DELIVERED: usize = 192;
    const DELIVERED_CE: usize = 196;
    let mut info = [0_u8; 256];
    let mut len = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes so many bytes at most.
    let refused = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    assert_eq!(refused, 0, "{}", io::Error::last_os_error());
    assert!(len as usize >= DELIVERED_CE + 4, "{len}");
    let number = |at: usize| u32::from_ne_bytes(*info[at..].first_chunk().unwrap());
    let round_trip = |at: usize| match number(at) {
        0 | u32::MAX => Value::Null,
        us => json!(us),
    };
    let rate = u64::from_ne_bytes(*info[DELIVERY_RATE..].first_chunk().unwrap());
    let rate = if rate == 0 { Value::Null } else { json!(rate) };
    [
        ("rtt_us", round_trip(RTT)),
        ("min_rtt_us", round_trip(MIN_RTT)),
        ("total_retrans", json!(number(TOTAL_RETRANS))),
        ("delivered", json!(number(DELIVERED))),
        ("delivered_ce", json!(number(DELIVERED_CE))),
        ("data_segs_out", json!(number(DATA_SEGS_OUT))),
        ("snd_cwnd", json!(number(SND_CWND))),
        ("delivery_rate", rate),
    ]
    .map(|(name, value)| (format!("{end}_tcp_{name}"), value))
    .into_iter()
    .collect()
}

/// The TCP figures in the last record of a connection. The client's port is the source's.
fn told(report: &Report, port: u16) -> Map<String, Value> {
    let last = report.flows.iter().rfind(|line| line["src_port"] == port);
    let last = last.unwrap().as_object().unwrap();
    let of_tcp = last
        .iter()
        .filter(|(name, _)| name[4..].starts_with("tcp_"));
    of_tcp
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn listen(host: &Host, address: Ipv4Addr) -> TcpListener {
    let bound = host
        .namespace
        .enter(|| Ok(TcpListener::bind((address, PORT))?));
    bound.unwrap()
}

fn connect(host: &Host, address: Ipv4Addr) -> TcpStream {
    let connected = host
        .namespace
        .enter(|| Ok(TcpStream::connect((address, PORT))?));
    connected.unwrap()
}

fn port(stream: &TcpStream) -> u16 {
    stream.local_addr().unwrap().port()
}

/// Sends one segment, and waits for the answer.
fn ask(client: &mut TcpStream, server: &mut TcpStream) {
    client.write_all(b"hello").unwrap();
    server.read_exact(&mut [0; 5]).unwrap();
    server.write_all(b"hello").unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
}

/// Carries packets from one device to the other until it is told to stop, each after a while. Some that leave the near end with data are
/// lost, and some are marked as by a congested router.
fn relay(near: &Tun, far: &Tun, stop: &AtomicBool) {
    let mut on_the_way = [VecDeque::new(), VecDeque::new()];
    let mut with_data = 0;
    while !stop.load(Relaxed) {
        let now = Instant::now();
        for (from, to, queue) in [(near, far, 0), (far, near, 1)] {
            let queue = &mut on_the_way[queue];
            while let Some(mut packet) = from.receive().unwrap() {
                if has_data(&packet) {
                    with_data += 1;
                    if with_data % 11 == 3 {
                        continue;
                    }
                    if with_data % 7 == 0 {
                        mark(&mut packet);
                    }
                }
                queue.push_back((Instant::now() + DELAY, packet));
            }
            while queue.front().is_some_and(|(due, _)| *due <= now) {
                to.send(&queue.pop_front().unwrap().1).unwrap();
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether it is a segment of TCP over IPv4 that has more than headers.
fn has_data(packet: &[u8]) -> bool {
    const PROTOCOL: usize = 9;
    let ip_len = usize::from(packet[0] & 0xf) * 4;
    packet[0] >> 4 == 4
        && packet[PROTOCOL] == libc::IPPROTO_TCP as u8
        && packet.len() > ip_len + usize::from(packet[ip_len + 12] >> 4) * 4
}

/// Congestion experienced (RFC 3168), if the sender knows what that is.
fn mark(packet: &mut [u8]) {
    const ECN: u8 = 3;
    const CHECKSUM: usize = 10;
    if packet[1] & ECN == 0 {
        return;
    }
    packet[1] |= ECN;
    let header = usize::from(packet[0] & 0xf) * 4;
    packet[CHECKSUM..CHECKSUM + 2].fill(0);
    let words = packet[..header].chunks(2);
    let mut sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[CHECKSUM..CHECKSUM + 2].copy_from_slice(&(!sum as u16).to_be_bytes());
}

/// A device with an address on each host, which [`relay`] connects.
fn wire(lab: &Lab, addresses: [Ipv4Addr; 2]) -> [Tun; 2] {
    let hosts = [&lab.agent, &lab.peer].into_iter().zip(addresses);
    let ends = hosts.map(|(host, address)| {
        let tun = Tun::new(&host.namespace, "wire0").unwrap();
        let address = format!("{address}/24");
        let add = ["address", "add", &address, "dev", "wire0"];
        host.namespace.ip(&add).unwrap();
        host.namespace.set_sysctl("net/ipv4/tcp_ecn", "1").unwrap();
        tun
    });
    ends.collect::<Vec<_>>().try_into().unwrap()
}

/// The client's port, and the kernel's final figures of its socket, which is on the agent's host.
fn over_the_wire(lab: &Lab, [near, far]: &[Tun; 2], server: Ipv4Addr) -> (u16, Map<String, Value>) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| relay(near, far, &stop));
        let _stop = AtEnd(|| stop.store(true, Relaxed));
        let listener = listen(&lab.peer, server);
        scope.spawn(move || {
            let (mut server, _) = listener.accept().unwrap();
            io::copy(&mut server, &mut io::sink()).unwrap();
        });
        let mut client = connect(&lab.agent, server);
        for _ in 0..20 {
            client.write_all(&[1; 10_000]).unwrap();
        }
        client.shutdown(Shutdown::Write).unwrap();
        // The server closes when it has read all, and then no more changes.
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        (port(&client), known(&client, "src"))
    })
}

#[test]
fn over_a_wire_that_delays_and_loses_and_marks_records_say_at_the_end_what_the_kernel_does() {
    const TEST: &str = "agent::over_a_wire_that_delays_and_loses_and_marks_records_say_at_the_end_what_the_kernel_does";
    if !is_root_or_skip(TEST) {
        return;
    }
    // The end with the lower address comes first in a flow's key.
    for addresses in [[NEAR, FAR], [FAR, NEAR]] {
        let lab = Lab::quiet().unwrap();
        let ends = wire(&lab, addresses);
        let settings = [TCP, LINGER].concat();
        let agent = Agent::start_by(as_the_service(&lab.agent), "wire0", &settings);
        let (port, expected) = over_the_wire(&lab, &ends, addresses[1]);
        agent.wait_for_scans(&lab.agent, 2);
        let report = agent.stop();
        let at_least = |name: &str, least: u64| {
            let value = expected[&format!("src_tcp_{name}")].as_u64();
            assert!(value >= Some(least), "{name}: {expected:?}");
        };
        at_least("total_retrans", 1);
        at_least("delivered_ce", 1);
        at_least("min_rtt_us", 2 * DELAY.as_micros() as u64);
        assert_eq!(told(&report, port), expected);
        assert_eq!(pair(&report.last()["flows"]), report.seen());
    }
}

#[test]
fn both_ends_of_a_connection_on_this_host_are_told_of_also_if_it_is_reset() {
    const TEST: &str =
        "agent::both_ends_of_a_connection_on_this_host_are_told_of_also_if_it_is_reset";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let listener = listen(&lab.peer, lab.peer.ipv4);
    // Older than the agent, which does not matter.
    let mut client = connect(&lab.agent, lab.peer.ipv4);
    let (mut server, _) = listener.accept().unwrap();
    let agent = Agent::start(&lab, &[TCP, LINGER].concat());
    for _ in 0..3 {
        ask(&mut client, &mut server);
    }
    let port = port(&client);
    let of_client = known(&client, "src");
    abort(client);
    assert_eq!(
        server.read(&mut [0]).unwrap_err().kind(),
        io::ErrorKind::ConnectionReset
    );
    let mut expected = known(&server, "dst");
    assert!(expected["dst_tcp_data_segs_out"].as_u64() >= Some(3));
    expected.extend(of_client);
    drop(server);
    agent.wait_for_scans(&lab.agent, 2);
    assert_eq!(told(&agent.stop(), port), expected);
}

/// The kernel answers from its own sockets, which know no connection.
#[test]
fn what_the_kernel_answers_by_itself_says_nothing_of_a_connection() {
    const TEST: &str = "agent::what_the_kernel_answers_by_itself_says_nothing_of_a_connection";
    const CLOSED: u16 = 7001;
    const STRAY: u16 = 40_000;
    const RST: u8 = 0x04;
    const ACK: u8 = 0x10;
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let address = lab.agent.ipv4;
    let listener = listen(&lab.agent, address);
    let agent = Agent::start(&lab, &[TCP, &["--scan-interval", "1h"]].concat());
    let before = lab.agent.counters().unwrap();

    let refused = lab
        .peer
        .namespace
        .enter(|| Ok(TcpStream::connect((address, CLOSED)).is_err()));
    assert!(refused.unwrap());
    // To the listening socket, which knows no connection either.
    let frame = lab.peer.frame_v4(&lab.agent);
    let socket = lab.peer.frame_socket().unwrap();
    socket
        .send(&frame.tcp(STRAY, PORT, ACK, b"").unwrap())
        .unwrap();

    let mut client = connect(&lab.peer, address);
    let (mut server, _) = listener.accept().unwrap();
    ask(&mut client, &mut server);
    let closed = port(&client);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
    let expected = known(&server, "dst");
    drop(server);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    drop(client);
    // SYN and RST; ACK and RST; three to begin, two with data, and three to end. Then it is over.
    wait_until("the connection has ended", || {
        packets(&lab.agent, before) >= 2 + 2 + 3 + 2 + 3
    });
    let so_far = wait_for_silence(&lab.agent);
    socket
        .send(&frame.tcp(closed, PORT, ACK, b"late").unwrap())
        .unwrap();
    wait_until("the late segment is answered", || {
        packets(&lab.agent, so_far) >= 2
    });

    let report = agent.stop();
    let of = |name: &str, port: u16| {
        report
            .flows
            .iter()
            .rfind(|line| line[name] == port)
            .unwrap()
    };
    for record in [of("dst_port", CLOSED), of("src_port", STRAY)] {
        let flags = record["reverse_tcp_flags"].as_u64().unwrap();
        assert_eq!(flags & u64::from(RST), u64::from(RST), "{record}");
        assert!(record.get("dst_tcp_delivered").is_none(), "{record}");
    }
    let told = told(&report, closed);
    let sent = "dst_tcp_data_segs_out";
    assert_eq!(told[sent], expected[sent], "{told:?}");
    // A FIN may be sent again.
    let [told, expected] = [told, expected].map(|all| all["dst_tcp_total_retrans"].as_u64());
    let expected = expected.unwrap();
    assert!(
        (expected..expected + 20).contains(&told.unwrap()),
        "{told:?}"
    );
}

/// Closes with RST.
pub fn abort(stream: TcpStream) {
    let at_once = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the kernel reads the value, which outlives the call.
    let refused = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const at_once).cast(),
            size_of_val(&at_once) as libc::socklen_t,
        )
    };
    assert_eq!(refused, 0, "{}", io::Error::last_os_error());
    drop(stream);
}

#[test]
fn a_connection_that_one_end_closes_is_told_of_as_it_was_then() {
    if !is_root_or_skip("agent::a_connection_that_one_end_closes_is_told_of_as_it_was_then") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let listener = listen(&lab.peer, lab.peer.ipv4);
    // All of it is in one scan, and the SYN is the first packet.
    let agent = Agent::start(&lab, &[TCP, &["--scan-interval", "1h"]].concat());
    let mut client = connect(&lab.agent, lab.peer.ipv4);
    let (mut server, _) = listener.accept().unwrap();
    for _ in 0..3 {
        ask(&mut client, &mut server);
    }
    // All of it has arrived.
    let expected = known(&client, "src");
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
    let report = agent.stop();
    let told = told(&report, port(&client));
    let sent = "src_tcp_data_segs_out";
    assert!(told[sent].as_u64() >= Some(3));
    assert_eq!(told[sent], expected[sent], "{told:?}");
    // The other end has not closed. Its first packet had no whole socket, so the next one was asked.
    assert!(
        told["dst_tcp_data_segs_out"].as_u64() <= Some(1),
        "{told:?}"
    );
}

/// Some of them find no slot.
#[test]
fn living_connections_are_told_of_as_they_were_at_the_first_packet_of_a_scan() {
    const CONNECTIONS: u64 = 30;
    const TEST: &str =
        "agent::living_connections_are_told_of_as_they_were_at_the_first_packet_of_a_scan";
    if !is_root_or_skip(TEST) {
        return;
    }
    // A number that is none of another one's, also with one more.
    let segments = |number: u64| 3 * number + 1;
    let lab = Lab::addressed().unwrap();
    let listener = listen(&lab.peer, lab.peer.ipv4);
    let all = ["--enrich", "unit,process,tcp"];
    let agent = Agent::start(&lab, &[&all, SMALL].concat());
    let mut pairs: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let client = connect(&lab.agent, lab.peer.ipv4);
            (client, listener.accept().unwrap().0)
        })
        .collect();
    for (number, (client, server)) in (0..).zip(&mut pairs) {
        for _ in 0..segments(number) {
            ask(client, server);
        }
    }
    let behind = || {
        let behind = agent.status(&lab.agent)["table"]["behind"].as_u64();
        behind.unwrap()
    };
    let both = |pairs: &[(TcpStream, TcpStream)]| {
        let of = |(client, server): &(TcpStream, TcpStream)| {
            let mut all = known(client, "src");
            all.extend(known(server, "dst"));
            all
        };
        pairs.iter().map(of).collect::<Vec<_>>()
    };
    let before = both(&pairs);
    // With the first scan, what was asked is the SYN.
    agent.flows(&lab.agent);
    assert_ne!(behind(), 0);
    for (client, server) in &mut pairs {
        ask(client, server);
    }
    let report = agent.stop();
    let after = both(&pairs);
    for (number, (client, _)) in (0..).zip(&pairs) {
        let told = told(&report, port(client));
        for end in ["src", "dst"] {
            // The next segment is asked, or an ACK just before it.
            for name in ["data_segs_out", "delivered", "total_retrans"] {
                let name = format!("{end}_tcp_{name}");
                let [least, told, most] =
                    [&before[number], &told, &after[number]].map(|all| all[&name].as_u64());
                assert!(
                    least <= told && told <= most,
                    "{name}: {least:?}, {told:?}, {most:?}"
                );
            }
            let sent = told[&format!("{end}_tcp_data_segs_out")].as_u64();
            assert!(sent >= Some(segments(number as u64)), "{told:?}");
            assert!(told[&format!("{end}_tcp_rtt_us")].is_u64(), "{told:?}");
        }
        let last = report
            .flows
            .iter()
            .rfind(|line| line["src_port"] == port(client));
        for end in ["src_pid", "dst_pid"] {
            assert_eq!(last.unwrap()[end], std::process::id(), "{last:?}");
        }
    }
    assert_eq!(pair(&report.last()["flows"]), report.seen());
}

#[test]
fn nobody_notes_connections_that_end_once_the_agent_has_ended_or_was_killed() {
    const TEST: &str =
        "agent::nobody_notes_connections_that_end_once_the_agent_has_ended_or_was_killed";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    for is_killed in [false, true] {
        let mut agent = Agent::start(&lab, TCP);
        let programs = programs_of_links(agent.pid(), "raw_tracepoint");
        assert_eq!(programs.len(), 1);
        let program = programs.into_iter().next().unwrap();
        assert!(is_loaded(program));
        if is_killed {
            agent.kill();
        } else {
            agent.stop();
        }
        wait_until("its program is gone", || !is_loaded(program));
    }
}

fn is_loaded(program: u32) -> bool {
    aya::programs::loaded_programs()
        .flatten()
        .any(|loaded| loaded.id() == program)
}
