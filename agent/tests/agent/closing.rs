//! The boundary between two flows: packets after a close, and ports that are reused.

use agent_common::Pair;
use lab::{FrameSocket, Lab, privilege::is_root_or_skip};

use crate::support::{Agent, Report, count, name, wait_until};

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// A conversation between a client at the peer's end of the wire and the agent's end.
struct Talk<'a> {
    lab: &'a Lab,
    sockets: [FrameSocket; 2],
    sums: [Pair; 2],
}

impl<'a> Talk<'a> {
    const PORT: u16 = 4000;

    fn new(lab: &'a Lab) -> Self {
        Self {
            lab,
            sockets: [&lab.peer, &lab.agent].map(|host| host.frame_socket().unwrap()),
            sums: [Pair::default(); 2],
        }
    }

    /// Sends segments, given by their side (0 is the client) and flags.
    fn say(&mut self, segments: &[(usize, u8)]) {
        let Lab { agent, peer } = self.lab;
        for &(side, flags) in segments {
            let frame = if side == 0 {
                peer.frame_v4(agent).tcp(Self::PORT, 443, flags, &[0; 9])
            } else {
                agent.frame_v4(peer).tcp(443, Self::PORT, flags, &[0; 7])
            }
            .unwrap();
            self.sockets[side].send(&frame).unwrap();
            self.sums[side] += count(1, &frame);
        }
    }

    fn name(&self) -> String {
        let [client, server] = [&self.lab.peer, &self.lab.agent].map(|host| host.ipv4.to_string());
        name("[]", 6, (&client, Self::PORT.into()), (&server, 443))
    }

    /// Asserts that all packets were counted, and under one name.
    fn assert_exact(&self, report: &Report) {
        let sums: Vec<_> = report.sums().into_iter().collect();
        assert_eq!(sums, [(self.name(), self.sums)]);
    }
}

const HANDSHAKE: [(usize, u8); 3] = [(0, SYN), (1, SYN | ACK), (0, ACK)];

#[test]
fn tables_say_that_a_connection_closes_and_count_ends_without_packets() {
    if !is_root_or_skip("agent::tables_say_that_a_connection_closes_and_count_ends_without_packets")
    {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let settings = [
        "--output",
        "table",
        "--linger",
        "1h",
        "--idle-timeout",
        "1h",
    ];
    let agent = Agent::start(&lab, &settings);
    let mut talk = Talk::new(&lab);
    let state = |state: &str| {
        wait_until(state, || {
            let listed = agent.asked(&lab.agent, &["flows"]).stdout;
            let listed = String::from_utf8(listed).unwrap();
            let row = listed.lines().find(|line| line.contains(":443 "));
            row.is_some_and(|row| row.trim_end().ends_with(state))
        });
    };
    talk.say(&HANDSHAKE);
    state("active");
    talk.say(&[(0, FIN | ACK), (1, FIN | ACK), (0, ACK)]);
    state("closing");
    // Only its end is left for the last scan.
    agent.signal(libc::SIGTERM);
    let last_line = "1 flow ended without packets in this window\n";
    wait_until("the last table", || agent.stdout().contains(last_line));
    let tables = agent.stdout();
    let (_, last) = tables.rsplit_once("scan ").unwrap();
    assert!(last.contains("flows 0 active, 1 ended"), "{last}");
    assert!(!last.contains(":443 "), "{last}");
    agent.stop_silent();
}

/// The `first_seen` and the end reason of each flow that ended.
fn ends(report: &Report) -> Vec<(String, String)> {
    let lines = report.flows.iter();
    lines
        .filter_map(|line| {
            let reason = line["end_reason"].as_str()?;
            Some((line["first_seen"].as_str()?.to_owned(), reason.to_owned()))
        })
        .collect()
}

#[test]
fn what_comes_late_behind_a_close_is_no_flow_of_its_own() {
    if !is_root_or_skip("agent::what_comes_late_behind_a_close_is_no_flow_of_its_own") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--scan-interval", "100ms", "--linger", "10m"]);
    let mut talk = Talk::new(&lab);
    talk.say(&HANDSHAKE);
    talk.say(&[(0, FIN | ACK), (1, FIN | ACK)]);
    agent.wait_for_scans(&lab.agent, 4);
    talk.say(&[(0, ACK)]);
    agent.wait_for_scans(&lab.agent, 4);
    talk.say(&[(1, FIN | ACK)]);
    agent.wait_for_scans(&lab.agent, 2);
    let report = agent.stop();
    talk.assert_exact(&report);
    assert_eq!(report.end_reason(&talk.name()), "end_of_flow");
}

#[test]
fn a_closed_flow_ends_when_the_linger_is_over() {
    if !is_root_or_skip("agent::a_closed_flow_ends_when_the_linger_is_over") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--linger", "300ms", "--idle-timeout", "10m"]);
    let mut talk = Talk::new(&lab);
    talk.say(&HANDSHAKE);
    let tracked = |agent: &Agent| agent.status(&lab.agent)["replica"]["tracked"].clone();
    wait_until("the flow is known", || tracked(&agent) == 1);
    // Closed by one packet, since the linger might be over before a second one comes.
    talk.say(&[(0, RST | ACK)]);
    wait_until("the flow has ended", || tracked(&agent) == 0);
    let report = agent.stop();
    talk.assert_exact(&report);
    assert_eq!(report.end_reason(&talk.name()), "end_of_flow");
}

#[test]
fn a_connection_with_used_ports_is_a_flow_of_its_own() {
    if !is_root_or_skip("agent::a_connection_with_used_ports_is_a_flow_of_its_own") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--idle-timeout", "10m"]);
    let mut talk = Talk::new(&lab);
    talk.say(&HANDSHAKE);
    talk.say(&[(0, ACK), (1, ACK)]);
    agent.wait_for_scans(&lab.agent, 2);
    let first = talk.sums;
    talk.say(&HANDSHAKE);
    agent.wait_for_scans(&lab.agent, 2);
    let report = agent.stop();
    talk.assert_exact(&report);

    let ends = ends(&report);
    let reasons: Vec<&str> = ends.iter().map(|(_, reason)| &**reason).collect();
    assert_eq!(reasons, ["end_of_flow", "forced_end"]);
    assert!(ends[0].0 < ends[1].0);
    let totals = |begun: &str| {
        let mut lines = report.flows.iter().rev();
        let line = lines.find(|line| line["first_seen"] == begun).unwrap();
        ["total_packets", "total_reverse_packets"].map(|total| line[total].as_u64().unwrap())
    };
    assert_eq!(totals(&ends[0].0), first.map(|sum| sum.packets));
    assert_eq!(totals(&ends[1].0), [2, 1]);
}

#[test]
fn a_repeated_syn_begins_no_other_flow() {
    if !is_root_or_skip("agent::a_repeated_syn_begins_no_other_flow") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &["--idle-timeout", "10m"]);
    let mut talk = Talk::new(&lab);
    let parts: [&[(usize, u8)]; 4] = [
        &[(0, SYN)],
        &[(0, SYN), (1, SYN | ACK)],
        // The answer was lost.
        &[(0, SYN), (1, SYN | ACK), (0, ACK)],
        &[(0, ACK), (1, ACK)],
    ];
    for part in parts {
        talk.say(part);
        agent.wait_for_scans(&lab.agent, 2);
    }
    let report = agent.stop();
    talk.assert_exact(&report);
    assert_eq!(report.end_reason(&talk.name()), "forced_end");
}
