//! Repeated batches, losses, damaged files, and batches that wait in a spool.

use super::*;

#[test]
fn what_a_collector_has_twice_counts_once() {
    let one = on_stream(7, batch(1, vec![record(1, 443, 5), record(2, 443, 7)]));
    let other = on_stream(8, batch(1, vec![record(3, 443, 9)]));
    let next = on_stream(7, batch(2, vec![record(1, 443, 1)]));
    let folder = Folder::new();
    folder
        .complete(
            "flows-1.parquet",
            MADE_OF_MANY,
            &pieces_of_many(&[one.clone(), one.clone(), other.clone(), one.clone()]),
        )
        .complete(
            "flows-2.parquet",
            MADE_OF_MANY,
            &pieces_of_many(&[other.clone(), next.clone()]),
        )
        .in_the_making(&pieces_of_many(&[next, other]));
    let answer = folder.ask(&everything(&[By::Source]));
    let expected = [
        (vec![address("10.0.0.3")], [9, 1]),
        (vec![address("10.0.0.2")], [7, 1]),
        (vec![address("10.0.0.1")], [6, 2]),
    ];
    assert_eq!(packets(&answer), expected);
    assert_eq!(answer.repeated_records, 2 + 2 + 1 + 1 + 1);
}

#[test]
fn two_starts_that_gave_a_batch_the_same_number_are_told_apart() {
    let one = on_stream(7, batch(1, vec![record(1, 443, 5)]));
    let mut other = on_stream(7, batch(1, vec![record(1, 443, 9)]));
    other.agent.as_mut().unwrap().instance_id = "of a clone".to_owned();
    for is_complete in [true, false] {
        let folder = Folder::new();
        let pieces = pieces_of_many(&[one.clone(), other.clone(), one.clone()]);
        if is_complete {
            folder.complete("flows-1.parquet", MADE_OF_MANY, &pieces);
        } else {
            folder.in_the_making(&pieces);
        }
        let answer = folder.ask(&everything(&[By::Source]));
        assert_eq!(packets(&answer), [(vec![address("10.0.0.1")], [14, 2])]);
        assert_eq!(answer.repeated_records, 1);
    }
}

#[test]
fn a_file_that_is_completed_meanwhile_counts_once() {
    let batches = [
        batch(1, vec![record(1, 443, 5)]),
        batch(2, vec![record(1, 443, 7)]),
    ];
    let folder = Folder::new();
    folder
        .in_the_making(&pieces(&batches))
        .complete("flows-1.parquet", MADE, &pieces(&batches));
    let answer = folder.ask(&everything(&[By::Source]));
    assert_eq!(
        (answer.total.packets, answer.repeated_records),
        ([12, 2], 2)
    );
    // However often a file is named, in whatever way.
    let path = folder.path();
    let paths = [
        path.join("flows-1.parquet"),
        path.clone(),
        path.join("."),
        path.join(".flows.parquet.open"),
    ];
    let named = asked(&paths);
    assert_eq!((named.total.packets, named.files), ([12, 2], 2));
    // Another folder is another output's.
    let other = Folder::new();
    other.in_the_making(&pieces(&batches));
    let both = [path, other.path()];
    let both = asked(&both);
    assert_eq!(both.total.packets, [24, 4]);
}

fn asked(paths: &[PathBuf]) -> QueryResult {
    run(paths, &everything(&[By::Source]), |_, _| {}).unwrap()
}

#[test]
fn a_stream_that_begins_anew_after_a_reload_is_another_one() {
    let before = batch(1, vec![record(1, 443, 5)]);
    let after = FlowBatch {
        scan_id: 9,
        ..batch(1, vec![record(1, 443, 7)])
    };
    let folder = Folder::new();
    folder
        .complete("flows-1.parquet", MADE, &pieces(slice::from_ref(&before)))
        .complete("flows-2.parquet", MADE, &pieces(slice::from_ref(&after)));
    assert_eq!(
        folder.ask(&everything(&[By::Source])).total.packets,
        [12, 2]
    );
    folder.in_the_making(&pieces(&[before, after]));
    let answer = folder.ask(&everything(&[By::Source]));
    assert_eq!(
        (answer.total.packets, answer.repeated_records),
        ([12, 2], 2)
    );
}

#[test]
fn one_of_many_flows_is_said_to_be_that() {
    let sampled = FlowBatch {
        sample_rate: 100,
        ..batch(2, vec![record(1, 443, 5)])
    };
    let batches = [batch(1, vec![record(1, 443, 5)]), sampled];
    for folder in [
        Folder::new().complete("flows-1.parquet", MADE, &pieces(&batches)),
        Folder::new().in_the_making(&pieces(&batches)),
    ] {
        let answer = folder.ask(&everything(&[By::Source]));
        assert_eq!(answer.sample_rates, BTreeSet::from([100]));
        assert!(answer.has_whole);
    }
}

#[test]
fn one_of_one_flow_is_every_flow() {
    let all = FlowBatch {
        sample_rate: 1,
        ..batch(1, vec![record(1, 443, 5)])
    };
    let answer = Folder::new()
        .in_the_making(&pieces(&[all]))
        .ask(&everything(&[By::Source]));
    assert_eq!(
        (answer.sample_rates, answer.has_whole),
        (BTreeSet::new(), true)
    );
}

#[test]
fn what_ends_in_damage_before_it_became_a_file_is_told() {
    let mut pieces = pieces(&[batch(1, vec![record(1, 443, 5)])]);
    pieces.extend([1, 2, 3]);
    let folder = Folder::new();
    folder.complete("flows-1.parquet", MADE, &pieces);
    let answer = folder.ask(&everything(&[By::Source]));
    assert_eq!(answer.damaged, [(folder.path().join("flows-1.parquet"), 3)]);
}

#[test]
fn records_that_no_agent_sends_are_left_out_and_counted() {
    let mut protocol = record(1, 443, 7);
    protocol.protocol = 300;
    let records = vec![
        record(1, 443, 5),
        protocol,
        record(1, 70_000, 7),
        record(1, 443, u64::MAX / 100),
    ];
    let batches = [on_stream(1, batch(1, records))];
    let (open, whole) = (Folder::new(), Folder::new());
    open.in_the_making(&pieces_of_many(&batches));
    whole.complete("flows-1.parquet", MADE_OF_MANY, &pieces_of_many(&batches));
    for folder in [open, whole] {
        let answer = folder.ask(&everything(&[By::Source]));
        assert_eq!((answer.total.packets, answer.unsound_records), ([5, 1], 3));
        assert_eq!(packets(&answer)[0].1, [5, 1]);
    }
}

#[test]
fn sums_without_room_say_so_and_leave_all_other_groups_as_they_are() {
    let forged = (0..70_000).map(|_| FlowRecord {
        src: Some(Endpoint {
            delta_bytes: MAX_DELTA_BYTES,
            ..record(1, 443, 1).src().clone()
        }),
        ..record(1, 443, 1)
    });
    let records = forged.chain([record(2, 80, 7)]).collect();
    let batches = [on_stream(1, batch(1, records))];
    let (open, whole) = (Folder::new(), Folder::new());
    open.in_the_making(&pieces_of_many(&batches));
    whole.complete("flows-1.parquet", MADE_OF_MANY, &pieces_of_many(&batches));
    for folder in [open, whole] {
        let answer = folder.ask(&everything(&[By::Port]));
        assert_eq!((answer.total.records, answer.unsound_records), (70_001, 0));
        assert!(answer.total.is_at_its_bound());
        let of_port = |port| {
            let is_it = |group: &&Group| group.parts == [Part::Port(6, Some(port))];
            answer.groups.iter().find(is_it).unwrap().sums
        };
        assert!(of_port(443).is_at_its_bound());
        assert!(!of_port(80).is_at_its_bound());
        assert_eq!(of_port(80).packets[0], 7);
    }
}

#[test]
fn a_number_of_a_stream_is_counted_once_for_each_sender() {
    let of = |identity: &str| {
        let mut batch = on_stream(1, batch(1, vec![record(1, 443, 5)]));
        batch.agent.as_mut().unwrap().identity = identity.to_owned();
        batch.lost_packets = 3;
        batch
    };
    let batches = ["one", "two", "one"].map(of);
    let (open, whole) = (Folder::new(), Folder::new());
    open.in_the_making(&pieces_of_many(&batches));
    whole.complete("flows-1.parquet", MADE_OF_MANY, &pieces_of_many(&batches));
    for folder in [open, whole] {
        let answer = folder.ask(&everything(&[By::Source]));
        assert_eq!(
            (answer.total.packets, answer.repeated_records),
            ([10, 2], 1)
        );
        assert_eq!(answer.missing.lost.packets, 6);
    }
}

#[test]
fn damage_anywhere_in_a_file_is_an_error_with_its_name_or_leaves_an_answer() {
    let whole = Folder::new();
    let batches = [batch(1, vec![record(1, 443, 5), record(2, 80, 7)])];
    whole.complete("flows-1.parquet", MADE, &pieces(&batches));
    let bytes = fs::read(whole.path().join("flows-1.parquet")).unwrap();
    let folder = Folder::new();
    let path = folder.path().join("flows-1.parquet");
    let mut refusals = 0;
    for place in (4..bytes.len()).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[place] ^= 0x55;
        fs::write(&path, damaged).unwrap();
        if let Err(error) = run(&[folder.path()], &everything(&[By::Source]), |_, _| {}) {
            let error = format!("{error:#}");
            assert!(error.contains("flows-1.parquet"), "{error}");
            refusals += 1;
        }
    }
    assert!(refusals > 100, "{refusals}");
}

#[test]
fn what_was_lost_is_told_once_for_each_stream() {
    let losing = |stream_id, seq, packets| {
        let batch = on_stream(stream_id, batch(seq, vec![record(1, 443, 1)]));
        FlowBatch {
            lost_records: 1,
            lost_packets: packets,
            lost_bytes: 100 * packets,
            ..batch
        }
    };
    let batches = [losing(7, 1, 2), losing(7, 2, 5), losing(8, 1, 3)];
    let lost = Missing {
        records: 2,
        packets: 8,
        bytes: 800,
    };
    for folder in [
        Folder::new().complete("flows-1.parquet", MADE_OF_MANY, &pieces_of_many(&batches)),
        Folder::new().in_the_making(&pieces_of_many(&batches)),
    ] {
        assert_eq!(folder.ask(&everything(&[By::Source])).missing.lost, lost);
    }
    let of_an_agent = [losing(0, 1, 2), losing(0, 2, 5)];
    let folder = Folder::new();
    folder.complete("flows-1.parquet", MADE, &pieces(&of_an_agent));
    let missing = folder.ask(&everything(&[By::Source])).missing;
    assert_eq!((missing.lost.packets, missing.left_out.packets), (5, 0));
    let leaving_out = |seq, packets| FlowBatch {
        left_out_packets: packets,
        ..batch(seq, vec![record(1, 443, 1)])
    };
    let batches = [leaving_out(1, 3), leaving_out(2, 4)];
    for folder in [
        Folder::new().complete("flows-1.parquet", MADE, &pieces(&batches)),
        Folder::new().in_the_making(&pieces(&batches)),
    ] {
        let missing = folder.ask(&everything(&[By::Source])).missing;
        assert_eq!((missing.lost.packets, missing.left_out.packets), (0, 4));
    }
}

#[test]
fn what_was_lost_is_told_of_each_stream_up_to_a_bound() {
    let batches: Vec<_> = (1..=2_000)
        .map(|id| FlowBatch {
            lost_batches: id % 2,
            lost_packets: id % 2,
            ..on_stream(id, batch(1, vec![record(1, 443, 1)]))
        })
        .collect();
    let folder = Folder::new();
    // Each of the files has all of them.
    for name in ["flows-1.parquet", "flows-2.parquet"] {
        folder.complete(name, MADE_OF_MANY, &pieces_of_many(&batches));
    }
    let missing = folder.ask(&everything(&[By::Source])).missing;
    assert_eq!(missing.lost.packets, 1_000);
    // A sender that begins streams without end.
    let losing = (1..=12_000).map(|id| FlowBatch {
        lost_packets: 1,
        ..on_stream(id, batch(1, Vec::new()))
    });
    let pieces = pieces_of_many(&losing.collect::<Vec<_>>());
    let folder = Folder::new();
    folder.complete("flows-1.parquet", MADE_OF_MANY, &pieces);
    let missing = folder.ask(&everything(&[By::Source])).missing;
    assert_eq!(missing.lost.packets, 11_000);
}

#[test]
fn a_damaged_end_is_told_with_its_bytes_and_what_is_before_it_counts() {
    let mut pieces = pieces(&[
        batch(1, vec![record(1, 443, 5)]),
        batch(2, vec![record(1, 443, 7)]),
    ]);
    pieces.truncate(pieces.len() - 3);
    let first = self::pieces(&[batch(1, vec![record(1, 443, 5)])]).len();
    let folder = Folder::new();
    let answer = folder
        .in_the_making(&pieces)
        .ask(&everything(&[By::Source]));
    assert_eq!(answer.total.packets, [5, 1]);
    let file = folder.path().join(".flows.parquet.open");
    assert_eq!(answer.damaged, [(file, (pieces.len() - first) as u64)]);
}

#[test]
fn a_spool_counts_with_all_its_segments_and_a_damaged_batch_is_told_with_its_bytes() {
    let batches: Vec<_> = (1..=4)
        .map(|seq| {
            on_stream(
                7,
                FlowBatch {
                    lost_records: 1,
                    lost_packets: 9,
                    ..batch(seq, vec![record(1, 443, 1 << seq), record(2, 80, 1 << seq)])
                },
            )
        })
        .collect();
    let names = [1, 3].map(|seq| format!("{seq:020}.spool"));
    let folder = Folder::new();
    folder
        .segment(&names[0], &segment_of(&batches[..2]))
        .segment(&names[1], &segment_of(&batches[2..]))
        .segment("00000000000000000003.spool.bad", b"something")
        .segment("segment.new", &segment_of(&batches[2..]));
    let answer = folder.ask(&everything(&[By::Interface]));
    let eth0 = vec![Part::Name("eth0".into())];
    assert_eq!(packets(&answer), [(eth0, [2 * 0b1_1110, 8])]);
    assert_eq!((answer.files, answer.repeated_records), (2, 0));
    assert_eq!(answer.missing.lost.packets, 9);
    assert!(answer.damaged.is_empty());
    // A file by its name, and again with its folder.
    let path = folder.path().join(&names[1]);
    assert_eq!(asked(slice::from_ref(&path)).total.packets[0], 2 * 0b1_1000);
    assert_eq!(
        asked(&[path.clone(), folder.path()]).total.packets[0],
        2 * 0b1_1110
    );

    // The last batch of the first one has another bit, and the other one ends in the middle of a batch.
    let mut damaged = segment_of(&batches[..2]);
    let all = damaged.len();
    let first = segment_of(&batches[..1]).len();
    damaged[all - 1] ^= 1;
    let cut = segment_of(&batches[2..]);
    let whole = segment_of(&batches[2..3]).len();
    folder
        .segment(&names[0], &damaged)
        .segment(&names[1], &cut[..cut.len() - 1]);
    let answer = folder.ask(&everything(&[By::Source]));
    assert_eq!(answer.total.packets[0], 2 * 0b1010);
    let unread = [all - first, cut.len() - 1 - whole];
    let expected = names.iter().zip(unread);
    let expected: Vec<_> = expected
        .map(|(name, bytes)| (folder.path().join(name), bytes as u64))
        .collect();
    assert_eq!(answer.damaged, expected);
}

#[test]
fn what_a_collector_has_acknowledged_of_a_spool_does_not_wait() {
    let batches: Vec<_> = (1..=5)
        .map(|seq| on_stream(7, batch(seq, vec![record(1, 443, 1 << seq)])))
        .collect();
    let folder = Folder::new();
    let name = format!("{:020}.spool", 1);
    folder.segment(&name, &segment_of(&batches));
    let path = folder.path().join(name);
    for (seq, expected) in [(0, 0b11_1110), (3, 0b11_0000), (5, 0)] {
        acknowledge(&folder.path(), 7, seq);
        for paths in [[folder.path()], [path.clone()]] {
            let answer = asked(&paths);
            assert_eq!(answer.total.packets[0], expected, "{seq}");
            assert!(answer.damaged.is_empty() && answer.unmarked_files == 0);
        }
    }
    // What is of another stream has numbers of its own.
    acknowledge(&folder.path(), 8, 5);
    assert_eq!(asked(slice::from_ref(&path)).total.packets[0], 0b11_1110);
    // If nobody knows, nothing is left out, and that is said.
    folder.segment("mark.json", b"{");
    let answer = asked(&[path]);
    assert_eq!(
        (answer.total.packets[0], answer.unmarked_files),
        (0b11_1110, 1)
    );
}

#[test]
fn a_spool_in_which_nothing_waits_is_an_answer() {
    let folder = Folder::new();
    folder.segment("mark.json", b"{}").segment("lock", b"");
    let answer = folder.ask(&everything(&[By::Source]));
    assert_eq!((answer.files, answer.total), (0, Sums::default()));
    // Just begun, too.
    let name = "00000000000000000001.spool";
    folder.segment(name, &segment_of(&[]));
    let answer = folder.ask(&everything(&[By::Source]));
    assert_eq!((answer.files, answer.damaged.len()), (1, 0));
    // What is none is told with its bytes.
    folder.segment(name, b"something else");
    let answer = folder.ask(&everything(&[By::Source]));
    assert_eq!(answer.damaged, [(folder.path().join(name), 14)]);
}
