//! What a sender with one credential can do to the reports of others, and to memory.

use super::{
    super::{details::Details, flow::MOST_SIGHTS, sighting::MOST_INTERFACES},
    *,
};
use proto::Endpoint;

/// Unix time.
const BEGIN: u64 = 1_700_000_000;

fn credential(name: &str) -> Identity {
    Identity::named(name).unwrap()
}

/// Takes an agent's next scan, sent with a credential of its name.
fn scan(pairs: &mut Pairs, agent: &mut Agent, records: Vec<FlowRecord>) {
    let batch = agent.batch(records);
    take_from(pairs, &batch, credential(agent.name));
}

fn scan_at(pairs: &mut Pairs, agent: &mut Agent, records: Vec<FlowRecord>, time: Time) {
    let batch = agent.batch(records);
    pairs.add_batch(&sightings(&batch, credential(agent.name)), time);
}

/// Takes the next scan of another start of the agent.
fn scan_as(pairs: &mut Pairs, agent: &mut Agent, start: usize, records: Vec<FlowRecord>) {
    let batch = start_of(agent, start, records);
    take_from(pairs, &batch, credential(agent.name));
}

fn start_of(agent: &mut Agent, start: usize, records: Vec<FlowRecord>) -> FlowBatch {
    let mut batch = agent.batch(records);
    batch.agent.as_mut().unwrap().instance_id = start.to_string();
    batch
}

fn scan_both(pairs: &mut Pairs, agents: [&mut Agent; 2]) {
    for agent in agents {
        scan(pairs, agent, Vec::new());
    }
}

/// Two hosts whose reports are complete from ten seconds after `begin` on.
fn hosts(pairs: &mut Pairs, begin: u64) -> (Agent, Agent) {
    let (mut a, mut b) = (Agent::new("a", 1), Agent::new("b", 2));
    (a.now, b.now) = (begin, begin);
    scan_both(pairs, [&mut a, &mut b]);
    (a, b)
}

/// The next scans of two hosts. Seven of a hundred packets from one to the other are lost.
fn lose(pairs: &mut Pairs, a: &mut Agent, b: &mut Agent) {
    let (began, last) = (a.now + 2, a.now + 9);
    scan(pairs, a, leaving([100, 0], Some(began), last));
    scan(pairs, b, arriving([93, 0], Some(began), last));
}

fn lost() -> Told {
    path("a", "b", 100, 93, Ok(7))
}

/// Flows other than that of the hosts.
fn flows(numbers: std::ops::Range<u32>, last_seen: u64) -> Vec<FlowRecord> {
    let flow = |number: u32| FlowRecord {
        community_id: [&number.to_be_bytes()[..], &[1; 16]].concat().into(),
        ..record(Direction::Egress, [1, 0], None, last_seen)
    };
    numbers.map(flow).collect()
}

#[test]
fn flows_without_end_of_one_sender_leave_half_the_room_to_others() {
    let mut pairs = pairs_of(40);
    let (mut a, mut b) = hosts(&mut pairs, 0);
    let mut x = Agent::new("x", 3);
    for round in 0..10 {
        let last_seen = x.now + 5;
        scan(
            &mut pairs,
            &mut x,
            flows(100 * round..100 * round + 100, last_seen),
        );
    }
    let status = pairs.status();
    assert_eq!((status.flows, status.not_followed), (20, 980));
    for _ in 0..3 {
        lose(&mut pairs, &mut a, &mut b);
        scan_both(&mut pairs, [&mut a, &mut b]);
        assert_eq!(told(&due(&mut pairs)), [lost()]);
    }
    // A forgotten flow gives its place back.
    due_at(&mut pairs, Instant::now() + WAIT);
    assert_eq!(pairs.status().flows, 0);
    scan(&mut pairs, &mut x, flows(0..100, 105));
    assert_eq!(pairs.status().flows, 20);
}

#[test]
fn an_agent_that_found_no_room_is_not_exact_where_a_part_may_be_missing_and_others_are() {
    // `a` may have two of four flows, and then `b` one.
    let mut pairs = pairs_of(4);
    let (mut a, mut b) = hosts(&mut pairs, 0);
    let [mut c, mut d] = [("c", 3), ("d", 4)].map(|(name, id)| Agent::new(name, id));
    scan_both(&mut pairs, [&mut c, &mut d]);
    let first = [flows(0..2, 15), leaving([10, 0], Some(12), 19)].concat();
    scan(&mut pairs, &mut a, first);
    assert_eq!(pairs.status().not_followed, 1);
    scan(&mut pairs, &mut b, arriving([10, 0], Some(12), 19));
    let others = |mut records: Vec<FlowRecord>| {
        records[0].community_id = vec![8; 20].into();
        records
    };
    scan(&mut pairs, &mut c, others(leaving([9, 0], Some(12), 19)));
    scan(&mut pairs, &mut d, others(arriving([8, 0], Some(12), 19)));
    scan(&mut pairs, &mut a, leaving([5, 0], None, 29));
    scan(&mut pairs, &mut b, arriving([5, 0], None, 29));
    scan_both(&mut pairs, [&mut a, &mut b]);
    scan_both(&mut pairs, [&mut c, &mut d]);
    let mut reports = told(&due(&mut pairs));
    reports.sort_by_key(|(from, ..)| from.clone());
    let expected = [
        path("a", "b", 5, 15, Err(Doubt::NoRoom)),
        path("c", "d", 9, 8, Ok(1)),
    ];
    assert_eq!(reports, expected);
    // Once the flow has been quiet, its sums are complete.
    scan(&mut pairs, &mut a, leaving([5, 0], None, 49));
    scan(&mut pairs, &mut b, arriving([4, 0], None, 49));
    scan_both(&mut pairs, [&mut a, &mut b]);
    assert_eq!(told(&due(&mut pairs)), [path("a", "b", 5, 4, Ok(1))]);
}

#[test]
fn a_flow_that_is_followed_stays_exact_while_its_agents_find_no_room_for_others() {
    let mut pairs = pairs_of(4);
    let at = Instant::now();
    let mut time = Time {
        at,
        unix_ns: (BEGIN + 20) * SECOND,
    };
    let (mut a, mut b) = hosts(&mut pairs, BEGIN);
    scan_at(
        &mut pairs,
        &mut a,
        leaving([10, 0], Some(BEGIN + 12), BEGIN + 19),
        time,
    );
    scan_at(
        &mut pairs,
        &mut b,
        arriving([10, 0], Some(BEGIN + 12), BEGIN + 19),
        time,
    );
    scan_both(&mut pairs, [&mut a, &mut b]);
    assert_eq!(told(&due(&mut pairs)), [path("a", "b", 10, 10, Ok(0))]);
    time.unix_ns += 20 * SECOND;
    for _ in 0..2 {
        let last = a.now + 9;
        let records = [flows(0..20, last), leaving([5, 0], None, last)].concat();
        scan_at(&mut pairs, &mut a, records, time);
        scan_at(&mut pairs, &mut b, arriving([4, 0], None, last), time);
    }
    assert!(pairs.status().not_followed > 30);
    scan_both(&mut pairs, [&mut a, &mut b]);
    assert_eq!(told(&due(&mut pairs)), [path("a", "b", 10, 8, Ok(2))]);
}

#[test]
fn what_an_agent_saw_of_a_flow_that_has_as_many_as_it_may_is_missing_there_alone() {
    refuse_a_part(false);
    // A sender that reports packets from the future can do no more.
    refuse_a_part(true);
}

fn refuse_a_part(and_a_liars: bool) {
    const NAMES: [&str; MOST_SIGHTS] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let mut pairs = pairs();
    let (mut agents, mut late): (Vec<_>, _) = {
        let new = |(stream_id, name)| Agent::new(name, stream_id);
        ((1..).zip(NAMES).map(new).collect(), Agent::new("i", 9))
    };
    for agent in agents.iter_mut().chain([&mut late]) {
        scan(&mut pairs, agent, Vec::new());
    }
    scan(&mut pairs, &mut agents[0], leaving([10, 0], Some(12), 14));
    for agent in &mut agents[1..] {
        scan(&mut pairs, agent, arriving([9, 0], Some(12), 14));
    }
    let part = arriving([3, 0], Some(18), 19);
    let other = FlowRecord {
        community_id: vec![8; 20].into(),
        ..part[0].clone()
    };
    scan(&mut pairs, &mut late, [part, vec![other.clone()]].concat());
    assert_eq!(pairs.status().not_followed, 1);
    if and_a_liars {
        let mut x = Agent::new("x", 10);
        x.now = 86_000;
        scan(&mut pairs, &mut x, arriving([3, 0], Some(86_001), 86_002));
    }
    let time = Time {
        at: Instant::now(),
        unix_ns: 30 * SECOND,
    };
    pairs.look(time);
    let reports = told(&pairs.due(time, usize::MAX).reports);
    assert_eq!(reports.len(), MOST_SIGHTS - 1);
    assert!(
        reports.iter().all(|(.., lost)| *lost == Ok(1)),
        "{reports:?}"
    );
    // By the clock of `a`, the partly refused packets came a second later.
    let left = FlowRecord {
        src: Some(Endpoint {
            direction: Direction::Egress.into(),
            ..other.src().clone()
        }),
        dst: Some(Endpoint {
            direction: Direction::Ingress.into(),
            ..other.dst().clone()
        }),
        ..other
    };
    let all = [leaving([6, 0], Some(21), 27), vec![left]].concat();
    scan(&mut pairs, &mut agents[0], all);
    scan(&mut pairs, &mut late, arriving([3, 0], Some(22), 27));
    for _ in 0..2 {
        scan_both(&mut pairs, [&mut agents[0], &mut late]);
    }
    let mut reports = told(&due(&mut pairs));
    reports.sort_by_key(|(_, _, sent, ..)| *sent);
    let expected = [
        path("a", "i", 3, 3, Ok(0)),
        path("a", "i", 6, 3, Err(Doubt::NoRoom)),
    ];
    assert_eq!(reports, expected);
    let last = late.now + 9;
    scan(&mut pairs, &mut agents[0], leaving([6, 0], None, last));
    scan(&mut pairs, &mut late, arriving([5, 0], None, last));
    scan_both(&mut pairs, [&mut agents[0], &mut late]);
    assert_eq!(told(&due(&mut pairs)), [path("a", "i", 6, 5, Ok(1))]);
}

#[test]
fn a_third_start_of_a_credential_in_a_flow_is_not_exact_and_the_hosts_are() {
    let mut pairs = pairs();
    let (mut a, mut b) = hosts(&mut pairs, 0);
    let mut starts = [3, 4, 5].map(|stream_id| Agent::new("x", stream_id));
    for (start, agent) in starts.iter_mut().enumerate() {
        scan_as(&mut pairs, agent, start, Vec::new());
        scan_as(&mut pairs, agent, start, leaving([10, 0], Some(12), 19));
    }
    lose(&mut pairs, &mut a, &mut b);
    scan_both(&mut pairs, [&mut a, &mut b]);
    for (start, agent) in starts.iter_mut().enumerate() {
        scan_as(&mut pairs, agent, start, Vec::new());
    }
    assert!(told(&due(&mut pairs)).contains(&lost()));
    starts[2].now = 20;
    scan_as(&mut pairs, &mut starts[2], 2, leaving([100, 0], None, 29));
    (a.now, b.now) = (30, 30);
    lose(&mut pairs, &mut a, &mut b);
    for _ in 0..2 {
        scan_both(&mut pairs, [&mut a, &mut b]);
        scan_as(&mut pairs, &mut starts[2], 2, Vec::new());
    }
    let reports = told(&due(&mut pairs));
    assert!(reports.contains(&lost()), "{reports:?}");
    let mut of_starts = reports.iter().filter(|(from, ..)| from == "x");
    assert!(of_starts.all(|(.., lost)| lost.is_err()), "{reports:?}");
}

#[test]
fn thousands_of_starts_of_a_credential_leave_room_for_the_agents_of_others() {
    let mut pairs = pairs();
    let mut x = Agent::new("x", 3);
    for start in 0..6000 {
        scan_as(&mut pairs, &mut x, start, Vec::new());
    }
    assert_eq!(pairs.agents.len(), 5000);
    let (mut a, mut b) = hosts(&mut pairs, 0);
    lose(&mut pairs, &mut a, &mut b);
    scan_both(&mut pairs, [&mut a, &mut b]);
    assert_eq!(told(&due(&mut pairs)), [lost()]);
}

#[test]
fn agents_are_forgotten_when_there_is_no_room_but_not_for_each_batch() {
    let mut pairs = pairs();
    let mut x = Agent::new("x", 3);
    for start in 0..5000 {
        scan_as(&mut pairs, &mut x, start, Vec::new());
    }
    let at = Instant::now();
    let mut take = |start, seconds, records, ends| {
        let mut batch = start_of(&mut x, start, records);
        batch.account.as_mut().unwrap().r#final = ends;
        let time = Time {
            at: at + Duration::from_secs(seconds),
            ..Time::now()
        };
        pairs.add_batch(&sightings(&batch, credential("x")), time);
        pairs.status().not_followed
    };
    assert_eq!(take(5000, 0, flows(0..1, 5), false), 1);
    // Both have ended, and a flow names one of them.
    take(0, 1, flows(0..1, 5), true);
    take(1, 1, Vec::new(), true);
    assert_eq!(take(5000, 9, flows(0..1, 5), false), 2);
    assert_eq!(take(5000, 10, flows(0..1, 5), false), 2);
    assert_eq!(pairs.agents.len(), 5000);
    due_at(&mut pairs, at + WAIT);
}

#[test]
fn interfaces_of_one_credential_leave_room_for_those_of_others() {
    let mut pairs = pairs();
    let mut x = Agent::new("x", 3);
    for start in 0..40 {
        let mut batch = start_of(&mut x, start, Vec::new());
        batch.interfaces = (0..MOST_INTERFACES as u32).map(interface).collect();
        take_from(&mut pairs, &batch, credential("x"));
    }
    assert_eq!(pairs.agents.interfaces(), 1 << 17);
    let (mut a, mut b) = hosts(&mut pairs, 400);
    lose(&mut pairs, &mut a, &mut b);
    // An interface that found no room may have existed for any time.
    scan_as(&mut pairs, &mut x, 39, Vec::new());
    scan_as(&mut pairs, &mut x, 39, leaving([100, 0], Some(412), 419));
    scan_as(&mut pairs, &mut x, 39, Vec::new());
    scan_both(&mut pairs, [&mut a, &mut b]);
    let reports = told(&due(&mut pairs));
    assert!(reports.contains(&lost()), "{reports:?}");
    let inexact = path("x", "b", 100, 93, Err(Doubt::Interfaces));
    assert!(reports.contains(&inexact), "{reports:?}");
    // A forgotten agent gives the places of its interfaces back.
    for seconds in [0, 3600] {
        let at = Instant::now() + Duration::from_secs(seconds);
        pairs.agents.forget(&HashSet::new(), WAIT, at);
    }
    assert_eq!((pairs.agents.len(), pairs.agents.interfaces()), (0, 0));
    let mut batch = start_of(&mut x, 40, Vec::new());
    batch.interfaces = (0..MOST_INTERFACES as u32).map(interface).collect();
    take_from(&mut pairs, &batch, credential("x"));
    assert_eq!(pairs.agents.interfaces(), MOST_INTERFACES);
}

#[test]
fn what_was_seen_ahead_of_the_clock_is_not_forgotten_ahead_of_it() {
    let at = Instant::now();
    let time = |seconds| Time {
        at: at + Duration::from_secs(seconds),
        unix_ns: (BEGIN + seconds) * SECOND,
    };
    let mut pairs = pairs();
    let mut x = Agent::new("x", 3);
    x.now = BEGIN + 86_000;
    let ahead = flows(0..1, x.now + 9);
    scan_at(&mut pairs, &mut x, ahead, time(0));
    pairs.look(time(300));
    pairs.due(time(300), usize::MAX);
    assert_eq!(pairs.status().flows, 0);
    let (mut a, mut b) = hosts(&mut pairs, BEGIN + 300);
    lose(&mut pairs, &mut a, &mut b);
    scan_both(&mut pairs, [&mut a, &mut b]);
    let reports = due_at(&mut pairs, at);
    assert_eq!(told(&reports), [lost()]);
}

#[test]
fn what_was_forgotten_before_the_clock_was_set_back_is_not_ahead_of_it() {
    let mut pairs = pairs();
    let mut time = Time {
        at: Instant::now(),
        unix_ns: (BEGIN + 7200) * SECOND,
    };
    let mut x = Agent::new("x", 3);
    x.now = BEGIN + 7180;
    let last_seen = x.now + 9;
    scan_at(&mut pairs, &mut x, flows(0..1, last_seen), time);
    time.at += WAIT;
    time.unix_ns += 300 * SECOND;
    pairs.look(time);
    pairs.due(time, usize::MAX);
    assert_eq!(pairs.status().flows, 0);
    time.unix_ns = BEGIN * SECOND;
    pairs.look(time);
    let (mut a, mut b) = hosts(&mut pairs, BEGIN);
    lose(&mut pairs, &mut a, &mut b);
    scan_both(&mut pairs, [&mut a, &mut b]);
    assert_eq!(told(&due(&mut pairs)), [lost()]);
}

#[test]
fn a_sender_that_says_it_is_late_does_not_fill_the_room_for_hours() {
    let mut pairs = pairs();
    let mut x = Agent::new("x", 3);
    let slow = |agent: &mut Agent, pairs: &mut Pairs, records| {
        let mut batch = agent.batch(records);
        batch.report_interval_ns = 600 * SECOND;
        take_from(pairs, &batch, credential(agent.name));
    };
    slow(&mut x, &mut pairs, flows(0..9, 5));
    // Other agents may be late as well, so the flow waits as long as there is room.
    assert_eq!(due_at(&mut pairs, Instant::now() + WAIT), []);
    assert_eq!(pairs.status().flows, 9);
    let (mut a, mut s) = hosts(&mut pairs, 0);
    slow(&mut s, &mut pairs, Vec::new());
    for _ in 0..80 {
        scan(&mut pairs, &mut a, Vec::new());
        slow(&mut s, &mut pairs, Vec::new());
    }
    scan(&mut pairs, &mut a, Vec::new());
    let (began, last) = (a.now + 2, a.now + 9);
    scan(&mut pairs, &mut a, leaving([10, 0], Some(began), last));
    slow(&mut s, &mut pairs, arriving([9, 0], Some(began), last));
    scan(&mut pairs, &mut a, flows(100..103, last));
    assert_eq!(pairs.status().flows, 13);
    let reports = told(&due_at(&mut pairs, Instant::now() + WAIT));
    assert_eq!(reports, [path("a", "b", 10, 9, Err(Doubt::GoesOn))]);
    assert_eq!(pairs.status().flows, 1);
    for _ in 0..70 {
        scan(&mut pairs, &mut a, Vec::new());
        slow(&mut s, &mut pairs, Vec::new());
    }
    assert_eq!(told(&due(&mut pairs)), [path("a", "b", 10, 9, Ok(1))]);
}

/// Records of the hosts' flow as a liar may send them: older and later than any others.
fn lies(last_seen: u64) -> Vec<FlowRecord> {
    [
        leaving([9, 0], Some(1), last_seen),
        arriving([9, 0], Some(1), last_seen),
    ]
    .concat()
}

#[test]
fn lies_about_a_flow_of_two_hosts_change_no_line_between_these() {
    let at = Instant::now();
    let time = |seconds| Time {
        at: at + Duration::from_secs(seconds),
        unix_ns: (BEGIN + seconds) * SECOND,
    };
    for ahead in [0, 86_000] {
        let mut pairs = pairs();
        let (mut a, mut b) = hosts(&mut pairs, BEGIN);
        let mut x = Agent::new("x", 3);
        x.now = BEGIN + ahead;
        let mut lie = |pairs: &mut Pairs, seconds| {
            let mut batch = x.batch(lies(x.now + 9));
            batch.report_interval_ns = 3600 * SECOND;
            pairs.add_batch(&sightings(&batch, credential("x")), time(seconds));
        };
        lie(&mut pairs, 0);
        let (began, last) = (a.now + 2, a.now + 9);
        scan_at(
            &mut pairs,
            &mut a,
            leaving([100, 0], Some(began), last),
            time(0),
        );
        scan_at(
            &mut pairs,
            &mut b,
            arriving([93, 0], Some(began), last),
            time(0),
        );
        let mut reports = Vec::new();
        for minute in 0..=5 {
            let seconds = 60 * minute;
            lie(&mut pairs, seconds);
            scan_at(&mut pairs, &mut a, Vec::new(), time(seconds));
            scan_at(&mut pairs, &mut b, Vec::new(), time(seconds));
            pairs.look(time(seconds));
            reports.extend(pairs.due(time(seconds), usize::MAX).reports);
            // The liar is waited for, since it may be a router.
            let is_told = reports.iter().any(|report| report.why.is_none());
            assert_eq!(is_told, minute == 5);
        }
        let told = told(&reports);
        let exact = told.iter().filter(|(.., lost)| lost.is_ok());
        assert_eq!(exact.collect::<Vec<_>>(), [&lost()], "{told:?}");
        // The report does not contain the liar's times.
        let told = reports.iter().find(|report| report.why.is_none()).unwrap();
        assert_eq!((told.since, told.until), (began * SECOND, last * SECOND));
    }
}

#[test]
fn what_one_sender_says_of_the_future_does_not_make_a_flow_of_hosts_late() {
    let time = Time {
        at: Instant::now(),
        unix_ns: BEGIN * SECOND,
    };
    let mut pairs = pairs();
    let mut starts = [3, 4].map(|stream_id| Agent::new("x", stream_id));
    for (start, agent) in starts.iter_mut().enumerate() {
        agent.now = BEGIN + 86_000;
        let see = [leaving, arriving][start];
        let lies = see([9, 0], Some(1), BEGIN + 86_019);
        for records in [Vec::new(), lies, Vec::new()] {
            scan_as(&mut pairs, agent, start, records);
        }
    }
    pairs.look(time);
    assert!(!pairs.due(time, usize::MAX).reports.is_empty());
    let (mut a, mut b) = hosts(&mut pairs, BEGIN);
    lose(&mut pairs, &mut a, &mut b);
    scan_both(&mut pairs, [&mut a, &mut b]);
    assert_eq!(told(&due(&mut pairs)), [lost()]);
}

#[test]
fn the_community_id_of_a_flow_does_not_give_it_other_ends() {
    let mut pairs = pairs();
    let (mut a, mut b) = hosts(&mut pairs, 0);
    let mut x = Agent::new("x", 3);
    let mut records = leaving([9, 0], Some(12), 19);
    records[0].dst_mut().addr = vec![10, 0, 0, 9].into();
    scan(&mut pairs, &mut x, records);
    lose(&mut pairs, &mut a, &mut b);
    scan_both(&mut pairs, [&mut a, &mut b]);
    let reports = due(&mut pairs);
    assert_eq!(told(&reports), [lost()]);
    assert_eq!(reports[0].ends.addr[1].to_string(), "10.0.0.2");
}

#[test]
fn an_agent_that_was_silent_is_late_for_what_was_told_without_it() {
    let at = Instant::now();
    let later = |seconds| Time {
        at: at + Duration::from_secs(seconds),
        ..Time::now()
    };
    let mut pairs = pairs();
    let (mut a, mut b) = hosts(&mut pairs, 0);
    scan_at(&mut pairs, &mut a, leaving([10, 0], Some(12), 19), later(0));
    scan_at(
        &mut pairs,
        &mut b,
        arriving([10, 0], Some(12), 19),
        later(0),
    );
    // `a` cannot send, and `b` still sees packets.
    scan_at(&mut pairs, &mut b, Vec::new(), later(300));
    scan_at(&mut pairs, &mut b, arriving([5, 0], None, 39), later(300));
    scan_at(&mut pairs, &mut b, Vec::new(), later(301));
    pairs.look(later(302));
    let reports = told(&pairs.due(later(302), usize::MAX).reports);
    assert_eq!(reports, [path("a", "b", 10, 15, Err(Doubt::Silent))]);
    scan(&mut pairs, &mut a, Vec::new());
    // Its clock is a second ahead of that of `b`.
    scan(&mut pairs, &mut a, leaving([5, 0], Some(40), 40));
    scan(&mut pairs, &mut a, Vec::new());
    scan(&mut pairs, &mut a, leaving([4, 0], None, 59));
    scan(&mut pairs, &mut b, arriving([4, 0], None, 59));
    scan_both(&mut pairs, [&mut a, &mut b]);
    let expected = [path("a", "b", 9, 4, Err(Doubt::Late))];
    assert_eq!(told(&due(&mut pairs)), expected);
}

#[test]
fn reports_come_a_few_at_a_time_and_what_is_left_over_comes_first() {
    let mut pairs = pairs_of(1000);
    let (mut a, mut b) = hosts(&mut pairs, 0);
    let mut see = |pairs: &mut Pairs, numbers: std::ops::Range<u8>, last_seen| {
        let all = |records: fn([u64; 2], Option<u64>, u64) -> Vec<FlowRecord>| {
            let numbered = |number: u8| FlowRecord {
                community_id: vec![number; 20].into(),
                ..records([10, 0], None, last_seen).remove(0)
            };
            numbers.clone().map(numbered).collect()
        };
        scan(pairs, &mut a, all(leaving));
        scan(pairs, &mut b, all(arriving));
    };
    see(&mut pairs, 0..100, 15);
    let time = Time::now();
    let mut first = HashSet::new();
    let mut due = |pairs: &mut Pairs| {
        pairs.look(time);
        let reports = pairs.due(time, 10).reports;
        assert_eq!(reports.len(), 10);
        first.extend(reports.iter().map(|report| report.community_id[0]));
        first.len()
    };
    due(&mut pairs);
    see(&mut pairs, 100..200, 25);
    for round in 2..=10 {
        assert_eq!(due(&mut pairs), 10 * round);
    }
    assert!(first.iter().all(|&number| number < 100), "{first:?}");
    // The same when the collector stops.
    pairs.stop();
    for _ in 0..10 {
        assert_eq!(pairs.end(10).len(), 10);
    }
    assert!(!pairs.has_more());
}

#[test]
fn a_credential_has_one_name_in_the_sums_whatever_domains_it_claims() {
    let mut pairs = pairs();
    let (_, mut b) = hosts(&mut pairs, 0);
    let mut x = Agent::new("x", 3);
    for number in 0..5 {
        x.now = b.now - 10;
        let scan = |pairs: &mut Pairs, x: &mut Agent, records| {
            let mut batch = start_of(x, number, records);
            batch.agent.as_mut().unwrap().hostname = format!("x.{number}");
            take_from(pairs, &batch, credential("x"));
        };
        scan(&mut pairs, &mut x, Vec::new());
        let last = x.now + 9;
        scan(&mut pairs, &mut x, leaving([9, 0], Some(last), last));
        self::scan(&mut pairs, &mut b, arriving([9, 0], Some(last), last));
        self::scan(&mut pairs, &mut b, Vec::new());
        scan(&mut pairs, &mut x, Vec::new());
        assert_eq!(due(&mut pairs).len(), 1);
    }
    let paths = pairs.status().paths;
    let names = paths
        .iter()
        .map(|it| (&it.from_hostname[..], &it.to_hostname[..], it.exact));
    assert_eq!(names.collect::<Vec<_>>(), [("x", "b", 5)]);
}

#[test]
fn what_a_batch_names_is_bounded_and_counted_while_it_waits() {
    let mut x = Agent::new("x", 3);
    let mut batch = x.batch(flows(0..3, 5));
    batch.interfaces = (0..3 * MOST_INTERFACES as u32).map(interface).collect();
    let sightings = sightings_with(&batch, credential("x"), true);
    assert_eq!(sightings.interfaces.len(), MOST_INTERFACES);
    let of_flows = 3 * (size_of_val(&sightings.flows[0]) + size_of::<Details>());
    assert_eq!(sightings.bytes(), of_flows + 8 * MOST_INTERFACES);
}

#[test]
fn a_name_controls_no_terminal_that_shows_a_line() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    let mut batch = a.batch(leaving([5, 0], Some(13), 19));
    let name = "\u{1b}[2J\u{9b}2J\u{7f}\u{202e}\n";
    let agent = batch.agent.as_mut().unwrap();
    (agent.hostname, agent.instance_id) = (name.to_owned(), "again".to_owned());
    take(&mut pairs, &batch);
    let mut next = a.batch(Vec::new());
    next.agent = batch.agent.clone();
    take(&mut pairs, &next);
    b.scan(&mut pairs, arriving([5, 0], Some(13), 19));
    b.scan(&mut pairs, Vec::new());
    let line = due(&mut pairs)[0].line();
    let line = str::from_utf8(&line).unwrap();
    assert!(
        line.trim_end().chars().all(|it| (' '..='~').contains(&it)),
        "{line}"
    );
    let json: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(json["from"]["hostname"], name);
}
