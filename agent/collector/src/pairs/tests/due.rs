//! When a report is made: once both agents have reported that nothing follows, or no longer can, by whatever clocks.

use super::{super::flow::REPORT_EVERY, *};

#[test]
fn records_that_come_late_by_an_agents_setting_are_waited_for() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    let minute = |agent: &mut Agent, pairs: &mut Pairs, records| {
        let mut batch = agent.batch(records);
        batch.report_interval_ns = 60 * SECOND;
        take(pairs, &batch);
    };
    for _ in 0..7 {
        minute(&mut a, &mut pairs, Vec::new());
        b.scan(&mut pairs, Vec::new());
    }
    minute(&mut a, &mut pairs, leaving([1, 0], Some(85), 85));
    b.scan(&mut pairs, arriving([20, 0], Some(85), 89));
    for _ in 0..5 {
        minute(&mut a, &mut pairs, Vec::new());
        b.scan(&mut pairs, Vec::new());
        assert_eq!(due(&mut pairs), []);
    }
    minute(&mut a, &mut pairs, leaving([20, 0], None, 89));
    b.scan(&mut pairs, Vec::new());
    for _ in 0..2 {
        minute(&mut a, &mut pairs, Vec::new());
        b.scan(&mut pairs, Vec::new());
    }
    assert_eq!(told(&due(&mut pairs)), [path("a", "b", 21, 20, Ok(1))]);
}

#[test]
fn records_of_before_a_shorter_interval_are_waited_for_and_those_behind_it_are_not() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    let scan = |agent: &mut Agent, pairs: &mut Pairs, seconds, records| {
        let mut batch = agent.batch(records);
        batch.report_interval_ns = seconds * SECOND;
        take(pairs, &batch);
    };
    for _ in 0..7 {
        scan(&mut a, &mut pairs, 65, Vec::new());
        b.scan(&mut pairs, Vec::new());
    }
    scan(&mut a, &mut pairs, 65, leaving([1, 0], Some(85), 85));
    b.scan(&mut pairs, arriving([20, 0], Some(85), 89));
    for _ in 0..5 {
        scan(&mut a, &mut pairs, 0, Vec::new());
        b.scan(&mut pairs, Vec::new());
        assert_eq!(due(&mut pairs), []);
    }
    scan(&mut a, &mut pairs, 0, leaving([20, 0], None, 89));
    b.scan(&mut pairs, Vec::new());
    assert_eq!(due(&mut pairs), []);
    for _ in 0..2 {
        scan(&mut a, &mut pairs, 0, Vec::new());
        b.scan(&mut pairs, Vec::new());
    }
    assert_eq!(told(&due(&mut pairs)), [path("a", "b", 21, 20, Ok(1))]);
    scan(&mut a, &mut pairs, 0, leaving([5, 0], None, 179));
    b.scan(&mut pairs, arriving([5, 0], None, 179));
    assert_eq!(due(&mut pairs), []);
    for agent in [&mut a, &mut b] {
        agent.scan(&mut pairs, Vec::new());
    }
    assert_eq!(told(&due(&mut pairs)), [path("a", "b", 5, 5, Ok(0))]);
}

#[test]
fn a_flow_that_is_never_quiet_has_bounds_between_which_the_loss_is() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    // One packet per second; one of every ten is lost.
    let end = |scan: u64| 20 + 10 * scan;
    for scan in 0..6 {
        let began = (scan == 0).then_some(13);
        a.scan(&mut pairs, leaving([10, 0], began, end(scan)));
        b.scan(&mut pairs, arriving([9, 0], began, end(scan)));
        assert_eq!(due(&mut pairs), []);
    }
    // `b` is a scan ahead.
    b.scan(&mut pairs, arriving([9, 0], None, end(6)));
    let reports = due_at(&mut pairs, Instant::now() + REPORT_EVERY);
    let expected = [path("a", "b", 60, 63, Err(Doubt::GoesOn))];
    assert_eq!(told(&reports), expected);
    // Of the 60 that had left, 54 had arrived. Up to nine of the arrived ones may have left later, and up to nine may
    // still have been on their way.
    let bounds = reports[0].lost.unwrap();
    assert_eq!((bounds.min, bounds.max), (0, None));
    // `a` is ahead.
    for _ in 0..2 {
        a.scan(&mut pairs, leaving([10, 0], None, end(7)));
    }
    let reports = due_at(&mut pairs, Instant::now() + 2 * REPORT_EVERY);
    let bounds = reports[0].lost.unwrap();
    assert_eq!((bounds.min, bounds.max), (0, Some(17)));
    // Both have been quiet.
    b.scan(&mut pairs, arriving([9, 0], None, end(7)));
    for agent in [&mut a, &mut b] {
        agent.scan(&mut pairs, Vec::new());
    }
    assert_eq!(told(&due(&mut pairs)), [path("a", "b", 80, 72, Ok(8))]);
    assert_eq!(pairs.status().paths[0].lost_packets, 8);
}

#[test]
fn with_much_loss_the_least_that_is_lost_is_known_before_the_end() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    for scan in 0..6 {
        let began = (scan == 0).then_some(13);
        a.scan(&mut pairs, leaving([1000, 0], began, 20 + 10 * scan));
        b.scan(&mut pairs, arriving([100, 0], began, 20 + 10 * scan));
    }
    let reports = due_at(&mut pairs, Instant::now() + REPORT_EVERY);
    let bounds = reports[0].lost.unwrap();
    // 5,000 had left when `b`, ten seconds later, had 600; 6,000 when it had 500.
    assert_eq!((bounds.min, bounds.max), (4400, Some(5500)));
}

#[test]
fn an_agent_that_falls_silent_does_not_hold_a_flow_for_ever() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    a.scan(&mut pairs, leaving([100, 0], Some(13), 19));
    b.scan(&mut pairs, arriving([90, 0], Some(13), 19));
    a.scan(&mut pairs, Vec::new());
    assert_eq!(due(&mut pairs), []);
    let expected = [path("a", "b", 100, 90, Err(Doubt::Silent))];
    assert_eq!(told(&due_at(&mut pairs, Instant::now() + WAIT)), expected);
}

#[test]
fn a_clock_that_is_set_is_noticed_by_the_windows() {
    for by in [-5, 3600] {
        let mut pairs = pairs();
        let (mut a, mut b) = (Agent::new("a", 1), Agent::new("b", 2));
        (a.now, b.now) = (10_000, 10_000);
        for _ in 0..3 {
            quiet(&mut pairs, [&mut a, &mut b]);
        }
        b.now = b.now.checked_add_signed(by).unwrap();
        a.scan(&mut pairs, leaving([10, 0], Some(10_033), 10_039));
        let (begin, end) = (b.now + 3, b.now + 9);
        b.scan(&mut pairs, arriving([9, 0], Some(begin), end));
        for _ in 0..400 {
            quiet(&mut pairs, [&mut a, &mut b]);
        }
        let reports = told(&due(&mut pairs));
        assert_eq!(reports, [path("a", "b", 10, 9, Err(Doubt::Clock))], "{by}");
    }
}

#[test]
fn what_an_agent_reported_by_a_clock_that_was_ahead_is_not_what_it_has_seen_since() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    for by in [1000, -1000] {
        b.now = b.now.checked_add_signed(by).unwrap();
        quiet(&mut pairs, [&mut a, &mut b]);
    }
    assert_eq!((a.now, b.now), (30, 30));
    a.scan(&mut pairs, leaving([10, 0], Some(33), 39));
    b.scan(&mut pairs, arriving([5, 0], Some(33), 39));
    a.scan(&mut pairs, Vec::new());
    assert_eq!(due(&mut pairs), []);
    b.scan(&mut pairs, arriving([4, 0], None, 41));
    quiet(&mut pairs, [&mut a, &mut b]);
    assert_eq!(told(&due(&mut pairs)), [path("a", "b", 10, 9, Ok(1))]);
}

#[test]
fn at_the_end_what_was_not_told_is_reported_without_a_loss() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    a.scan(&mut pairs, leaving([10, 0], Some(13), 19));
    b.scan(&mut pairs, arriving([9, 0], Some(13), 19));
    let expected = [path("a", "b", 10, 9, Err(Doubt::Stopped))];
    pairs.stop();
    assert_eq!(told(&pairs.end(usize::MAX).reports), expected);
    assert_eq!(pairs.status().paths[0].inexact, 1);
}

#[test]
fn an_agent_that_was_killed_does_not_hold_up_those_after_it() {
    let mut pairs = pairs();
    let (mut a, mut b) = known(&mut pairs);
    a.scan(&mut pairs, leaving([10, 0], Some(13), 19));
    b.scan(&mut pairs, arriving([10, 0], Some(13), 19));
    // It restarts, as another agent.
    let mut again = Agent::new("b", 5);
    again.now = b.now;
    let next = |agent: &mut Agent, pairs: &mut Pairs, records| {
        let mut batch = agent.batch(records);
        batch.agent.as_mut().unwrap().instance_id = "b 2".to_owned();
        take(pairs, &batch);
    };
    for _ in 0..3 {
        a.scan(&mut pairs, Vec::new());
        next(&mut again, &mut pairs, Vec::new());
    }
    let now = Instant::now() + WAIT;
    let expected = [path("a", "b", 10, 10, Err(Doubt::Silent))];
    assert_eq!(told(&due_at(&mut pairs, now)), expected);
    a.scan(&mut pairs, leaving([10, 0], None, 59));
    next(&mut again, &mut pairs, arriving([8, 0], None, 59));
    a.scan(&mut pairs, Vec::new());
    next(&mut again, &mut pairs, Vec::new());
    assert_eq!(told(&due(&mut pairs)), [path("a", "b", 10, 8, Ok(2))]);
}
