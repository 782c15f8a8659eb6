//! Steps of time, rates, histories and comparisons.

use super::*;

/// By these steps of UTC, with a row for all that have a part of these seconds after the start.
fn stepping(seconds: u32, shown_us: Range<i64>) -> Stepping {
    Stepping {
        step: Step::Seconds(seconds),
        zone: Zone::Utc,
        shown_us,
    }
}

/// In microseconds.
fn after_start(seconds: i64) -> i64 {
    (i64::try_from(BEGAN_S).unwrap() + seconds) * SECOND_US
}

fn step_of(group: &Group) -> Range<i64> {
    match group.step() {
        Some(&Part::Step { start_us, end_us }) => start_us..end_us,
        other => panic!("{other:?}"),
    }
}

#[test]
fn steps_have_what_a_query_of_their_time_has_and_add_up_to_the_total() {
    let folder = Folder::new();
    // A scan each second, of which some end where a step does. The start is a multiple of 20 s.
    let batches: Vec<_> = (1..=50)
        .map(|seq| batch(seq, vec![record(1, 443, seq), record(2, 80, 3 * seq)]))
        .collect();
    folder.complete("flows-1.parquet", MADE, &pieces(&batches));
    for by in [&[][..], &[By::Address], &[By::Source, By::Port]] {
        let open = i64::MIN..i64::MAX;
        let answer = folder.ask(&Query {
            steps: Some(stepping(20, open)),
            ..everything(by)
        });
        let mut steps: Vec<_> = answer.groups.iter().map(step_of).collect();
        assert!(steps.is_sorted_by_key(|step| step.start));
        steps.dedup();
        let expected = [0, 20, 40].map(|at| after_start(at)..after_start(at + 20));
        assert_eq!(steps, expected);
        let of_step = |step: &Range<i64>| {
            let groups = answer.groups.iter().filter(|group| step_of(group) == *step);
            groups
                .map(|group| (group.parts[1..].to_vec(), group.sums))
                .collect::<Vec<_>>()
        };
        let mut total = Sums::default();
        for time_us in steps {
            let alone = folder.ask(&Query {
                time_us: time_us.clone(),
                ..everything(by)
            });
            total.add(&alone.total);
            if by.is_empty() {
                let rows = of_step(&time_us);
                assert_eq!(rows, [(Vec::new(), alone.total)]);
            } else {
                let groups = alone.groups.iter();
                let groups: Vec<_> = groups
                    .map(|group| (group.parts.clone(), group.sums))
                    .collect();
                assert_eq!(of_step(&time_us), groups);
            }
        }
        assert_eq!(total, answer.total);
        assert_eq!(total, folder.ask(&everything(&[By::Address])).total);
    }
}

#[test]
fn a_step_without_records_has_a_row_and_each_step_its_largest_groups() {
    let folder = Folder::new();
    let batches = [
        batch(
            5,
            vec![record(1, 443, 5), record(2, 80, 7), record(3, 80, 1)],
        ),
        batch(55, vec![record(1, 443, 9)]),
    ];
    folder.in_the_making(&pieces(&batches));
    let ask = |shown_us| {
        folder.ask(&Query {
            steps: Some(stepping(20, shown_us)),
            top: 2,
            ..everything(&[By::Source])
        })
    };
    let rows = |answer: &QueryResult| -> Vec<_> {
        let rows = answer.groups.iter();
        rows.map(|group| {
            let start = (step_of(group).start - after_start(0)) / SECOND_US;
            (start, group.parts[1].clone(), group.sums.packets[0])
        })
        .collect()
    };
    let with_records = [
        (0, address("10.0.0.2"), 7),
        (0, address("10.0.0.1"), 5),
        (20, Part::Nothing, 0),
        (40, address("10.0.0.1"), 9),
    ];
    let answer = ask(i64::MIN..i64::MAX);
    assert_eq!(rows(&answer), with_records);
    assert_eq!(answer.all_groups, 5);
    // The end of a time belongs to it, and its start does not.
    let answer = ask(after_start(-20)..after_start(80));
    let first = (-20, Part::Nothing, 0);
    let last = (60, Part::Nothing, 0);
    let expected: Vec<_> = std::iter::once(first)
        .chain(with_records)
        .chain([last])
        .collect();
    assert_eq!(rows(&answer), expected);
    // Too many are refused rather than shown for ever.
    let query = Query {
        steps: Some(stepping(20, 0..i64::MAX)),
        ..everything(&[])
    };
    let error = answer_of(&folder, &query).unwrap_err().to_string();
    assert!(error.contains("more than 100000 steps"), "{error}");
}

#[test]
fn rates_are_over_the_time_that_windows_cover() {
    let folder = Folder::new();
    let batches = [
        batch(15, vec![record(1, 443, 5)]),
        batch(30, vec![record(1, 443, 9)]),
    ];
    folder.in_the_making(&pieces(&batches));
    let answer = folder.ask(&everything(&[By::Source]));
    let all = after_start(14)..after_start(30);
    assert_eq!(answer.period_us(&answer.groups[0]), Some(all));
    let steps = folder.ask(&Query {
        steps: Some(stepping(20, after_start(-20)..after_start(60))),
        ..everything(&[])
    });
    let periods: Vec<_> = steps
        .groups
        .iter()
        .map(|group| steps.period_us(group))
        .collect();
    let parts = [
        None,
        Some(after_start(14)..after_start(20)),
        Some(after_start(20)..after_start(30)),
        None,
    ];
    assert_eq!(periods, parts);
}

#[test]
fn rates_are_over_the_time_asked_for_whatever_passes_the_filter() {
    let (open, whole) = (Folder::new(), Folder::new());
    let batches = [1, 10, 30, 90].map(|seq| {
        let port = if seq == 30 { 80 } else { 443 };
        batch(seq, vec![record(1, port, 5)])
    });
    open.in_the_making(&pieces(&batches));
    // A file is skipped that has no record of the time.
    for (name, batches) in [
        ("flows-1.parquet", &batches[..3]),
        ("flows-2.parquet", &batches[3..]),
    ] {
        whole.complete(name, MADE, &pieces(batches));
    }
    let port = || {
        let rules: rules::Rules = "port 80".parse().unwrap();
        rules::set(&[rules])
    };
    for folder in [open, whole] {
        for (time_us, expected) in [
            (i64::MIN..i64::MAX, 0..90),
            (after_start(5)..after_start(60), 5..60),
            (after_start(-60)..after_start(60), 0..60),
            (after_start(5)..after_start(600), 5..90),
            (i64::MIN..after_start(30), 0..30),
        ] {
            let query = Query {
                time_us,
                rules: port(),
                ..everything(&[By::Port])
            };
            let answer = folder.ask(&query);
            let expected = after_start(expected.start)..after_start(expected.end);
            assert_eq!(answer.windows_us.as_ref(), Some(&expected));
            assert_eq!(answer.period_us(&answer.groups[0]), Some(expected));
        }
        // The last step ends where the time does.
        let answer = folder.ask(&Query {
            time_us: after_start(5)..after_start(35),
            rules: port(),
            steps: Some(stepping(20, after_start(5)..after_start(35))),
            ..everything(&[])
        });
        let periods = answer.groups.iter().map(|group| answer.period_us(group));
        let expected =
            [5..20, 20..35].map(|part| Some(after_start(part.start)..after_start(part.end)));
        assert!(periods.eq(expected));
    }
}

#[test]
fn a_time_that_is_one_gap_has_its_empty_steps() {
    let folder = Folder::new();
    folder.in_the_making(&pieces(&[batch(1, vec![record(1, 443, 5)])]));
    let ask = |time_us: Range<i64>| {
        folder.ask(&Query {
            time_us: time_us.clone(),
            steps: Some(stepping(20, time_us)),
            ..everything(&[By::Source])
        })
    };
    let answer = ask(after_start(20)..after_start(80));
    let starts = answer.groups.iter().map(|group| step_of(group).start);
    assert!(starts.eq([20, 40, 60].map(after_start)));
    assert_eq!((answer.all_groups, answer.total), (3, Sums::default()));
    assert_eq!(ask(after_start(20)..i64::MAX).groups, []);
}

#[test]
fn too_many_steps_are_refused_before_any_file_is_read() {
    let query = Query {
        steps: Some(stepping(20, 0..after_start(0))),
        ..everything(&[])
    };
    let error = run(&["/nowhere".into()], &query, |_, _| {}).unwrap_err();
    assert!(
        error.to_string().contains("more than 100000 steps"),
        "{error}"
    );
}

#[test]
fn a_comparison_has_what_queries_of_both_times_have() {
    let folder = Folder::new();
    let batches: Vec<_> = (1..=60)
        .map(|seq| {
            let host = if seq <= 30 { 2 } else { 3 };
            batch(seq, vec![record(1, 443, seq), record(host, 80, 7)])
        })
        .collect();
    folder.complete("flows-1.parquet", MADE, &pieces(&batches[..30]));
    folder.in_the_making(&pieces(&batches[30..]));
    // Apart, beside each other, and overlapping.
    for earlier in [40, 20, 5] {
        let of = |from: i64| after_start(from)..after_start(from + 20);
        let ask = |time_us, earlier_us, steps| {
            folder.ask(&Query {
                time_us,
                earlier_us,
                steps,
                ..everything(&[By::Source])
            })
        };
        let both = ask(of(40), Some(earlier * SECOND_US), None);
        let now = ask(of(40), None, None);
        let before = ask(of(40 - earlier), None, None);
        assert_eq!((both.total, &both.windows_us), (now.total, &now.windows_us));
        let told = both.before.clone().unwrap();
        assert_eq!(
            (told.total, &told.windows_us),
            (before.total, &before.windows_us)
        );
        let sums = |answer: &QueryResult, parts: &[Part]| {
            let mut groups = answer.groups.iter();
            let found = groups.find(|group| group.parts == parts);
            found.map(|group| group.sums).unwrap_or_default()
        };
        for group in &both.groups {
            assert_eq!(group.sums, sums(&now, &group.parts));
            assert_eq!(group.before, Some(sums(&before, &group.parts)));
        }
        let difference = |group: &Group| {
            let before = group.before.unwrap().bytes();
            group.sums.bytes().abs_diff(before)
        };
        assert!(
            both.groups
                .is_sorted_by_key(|group| Reverse(difference(group)))
        );
        // Each step is compared with the one that is so much earlier.
        let steps = ask(
            of(40),
            Some(earlier * SECOND_US),
            Some(stepping(10, i64::MIN..i64::MAX)),
        );
        let mut total = [Sums::default(); 2];
        for group in &steps.groups {
            let step = step_of(group);
            let earlier = earlier * SECOND_US;
            let before = ask(step.start - earlier..step.end - earlier, None, None);
            assert_eq!(group.before, Some(sums(&before, &group.parts[1..])));
            total[0].add(&group.sums);
            total[1].add(&group.before.unwrap());
        }
        assert_eq!(total, [now.total, told.total]);
    }
}

#[test]
fn a_history_shows_when_a_group_had_how_much() {
    let folder = Folder::new();
    let batches = [
        batch(1, vec![record(1, 443, 5), record(2, 80, 7)]),
        batch(4, vec![record(1, 443, 9)]),
    ];
    folder.in_the_making(&pieces(&batches));
    let query = Query {
        history: true,
        order: Order::Packets,
        ..everything(&[By::Source])
    };
    let answer = folder.ask(&query);
    let histories = answer.groups.iter().map(|group| &group.history[..]);
    // The answers have a packet each.
    assert_eq!(histories.collect::<Vec<_>>(), [[6, 0, 0, 10], [8, 0, 0, 0]]);
    let none = folder.ask(&everything(&[By::Source]));
    assert!(none.groups.iter().all(|group| group.history.is_empty()));
}
