//! Sockets of two processes that send in one flow at the same time.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::UdpSocket,
    process::{Child, ChildStdout, Stdio},
};

use lab::Lab;

use crate::{
    CPUS, can_race_or_skip,
    support::{Agent, wait_until},
};

const PORT: u16 = 7000;
const FIRST: u16 = 6000;
const FLOWS: u16 = 60;

/// Opens a socket for each port in a range, sharing the ports with other processes. Sends a datagram from each port per
/// input line.
const SENDER: &str = r#"
use IO::Socket::INET; $| = 1;
my @all = map { IO::Socket::INET->new(Proto => 'udp', PeerAddr => $ARGV[0], PeerPort => $ARGV[1], LocalPort => $ARGV[2] + $_, ReusePort => 1) || die "$!" } 0 .. $ARGV[3] - 1;
print "ready\n"; <STDIN>;
for (@all) { $_->send("hello") or die "$!" }
print "sent\n"; <STDIN>;
"#;

struct Sender {
    process: Child,
    says: BufReader<ChildStdout>,
}

impl Sender {
    fn start(lab: &Lab, cpu: usize) -> Self {
        // Pin it with taskset rather than from a pinned thread: the kernel kills it when the thread that started it
        // ends.
        let mut command = lab.agent.command("taskset");
        command
            .args(["--cpu-list", &cpu.to_string(), "perl", "-e", SENDER])
            .arg(lab.peer.ipv4.to_string())
            .args([PORT, FIRST, FLOWS].map(|number| number.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let says = BufReader::new(process.stdout.take().unwrap());
        let mut sender = Self { process, says };
        sender.wait_for("ready");
        sender
    }

    fn goes_on(&mut self) {
        let input = self.process.stdin.as_mut().unwrap();
        input.write_all(b"\n").unwrap();
    }

    fn wait_for(&mut self, expected: &str) {
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), expected);
    }
}

#[test]
fn two_processes_that_send_in_one_flow_at_once_are_both_noted() {
    if !can_race_or_skip("races::two_processes_that_send_in_one_flow_at_once_are_both_noted") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    // Bind the port, so that no ICMP error comes back.
    let to = (lab.peer.ipv4, PORT);
    let bound = lab.peer.namespace.enter(|| Ok(UdpSocket::bind(to)?));
    let receiver = bound.unwrap();
    // Resolve the neighbour first, so that later packets leave at once.
    let send = || Ok(UdpSocket::bind((lab.agent.ipv4, 0))?.send_to(b"first", to)?);
    lab.agent.namespace.enter(send).unwrap();
    receiver.recv(&mut [0; 8]).unwrap();
    // The second settings leave too little room in the slots for all flows.
    for settings in [&[][..], &["--max-flows", "40", "--early-scan", "0"]] {
        // A single scan covers the whole test.
        let one_scan = ["--enrich", "process", "--scan-interval", "1h"];
        let agent = Agent::start(&lab, &[&one_scan, settings].concat());
        let before = lab.agent.counters().unwrap();
        let mut senders = CPUS.map(|cpu| Sender::start(&lab, cpu));
        senders.iter_mut().for_each(Sender::goes_on);
        for sender in &mut senders {
            sender.wait_for("sent");
        }
        wait_until("all are sent", || {
            let since = lab.agent.counters().unwrap() - before;
            since.tx_packets >= 2 * u64::from(FLOWS)
        });
        let report = agent.stop();
        let mut flows = 0;
        for flow in report.flows.iter().filter(|flow| flow["dst_port"] == PORT) {
            assert_eq!(flow["total_packets"], 2, "{flow}");
            assert_eq!(flow["src_sender_shared"], true, "{flow}");
            flows += 1;
        }
        assert!(flows >= FLOWS / 2, "{flows}");
        for mut sender in senders {
            sender.goes_on();
            assert!(sender.process.wait().unwrap().success());
        }
    }
}
