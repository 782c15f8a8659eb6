//! Connections that fail, with real sockets: their records say why, and records of successful ones report no failure.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd as _,
    time::Duration,
};

use lab::{
    Lab,
    privilege::is_root_or_skip,
    traffic::{self, IpVersion},
};
use serde_json::{Value, json};

use crate::support::{Agent, Report, as_the_service, pair, wait_until};

const ICMP: &[&str] = &["--enrich", "icmp"];
const BEHIND_V4: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const BEHIND_V6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1);
const CLOSED: u16 = 7001;
const OPEN: u16 = 7002;
const FIN: u64 = 0x01;
const RST: u64 = 0x04;

/// The failure in the last record of a flow to this endpoint: name, type, code.
fn failure(report: &Report, to: SocketAddr) -> Value {
    let is_to =
        |line: &&Value| line["dst_addr"] == to.ip().to_string() && line["dst_port"] == to.port();
    let last = report.flows.iter().rfind(is_to);
    let last = last.unwrap_or_else(|| panic!("a flow to {to}"));
    let of = |name: &str| last.get(name).cloned().unwrap_or_default();
    json!([of("failure"), of("icmp_error_type"), of("icmp_error_code")])
}

fn connect(lab: &Lab, to: impl Into<IpAddr>, port: u16) -> io::Result<TcpStream> {
    let to = SocketAddr::new(to.into(), port);
    let connected = lab.agent.namespace.enter(|| {
        let patience = Duration::from_secs(2);
        Ok(TcpStream::connect_timeout(&to, patience))
    });
    connected.unwrap()
}

fn listen(lab: &Lab) -> TcpListener {
    let bound = lab
        .peer
        .namespace
        .enter(|| Ok(TcpListener::bind((lab.peer.ipv4, OPEN))?));
    bound.unwrap()
}

/// Makes the peer a router that answers with "unreachable" for the hosts behind it.
fn router(lab: &Lab) {
    let peer = &lab.peer.namespace;
    for sysctl in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        peer.set_sysctl(sysctl, "1").unwrap();
    }
    // It may answer every time.
    for sysctl in ["net/ipv4/icmp_ratelimit", "net/ipv6/icmp/ratelimit"] {
        peer.set_sysctl(sysctl, "0").unwrap();
    }
    let (v4, v6) = (lab.peer.ipv4.to_string(), lab.peer.ipv6.to_string());
    let agent = &lab.agent.namespace;
    agent
        .ip(&["route", "add", "10.99.0.0/16", "via", &v4])
        .unwrap();
    agent
        .ip(&["-6", "route", "add", "fd99::/16", "via", &v6])
        .unwrap();
    peer.ip(&["route", "add", "unreachable", "10.99.0.0/16"])
        .unwrap();
    peer.ip(&["-6", "route", "add", "unreachable", "fd99::/16"])
        .unwrap();
}

#[test]
fn what_icmp_says_cannot_be_reached_is_unreachable() {
    const TEST: &str = "agent::what_icmp_says_cannot_be_reached_is_unreachable";
    if !is_root_or_skip(TEST) {
        return;
    }
    for hook in ["tc", "xdp"] {
        let lab = Lab::addressed().unwrap();
        router(&lab);
        let settings = [ICMP, &["--ingress-hook", hook]].concat();
        let agent = Agent::start_by(as_the_service(&lab.agent), &lab.agent.interface, &settings);
        for to in [IpAddr::from(BEHIND_V4), BEHIND_V6.into()] {
            let expected = if to.is_ipv4() {
                io::ErrorKind::HostUnreachable
            } else {
                io::ErrorKind::NetworkUnreachable
            };
            assert_eq!(
                connect(&lab, to, OPEN).unwrap_err().kind(),
                expected,
                "{to}"
            );
        }
        // A closed UDP port: the host is there.
        for to in [IpAddr::from(lab.peer.ipv4), lab.peer.ipv6.into()] {
            let refused = lab.agent.namespace.enter(|| {
                let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(any)?;
                socket.connect((to, CLOSED))?;
                socket.set_read_timeout(Some(Duration::from_secs(30)))?;
                socket.send(b"hello")?;
                Ok(socket.recv(&mut [0; 1]).unwrap_err().kind())
            });
            assert_eq!(refused.unwrap(), io::ErrorKind::ConnectionRefused, "{to}");
        }
        agent.wait_for_scans(&lab.agent, 2);
        let failed = agent.status(&lab.agent)["replica"]["lost_icmp_errors"].clone();
        let report = agent.stop();
        for (to, port, icmp_type, code) in [
            (IpAddr::from(BEHIND_V4), OPEN, 3, 1),
            (BEHIND_V6.into(), OPEN, 1, 0),
            (lab.peer.ipv4.into(), CLOSED, 3, 3),
            (lab.peer.ipv6.into(), CLOSED, 1, 4),
        ] {
            let to = SocketAddr::new(to, port);
            let expected = json!(["unreachable", icmp_type, code]);
            assert_eq!(failure(&report, to), expected, "{hook} {to}");
        }
        assert_eq!(failed, 0);
        assert_eq!(pair(&report.last()["flows"]), report.seen());
    }
}

#[test]
fn a_port_that_refuses_and_a_host_that_is_silent_are_told_apart() {
    const TEST: &str = "agent::a_port_that_refuses_and_a_host_that_is_silent_are_told_apart";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let settings = [
        "--idle-timeout",
        "3s",
        "--scan-interval",
        "1s",
        "--linger",
        "1s",
    ];
    let agent = Agent::start(&lab, &settings);
    let refused = connect(&lab, lab.peer.ipv4, CLOSED).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    traffic::tcp(&lab.agent, &lab.peer, IpVersion::V4, 7003, 1000).unwrap();
    // The peer accepts nothing anymore, and nobody resolves its address.
    let mac = lab.peer.mac_text();
    let address = lab.peer.ipv4.to_string();
    let known = ["neigh", "replace", &address, "lladdr", &mac, "dev"];
    let known = [&known[..], &[&lab.agent.interface, "nud", "permanent"]].concat();
    lab.agent.namespace.ip(&known).unwrap();
    let flush = ["address", "flush", "dev", &lab.peer.interface];
    lab.peer.namespace.ip(&flush).unwrap();
    let silent = connect(&lab, lab.peer.ipv4, OPEN).unwrap_err();
    assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
    let failed = || agent.status(&lab.agent)["replica"]["failed_flows"].clone();
    wait_until("the flows have ended", || {
        failed()["refused"] == 1 && failed()["unanswered"] == 1
    });
    let failed = failed();
    let report = agent.stop();
    let of = |port: u16| failure(&report, SocketAddr::new(lab.peer.ipv4.into(), port));
    assert_eq!(of(CLOSED), json!(["refused", null, null]));
    assert_eq!(of(OPEN), json!(["unanswered", null, null]));
    assert_eq!(of(7003), json!([null, null, null]));
    let expected = json!({ "refused": 1, "unanswered": 1, "unreachable": 0, "reset": 0 });
    assert_eq!(failed, expected);
    // Silence is not a failure while an answer may still come.
    let waits = report.flows.iter().find(|line| line["dst_port"] == OPEN);
    let waits = waits.unwrap();
    assert!(
        waits["end_reason"].is_null() && waits.get("failure").is_none(),
        "{waits}"
    );
}

#[test]
fn a_reset_is_told_unless_both_ends_had_finished() {
    const TEST: &str = "agent::a_reset_is_told_unless_both_ends_had_finished";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let listener = listen(&lab);
    let agent = Agent::start(&lab, &[]);
    let mut client = connect(&lab, lab.peer.ipv4, OPEN).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"hello").unwrap();
    server.read_exact(&mut [0; 5]).unwrap();
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the option is such a structure.
    let set = unsafe {
        libc::setsockopt(
            server.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    assert_eq!(set, 0);
    drop(server);
    let reset = client.local_addr().unwrap().port();
    let error = client.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    drop(client);
    agent.wait_for_scans(&lab.agent, 2);

    // Both ends finish, then a late segment arrives.
    let client = connect(&lab, lab.peer.ipv4, OPEN).unwrap();
    let (server, _) = listener.accept().unwrap();
    let port = client.local_addr().unwrap().port();
    client.shutdown(Shutdown::Write).unwrap();
    drop(server);
    assert_eq!((&client).read(&mut [0]).unwrap(), 0);
    drop(client);
    let late = lab.agent.frame_v4(&lab.peer);
    let late = late.tcp(port, OPEN, 0x10, b"late").unwrap();
    lab.agent.frame_socket().unwrap().send(&late).unwrap();
    agent.wait_for_scans(&lab.agent, 2);
    let report = agent.stop();
    let of = |port: u16| {
        let mut flows = report.flows.iter();
        flows.rfind(|line| line["src_port"] == port && line["dst_port"] == OPEN)
    };
    assert_eq!(of(reset).unwrap()["failure"], "reset");
    let late = of(port).unwrap();
    let flags = ["tcp_flags", "reverse_tcp_flags"].map(|name| late[name].as_u64().unwrap());
    assert!(flags.iter().all(|flags| flags & FIN != 0), "{late}");
    assert!(flags[1] & RST != 0, "{late}");
    assert!(late.get("failure").is_none(), "{late}");
}

/// Anyone may send an error with any quotation.
#[test]
fn an_error_says_nothing_of_a_flow_that_is_answered_or_that_is_not_there() {
    const SILENT: u16 = 40_000;
    const TEST: &str =
        "agent::an_error_says_nothing_of_a_flow_that_is_answered_or_that_is_not_there";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let agent = Agent::start(&lab, ICMP);
    let talk = traffic::tcp(&lab.agent, &lab.peer, IpVersion::V4, OPEN, 1000).unwrap();
    let quoted = |port: u16| {
        let quoted = lab::Frame::bare(lab.agent.ipv4, lab.peer.ipv4);
        quoted.tcp(port, OPEN, 0x02, b"").unwrap()
    };
    let from = lab.peer.frame_socket().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    // A flow without further information, beside one that is answered and one that does not exist.
    let asked = lab.agent.frame_v4(&lab.peer).tcp(SILENT, OPEN, 0x02, b"");
    lab.peer
        .namespace
        .ip(&["address", "flush", "dev", &lab.peer.interface])
        .unwrap();
    lab.agent
        .frame_socket()
        .unwrap()
        .send(&asked.unwrap())
        .unwrap();
    for port in [talk.client.port(), 1, SILENT] {
        let mut error = vec![3, 1, 0, 0, 0, 0, 0, 0];
        error.extend(quoted(port));
        from.send(&frame.ip(1, &error).unwrap()).unwrap();
    }
    // An error that quotes nothing.
    from.send(&frame.ip(1, &[3, 1, 0, 0, 0, 0, 0, 0]).unwrap())
        .unwrap();
    agent.wait_for_scans(&lab.agent, 3);
    let replica = agent.status(&lab.agent)["replica"].clone();
    let report = agent.stop();
    let of = |port: u16| {
        let mut flows = report.flows.iter();
        flows.rfind(|line| line["src_port"] == port && line["protocol"] == 6)
    };
    let answered = of(talk.client.port()).unwrap();
    assert!(answered.get("failure").is_none(), "{answered}");
    assert_eq!(of(SILENT).unwrap()["failure"], "unreachable");
    assert_eq!(of(1), None);
    assert_eq!(replica["lost_icmp_errors"], 1, "{replica}");
    assert_eq!(replica["unmatched_icmp_errors"], 1, "{replica}");
    assert_eq!(pair(&report.last()["flows"]), report.seen());
}
