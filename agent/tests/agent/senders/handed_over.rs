//! A port that one process hands over to another within a scan.

use std::net::UdpSocket;

use lab::{ControlGroup, Lab, privilege::is_root_or_skip};
use serde_json::json;

use super::{PORT, Program, SENDER};
use crate::support::{Agent, as_the_service};

/// Sends so many datagrams from one port.
const MANY: &str = r#"
use IO::Socket::INET;
my $socket = IO::Socket::INET->new(Proto => 'udp', PeerAddr => $ARGV[0], PeerPort => $ARGV[1], LocalPort => $ARGV[2]) or die "$!";
for (1 .. $ARGV[3]) { $socket->send("hello") or die "$!" }
"#;

#[test]
fn packets_of_a_port_that_is_handed_over_are_marked_as_shared() {
    const TEST: &str = "agent::packets_of_a_port_that_is_handed_over_are_marked_as_shared";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let group = ControlGroup::slice().unwrap();
    let peer = lab.peer.ipv4.to_string();
    let (shared, alone) = ("6000", "6001");
    // So that no error comes back, which would take the place of a datagram.
    let to = (lab.peer.ipv4, PORT.parse().unwrap());
    let _receiver = lab
        .peer
        .namespace
        .enter(|| Ok(UdpSocket::bind(to)?))
        .unwrap();
    for kind in ["unit", "process"] {
        // All of it is one scan.
        let settings = ["--enrich", kind, "--scan-interval", "1h"];
        let agent = Agent::start_by(as_the_service(&lab.agent), &lab.agent.interface, &settings);
        let send = |unit: &str, script: &str, port: &str, count: &str| {
            let arguments = [&*peer, PORT, port, count];
            Program::start(&group, unit, &lab.agent, script, &arguments).ends();
        };
        send("first.service", MANY, shared, "10");
        send("second.service", MANY, shared, "90");
        send("second.service", SENDER, alone, "1");
        let report = agent.stop();
        for (port, packets, is_shared) in [(shared, 100, json!(true)), (alone, 1, json!(null))] {
            let port: u16 = port.parse().unwrap();
            let mut flows = report.flows.iter().filter(|flow| flow["src_port"] == port);
            let flow = flows.next().unwrap();
            assert_eq!(flow["total_packets"], packets, "{kind} {flow}");
            assert_eq!(flow["src_sender_shared"], is_shared, "{kind} {flow}");
            assert!(flow["dst_sender_shared"].is_null(), "{kind} {flow}");
        }
    }
}
