//! Conversations: both ends, how much of them is proven, and where packets were lost.

use proto::{Cgroup, Failure, Process};
use serde_json::{Value, json};

use super::*;

fn pairs() -> Pairs {
    let settings = PairSettings {
        settle: Duration::from_secs(2),
        max_flows: 20,
    };
    Pairs::new(settings, true)
}

/// A batch whose records know the sockets of these ends: 0 for the source, 1 for the destination.
fn with_sockets(mut batch: FlowBatch, ends: &[usize]) -> FlowBatch {
    for &end in ends {
        let id = end as u64 + 1;
        batch.cgroups.push(Cgroup {
            id,
            unit: format!("unit{end}.service"),
            ..Cgroup::default()
        });
        batch.processes.push(Process {
            key: id,
            pid: 1,
            name: format!("program{end}"),
            ..Process::default()
        });
        for record in &mut batch.records {
            let end = match end {
                0 => record.src_mut(),
                _ => record.dst_mut(),
            };
            (end.cgroup_id, end.process_key) = (Some(id), Some(id));
        }
    }
    batch
}

/// Scans of both ends, each with its socket.
fn both(pairs: &mut Pairs, a: &mut Agent, b: &mut Agent, records: [Vec<FlowRecord>; 2]) {
    let [left, arrived] = records;
    let left = with_sockets(a.batch(left), &[0]);
    let arrived = with_sockets(b.batch(arrived), &[1]);
    take(pairs, &left);
    take(pairs, &arrived);
}

/// A new flow, whose five packets all arrive.
fn five(pairs: &mut Pairs, a: &mut Agent, b: &mut Agent) {
    let records = [
        leaving([5, 0], Some(13), 19),
        arriving([5, 0], Some(13), 19),
    ];
    both(pairs, a, b, records);
}

fn lines(pairs: &mut Pairs) -> Vec<Value> {
    lines_at(pairs, Instant::now())
}

fn lines_at(pairs: &mut Pairs, at: Instant) -> Vec<Value> {
    let time = Time { at, ..Time::now() };
    pairs.look(time);
    let due = pairs.due(time, usize::MAX);
    parsed(&due.conversations)
}

fn parsed(conversations: &[Conversation]) -> Vec<Value> {
    let lines = conversations.iter().map(Conversation::line);
    lines
        .map(|line| serde_json::from_slice(&line).unwrap())
        .collect()
}

/// The only line that is due once nothing comes any more.
fn late_line(pairs: &mut Pairs) -> Value {
    line_after(pairs, 301)
}

fn line_after(pairs: &mut Pairs, seconds: u64) -> Value {
    let lines = lines_at(pairs, Instant::now() + Duration::from_secs(seconds));
    let [line] = &lines[..] else {
        panic!("{lines:?}");
    };
    line.clone()
}

/// The only line that is due once nothing more comes from these agents.
fn quiet_line(pairs: &mut Pairs, agents: &mut [&mut Agent]) -> Value {
    for agent in agents {
        agent.scan(pairs, Vec::new());
    }
    let lines = lines(pairs);
    let [line] = &lines[..] else {
        panic!("{lines:?}");
    };
    line.clone()
}

#[test]
fn a_conversation_has_both_ends_with_what_each_sent_and_received() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    both(
        &mut pairs,
        &mut a,
        &mut b,
        [
            leaving([100, 48], Some(12), 19),
            arriving([93, 50], Some(12), 19),
        ],
    );
    let line = quiet_line(&mut pairs, &mut [&mut a, &mut b]);
    assert_eq!(
        (&line["grade"], &line["inexact"]),
        (&json!("proven"), &Value::Null)
    );
    let end = |end: &str| {
        [
            "unit",
            "process",
            "owner",
            "sent_packets",
            "received_packets",
            "sent_ip_bytes",
        ]
        .map(|name| line[end][name].clone())
    };
    assert_eq!(
        json!(end("client")),
        json!(["unit0.service", "program0", "socket", 100, 48, 10_000])
    );
    assert_eq!(
        json!(end("server")),
        json!(["unit1.service", "program1", "socket", 50, 93, 5000])
    );
    assert_eq!(line["client"]["agent"]["hostname"], "a");
    assert_eq!(line["server"]["agent"]["hostname"], "b");
    assert_eq!(
        (&line["client"]["addr"], &line["client"]["port"]),
        (&json!("10.0.0.1"), &json!(4000))
    );
    assert_eq!(line["lost_packets"], 9);
    let lost = json!([
        {"sent_by": "client", "at": null, "packets": 7},
        {"sent_by": "server", "at": null, "packets": 2},
    ]);
    assert_eq!(line["lost"], lost);
    assert_eq!(line["new_flows"], 1);
    // What follows continues it.
    both(
        &mut pairs,
        &mut a,
        &mut b,
        [leaving([5, 0], None, 39), arriving([5, 0], None, 39)],
    );
    let line = quiet_line(&mut pairs, &mut [&mut a, &mut b]);
    assert_eq!(
        json!([
            line["grade"],
            line["new_flows"],
            line["client"]["sent_packets"]
        ]),
        json!(["proven", 0, 5])
    );
    assert_eq!(pairs.conversations().unwrap().proven, 2);
}

#[test]
fn without_a_socket_an_end_is_not_proven_and_two_that_claim_it_leave_it_open() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    let mut c = Agent::new("c", 3);
    c.scan(&mut pairs, Vec::new());
    let records = || {
        [
            leaving([3, 0], Some(13), 19),
            arriving([3, 0], Some(13), 19),
        ]
    };
    let [left, arrived] = records();
    a.scan(&mut pairs, left);
    b.scan(&mut pairs, arrived);
    c.scan(&mut pairs, Vec::new());
    let line = quiet_line(&mut pairs, &mut [&mut a, &mut b, &mut c]);
    let facts = |line: &Value| {
        json!([
            line["grade"],
            line["inexact"],
            line["client"]["owner"],
            line["client"]["agent"]["hostname"],
            line["server"]["agent"]["hostname"],
        ])
    };
    assert_eq!(
        facts(&line),
        json!(["both_seen", "ends", "packets", "a", "b"])
    );
    assert_eq!(line["lost"], json!([]));

    // A third agent says that its socket sent the client's packets, or only that they left there.
    for sockets in [&[0][..], &[]] {
        let last_seen = a.now + 9;
        both(
            &mut pairs,
            &mut a,
            &mut b,
            [
                leaving([3, 0], None, last_seen),
                arriving([3, 0], None, last_seen),
            ],
        );
        let claimed = with_sockets(c.batch(leaving([3, 0], None, last_seen)), sockets);
        take(&mut pairs, &claimed);
        for agent in [&mut a, &mut b, &mut c] {
            agent.scan(&mut pairs, Vec::new());
        }
        // Another agent may clear it up.
        assert_eq!(lines(&mut pairs), Vec::<Value>::new());
        let line = late_line(&mut pairs);
        assert_eq!(facts(&line), json!(["one_end", "ends", null, null, "b"]));
        assert_eq!(line["lost"], Value::Null);
    }
}

/// Packets that pass a router.
fn passing(arrived: u64, left: u64) -> Vec<FlowRecord> {
    let [mut arrived, left] = [(Direction::Ingress, arrived), (Direction::Egress, left)]
        .map(|(direction, packets)| record(direction, [packets, 0], Some(13), 19));
    arrived.ifindex = 1;
    vec![arrived, left]
}

#[test]
fn packets_are_lost_at_a_router_between_the_agents_or_at_the_end_and_the_sum_closes() {
    let [between, at_r, at_b] = [Value::Null, json!("r"), json!("b")];
    for (arrived, left, lost) in [
        (98, 95, json!([[at_r, 3], [between, 3], [at_b, 9]])),
        // A router that sees a part of the packets, since there are others.
        (40, 38, json!([[at_r, 2], [between, 4], [at_b, 9]])),
        // What it says does not add up.
        (98, 90, json!([[between, 6], [at_b, 9]])),
        (90, 95, json!([[between, 6], [at_b, 9]])),
    ] {
        let mut pairs = pairs();
        let (mut a, mut b) = known(&mut pairs);
        let mut r = Agent::new("r", 3);
        r.scan(&mut pairs, Vec::new());
        let mut arriving = arriving([94, 0], Some(13), 19);
        arriving[0].src_mut().total_dropped_packets = 9;
        both(
            &mut pairs,
            &mut a,
            &mut b,
            [leaving([100, 0], Some(13), 19), arriving],
        );
        r.scan(&mut pairs, passing(arrived, left));
        let line = quiet_line(&mut pairs, &mut [&mut a, &mut b, &mut r]);
        assert_eq!(line["grade"], "proven", "{line}");
        let told = line["lost"].as_array().unwrap().iter();
        let told = told.map(|loss| json!([loss["at"]["hostname"], loss["packets"]]));
        assert_eq!(json!(told.collect::<Vec<_>>()), lost, "{line}");
        assert_eq!(line["lost_packets"], 15);
        assert_eq!(line["server"]["dropped_packets"], 9);
        assert_eq!(line["via"][0]["client"]["arrived_packets"], arrived);
    }
}

#[test]
fn what_a_router_missed_is_not_lost_there() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    let mut r = Agent::new("r", 3);
    r.scan(&mut pairs, Vec::new());
    both(
        &mut pairs,
        &mut a,
        &mut b,
        [
            leaving([100, 0], Some(13), 19),
            arriving([94, 0], Some(13), 19),
        ],
    );
    r.account.not_inserted.insert(
        "table_full".to_owned(),
        proto::Count {
            packets: 3,
            bytes: 300,
        },
    );
    r.scan(&mut pairs, passing(98, 95));
    let line = quiet_line(&mut pairs, &mut [&mut a, &mut b, &mut r]);
    assert_eq!(line["grade"], "proven");
    let lost = json!([{"sent_by": "client", "at": null, "packets": 6}]);
    assert_eq!(line["lost"], lost);
}

#[test]
fn drops_that_are_known_later_are_told_once_and_so_is_a_failure() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    five(&mut pairs, &mut a, &mut b);
    let line = quiet_line(&mut pairs, &mut [&mut a, &mut b]);
    assert_eq!(line["server"]["dropped_packets"], 0);
    let last = |side, dropped, failure| {
        let mut record = record(side, [0, 0], Some(13), 19);
        record.src_mut().total_packets = 5;
        record.src_mut().total_dropped_packets = dropped;
        record.failure = failure;
        vec![record]
    };
    let reset = Some(Failure::Reset as i32);
    both(
        &mut pairs,
        &mut a,
        &mut b,
        [
            last(Direction::Egress, 0, reset),
            last(Direction::Ingress, 2, reset),
        ],
    );
    let line = line_after(&mut pairs, 31);
    let ends = ["client", "server"].map(|end| {
        json!([
            line[end]["dropped_packets"],
            line[end]["failure"],
            line[end]["sent_packets"]
        ])
    });
    assert_eq!(json!(ends), json!([[0, "reset", 0], [2, "reset", 0]]));
    assert_eq!(line["lost_packets"], 2);
    // The same once more is no news.
    both(
        &mut pairs,
        &mut a,
        &mut b,
        [
            last(Direction::Egress, 0, reset),
            last(Direction::Ingress, 2, reset),
        ],
    );
    let later = Instant::now() + Duration::from_secs(100);
    assert_eq!(lines_at(&mut pairs, later), Vec::<Value>::new());
    assert_eq!(pairs.status().unpaired, 0);
}

#[test]
fn drops_of_before_the_flow_was_followed_are_in_no_line() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    let mut arrived = arriving([5, 0], None, 19);
    arrived[0].src_mut().total_dropped_packets = 7;
    both(
        &mut pairs,
        &mut a,
        &mut b,
        [leaving([5, 0], None, 19), arrived],
    );
    let line = quiet_line(&mut pairs, &mut [&mut a, &mut b]);
    assert_eq!(
        json!([
            line["server"]["dropped_packets"],
            line["grade"],
            line["inexact"]
        ]),
        json!([0, "both_seen", "began"])
    );
    let mut arrived = arriving([5, 0], None, 39);
    arrived[0].src_mut().total_dropped_packets = 8;
    both(
        &mut pairs,
        &mut a,
        &mut b,
        [leaving([5, 0], None, 39), arrived],
    );
    let line = quiet_line(&mut pairs, &mut [&mut a, &mut b]);
    assert_eq!(
        json!([line["server"]["dropped_packets"], line["grade"]]),
        json!([1, "proven"])
    );
}

#[test]
fn an_end_whose_address_moved_to_another_unit_is_not_proven() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    five(&mut pairs, &mut a, &mut b);
    let mut moved = with_sockets(a.batch(leaving([5, 0], Some(22), 29)), &[0]);
    moved.cgroups[0].unit = "another.service".to_owned();
    take(&mut pairs, &moved);
    b.scan(&mut pairs, arriving([5, 0], Some(22), 29));
    let line = quiet_line(&mut pairs, &mut [&mut a, &mut b]);
    assert_eq!(
        json!([line["grade"], line["inexact"], line["new_flows"]]),
        json!(["both_seen", "ends", 2])
    );
}

#[test]
fn a_conversation_of_one_end_waits_for_the_other_and_one_that_goes_on_is_told_meanwhile() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    let batch = with_sockets(a.batch(leaving([5, 0], Some(13), 19)), &[0]);
    take(&mut pairs, &batch);
    b.scan(&mut pairs, Vec::new());
    let now = Instant::now();
    assert_eq!(
        lines_at(&mut pairs, now + Duration::from_secs(50)),
        Vec::<Value>::new()
    );
    let meanwhile = lines_at(&mut pairs, now + Duration::from_secs(61));
    let facts = |line: &Value| {
        json!([
            line["grade"],
            line["inexact"],
            line["client"]["unit"],
            line["server"]["agent"]
        ])
    };
    let expected = json!(["one_end", "goes_on", "unit0.service", null]);
    assert_eq!(meanwhile.iter().map(facts).collect::<Vec<_>>(), [expected]);
    // Nothing has come since.
    assert_eq!(
        lines_at(&mut pairs, now + Duration::from_secs(130)),
        Vec::<Value>::new()
    );
    for agent in [&mut a, &mut b] {
        agent.scan(&mut pairs, Vec::new());
    }
    let at_last = lines_at(&mut pairs, now + Duration::from_secs(301));
    let expected = json!(["one_end", null, "unit0.service", null]);
    assert_eq!(at_last.iter().map(facts).collect::<Vec<_>>(), [expected]);
    let status = pairs.conversations().unwrap();
    assert_eq!((status.one_end, status.going_on), (1, 1));
    assert_eq!(pairs.status().unpaired, 1);
}

#[test]
fn a_router_that_translates_is_no_end() {
    let mut pairs = pairs();
    let (mut a, mut r) = known(&mut pairs);
    let mut arrived = arriving([5, 4], Some(13), 19);
    arrived[0].nat_community_id = vec![9; 20].into();
    let left = with_sockets(a.batch(leaving([5, 4], Some(13), 19)), &[0]);
    take(&mut pairs, &left);
    r.scan(&mut pairs, arrived);
    for agent in [&mut a, &mut r] {
        agent.scan(&mut pairs, Vec::new());
    }
    let line = late_line(&mut pairs);
    assert_eq!(
        json!([
            line["grade"],
            line["server"]["agent"],
            line["via"][0]["hostname"]
        ]),
        json!(["one_end", null, "b"])
    );
    let id = proto::community_id::text(&[9; 20]);
    assert_eq!(line["via"][0]["nat_community_id"], json!(id));
}

#[test]
fn at_the_end_what_was_not_told_is_written() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    five(&mut pairs, &mut a, &mut b);
    pairs.stop();
    let due = pairs.end(usize::MAX);
    let lines = parsed(&due.conversations);
    assert_eq!(
        json!([lines[0]["grade"], lines[0]["inexact"], lines[0]["lost"]]),
        json!(["both_seen", "stopped", null])
    );
}

#[test]
fn what_does_not_add_up_is_not_proven() {
    for (sent, received, why) in [
        ([5, 4], [6, 4], "surplus"),
        ([5, 5], [5, 4], "surplus"),
        ([5, 4], [0, 4], "one_sided"),
    ] {
        let mut pairs = pairs();
        let (mut a, mut b) = known(&mut pairs);
        both(
            &mut pairs,
            &mut a,
            &mut b,
            [
                leaving(sent, Some(13), 19),
                arriving(received, Some(13), 19),
            ],
        );
        let line = quiet_line(&mut pairs, &mut [&mut a, &mut b]);
        assert_eq!(
            json!([line["grade"], line["inexact"], line["lost"]]),
            json!(["both_seen", why, null])
        );
    }
}

#[test]
fn drops_that_one_end_alone_tells_later_are_lost_there() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    five(&mut pairs, &mut a, &mut b);
    assert_eq!(
        quiet_line(&mut pairs, &mut [&mut a, &mut b])["lost"],
        json!([])
    );
    let mut record = record(Direction::Ingress, [0, 0], Some(13), 19);
    record.src_mut().total_packets = 5;
    record.src_mut().total_dropped_packets = 2;
    b.scan(&mut pairs, vec![record]);
    let line = late_line(&mut pairs);
    assert_eq!(
        json!([
            line["grade"],
            line["lost_packets"],
            line["lost"][0]["at"]["hostname"]
        ]),
        json!(["proven", 2, "b"])
    );
    assert_eq!(
        json!([
            line["client"]["unit"],
            line["server"]["unit"],
            line["server"]["received_packets"]
        ]),
        json!(["unit0.service", "unit1.service", 0])
    );
}

#[test]
fn what_a_stranger_tells_of_a_conversation_afterwards_is_in_no_line() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    let mut liars = [Agent::new("x", 3), Agent::new("y", 4)];
    for liar in &mut liars {
        liar.scan(&mut pairs, Vec::new());
    }
    five(&mut pairs, &mut a, &mut b);
    quiet_line(&mut pairs, &mut [&mut a, &mut b]);
    for (end, liar) in liars.iter_mut().enumerate() {
        let mut record = record(Direction::Ingress, [0, 0], Some(13), 19);
        record.src_mut().total_packets = 0;
        record.src_mut().total_dropped_packets = 1_000_000;
        record.failure = Some(Failure::Reset as i32);
        let batch = with_sockets(liar.batch(vec![record]), &[end]);
        take(&mut pairs, &batch);
    }
    let later = Instant::now() + Duration::from_secs(301);
    assert_eq!(lines_at(&mut pairs, later), Vec::<Value>::new());
    assert_eq!(pairs.conversations().unwrap().proven, 1);
}

#[test]
fn with_more_agents_than_are_followed_nothing_is_proven() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    let names = ["c", "d", "e", "f", "g", "h", "i"];
    let others = names.iter().zip(3..).map(|(name, id)| Agent::new(name, id));
    let mut others: Vec<_> = others.collect();
    for other in &mut others {
        other.scan(&mut pairs, Vec::new());
    }
    five(&mut pairs, &mut a, &mut b);
    for other in &mut others {
        other.scan(&mut pairs, passing(5, 5));
    }
    let mut all: Vec<_> = [&mut a, &mut b].into_iter().chain(&mut others).collect();
    let line = quiet_line(&mut pairs, &mut all);
    assert_eq!(
        json!([
            line["grade"],
            line["inexact"],
            line["via"].as_array().unwrap().len()
        ]),
        json!(["both_seen", "no_room", 6])
    );
}

#[test]
fn an_end_in_two_network_namespaces_is_not_proven() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    let moved = |batch: &mut FlowBatch| {
        for netns in [0, 1] {
            batch.interfaces.push(Interface {
                netns,
                ..interface(0)
            });
        }
    };
    for agent in [&mut a, &mut b] {
        let mut batch = agent.batch(Vec::new());
        moved(&mut batch);
        take(&mut pairs, &batch);
    }
    // The first container sends, and the next one with its address gets the answers.
    let mut answers = record(Direction::Egress, [0, 4], Some(23), 29);
    answers.netns = 1;
    let mut records = leaving([5, 0], Some(23), 29);
    records.push(answers);
    let mut left = with_sockets(a.batch(records), &[0]);
    left.records[1].src_mut().cgroup_id = None;
    left.records[1].src_mut().process_key = None;
    let mut arrived = with_sockets(b.batch(arriving([5, 4], Some(23), 29)), &[1]);
    for batch in [&mut left, &mut arrived] {
        moved(batch);
        take(&mut pairs, batch);
    }
    let line = quiet_line(&mut pairs, &mut [&mut a, &mut b]);
    assert_eq!(
        json!([line["grade"], line["inexact"]]),
        json!(["both_seen", "ends"])
    );
}

#[test]
fn an_agent_that_starts_again_is_at_the_same_end() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    five(&mut pairs, &mut a, &mut b);
    let mut again = Agent::new("a", 9);
    again.now = a.now;
    let start = |batch: &mut FlowBatch| {
        batch.agent.as_mut().unwrap().instance_id = "a 2".to_owned();
    };
    for records in [leaving([4, 0], Some(24), 29), Vec::new(), Vec::new()] {
        let mut batch = with_sockets(again.batch(records), &[0]);
        start(&mut batch);
        take(&mut pairs, &batch);
    }
    for records in [arriving([4, 0], None, 29), Vec::new(), Vec::new()] {
        b.scan(&mut pairs, records);
    }
    let line = late_line(&mut pairs);
    assert_eq!(
        json!([
            line["grade"],
            line["client"]["agent"]["instance_id"],
            line["client"]["sent_packets"],
            line["server"]["received_packets"],
        ]),
        json!(["both_seen", "a 2", 9, 9])
    );
    assert_ne!(line["inexact"], Value::Null);
}

#[test]
fn an_end_that_reports_later_is_waited_for_though_a_router_has_reported() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    let mut r = Agent::new("r", 3);
    r.scan(&mut pairs, Vec::new());
    let left = with_sockets(a.batch(leaving([5, 0], Some(13), 19)), &[0]);
    take(&mut pairs, &left);
    r.scan(&mut pairs, passing(5, 5));
    for agent in [&mut a, &mut r] {
        agent.scan(&mut pairs, Vec::new());
    }
    assert_eq!(lines(&mut pairs), Vec::<Value>::new());
    let arrived = with_sockets(b.batch(arriving([5, 0], Some(13), 19)), &[1]);
    take(&mut pairs, &arrived);
    let line = quiet_line(&mut pairs, &mut [&mut b]);
    assert_eq!(line["grade"], "proven");
}

#[test]
fn who_claims_an_end_before_its_host_has_reported_again_proves_nothing() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    let mut liar = Agent::new("x", 3);
    liar.scan(&mut pairs, Vec::new());
    five(&mut pairs, &mut a, &mut b);
    liar.scan(&mut pairs, Vec::new());
    quiet_line(&mut pairs, &mut [&mut a, &mut b, &mut liar]);
    let left = with_sockets(a.batch(leaving([5, 0], None, 39)), &[0]);
    let claimed = with_sockets(liar.batch(arriving([5, 0], None, 39)), &[1]);
    for batch in [left, claimed] {
        take(&mut pairs, &batch);
    }
    for agent in [&mut a, &mut liar] {
        agent.scan(&mut pairs, Vec::new());
    }
    assert_eq!(lines(&mut pairs), Vec::<Value>::new());
    let line = late_line(&mut pairs);
    assert_eq!(
        json!([line["grade"], line["inexact"], line["server"]["agent"]]),
        json!(["one_end", "ends", null])
    );
}

#[test]
fn an_end_that_was_waited_for_in_vain_is_not_waited_for_again() {
    let mut pairs = pairs();
    let (mut a, mut r) = known(&mut pairs);
    let begin = Instant::now();
    let after = |seconds| Time {
        at: begin + Duration::from_secs(seconds),
        ..Time::now()
    };
    let add = |pairs: &mut Pairs, batch: &FlowBatch, seconds| {
        let sightings = sightings_with(batch, Identity::User(0), true);
        pairs.add_batch(&sightings, after(seconds));
    };
    let mut pass = |pairs: &mut Pairs, began: Option<u64>, seconds| {
        let last_seen = a.now + 9;
        let batch = with_sockets(a.batch(leaving([5, 0], began, last_seen)), &[0]);
        add(pairs, &batch, seconds);
        let mut records = passing(5, 5);
        for record in &mut records {
            record.last_seen_unix_ns = last_seen * SECOND;
            record.src_mut().total_packets += u64::from(began.is_none());
        }
        add(pairs, &r.batch(records), seconds);
        for agent in [&mut a, &mut r] {
            add(pairs, &agent.batch(Vec::new()), seconds);
        }
    };
    let told = |pairs: &mut Pairs, seconds| {
        let lines = lines_at(pairs, begin + Duration::from_secs(seconds));
        let facts = lines
            .iter()
            .map(|line| json!([line["grade"], line["client"]["sent_packets"]]));
        facts.collect::<Vec<_>>()
    };
    pass(&mut pairs, Some(13), 0);
    // Nothing goes on meanwhile, and what comes meanwhile is part of it.
    assert_eq!(told(&mut pairs, 61), Vec::<Value>::new());
    pass(&mut pairs, None, 200);
    assert_eq!(told(&mut pairs, 299), Vec::<Value>::new());
    assert_eq!(told(&mut pairs, 301), [json!(["one_end", 10])]);
    pass(&mut pairs, None, 310);
    assert_eq!(told(&mut pairs, 310), [json!(["one_end", 5])]);
}

#[test]
fn drops_that_are_told_beside_later_packets_are_not_lost_from_the_lines() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    five(&mut pairs, &mut a, &mut b);
    quiet_line(&mut pairs, &mut [&mut a, &mut b]);
    let mut record = record(Direction::Ingress, [0, 0], Some(13), 19);
    record.src_mut().total_packets = 5;
    record.src_mut().total_dropped_packets = 2;
    both(
        &mut pairs,
        &mut a,
        &mut b,
        [leaving([1, 0], None, 39), vec![record]],
    );
    let line = quiet_line(&mut pairs, &mut [&mut a, &mut b]);
    assert_eq!(
        json!([
            line["inexact"],
            line["client"]["sent_packets"],
            line["server"]["dropped_packets"],
        ]),
        json!(["one_sided", 1, 2])
    );
}

#[test]
fn drops_at_a_second_interface_of_before_are_in_no_line() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    let answers = |dropped| {
        let mut answers = record(Direction::Egress, [0, 4], None, 19);
        answers.ifindex = 1;
        answers.dst_mut().total_packets = 40;
        answers.dst_mut().total_dropped_packets = dropped;
        answers
    };
    let left = vec![leaving([5, 0], None, 19).remove(0), answers(8)];
    both(
        &mut pairs,
        &mut a,
        &mut b,
        [left, arriving([5, 4], None, 19)],
    );
    let line = quiet_line(&mut pairs, &mut [&mut a, &mut b]);
    assert_eq!(
        json!([
            line["grade"],
            line["inexact"],
            line["client"]["dropped_packets"]
        ]),
        json!(["both_seen", "began", 0])
    );
}

#[test]
fn news_that_never_ends_does_not_hold_back_that_of_the_other_end() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    five(&mut pairs, &mut a, &mut b);
    quiet_line(&mut pairs, &mut [&mut a, &mut b]);
    let begin = Instant::now();
    for dropped in 1..=3 {
        let mut record = record(Direction::Ingress, [0, 0], Some(13), 19);
        record.src_mut().total_packets = 5;
        record.src_mut().total_dropped_packets = dropped;
        let batch = b.batch(vec![record]);
        let time = Time {
            at: begin + Duration::from_secs(10 * dropped),
            ..Time::now()
        };
        pairs.add_batch(&sightings_with(&batch, Identity::User(0), true), time);
    }
    let lines = lines_at(&mut pairs, begin + Duration::from_secs(45));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["server"]["dropped_packets"], 3);
}
