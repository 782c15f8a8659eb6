//! Names of addresses, with a real DNS server (dnsmasq): records have the names that hosts asked for before, and the
//! counts do not change.

use std::{
    fs,
    net::{IpAddr, UdpSocket},
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use lab::{
    AtEnd, Host, Lab, Process,
    privilege::is_root_or_skip,
    traffic::{self, IpVersion},
};
use serde_json::{Value, json};

use crate::support::{Agent, Report, as_the_service, flow_agent, pair, wait_until};

const DNS: &[&str] = &["--enrich", "dns"];
const A: u16 = 1;
const AAAA: u16 = 28;
const TXT: u16 = 16;
/// More than a datagram without EDNS has room for (512 bytes).
const MANY: u8 = 60;
const PATIENCE: Duration = Duration::from_secs(30);

/// On the peer.
fn dnsmasq(lab: &Lab) -> Process {
    let Host { ipv4, ipv6, .. } = &lab.peer;
    let mut command = lab.peer.command("dnsmasq");
    command
        .args([
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--no-resolv",
        ])
        .args(["--no-hosts", "--pid-file=", "--user=", "--bind-interfaces"])
        .args(["--log-facility=-", "--interface"])
        .arg(&lab.peer.interface)
        .arg(format!("--host-record=www.example,{ipv4},{ipv6},300"))
        .arg(format!("--host-record=other.example,{ipv4},300"))
        .arg("--cname=alias.example,www.example,60")
        .arg("--cname=far.example,alias.example,60")
        .arg("--txt-record=text.example,nothing")
        .args((1..=MANY).map(|host| format!("--host-record=many.example,192.0.2.{host},300")));
    let server = Process::spawn(&mut command).unwrap();
    let socket = asking(lab, lab.agent.ipv4.into());
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    wait_until("the server answers", || {
        try_ask(&socket, lab.peer.ipv4.into(), &query(1, "www.example", A)).is_some()
    });
    // No answer is in flight.
    socket
        .set_read_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    while socket.recv(&mut [0; 512]).is_ok() {}
    server
}

/// A socket on the agent's host, or in its namespace on another address.
fn asking(lab: &Lab, address: IpAddr) -> UdpSocket {
    let bound = lab
        .agent
        .namespace
        .enter(|| Ok(UdpSocket::bind((address, 0))?));
    let socket = bound.unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// RFC 1035 section 4: one question, recursion desired.
fn query(id: u16, name: &str, record_type: u16) -> Vec<u8> {
    let mut message = id.to_be_bytes().to_vec();
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend(record_type.to_be_bytes());
    message.extend(1_u16.to_be_bytes());
    message
}

fn try_ask(socket: &UdpSocket, server: IpAddr, query: &[u8]) -> Option<Vec<u8>> {
    socket.send_to(query, (server, 53)).ok()?;
    let mut answer = vec![0; 4096];
    let len = socket.recv(&mut answer).ok()?;
    answer.truncate(len);
    Some(answer)
}

fn ask(socket: &UdpSocket, server: IpAddr, name: &str, record_type: u16) -> Vec<u8> {
    try_ask(socket, server, &query(7, name, record_type)).unwrap()
}

/// The lower bits of an answer's flags: its code, and whether it is truncated.
fn code(answer: &[u8]) -> (u8, bool) {
    (answer[3] & 0xf, answer[2] & 2 != 0)
}

/// The names of the ends in the last record of a flow to this port.
fn names(report: &Report, port: u16) -> Value {
    let last = report.flows.iter().rfind(|line| line["dst_port"] == port);
    let last = last.unwrap_or_else(|| panic!("a flow to port {port}"));
    let fields = last.as_object().unwrap().iter();
    let of_names = fields.filter(|(name, _)| name[3..].starts_with("_host"));
    Value::Object(
        of_names
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    )
}

fn called(name: &str, source: &str) -> Value {
    json!({ "dst_host": name, "dst_host_source": source })
}

fn talk(lab: &Lab, version: IpVersion, port: u16) {
    traffic::tcp(&lab.agent, &lab.peer, version, port, 1000).unwrap();
}

fn status(agent: &Agent, lab: &Lab) -> Value {
    agent.wait_for_scans(&lab.agent, 2);
    agent.status(&lab.agent)["dns"].clone()
}

#[test]
fn a_flow_is_to_the_name_that_its_host_asked_for_last_before_it_began() {
    const TEST: &str = "agent::a_flow_is_to_the_name_that_its_host_asked_for_last_before_it_began";
    if !is_root_or_skip(TEST) {
        return;
    }
    for hook in ["tc", "xdp"] {
        let lab = Lab::addressed().unwrap();
        let _server = dnsmasq(&lab);
        let settings = [DNS, &["--ingress-hook", hook]].concat();
        let agent = Agent::start_by(as_the_service(&lab.agent), &lab.agent.interface, &settings);
        let server = lab.peer.ipv4.into();
        let socket = asking(&lab, lab.agent.ipv4.into());

        talk(&lab, IpVersion::V4, 7001);
        // Through two aliases; the name is the one of the query.
        let answer = ask(&socket, server, "Far.Example", A);
        assert_eq!(code(&answer), (0, false));
        talk(&lab, IpVersion::V4, 7002);
        ask(&socket, server, "other.example", A);
        talk(&lab, IpVersion::V4, 7003);
        // Neither a query without an answer nor an answer without an address gives a name.
        assert_eq!(code(&ask(&socket, server, "no.example", A)).0, 5);
        ask(&socket, server, "text.example", TXT);
        talk(&lab, IpVersion::V4, 7004);
        // A name asked for over IPv4 is used over IPv6, by an address that asked for nothing.
        ask(&socket, server, "www.example", AAAA);
        talk(&lab, IpVersion::V6, 7005);
        // From here on it has asked for itself.
        let over_v6 = asking(&lab, lab.agent.ipv6.into());
        ask(&over_v6, lab.peer.ipv6.into(), "alias.example", AAAA);
        talk(&lab, IpVersion::V6, 7006);

        let dns = status(&agent, &lab);
        let report = agent.stop();
        assert_eq!(names(&report, 7001), json!({}), "{hook}");
        for (port, name, source) in [
            (7002, "far.example", "dns"),
            (7003, "other.example", "dns"),
            (7004, "other.example", "dns"),
            (7005, "www.example", "dns_of_another"),
            (7006, "alias.example", "dns"),
        ] {
            assert_eq!(names(&report, port), called(name, source), "{hook} {port}");
        }
        assert_eq!(dns["queries"], 6, "{dns}");
        assert_eq!(dns["answers"], 6, "{dns}");
        assert_eq!(
            dns["answers_by_code"],
            json!({ "noerror": 5, "refused": 1 }),
            "{dns}"
        );
        for none in [
            "unasked",
            "unanswered",
            "malformed",
            "over_rate",
            "no_room",
            "unreadable",
        ] {
            assert_eq!(dns[none], 0, "{none}: {dns}");
        }
        assert_eq!(pair(&report.last()["flows"]), report.seen(), "{hook}");
    }
}

#[test]
fn a_filter_chooses_flows_by_the_names_that_were_learned() {
    if !is_root_or_skip("agent::a_filter_chooses_flows_by_the_names_that_were_learned") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let _server = dnsmasq(&lab);
    let settings = [DNS, &["--linger", "1h", "--idle-timeout", "1h"]].concat();
    let agent = Agent::start_by(as_the_service(&lab.agent), &lab.agent.interface, &settings);
    let socket = asking(&lab, lab.agent.ipv4.into());
    for (name, port) in [("www.example", 7001), ("other.example", 7002)] {
        ask(&socket, lab.peer.ipv4.into(), name, A);
        talk(&lab, IpVersion::V4, port);
    }
    for (filter, ports) in [
        ("host www.example", vec![7001]),
        ("dst host *.example tcp", vec![7001, 7002]),
        ("exclude host www.example; tcp", vec![7002]),
    ] {
        wait_until(filter, || {
            let list = ["flows", "--output", "json", "--filter", filter];
            let text = String::from_utf8(agent.asked(&lab.agent, &list).stdout).unwrap();
            let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
            let mut listed: Vec<_> = lines
                .filter_map(|line: Value| line["dst_port"].as_u64())
                .collect();
            listed.sort_unstable();
            listed == ports
        });
    }
    agent.stop();
}

#[test]
fn each_exchange_is_told_of_if_that_is_asked_for() {
    const TEST: &str = "agent::each_exchange_is_told_of_if_that_is_asked_for";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let _server = dnsmasq(&lab);
    let settings = ["--enrich", "dns-exchanges", "--scan-interval", "1s"];
    let agent = Agent::start(&lab, &settings);
    let socket = asking(&lab, lab.agent.ipv4.into());
    let server = lab.peer.ipv4.into();
    ask(&socket, server, "Alias.Example", AAAA);
    ask(&socket, server, "no.example", A);
    ask(&socket, server, "many.example", A);
    // Nobody answers there.
    let port = socket.local_addr().unwrap().port();
    let silent = lab.peer.frame_v4(&lab.agent);
    let frame = silent.udp(port, 53, &query(9, "lost.example", A)).unwrap();
    lab.peer.frame_socket().unwrap().send(&frame).unwrap();
    talk(&lab, IpVersion::V6, 7001);
    wait_until("the last one is given up", || {
        agent.status(&lab.agent)["dns"]["unanswered"] == 1
    });
    agent.wait_for_scans(&lab.agent, 2);
    let lines = agent.stdout();
    let report = agent.stop();
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut told: Vec<Value> = lines.filter(|line| line["type"] == "dns").collect();
    told.sort_by_key(|line| line["asked"].as_str().map(str::to_owned));
    let [alias, no, many, lost] = &told[..] else {
        panic!("{told:?}")
    };
    for (line, name, record_type, code) in [
        (alias, "Alias.Example", "AAAA", json!("noerror")),
        (no, "no.example", "A", json!("refused")),
        (many, "many.example", "A", json!("noerror")),
        (lost, "lost.example", "A", json!(null)),
    ] {
        assert_eq!(line["name"], name);
        assert_eq!(line["record_type"], record_type, "{line}");
        assert_eq!(line["code"], code, "{line}");
        assert_eq!(line["waited_ns"].is_null(), code.is_null(), "{line}");
        assert_eq!(line["client_port"], port, "{line}");
        assert_eq!(line["interface"], lab.agent.interface.as_str(), "{line}");
    }
    assert_eq!(alias["client_addr"], lab.agent.ipv4.to_string());
    assert_eq!(alias["server_addr"], lab.peer.ipv4.to_string());
    assert_eq!(alias["addrs"], json!([lab.peer.ipv6.to_string()]));
    assert_eq!(lost["client_addr"], lab.peer.ipv4.to_string());
    assert_eq!(many["truncated"], true);
    assert_eq!(alias["truncated"], false);
    // The flows have names.
    let expected = called("alias.example", "dns_of_another");
    assert_eq!(names(&report, 7001), expected);
    assert_eq!(pair(&report.last()["flows"]), report.seen());
}

/// A client's peers are the source if they begin.
#[test]
fn who_was_asked_for_is_named_also_where_it_begins() {
    const TEST: &str = "agent::who_was_asked_for_is_named_also_where_it_begins";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let _server = dnsmasq(&lab);
    let agent = Agent::start(&lab, DNS);
    let socket = asking(&lab, lab.agent.ipv4.into());
    ask(&socket, lab.peer.ipv4.into(), "www.example", A);
    traffic::tcp(&lab.peer, &lab.agent, IpVersion::V4, 7001, 1000).unwrap();
    let expected = json!({ "src_host": "www.example", "src_host_source": "dns" });
    assert_eq!(names(&agent.stop(), 7001), expected);
}

#[test]
fn an_answer_that_is_cut_off_names_what_it_has() {
    const TEST: &str = "agent::an_answer_that_is_cut_off_names_what_it_has";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let _server = dnsmasq(&lab);
    let agent = Agent::start(&lab, DNS);
    let socket = asking(&lab, lab.agent.ipv4.into());
    let answer = ask(&socket, lab.peer.ipv4.into(), "many.example", A);
    assert!(code(&answer).1, "{answer:?}");
    let dns = status(&agent, &lab);
    let told = u16::from_be_bytes([answer[6], answer[7]]);
    assert!(told < MANY.into(), "{told}");
    assert_eq!(dns["names"], told, "{dns}");
    assert_eq!(dns["malformed"], 0, "{dns}");
}

/// A sender of forged datagrams cannot name an address.
#[test]
fn nothing_is_learned_from_answers_that_nobody_asked_for_and_from_garbage() {
    const TEST: &str =
        "agent::nothing_is_learned_from_answers_that_nobody_asked_for_and_from_garbage";
    const FORGED: u16 = 4;
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let agent = Agent::start(&lab, DNS);
    let socket = asking(&lab, lab.agent.ipv4.into());
    let port = socket.local_addr().unwrap().port();
    let forged = |id: u16, name: &str| {
        let mut answer = query(id, name, A);
        (answer[2], answer[3], answer[7]) = (0x81, 0x80, 1);
        // The question's name, an address for five minutes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4]);
        answer.extend(lab.peer.ipv4.octets());
        answer
    };
    let from = lab.peer.frame_socket().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    let send = |payload: &[u8]| from.send(&frame.udp(53, port, payload).unwrap()).unwrap();
    // The number is wrong, or the name.
    socket
        .send_to(&query(7, "www.example", A), (lab.peer.ipv4, 53))
        .unwrap();
    send(&forged(8, "www.example"));
    send(&forged(7, "evil.example"));
    send(b"no message of the DNS");
    let mut broken = forged(7, "www.example");
    broken.truncate(broken.len() - 1);
    send(&broken);
    send(&[0; 11]);
    // A query as if this host had sent it, and its answer.
    let asked = lab.agent.frame_v4(&lab.peer);
    let asked = asked.udp(port ^ 2, 53, &query(7, "www.example", A));
    from.send(&asked.unwrap()).unwrap();
    let answered = frame.udp(53, port ^ 2, &forged(7, "www.example"));
    from.send(&answered.unwrap()).unwrap();
    // Finally, one with the right number and name, to another port.
    let elsewhere = frame.udp(53, port ^ 1, &forged(7, "www.example"));
    from.send(&elsewhere.unwrap()).unwrap();
    let dns = status(&agent, &lab);
    talk(&lab, IpVersion::V4, 7001);
    let report = agent.stop();
    assert_eq!(dns["unasked"], FORGED, "{dns}");
    assert_eq!(dns["names"], 0, "{dns}");
    assert_eq!(dns["unreadable"], 1, "{dns}");
    let unread = ["malformed", "of_another_kind"].map(|name| dns[name].as_u64().unwrap());
    assert_eq!(unread.iter().sum::<u64>(), 2, "{dns}");
    assert_eq!(names(&report, 7001), json!({}));
    assert_eq!(pair(&report.last()["flows"]), report.seen());
}

#[test]
fn a_flood_is_read_up_to_the_rate_and_each_other_message_is_counted() {
    const TEST: &str = "agent::a_flood_is_read_up_to_the_rate_and_each_other_message_is_counted";
    const SENT: u64 = 3000;
    const RATE: u64 = 100;
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let settings = [DNS, &["--dns-rate", "100"]].concat();
    let mut agent = Agent::start(&lab, &settings);
    let from = lab.peer.frame_socket().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    let flood = (0..SENT as u16).map(|id| frame.udp(40_000, 53, &query(id, "www.example", A)));
    let flood: Vec<_> = flood.map(Result::unwrap).collect();
    let started = std::time::Instant::now();
    assert_eq!(from.send_many(&flood).unwrap() as u64, SENT);
    let dns = status(&agent, &lab);
    let seconds = started.elapsed().as_secs() + 2;
    let of = |name: &str| dns[name].as_u64().unwrap();
    assert_eq!(of("queries") + of("over_rate"), SENT, "{dns}");
    assert!(of("queries") >= RATE, "{dns}");
    // CPUs that begin a second at the same moment may read some more.
    assert!(of("queries") <= seconds * (RATE + 16), "{seconds}: {dns}");
    agent.wait_until_logged("--dns-rate");
    let report = agent.stop();
    assert_eq!(pair(&report.last()["flows"]), report.seen());
    let to_server = report.flows.iter().filter(|line| line["dst_port"] == 53);
    let packets = to_server.map(|line| line["packets"].as_u64().unwrap());
    assert_eq!(packets.sum::<u64>(), SENT);
}

/// Scans continue, and each takes the messages before it.
#[test]
fn a_flood_holds_up_no_scan() {
    const TEST: &str = "agent::a_flood_holds_up_no_scan";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let _server = dnsmasq(&lab);
    let settings = [DNS, &["--dns-rate", "1000000", "--scan-interval", "200ms"]].concat();
    let agent = Agent::start(&lab, &settings);
    let socket = asking(&lab, lab.agent.ipv4.into());
    let frame = lab.peer.frame_v4(&lab.agent);
    let mut flood = query(1, "www.example", A);
    (flood[2], flood[3]) = (0x81, 0x80);
    let flood = frame.udp(53, 40_000, &flood).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let from = lab.peer.frame_socket().unwrap();
            while !stop.load(Relaxed) {
                from.send_many(std::iter::repeat_n(&flood, 64)).unwrap();
                thread::sleep(Duration::from_millis(1));
            }
        });
        let _stop = AtEnd(|| stop.store(true, Relaxed));
        wait_until("the flood has come", || {
            agent.status(&lab.agent)["dns"]["unasked"].as_u64() > Some(1000)
        });
        agent.wait_for_scans(&lab.agent, 3);
        // Queues are full, so an answer may be lost.
        socket
            .set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        wait_until("it is answered", || {
            try_ask(&socket, lab.peer.ipv4.into(), &query(7, "www.example", A)).is_some()
        });
        talk(&lab, IpVersion::V4, 7001);
        agent.wait_for_scans(&lab.agent, 3);
    });
    let dns = status(&agent, &lab);
    let report = agent.stop();
    if dns["no_room"] == 0 {
        assert_eq!(names(&report, 7001), called("www.example", "dns"), "{dns}");
    }
    assert_eq!(pair(&report.last()["flows"]), report.seen());
}

#[test]
fn what_a_filter_leaves_out_is_not_read() {
    const TEST: &str = "agent::what_a_filter_leaves_out_is_not_read";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let _server = dnsmasq(&lab);
    let settings = [DNS, &["--filter", "exclude port 53"]].concat();
    let agent = Agent::start(&lab, &settings);
    let socket = asking(&lab, lab.agent.ipv4.into());
    ask(&socket, lab.peer.ipv4.into(), "www.example", A);
    talk(&lab, IpVersion::V4, 7001);
    let dns = status(&agent, &lab);
    assert_eq!(names(&agent.stop(), 7001), json!({}));
    assert_eq!((&dns["queries"], &dns["answers"]), (&json!(0), &json!(0)));
}

#[test]
fn a_query_without_an_answer_is_counted_as_such() {
    const TEST: &str = "agent::a_query_without_an_answer_is_counted_as_such";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let settings = [DNS, &["--scan-interval", "1s"]].concat();
    let agent = Agent::start(&lab, &settings);
    let socket = asking(&lab, lab.agent.ipv4.into());
    let query = query(7, "www.example", A);
    // A repeated query still counts once.
    for _ in 0..2 {
        socket.send_to(&query, (lab.peer.ipv4, 53)).unwrap();
    }
    wait_until("it is given up", || {
        agent.status(&lab.agent)["dns"]["unanswered"] == 1
    });
    assert_eq!(agent.status(&lab.agent)["dns"]["queries"], 2);
}

#[test]
fn the_file_of_hosts_names_what_nobody_asked_for() {
    const TEST: &str = "agent::the_file_of_hosts_names_what_nobody_asked_for";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    fs::write(&hosts, format!("{} Peer.Example peer\n", lab.peer.ipv4)).unwrap();
    let agent = Agent::start_by(with_hosts(&lab.agent, &hosts), &lab.agent.interface, DNS);
    talk(&lab, IpVersion::V4, 7001);
    let expected = called("peer.example", "hosts_file");
    assert_eq!(names(&agent.stop(), 7001), expected);
}

/// An agent in its own mount namespace, where this is the hosts file.
fn with_hosts(host: &Host, hosts: &std::path::Path) -> Command {
    const SCRIPT: &str = "mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"";
    if !std::path::Path::new("/etc/hosts").exists() {
        fs::create_dir_all("/etc").unwrap();
        fs::write("/etc/hosts", "").unwrap();
    }
    let binary = flow_agent(host);
    let program = binary.get_args().last().unwrap().to_owned();
    let mut command = host.command("unshare");
    command
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            SCRIPT,
            "sh",
        ])
        .arg(hosts)
        .arg(program)
        .env("NO_COLOR", "1")
        .env("FLOW_AGENT_CONFIG", "/dev/null");
    command
}
