//! Agents are simulated by their batches: what they report, and in which windows.

mod attacks;
mod conversations;
mod due;
mod inexact;

use std::time::Instant;

use prost::Message as _;
use proto::{Account, AgentIdentity, Direction, Endpoint, FlowBatch, FlowRecord, Interface};
use tls::identity::{Grant, Identity, Roles};

use super::{super::incoming::Incoming, *};

const SECOND: u64 = 1_000_000_000;

/// An agent whose scans end every ten seconds.
struct Agent {
    name: &'static str,
    stream_id: u64,
    seq: u64,
    /// Seconds.
    now: u64,
    account: Account,
}

impl Agent {
    fn new(name: &'static str, stream_id: u64) -> Self {
        Self {
            name,
            stream_id,
            seq: 0,
            now: 0,
            account: Account::default(),
        }
    }

    /// The next scan.
    fn batch(&mut self, records: Vec<FlowRecord>) -> FlowBatch {
        self.seq += 1;
        self.now += 10;
        FlowBatch {
            agent: Some(AgentIdentity {
                agent_id: self.name.to_owned(),
                hostname: self.name.to_owned(),
                instance_id: format!("{} 1", self.name),
                ..AgentIdentity::default()
            }),
            stream_id: self.stream_id,
            stream_seq: self.seq,
            scan_id: self.seq,
            window_start_unix_ns: (self.now - 10) * SECOND,
            window_end_unix_ns: self.now * SECOND,
            last_of_scan: true,
            sample_rate: self.account.sample_rate,
            account: Some(self.account.clone()),
            interfaces: [0, 1].map(interface).into(),
            records,
            ..FlowBatch::default()
        }
    }

    fn scan(&mut self, pairs: &mut Pairs, records: Vec<FlowRecord>) {
        let batch = self.batch(records);
        take(pairs, &batch);
    }
}

fn interface(ifindex: u32) -> Interface {
    Interface {
        ifindex,
        ..Interface::default()
    }
}

fn take(pairs: &mut Pairs, batch: &FlowBatch) {
    take_from(pairs, batch, Identity::User(0));
}

fn take_from(pairs: &mut Pairs, batch: &FlowBatch, identity: Identity) {
    let with_details = pairs.makes_conversations();
    let sightings = sightings_with(batch, identity, with_details);
    pairs.add_batch(&sightings, Time::now());
}

fn sightings(batch: &FlowBatch, identity: Identity) -> Sightings {
    sightings_with(batch, identity, false)
}

fn sightings_with(batch: &FlowBatch, identity: Identity, with_details: bool) -> Sightings {
    let caller = Grant {
        identity,
        roles: Roles::all(),
    };
    let incoming = Incoming::read(&batch.encode_to_vec().into(), &caller).unwrap();
    Sightings::of(&incoming, with_details)
}

fn pairs() -> Pairs {
    pairs_of(20)
}

fn pairs_of(max_flows: usize) -> Pairs {
    let settings = PairSettings {
        settle: Duration::from_secs(2),
        max_flows,
    };
    Pairs::new(settings, false)
}

/// A record with packets of both directions, by side of the interface, with the last packet at this second. `began` is
/// the second of the first packet, if this is the flow's first record.
fn record(
    direction: Direction,
    packets: [u64; 2],
    began: Option<u64>,
    last_seen: u64,
) -> FlowRecord {
    let before = u64::from(began.is_none());
    FlowRecord {
        src: Some(Endpoint {
            addr: vec![10, 0, 0, 1].into(),
            port: Some(4000),
            direction: direction as i32,
            delta_packets: packets[0],
            delta_ip_bytes: packets[0] * 100,
            total_packets: packets[0] + before,
            ..Endpoint::default()
        }),
        dst: Some(Endpoint {
            addr: vec![10, 0, 0, 2].into(),
            port: Some(53),
            direction: direction.opposite() as i32,
            delta_packets: packets[1],
            delta_ip_bytes: packets[1] * 100,
            total_packets: packets[1],
            ..Endpoint::default()
        }),
        protocol: 17,
        community_id: vec![7; 20].into(),
        first_seen_unix_ns: began.unwrap_or_default() * SECOND,
        last_seen_unix_ns: last_seen * SECOND,
        ..FlowRecord::default()
    }
}

fn leaving(packets: [u64; 2], began: Option<u64>, last_seen: u64) -> Vec<FlowRecord> {
    vec![record(Direction::Egress, packets, began, last_seen)]
}

fn arriving(packets: [u64; 2], began: Option<u64>, last_seen: u64) -> Vec<FlowRecord> {
    vec![record(Direction::Ingress, packets, began, last_seen)]
}

fn due(pairs: &mut Pairs) -> Vec<Report> {
    due_at(pairs, Instant::now())
}

fn due_at(pairs: &mut Pairs, at: Instant) -> Vec<Report> {
    let time = Time { at, ..Time::now() };
    pairs.look(time);
    pairs.due(time, usize::MAX).reports
}

/// From, to, sent, received, and the loss or why it is unknown.
type Told = (String, String, u64, u64, Result<u64, Doubt>);

fn told(reports: &[Report]) -> Vec<Told> {
    let one = |report: &Report| {
        let lost = match report.why {
            Some(why) => Err(why),
            None => Ok(report.lost.unwrap().min),
        };
        let [from, to] = [&report.from, &report.to].map(|agent| agent.hostname.clone());
        (from, to, report.sent.packets, report.received.packets, lost)
    };
    reports.iter().map(one).collect()
}

fn path(from: &str, to: &str, sent: u64, received: u64, lost: Result<u64, Doubt>) -> Told {
    (from.to_owned(), to.to_owned(), sent, received, lost)
}

/// A table with one report due.
pub(super) fn with_a_line() -> Pairs {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    a.scan(&mut pairs, leaving([3, 0], Some(13), 19));
    b.scan(&mut pairs, arriving([2, 0], Some(13), 19));
    quiet(&mut pairs, [&mut a, &mut b]);
    pairs
}

/// Two agents whose reports are complete from the 10th second on.
fn known(pairs: &mut Pairs) -> (Agent, Agent) {
    let (mut a, mut b) = (Agent::new("a", 1), Agent::new("b", 2));
    for agent in [&mut a, &mut b] {
        agent.scan(pairs, Vec::new());
    }
    (a, b)
}

#[test]
fn what_left_and_did_not_arrive_is_lost_once_both_have_reported_that_nothing_follows() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    a.scan(&mut pairs, leaving([100, 48], Some(12), 19));
    b.scan(&mut pairs, arriving([90, 50], Some(12), 19));
    assert_eq!(due(&mut pairs), []);
    b.scan(&mut pairs, arriving([3, 0], None, 20));
    a.scan(&mut pairs, Vec::new());
    let expected = [
        path("a", "b", 100, 93, Ok(7)),
        path("b", "a", 50, 48, Ok(2)),
    ];
    let reports = due(&mut pairs);
    assert_eq!(told(&reports), expected);
    assert_eq!(
        (reports[0].since, reports[0].until),
        (12 * SECOND, 20 * SECOND)
    );
    // Everything from here on is compared anew.
    a.scan(&mut pairs, leaving([5, 0], None, 39));
    b.scan(&mut pairs, arriving([4, 0], None, 39));
    assert_eq!(due(&mut pairs), []);
    for agent in [&mut a, &mut b] {
        agent.scan(&mut pairs, Vec::new());
    }
    assert_eq!(told(&due(&mut pairs)), [path("a", "b", 5, 4, Ok(1))]);
    let status = pairs.status();
    let sums = status.paths.iter().map(|path| {
        let names = format!("{}-{}", path.from_hostname, path.to_hostname);
        (names, path.sent_packets, path.lost_packets, path.exact)
    });
    let expected = [("a-b".to_owned(), 105, 8, 2), ("b-a".to_owned(), 50, 2, 1)];
    assert_eq!(sums.collect::<Vec<_>>(), expected);
}

#[test]
fn whoever_was_taken_for_the_initiator_the_ways_are_the_same() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    a.scan(&mut pairs, leaving([100, 48], Some(12), 19));
    let mut swapped = arriving([93, 50], Some(12), 19).remove(0);
    let ends = (swapped.src.take(), swapped.dst.take());
    (swapped.dst, swapped.src) = ends;
    b.scan(&mut pairs, vec![swapped]);
    for agent in [&mut a, &mut b] {
        agent.scan(&mut pairs, Vec::new());
    }
    let expected = [
        path("a", "b", 100, 93, Ok(7)),
        path("b", "a", 50, 48, Ok(2)),
    ];
    assert_eq!(told(&due(&mut pairs)), expected);
}

#[test]
fn where_nothing_arrives_the_loss_is_not_said_and_more_may_arrive_than_left() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    // All packets may be lost, or take another path, or `b` watches leaving packets only.
    a.scan(&mut pairs, leaving([9, 20], Some(12), 19));
    b.scan(&mut pairs, arriving([0, 18], Some(12), 19));
    for agent in [&mut a, &mut b] {
        agent.scan(&mut pairs, Vec::new());
    }
    let reports = due(&mut pairs);
    let expected = [
        path("a", "b", 9, 0, Err(Doubt::OneSided)),
        path("b", "a", 18, 20, Ok(0)),
    ];
    assert_eq!(told(&reports), expected);
    assert_eq!(reports[1].surplus(), 2);
    assert_eq!(pairs.status().paths[1].surplus_packets, 2);
}

#[test]
fn a_router_between_two_hosts_makes_three_paths_and_two_make_none_between_them() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    let (mut r, mut s) = (Agent::new("r", 3), Agent::new("s", 4));
    for agent in [&mut r, &mut s] {
        agent.scan(&mut pairs, Vec::new());
    }
    a.scan(&mut pairs, leaving([100, 0], Some(13), 19));
    for (agent, packets) in [(&mut r, 99), (&mut s, 97)] {
        let [mut through, out] = [Direction::Ingress, Direction::Egress]
            .map(|direction| record(direction, [packets, 0], Some(13), 19));
        through.ifindex = 1;
        agent.scan(&mut pairs, vec![through, out]);
    }
    b.scan(&mut pairs, arriving([96, 0], Some(13), 19));
    for agent in [&mut a, &mut b, &mut r, &mut s] {
        agent.scan(&mut pairs, Vec::new());
    }
    let mut told = told(&due(&mut pairs));
    told.sort_by_key(|(from, to, ..)| (from.clone(), to.clone()));
    let expected = [
        path("a", "b", 100, 96, Ok(4)),
        path("a", "r", 100, 99, Ok(1)),
        path("a", "s", 100, 97, Ok(3)),
        path("r", "b", 99, 96, Ok(3)),
        path("s", "b", 97, 96, Ok(1)),
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_second_output_of_an_agent_is_not_counted_again() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    let mut again = Agent::new("b", 9);
    again.scan(&mut pairs, Vec::new());
    a.scan(&mut pairs, leaving([100, 0], Some(13), 19));
    for agent in [&mut b, &mut again] {
        agent.scan(&mut pairs, arriving([90, 0], Some(13), 19));
    }
    for agent in [&mut a, &mut b, &mut again] {
        agent.scan(&mut pairs, Vec::new());
    }
    assert_eq!(told(&due(&mut pairs)), [path("a", "b", 100, 90, Ok(10))]);
}

#[test]
fn what_nobody_else_saw_is_forgotten_and_counted_and_so_is_what_finds_no_place() {
    let mut pairs = pairs();
    let (mut a, _) = known(&mut pairs);
    let flows = |count: u8| {
        let numbered = |number| FlowRecord {
            community_id: vec![number; 20].into(),
            ..record(Direction::Egress, [1, 0], Some(13), 19)
        };
        (0..count).map(numbered).collect::<Vec<_>>()
    };
    a.scan(&mut pairs, flows(12));
    let status = pairs.status();
    assert_eq!(
        (status.flows, status.not_followed, status.unpaired),
        (10, 2, 0)
    );
    a.scan(&mut pairs, Vec::new());
    assert_eq!(due(&mut pairs), []);
    assert_eq!(due_at(&mut pairs, Instant::now() + WAIT), []);
    let status = pairs.status();
    assert_eq!((status.flows, status.unpaired), (0, 10));
}

#[test]
fn a_report_is_a_line_whose_source_sent_the_packets() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    a.scan(&mut pairs, leaving([100, 48], Some(13), 19));
    b.scan(&mut pairs, arriving([93, 50], Some(13), 19));
    for agent in [&mut a, &mut b] {
        agent.scan(&mut pairs, Vec::new());
    }
    let reports = due(&mut pairs);
    let line: serde_json::Value = serde_json::from_slice(&reports[1].line()).unwrap();
    let name = |name| serde_json::json!({"identity": "uid:0", "hostname": name, "agent_id": name, "instance_id": format!("{name} 1")});
    let expected = serde_json::json!({
        "type": "pair", "community_id": "1:BwcHBwcHBwcHBwcHBwcHBwcHBwc=", "protocol": 17,
        "src_addr": "10.0.0.2", "src_port": 53, "dst_addr": "10.0.0.1", "dst_port": 4000,
        "from": name("b"), "to": name("a"),
        "since": "1970-01-01T00:00:13.000000000Z", "until": "1970-01-01T00:00:19.000000000Z",
        "sent_packets": 50, "sent_ip_bytes": 5000, "received_packets": 48, "received_ip_bytes": 4800,
        "lost_packets": 2, "surplus_packets": 0, "lost_packets_min": 2, "lost_packets_max": 2, "inexact": null,
    });
    assert_eq!(line, expected);
}

/// Both agents scan once more.
fn quiet(pairs: &mut Pairs, agents: [&mut Agent; 2]) {
    for agent in agents {
        agent.scan(pairs, Vec::new());
    }
}

#[test]
fn interfaces_that_are_gone_make_room_for_others() {
    let mut pairs = pairs();
    pairs.agents.interfaces = Room::new(8);
    let mut agent = Agent::new("a", 1);
    for there in [0..4, 4..6, 4..8] {
        let mut batch = agent.batch(Vec::new());
        let expected = there.len();
        batch.interfaces = there.map(interface).collect();
        take(&mut pairs, &batch);
        assert_eq!(pairs.agents.interfaces(), expected);
    }
}

#[test]
fn addresses_that_mean_another_host_on_each_link_are_left_out() {
    let mut pairs = pairs();
    let (mut a, _) = known(&mut pairs);
    for addr in [
        vec![0; 4],
        vec![127, 0, 0, 1],
        vec![169, 254, 1, 1],
        vec![255; 4],
        [&[0xfe, 0x80][..], &[0; 14]].concat(),
        [&[0; 15][..], &[1]].concat(),
        vec![0; 16],
    ] {
        let mut flow = leaving([1, 0], Some(13), 19);
        flow[0].dst_mut().addr = addr.into();
        a.scan(&mut pairs, flow);
    }
    assert_eq!(pairs.status().flows, 0);
}

#[test]
fn a_credential_does_not_take_all_the_room_in_which_agents_see_a_flow() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    for number in 0..8 {
        let mut forger = Agent::new("x", 100 + number);
        for records in [Vec::new(), leaving([1, 0], Some(12), 19)] {
            let mut batch = forger.batch(records);
            batch.agent.as_mut().unwrap().instance_id = number.to_string();
            take_from(&mut pairs, &batch, Identity::named("x").unwrap());
        }
    }
    a.scan(&mut pairs, leaving([100, 0], Some(12), 19));
    b.scan(&mut pairs, arriving([93, 0], Some(12), 19));
    quiet(&mut pairs, [&mut a, &mut b]);
    let reports = told(&due_at(&mut pairs, Instant::now() + WAIT));
    assert!(
        reports.contains(&path("a", "b", 100, 93, Ok(7))),
        "{reports:?}"
    );
}
