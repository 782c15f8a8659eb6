//! Reports without an exact loss, and why it is unknown.

use proto::Count;

use super::*;

#[test]
fn of_what_one_may_have_missed_in_part_the_loss_is_not_said() {
    type Fault = fn(&mut FlowBatch, &mut Agent);
    let faults: [(Doubt, Fault); 7] = [
        (Doubt::Lost, |batch, agent| {
            agent.seq += 1;
            batch.stream_seq += 1;
        }),
        (Doubt::Lost, |batch, _| batch.lost_batches = 1),
        (Doubt::Sampled, |batch, _| {
            batch.sample_rate = 10;
            batch.account.as_mut().unwrap().sample_rate = 10;
        }),
        (Doubt::TableFull, |batch, _| batch.refused_in_window = true),
        (Doubt::TableFull, |batch, _| {
            let account = batch.account.as_mut().unwrap();
            let refused = Count {
                packets: 1,
                bytes: 1,
            };
            account
                .not_inserted
                .insert("table_full".to_owned(), refused);
        }),
        (Doubt::Filtered, |batch, _| {
            batch.account.as_mut().unwrap().filtered = Some(Count {
                packets: 1,
                bytes: 1,
            });
        }),
        (Doubt::Silent, |batch, _| {
            batch.account.as_mut().unwrap().r#final = true;
        }),
    ];
    for (why, fault) in faults {
        let mut pairs = pairs();
        let (mut a, mut b) = known(&mut pairs);
        a.scan(&mut pairs, leaving([100, 0], Some(13), 19));
        let mut batch = b.batch(arriving([90, 0], Some(13), 19));
        fault(&mut batch, &mut b);
        b.account = batch.account.clone().unwrap();
        take(&mut pairs, &batch);
        a.scan(&mut pairs, Vec::new());
        if why != Doubt::Silent {
            b.scan(&mut pairs, Vec::new());
        }
        let reports = due(&mut pairs);
        assert_eq!(told(&reports), [path("a", "b", 100, 90, Err(why))]);
        assert_eq!(reports[0].lost, None);
        let sums = &pairs.status().paths[0];
        assert_eq!((sums.exact, sums.inexact, sums.lost_packets), (0, 1, 0));
        if why == Doubt::Silent {
            continue;
        }
        // From here on the reports are complete.
        a.scan(&mut pairs, leaving([5, 0], None, 38));
        b.scan(&mut pairs, arriving([4, 0], None, 38));
        for agent in [&mut a, &mut b] {
            agent.scan(&mut pairs, Vec::new());
        }
        assert_eq!(
            told(&due(&mut pairs)),
            [path("a", "b", 5, 4, Ok(1))],
            "{why:?}"
        );
    }
}

#[test]
fn a_flow_that_began_before_an_agent_was_known_is_exact_when_it_has_been_quiet() {
    let mut pairs = pairs();
    let (mut a, mut b) = (Agent::new("a", 1), Agent::new("b", 2));
    a.scan(&mut pairs, Vec::new());
    // The collector, or the other agent, has started since.
    b.now = 10;
    a.scan(&mut pairs, leaving([100, 0], Some(8), 19));
    b.scan(&mut pairs, arriving([60, 0], None, 19));
    for agent in [&mut a, &mut b] {
        agent.scan(&mut pairs, Vec::new());
    }
    let expected = [path("a", "b", 100, 60, Err(Doubt::Began))];
    assert_eq!(told(&due(&mut pairs)), expected);
    a.scan(&mut pairs, leaving([10, 0], None, 35));
    b.scan(&mut pairs, arriving([10, 0], None, 35));
    for agent in [&mut a, &mut b] {
        agent.scan(&mut pairs, Vec::new());
    }
    assert_eq!(told(&due(&mut pairs)), [path("a", "b", 10, 10, Ok(0))]);
}

#[test]
fn what_found_no_place_makes_what_follows_inexact_once() {
    let mut pairs = pairs_of(1);
    let (mut a, mut b) = known(&mut pairs);
    let mut other = leaving([1, 0], Some(13), 14);
    other[0].community_id = vec![9; 20].into();
    a.scan(&mut pairs, other);
    a.scan(&mut pairs, leaving([10, 0], Some(22), 29));
    due_at(&mut pairs, Instant::now() + WAIT);
    due_at(&mut pairs, Instant::now() + WAIT);
    assert_eq!((pairs.status().flows, pairs.status().not_followed), (0, 1));
    // The first ten found no place.
    a.scan(&mut pairs, leaving([5, 0], None, 39));
    b.scan(&mut pairs, Vec::new());
    b.scan(&mut pairs, arriving([15, 0], Some(22), 30));
    b.scan(&mut pairs, Vec::new());
    quiet(&mut pairs, [&mut a, &mut b]);
    let expected = [path("a", "b", 5, 15, Err(Doubt::NoRoom))];
    assert_eq!(told(&due(&mut pairs)), expected);
}

#[test]
fn what_comes_after_the_flow_was_forgotten_is_not_called_exact() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    a.scan(&mut pairs, leaving([10, 0], Some(13), 19));
    due_at(&mut pairs, Instant::now() + WAIT);
    assert_eq!(pairs.status().flows, 0);
    // The batches of `b` had waited on its disk.
    b.scan(&mut pairs, arriving([10, 0], Some(13), 19));
    a.scan(&mut pairs, leaving([7, 0], None, 29));
    b.scan(&mut pairs, arriving([7, 0], None, 29));
    quiet(&mut pairs, [&mut a, &mut b]);
    let expected = [path("a", "b", 7, 17, Err(Doubt::NoRoom))];
    assert_eq!(told(&due(&mut pairs)), expected);
}

#[test]
fn a_third_agent_that_is_late_is_not_held_against_what_was_told() {
    let mut pairs = pairs();
    let (mut a, mut r) = known(&mut pairs);
    let mut late = Agent::new("c", 3);
    late.scan(&mut pairs, Vec::new());
    a.scan(&mut pairs, leaving([100, 0], Some(13), 19));
    r.scan(&mut pairs, arriving([100, 0], Some(13), 19));
    quiet(&mut pairs, [&mut a, &mut r]);
    assert_eq!(told(&due(&mut pairs)), [path("a", "b", 100, 100, Ok(0))]);
    a.scan(&mut pairs, leaving([50, 0], None, 39));
    late.scan(&mut pairs, arriving([98, 0], Some(13), 19));
    late.scan(&mut pairs, Vec::new());
    late.scan(&mut pairs, arriving([50, 0], None, 39));
    quiet(&mut pairs, [&mut a, &mut late]);
    let expected = [path("a", "c", 50, 148, Err(Doubt::Late))];
    assert_eq!(told(&due(&mut pairs)), expected);
    a.scan(&mut pairs, leaving([50, 0], None, 58));
    late.scan(&mut pairs, arriving([49, 0], None, 58));
    quiet(&mut pairs, [&mut a, &mut late]);
    assert_eq!(told(&due(&mut pairs)), [path("a", "c", 50, 49, Ok(1))]);
}

#[test]
fn what_comes_later_to_a_third_agent_is_not_held_against_what_was_told_before() {
    let mut pairs = pairs();
    let (mut a, mut r) = known(&mut pairs);
    let mut late = Agent::new("c", 3);
    late.scan(&mut pairs, Vec::new());
    a.scan(&mut pairs, leaving([10, 0], Some(19), 19));
    r.scan(&mut pairs, arriving([10, 0], Some(19), 19));
    quiet(&mut pairs, [&mut a, &mut r]);
    assert_eq!(told(&due(&mut pairs)), [path("a", "b", 10, 10, Ok(0))]);
    // The same packets, which took a while to arrive.
    late.scan(&mut pairs, arriving([10, 0], Some(20), 20));
    late.scan(&mut pairs, Vec::new());
    a.scan(&mut pairs, leaving([5, 0], None, 39));
    late.scan(&mut pairs, arriving([5, 0], None, 39));
    quiet(&mut pairs, [&mut a, &mut late]);
    let expected = [path("a", "c", 5, 15, Err(Doubt::Late))];
    assert_eq!(told(&due(&mut pairs)), expected);
}

#[test]
fn what_left_a_little_later_than_a_flow_was_forgotten_may_be_a_part_of_it() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    b.scan(&mut pairs, arriving([10, 0], Some(19), 19));
    assert_eq!(due_at(&mut pairs, Instant::now() + WAIT), []);
    assert_eq!(pairs.status().flows, 0);
    a.scan(&mut pairs, leaving([10, 0], Some(20), 20));
    a.scan(&mut pairs, leaving([7, 0], None, 29));
    b.scan(&mut pairs, arriving([7, 0], None, 29));
    quiet(&mut pairs, [&mut a, &mut b]);
    let expected = [path("a", "b", 17, 7, Err(Doubt::NoRoom))];
    assert_eq!(told(&due(&mut pairs)), expected);
}

#[test]
fn of_the_first_scan_that_comes_a_part_may_be_elsewhere() {
    let mut pairs = pairs();
    let (mut a, mut b) = (Agent::new("a", 1), Agent::new("b", 2));
    // The first batch of this scan went to another collector.
    let mut rest = a.batch(leaving([4, 0], None, 9));
    rest.batch_index = 1;
    take(&mut pairs, &rest);
    b.scan(&mut pairs, arriving([10, 0], Some(3), 9));
    quiet(&mut pairs, [&mut a, &mut b]);
    let expected = [path("a", "b", 4, 10, Err(Doubt::Began))];
    assert_eq!(told(&due(&mut pairs)), expected);
}

#[test]
fn a_part_of_a_scan_is_no_whole_one() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    b.scan(&mut pairs, arriving([10, 0], Some(13), 19));
    a.scan(&mut pairs, leaving([10, 0], Some(13), 19));
    b.scan(&mut pairs, Vec::new());
    // Five more are in the second half of a scan, and lost.
    let mut part = a.batch(Vec::new());
    (part.last_of_scan, part.account) = (false, None);
    take(&mut pairs, &part);
    assert_eq!(due(&mut pairs), []);
    a.now -= 10;
    let mut rest = a.batch(leaving([5, 0], None, 21));
    rest.batch_index = 1;
    take(&mut pairs, &rest);
    assert_eq!(told(&due(&mut pairs)), [path("a", "b", 15, 10, Ok(5))]);
}

#[test]
fn packets_at_two_interfaces_of_a_host_or_at_one_that_came_late_may_be_counted_otherwise() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    let mut bridge = record(Direction::Egress, [10, 0], Some(13), 19);
    bridge.ifindex = 1;
    let uplink = record(Direction::Egress, [10, 0], Some(13), 19);
    a.scan(&mut pairs, vec![uplink, bridge]);
    b.scan(&mut pairs, arriving([10, 0], Some(13), 19));
    quiet(&mut pairs, [&mut a, &mut b]);
    let expected = [path("a", "b", 20, 10, Err(Doubt::Interfaces))];
    assert_eq!(told(&due(&mut pairs)), expected);
    let mut later = record(Direction::Egress, [10, 0], Some(32), 39);
    later.ifindex = 5;
    let mut batch = a.batch(vec![later]);
    batch.interfaces.push(interface(5));
    take(&mut pairs, &batch);
    b.scan(&mut pairs, arriving([12, 0], Some(32), 39));
    quiet(&mut pairs, [&mut a, &mut b]);
    let expected = [path("a", "b", 10, 12, Err(Doubt::Interfaces))];
    assert_eq!(told(&due(&mut pairs)), expected);
}

#[test]
fn a_batch_that_tells_of_losses_alone_makes_the_next_window_doubtful() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    a.scan(&mut pairs, leaving([10, 0], Some(13), 19));
    b.seq += 1;
    take(
        &mut pairs,
        &FlowBatch {
            agent: b.batch(Vec::new()).agent,
            stream_id: 2,
            stream_seq: b.seq,
            lost_batches: 1,
            ..FlowBatch::default()
        },
    );
    (b.seq, b.now) = (b.seq + 1, b.now - 10);
    b.seq -= 1;
    b.scan(&mut pairs, arriving([4, 0], Some(13), 19));
    quiet(&mut pairs, [&mut a, &mut b]);
    let expected = [path("a", "b", 10, 4, Err(Doubt::Lost))];
    assert_eq!(told(&due(&mut pairs)), expected);
}
