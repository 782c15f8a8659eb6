//! IPFIX as common programs read it: each must have every record, with the packets and bytes that were sent.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Read as _,
    net::{TcpListener, UdpSocket},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use agent_common::Pair;
use lab::{Frame, Host, Lab, Process, Tun, privilege::is_root_or_skip};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    clients::install,
    outputs::jsonl,
    support::{Agent, Report, count, patience, unix_ns_of, wait_for_packets, wait_until},
};

mod beside;
mod dumped;
mod foreign;
mod moves;
mod rates;
mod translated;

const SYN: u8 = 0x02;
const SYN_ACK: u8 = 0x12;
const ACK: u8 = 0x10;
/// Collectors are in the agent's network namespace, which is the test's own.
const PORT: u16 = 4739;
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;

/// What was sent, of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub packets: u64,
    pub layer2: u64,
    pub octets: u64,
}

impl Sums {
    fn add(&mut self, packets: u64, frame: &[u8], link_len_bytes: usize) {
        self.packets += packets;
        self.layer2 += packets * frame.len() as u64;
        self.octets += packets * (frame.len() - link_len_bytes) as u64;
    }
}

impl std::iter::Sum for Sums {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            packets: sum.packets + one.packets,
            layer2: sum.layer2 + one.layer2,
            octets: sum.octets + one.octets,
        })
    }
}

/// Some 270 flows: with answers and without, of IPv4 and IPv6, tagged and not.
pub fn send(lab: &Lab) -> Sums {
    let before = lab.agent.counters().unwrap();
    let (peer, agent) = (
        lab.peer.frame_socket().unwrap(),
        lab.agent.frame_socket().unwrap(),
    );
    let to_agent = lab.peer.frame_v4(&lab.agent);
    let to_peer = lab.agent.frame_v4(&lab.peer);
    let to_agent6 = lab.peer.frame_v6(&lab.agent);
    let mut sums = Sums::default();
    let mut arrived = 0;
    let mut ask = |frame: &[u8], packets: u64, link_len_bytes| {
        peer.send_many((0..packets).map(|_| frame)).unwrap();
        sums.add(packets, frame, link_len_bytes);
        arrived += packets;
    };
    for port in 1..=200 {
        let payload = vec![0; 18 + usize::from(port % 100)];
        ask(&to_agent.udp(port, 53, &payload).unwrap(), 3, 14);
    }
    for port in 1..=20 {
        ask(&to_agent6.udp(port, 53, &[0; 40]).unwrap(), 2, 14);
        let tagged = lab.peer.frame_v4(&lab.agent).vlan(100);
        ask(&tagged.udp(port, 53, &[0; 40]).unwrap(), 2, 18);
        ask(&to_agent.tcp(port, 443, SYN, &[]).unwrap(), 1, 14);
    }
    ask(&to_agent.icmp_echo(true, 77, 1, &[0; 33]).unwrap(), 1, 14);
    wait_for_packets(&lab.agent, before, arrived);

    // The answers come second, so that the peer is the source of every flow.
    let mut answer = |frame: &[u8], packets: u64| {
        agent.send_many((0..packets).map(|_| frame)).unwrap();
        sums.add(packets, frame, 14);
    };
    for port in 1..=200 {
        answer(&to_peer.udp(53, port, &[0; 100]).unwrap(), 2);
    }
    for port in 1..=20 {
        answer(&to_peer.tcp(443, port, SYN_ACK, &[]).unwrap(), 1);
    }
    answer(&to_peer.icmp_echo(false, 77, 1, &[0; 33]).unwrap(), 1);
    for port in 1..=20 {
        let frame = to_agent.tcp(port, 443, ACK, &[0; 500]).unwrap();
        peer.send(&frame).unwrap();
        sums.add(1, &frame, 14);
        arrived += 1;
    }
    wait_for_packets(&lab.agent, before, arrived);
    sums
}

/// How many directions of a record have packets.
fn directions(flow: &Value) -> usize {
    let directions = ["packets", "reverse_packets"].map(|name| flow[name] != 0);
    directions.iter().filter(|&&has| has).count()
}

/// How many records a report makes with one record for each direction that has packets.
fn uniflow_records(report: &Report) -> usize {
    report.flows.iter().map(directions).sum()
}

/// The same with one record for both directions.
fn biflow_records(report: &Report) -> usize {
    report
        .flows
        .iter()
        .filter(|flow| directions(flow) != 0)
        .count()
}

/// An agent with this output, all traffic, and the agent's end.
fn report(lab: &Lab, output: &str) -> (Sums, Report) {
    report_with(lab, output, &[])
}

fn report_with(lab: &Lab, output: &str, settings: &[&str]) -> (Sums, Report) {
    let outputs = ["--output", "json", "--output", output];
    let agent = Agent::start(lab, &[settings, &outputs].concat());
    let sent = send(lab);
    (sent, agent.stop())
}

const ENTERPRISE: &str = r#", "enterprise_number": 64123"#;

/// With elements of an enterprise in some records: the kernel drops packets for other hosts.
fn enriched(lab: &Lab, output: &str) -> (Sums, Report) {
    let (sent, report) = report_with(lab, output, &["--enrich", "drops,rtt"]);
    let is_enriched = |flow: &&Value| flow.get("total_dropped_packets").is_some();
    let count = report.flows.iter().filter(is_enriched).count();
    assert!(0 < count && count < report.flows.len(), "{count}");
    (sent, report)
}

/// All traffic to this agent, and its end. What was sent, as layer 2 counts it.
pub fn traffic(lab: &Lab, agent: Agent) -> (Pair, Report) {
    let Sums {
        packets,
        layer2: bytes,
        ..
    } = send(lab);
    (Pair { packets, bytes }, agent.stop())
}

/// The bytes that wait at a UDP port, and its losses. `None` if nobody listens there.
fn socket(host: &Host, port: u16) -> Option<(u64, u64)> {
    let table = host
        .namespace
        .enter(|| Ok(fs::read_to_string("/proc/thread-self/net/udp")?));
    let table = table.unwrap();
    let port = format!(":{port:04X}");
    let line = table.lines().find(|line| {
        let address = line.split_whitespace().nth(1);
        address.is_some_and(|address| address.ends_with(&port))
    })?;
    let columns: Vec<&str> = line.split_whitespace().collect();
    let (_, waiting) = columns[4].split_once(':').unwrap();
    let lost = columns.last().unwrap().parse().unwrap();
    Some((u64::from_str_radix(waiting, 16).unwrap(), lost))
}

/// Starts a collector and waits until it listens.
fn collector(lab: &Lab, command: &mut Command, folder: &Path) -> Process {
    let log = File::create(folder.join("log")).unwrap();
    command
        .stderr(log.try_clone().unwrap())
        .stdout(log)
        .stdin(Stdio::null());
    let mut collector = Process::spawn(command).unwrap();
    wait_until("the collector listens", || {
        assert!(collector.exited().unwrap().is_none(), "{}", log_of(folder));
        socket(&lab.agent, PORT).is_some()
    });
    give_room(collector.child().id());
    collector
}

/// Gives a collector's socket room for everything that a test sends: with the usual buffer, a collector without CPU for
/// a while loses datagrams.
fn give_room(collector: u32) {
    let pid = Pid::from_raw(collector.cast_signed()).unwrap();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let files = fs::read_dir(format!("/proc/{collector}/fd")).unwrap();
    let mut copies = files.filter_map(|file| {
        let number = file.unwrap().file_name().to_str()?.parse().ok()?;
        // It may have closed it since.
        let copy = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()).ok()?;
        Some(UdpSocket::from(copy))
    });
    // Other descriptors than sockets have no address.
    let socket = copies.find(|copy| {
        copy.local_addr()
            .is_ok_and(|address| address.port() == PORT)
    });
    let socket = socket.expect("the socket that listens");
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES).unwrap();
}

fn log_of(folder: &Path) -> String {
    fs::read_to_string(folder.join("log")).unwrap()
}

/// Waits until the collector has taken every datagram.
fn wait_until_read(lab: &Lab) {
    wait_until("every datagram is read", || {
        let (unread, lost) = socket(&lab.agent, PORT).expect("the collector listens");
        assert_eq!(lost, 0, "the collector lost datagrams");
        unread == 0
    });
}

/// The objects of a file with one on each line. The last line may be unfinished.
fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text.lines().map(serde_json::from_str);
    lines.filter_map(Result::ok).collect()
}

fn sum(lines: &[Value], name: &str) -> u64 {
    lines
        .iter()
        .map(|line| line[name].as_u64().unwrap_or(0))
        .sum()
}

fn udp(more: &str) -> String {
    format!(r#"{{"kind": "ipfix", "address": "udp://127.0.0.1:{PORT}"{more}}}"#)
}

/// Returns the folder of its files, too.
fn start_nfcapd(program: &Path, lab: &Lab, folder: &Path) -> (Process, PathBuf) {
    let files = folder.join("files");
    fs::create_dir(&files).unwrap();
    let mut command = lab.agent.command(program);
    command
        .args(["-b", "127.0.0.1", "-p", &PORT.to_string(), "-v"])
        // It begins a new file at whole multiples of this time, of five minutes by default.
        .args(["-t", "86400", "-w"])
        .arg(&files);
    (collector(lab, &mut command, folder), files)
}

#[test]
fn nfdump_has_every_flow_in_both_directions() {
    const TEST: &str = "agent::nfdump_has_every_flow_in_both_directions";
    if !is_root_or_skip(TEST) {
        return;
    }
    let Some([nfcapd, nfdump]) = install::nfdump_or_skip(TEST) else {
        return;
    };
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let (mut nfcapd, files) = start_nfcapd(&nfcapd, &lab, folder.path());
    let (sent, report) = enriched(&lab, &udp(ENTERPRISE));
    wait_until_read(&lab);
    nfcapd.terminate(patience()).unwrap();

    let log = log_of(folder.path());
    let told = format!(
        "Flows: {}, Packets: {}, Bytes: {}, Sequence Errors: 0, Bad Packets: 0",
        biflow_records(&report),
        sent.packets,
        sent.octets
    );
    assert!(log.contains(&told), "{told}: {log}");
    let file = fs::read_dir(&files)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let read = Command::new(nfdump)
        .arg("-r")
        .arg(file)
        .args(["-o", "json"])
        .output()
        .unwrap();
    let flows: Vec<Value> = serde_json::from_slice(&read.stdout).unwrap();
    let both =
        |name: &str| sum(&flows, &format!("in_{name}")) + sum(&flows, &format!("out_{name}"));
    assert_eq!(
        (both("packets"), both("bytes")),
        (sent.packets, sent.octets)
    );
    // The peer's packets arrive, and nfdump keeps the flags of the answers out of the others. A flow that a scan
    // came into the middle of has several records.
    let mut flags: BTreeMap<u64, BTreeSet<char>> = BTreeMap::new();
    for flow in flows
        .iter()
        .filter(|flow| flow["dst_port"] == 443 && flow["in_packets"] != 0)
    {
        assert_ne!(flow["input_snmp"], 0, "{flow}");
        assert_eq!(
            (&flow["output_snmp"], &flow["direction"]),
            (&0.into(), &0.into()),
            "{flow}"
        );
        let of_flow = flags.entry(flow["src_port"].as_u64().unwrap());
        let named = flow["tcp_flags"].as_str().unwrap().chars();
        of_flow
            .or_default()
            .extend(named.filter(|&flag| flag != '.'));
    }
    let expected: BTreeMap<_, _> = (1..=20).map(|port| (port, ['A', 'S'].into())).collect();
    assert_eq!(flags, expected);
}

#[test]
fn nfdump_scales_by_the_sampling() {
    const TEST: &str = "agent::nfdump_scales_by_the_sampling";
    if !is_root_or_skip(TEST) {
        return;
    }
    let Some([nfcapd, _]) = install::nfdump_or_skip(TEST) else {
        return;
    };
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let (mut nfcapd, _) = start_nfcapd(&nfcapd, &lab, folder.path());
    let output = udp(r#", "uniflow": true, "octets": "layer2""#);
    let (sent, report) = report_with(&lab, &output, &["--sample", "4"]);
    wait_until_read(&lab);
    nfcapd.terminate(patience()).unwrap();
    let counted = jsonl::sum(&report.flows);
    assert!((1..sent.packets).contains(&counted.packets));
    let told = format!(
        "Flows: {}, Packets: {}, Bytes: {}, Sequence Errors: 0, Bad Packets: 0",
        uniflow_records(&report),
        4 * counted.packets,
        4 * counted.bytes
    );
    let log = log_of(folder.path());
    assert!(log.contains(&told), "{told}: {log}");
}

/// The fields by which nfacctd adds up.
const BY_FLOW: &str = "aggregate: src_host, dst_host, src_port, dst_port, proto, tcpflags, vlan, in_iface, out_iface, flows\n";

/// With these additional settings. Also returns the file of its flows.
fn start_nfacctd(program: &Path, lab: &Lab, folder: &Path, more: &str) -> (Process, PathBuf) {
    let (config, file) = (folder.join("config"), folder.join("flows"));
    let settings = format!(
        "daemonize: false\n\
         nfacctd_ip: 127.0.0.1\n\
         nfacctd_port: {PORT}\n\
         plugins: print\n\
         print_output: json\n\
         print_output_file: {}\n\
         print_output_file_append: true\n\
         print_refresh_time: 1\n\
         {more}",
        file.display()
    );
    fs::write(&config, settings).unwrap();
    let mut command = lab.agent.command(program);
    command.arg("-f").arg(&config);
    (collector(lab, &mut command, folder), file)
}

#[test]
fn nfacctd_has_every_flow() {
    const TEST: &str = "agent::nfacctd_has_every_flow";
    if !is_root_or_skip(TEST) {
        return;
    }
    let Some(nfacctd) = install::nfacctd_or_skip(TEST) else {
        return;
    };
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let (nfacctd, file) = start_nfacctd(&nfacctd, &lab, folder.path(), BY_FLOW);
    let uniflow = format!(r#", "uniflow": true, "octets": "layer2"{ENTERPRISE}"#);
    let (sent, report) = enriched(&lab, &udp(&uniflow));
    wait_until_read(&lab);
    let records = uniflow_records(&report) as u64;
    wait_until("nfacctd has written every record", || {
        let flows = lines(&file);
        (sum(&flows, "packets"), sum(&flows, "flows")) == (sent.packets, records)
    });
    drop(nfacctd);
    let flows = lines(&file);
    assert_eq!(sum(&flows, "bytes"), sent.layer2);
    let flags = |port: &str| {
        let of_port = flows.iter().filter(|flow| flow[port] == 443);
        let mut flags: Vec<_> = of_port
            .map(|flow| flow["tcp_flags"].as_str().unwrap())
            .collect();
        flags.retain(|flags| *flags != "0");
        assert!(!flags.is_empty());
        flags
    };
    assert!(flags("port_src").iter().all(|flags| *flags == "18"));
    assert!(
        flags("port_dst")
            .iter()
            .all(|flags| ["2", "18"].contains(flags))
    );
    assert_eq!(sum(&flows, "vlan") % 100, 0);
    assert!(flows.iter().any(|flow| flow["vlan"] == 100));
    // The interface is at the side that the records of the agent say.
    let records = report.flows.iter();
    let mut of_tls = records.filter(|record| record["dst_port"] == 443);
    let record = of_tls.next().unwrap();
    let ifindex = record["ifindex"].as_u64().unwrap();
    for (port, direction) in [("port_dst", "direction"), ("port_src", "reverse_direction")] {
        let expected = match record[direction].as_str().unwrap() {
            "ingress" => [ifindex, 0],
            "egress" => [0, ifindex],
            other => panic!("{other}"),
        };
        for flow in flows.iter().filter(|flow| flow[port] == 443) {
            let told = ["iface_in", "iface_out"].map(|name| flow[name].as_u64().unwrap());
            assert_eq!(told, expected, "{port}: {flow}");
        }
    }
    let log = log_of(folder.path());
    for strange in ["WARN", "ERROR"] {
        assert!(!log.contains(strange), "{log}");
    }
}

#[test]
fn nfacctd_scales_by_the_sampling() {
    const TEST: &str = "agent::nfacctd_scales_by_the_sampling";
    if !is_root_or_skip(TEST) {
        return;
    }
    let Some(nfacctd) = install::nfacctd_or_skip(TEST) else {
        return;
    };
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let more = format!("{BY_FLOW}nfacctd_renormalize: true\n");
    let (nfacctd, file) = start_nfacctd(&nfacctd, &lab, folder.path(), &more);
    let output = udp(r#", "uniflow": true, "octets": "layer2""#);
    let (sent, report) = report_with(&lab, &output, &["--sample", "4"]);
    wait_until_read(&lab);
    let counted = jsonl::sum(&report.flows);
    assert!((1..sent.packets).contains(&counted.packets));
    wait_until("nfacctd has written every packet", || {
        sum(&lines(&file), "packets") == 4 * counted.packets
    });
    drop(nfacctd);
    assert_eq!(sum(&lines(&file), "bytes"), 4 * counted.bytes);
}

/// Returns the file of its flows, too.
fn start_goflow2(program: &Path, lab: &Lab, folder: &Path) -> (Process, PathBuf) {
    let file = folder.join("flows");
    let mut command = lab.agent.command(program);
    command
        .args([
            "-listen",
            // Several workers would take datagrams that come before their template is known.
            &format!("netflow://127.0.0.1:{PORT}?workers=1"),
            "-addr",
            "127.0.0.1:0",
        ])
        .args(["-transport", "file", "-format", "json", "-transport.file"])
        .arg(&file);
    (collector(lab, &mut command, folder), file)
}

fn wait_until_written(lab: &Lab, file: &Path, records: usize) {
    wait_until_read(lab);
    wait_until("goflow2 has written every record", || {
        let written = lines(file).len();
        assert!(written <= records, "{written} of {records}");
        written == records
    });
}

#[test]
fn goflow2_has_every_flow() {
    const TEST: &str = "agent::goflow2_has_every_flow";
    if !is_root_or_skip(TEST) {
        return;
    }
    let Some(goflow2) = install::goflow2_or_skip(TEST) else {
        return;
    };
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let (goflow2, file) = start_goflow2(&goflow2, &lab, folder.path());
    let (sent, report) = enriched(&lab, &udp(&format!(r#", "uniflow": true{ENTERPRISE}"#)));
    wait_until_written(&lab, &file, uniflow_records(&report));
    drop(goflow2);
    let flows = lines(&file);
    assert_eq!(
        (sum(&flows, "packets"), sum(&flows, "bytes")),
        (sent.packets, sent.octets)
    );
    let log = log_of(folder.path());
    assert!(!log.to_lowercase().contains("error"), "{log}");
    // To the nanosecond, like the agent's own records.
    let of_report = report
        .flows
        .iter()
        .map(|flow| unix_ns_of(&flow["first_seen"]))
        .min();
    let of_goflow2 = flows
        .iter()
        .map(|flow| flow["time_flow_start_ns"].as_u64().unwrap())
        .min();
    assert_eq!(of_report, of_goflow2);
    assert!(flows.iter().any(|flow| flow["icmp_type"] == 8));
}

#[test]
fn goflow2_shows_the_sampling() {
    const TEST: &str = "agent::goflow2_shows_the_sampling";
    if !is_root_or_skip(TEST) {
        return;
    }
    let Some(goflow2) = install::goflow2_or_skip(TEST) else {
        return;
    };
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let (goflow2, file) = start_goflow2(&goflow2, &lab, folder.path());
    let output = udp(r#", "uniflow": true, "octets": "layer2""#);
    let (sent, report) = report_with(&lab, &output, &["--sample", "4"]);
    wait_until_written(&lab, &file, uniflow_records(&report));
    drop(goflow2);
    let flows = lines(&file);
    let counted = jsonl::sum(&report.flows).packets;
    assert!((1..sent.packets).contains(&counted));
    assert_eq!(sum(&flows, "packets"), counted);
    for flow in flows {
        assert_eq!(flow["sampling_rate"], 4, "{flow}");
    }
}

/// Receives datagrams as they come, into a file like those of RFC 5655.
fn received(lab: &Lab, output: &str, most_bytes: usize, file: &Path) -> (Sums, Report) {
    let socket = lab
        .agent
        .namespace
        .enter(|| Ok(UdpSocket::bind(("127.0.0.1", PORT))?))
        .unwrap();
    socket.set_nonblocking(true).unwrap();
    // All datagrams wait until the agent has ended, and short ones take much more room than they are long.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES).unwrap();
    let outcome = report(lab, output);
    let mut messages = Vec::new();
    let mut datagram = vec![0; 1 << 16];
    while let Ok(len) = socket.recv(&mut datagram) {
        assert!(len <= most_bytes, "{len}");
        messages.extend_from_slice(&datagram[..len]);
    }
    assert_eq!(
        self::socket(&lab.agent, PORT).unwrap().1,
        0,
        "the receiver lost datagrams"
    );
    fs::write(file, messages).unwrap();
    outcome
}

#[test]
fn ipfix_dump_and_tshark_have_every_flow_of_datagrams() {
    const TEST: &str = "agent::ipfix_dump_and_tshark_have_every_flow_of_datagrams";
    if !is_root_or_skip(TEST) || !install::has_ipfix_dump_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("flows.ipfix");
    let (sent, report) = received(&lab, &udp(""), 1_400, &file);
    dumped::has_every_flow(&file, sent, biflow_records(&report));
}

#[test]
fn messages_are_as_short_as_their_way_needs() {
    const TEST: &str = "agent::messages_are_as_short_as_their_way_needs";
    if !is_root_or_skip(TEST) || !install::has_ipfix_dump_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mtu = ["link", "set", "lo", "mtu", "900"];
    lab.agent.namespace.ip(&mtu).unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("flows.ipfix");
    let (sent, report) = received(&lab, &udp(""), 900 - 28, &file);
    dumped::has_every_flow(&file, sent, biflow_records(&report));
}

#[test]
fn packets_without_ethernet_have_all_their_octets() {
    const TEST: &str = "agent::packets_without_ethernet_have_all_their_octets";
    if !is_root_or_skip(TEST) || !install::has_ipfix_dump_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let tun = Tun::new(&lab.agent.namespace, "tun0").unwrap();
    let folder = TempDir::new().unwrap();
    let output = in_folder(&folder);
    let settings = ["--output", "json", "--output", &output];
    let agent = Agent::start_on(&lab.agent, &tun.interface, &settings);
    let frame = Frame::bare(lab.peer.ipv4, lab.agent.ipv4);
    let mut sent = Sums::default();
    for port in 1..=20 {
        let packet = frame.udp(port, 53, &[0; 40]).unwrap();
        tun.send(&packet).unwrap();
        sent.add(1, &packet, 0);
    }
    let report = agent.stop();
    dumped::has_every_flow(&only_file(&folder), sent, biflow_records(&report));
}

#[test]
fn ipfix_dump_and_tshark_have_every_flow_of_a_connection() {
    const TEST: &str = "agent::ipfix_dump_and_tshark_have_every_flow_of_a_connection";
    if !is_root_or_skip(TEST) || !install::has_ipfix_dump_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("flows.ipfix");
    let bind = || Ok(TcpListener::bind(("127.0.0.1", PORT))?);
    let listener = lab.agent.namespace.enter(bind).unwrap();
    let reader = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut messages = Vec::new();
        connection.read_to_end(&mut messages).unwrap();
        messages
    });
    let (sent, report) = report(&lab, &format!("ipfix=tcp://127.0.0.1:{PORT}"));
    fs::write(&file, reader.join().unwrap()).unwrap();
    dumped::has_every_flow(&file, sent, biflow_records(&report));
}

#[test]
fn ipfix_dump_and_tshark_have_every_flow_of_files() {
    const TEST: &str = "agent::ipfix_dump_and_tshark_have_every_flow_of_files";
    if !is_root_or_skip(TEST) || !install::has_ipfix_dump_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let (sent, report) = report(&lab, &in_folder(&folder));
    dumped::has_every_flow(&only_file(&folder), sent, biflow_records(&report));
}

#[test]
fn ipfix_dump_reads_what_is_in_no_flow() {
    const TEST: &str = "agent::ipfix_dump_reads_what_is_in_no_flow";
    if !is_root_or_skip(TEST) || !install::has_ipfix_dump_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let agent = Agent::start(&lab, &["--output", "json", "--output", &in_folder(&folder)]);
    let before = lab.agent.counters().unwrap();
    let lldp = lab.peer.frame_v4(&lab.agent);
    let lldp = lldp.ether_type(0x88cc, &[0; 50]).unwrap();
    let socket = lab.peer.frame_socket().unwrap();
    socket.send_many((0..7).map(|_| &lldp)).unwrap();
    wait_for_packets(&lab.agent, before, 7);
    let sent = count(7, &lldp);
    assert_eq!(agent.stop().seen(), sent);
    assert_eq!(dumped::ignored(&only_file(&folder)), sent);
}

/// Each file must be readable without the others.
#[test]
fn ipfix_dump_and_tshark_have_every_flow_of_rotated_files() {
    const TEST: &str = "agent::ipfix_dump_and_tshark_have_every_flow_of_rotated_files";
    if !is_root_or_skip(TEST) || !install::has_ipfix_dump_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    // A fraction of what there is to write.
    let settings = format!(r#", "rotate_bytes": 8000, "message_bytes": 2000{ENTERPRISE}"#);
    let (sent, report) = enriched(&lab, &in_folder_with(&folder, &settings));
    let files = files(&folder);
    assert!(files.len() > 3, "{files:?}");
    dumped::have_every_flow(&files, sent, biflow_records(&report));
}

fn in_folder(folder: &TempDir) -> String {
    in_folder_with(folder, "")
}

fn in_folder_with(folder: &TempDir, more: &str) -> String {
    let file = folder.path().join("flows.ipfix");
    format!(
        r#"{{"kind": "ipfix", "address": "{}", "compression": "none"{more}}}"#,
        file.display()
    )
}

/// All of them but the lock.
fn files(folder: &TempDir) -> Vec<PathBuf> {
    let files = fs::read_dir(folder.path()).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let is_lock = |path: &PathBuf| path.extension().is_some_and(|name| name == "lock");
    files.filter(|path| !is_lock(path)).collect()
}

fn only_file(folder: &TempDir) -> PathBuf {
    let mut files = files(folder);
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}
