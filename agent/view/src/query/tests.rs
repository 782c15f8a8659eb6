use std::{
    cmp::Reverse,
    fs::{self, File},
    io::Write as _,
    net::IpAddr,
    os::unix::fs::symlink,
    path::Path,
    process::Command,
    slice,
};

use std::sync::Arc;

use exporters::{
    delivery::spool::{acknowledge, segment_of},
    files::{
        Compression, Made,
        parquet::{MADE, MADE_OF_MANY},
    },
};
use formats::{
    encoder::Encoder as _,
    parquet::{Parquet, piece_of},
};
use prost::Message as _;
use proto::{
    AgentIdentity, Cgroup, Direction, EndReason, Endpoint, FlowBatch, FlowRecord, HostName,
    Interface, Process, batch::validity::MOST_DELTA,
};
use sys::local_time::{Step, Zone};

use super::*;

const SECOND_NS: u64 = 1_000_000_000;
const SECOND_US: i64 = 1_000_000;
/// A little of both ends of a range that the format may confuse.
const BEGAN_S: u64 = 1_700_000_000;

/// A record of this flow from 10.0.0.N to 192.0.2.1:PORT, of so many packets of 100 bytes there, and one of 60 back.
fn record(host: u8, port: u32, packets: u64) -> FlowRecord {
    FlowRecord {
        src: Some(Endpoint {
            addr: vec![10, 0, 0, host].into(),
            port: Some(40_000),
            direction: Direction::Egress.into(),
            delta_packets: packets,
            delta_bytes: 100 * packets,
            total_packets: packets,
            ..Endpoint::default()
        }),
        dst: Some(Endpoint {
            addr: vec![192, 0, 2, 1].into(),
            port: Some(port),
            direction: Direction::Ingress.into(),
            delta_packets: 1,
            delta_bytes: 60,
            total_packets: 1,
            ..Endpoint::default()
        }),
        ip_version: 4,
        protocol: 6,
        ifindex: 2,
        netns: 5,
        ..FlowRecord::default()
    }
}

/// A batch of the scan whose window is the second before this one.
fn batch(stream_seq: u64, records: Vec<FlowRecord>) -> FlowBatch {
    FlowBatch {
        agent: Some(AgentIdentity {
            hostname: "one".to_owned(),
            instance_id: "abc".to_owned(),
            ..AgentIdentity::default()
        }),
        stream_seq,
        scan_id: stream_seq,
        window_start_unix_ns: (BEGAN_S + stream_seq - 1) * SECOND_NS,
        window_end_unix_ns: (BEGAN_S + stream_seq) * SECOND_NS,
        interfaces: vec![Interface {
            ifindex: 2,
            netns: 5,
            name: "eth0".to_owned(),
            ..Interface::default()
        }],
        records,
        ..FlowBatch::default()
    }
}

/// Of a collector, which has them of many streams.
fn on_stream(stream_id: u64, batch: FlowBatch) -> FlowBatch {
    FlowBatch { stream_id, ..batch }
}

/// As an agent's output keeps them until the file is complete.
fn pieces(batches: &[FlowBatch]) -> Vec<u8> {
    let mut encoder = Parquet::default();
    let each = batches.iter();
    each.flat_map(|batch| encoder.message(batch, &batch.records).bytes)
        .collect()
}

/// The same of a collector.
fn pieces_of_many(batches: &[FlowBatch]) -> Vec<u8> {
    let each = batches.iter();
    each.flat_map(|batch| piece_of(&batch.encode_to_vec()))
        .collect()
}

/// A folder, with what the tests put there.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    fn in_the_making(&self, pieces: &[u8]) -> &Self {
        fs::write(self.0.path().join(".flows.parquet.open"), pieces).unwrap();
        self
    }

    fn segment(&self, name: &str, segment: &[u8]) -> &Self {
        fs::write(self.0.path().join(name), segment).unwrap();
        self
    }

    fn complete(&self, name: &str, made: Made, pieces: &[u8]) -> &Self {
        let mut from = tempfile::tempfile().unwrap();
        from.write_all(pieces).unwrap();
        let to = File::create(self.0.path().join(name)).unwrap();
        (made.make)(&mut from, to, Compression::Zstd).unwrap();
        self
    }

    fn ask(&self, question: &Question) -> Answer {
        answer(&[self.path()], question, |_, _| {}).unwrap()
    }
}

fn everything(by: &[By]) -> Question {
    Question {
        time_us: i64::MIN..i64::MAX,
        earlier_us: None,
        rules: Vec::new(),
        by: by.to_vec(),
        steps: None,
        history: false,
        order: Order::Bytes,
        top: usize::MAX,
    }
}

/// The groups' values with their packets in both directions.
fn packets(answer: &Answer) -> Vec<(Vec<Part>, [u64; 2])> {
    let groups = answer.groups.iter();
    groups
        .map(|group| (group.parts.clone(), group.sums.packets))
        .collect()
}

fn address(text: &str) -> Part {
    Part::Address(text.parse::<IpAddr>().unwrap())
}

#[test]
fn an_address_has_what_it_sent_and_what_it_received() {
    let folder = Folder::new();
    let batches = [
        batch(1, vec![record(1, 443, 5), record(2, 80, 7)]),
        batch(2, vec![record(1, 22, 10)]),
    ];
    let answer = folder
        .complete("flows-1.parquet", MADE, &pieces(&batches))
        .ask(&everything(&[By::Address]));
    let expected = [
        (vec![address("192.0.2.1")], [3, 22]),
        (vec![address("10.0.0.1")], [15, 2]),
        (vec![address("10.0.0.2")], [7, 1]),
    ];
    assert_eq!(packets(&answer), expected);
    // The total has each record once.
    let total = Sums {
        records: 3,
        packets: [22, 3],
        bytes: [2200, 180],
        begun: 3,
        ended: 0,
    };
    assert_eq!((answer.total, answer.files), (total, 1));
    let began = i64::try_from(BEGAN_S).unwrap() * SECOND_US;
    assert_eq!(answer.windows_us, Some(began..began + 2 * SECOND_US));
}

#[test]
fn an_address_that_talks_to_itself_has_its_flow_once() {
    let mut record = record(1, 443, 5);
    record.dst_mut().addr = record.src().addr.clone();
    let answer = Folder::new()
        .in_the_making(&pieces(&[batch(1, vec![record])]))
        .ask(&everything(&[By::Address]));
    let sums = answer.groups[0].sums;
    assert_eq!((sums.packets, sums.records, sums.begun), ([6, 6], 1, 1));
    assert_eq!(sums.bytes, [560, 560]);
}

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
        let answer = folder.ask(&Question {
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
            let alone = folder.ask(&Question {
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
        folder.ask(&Question {
            steps: Some(stepping(20, shown_us)),
            top: 2,
            ..everything(&[By::Source])
        })
    };
    let rows = |answer: &Answer| -> Vec<_> {
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
    let question = Question {
        steps: Some(stepping(20, 0..i64::MAX)),
        ..everything(&[])
    };
    let error = answer_of(&folder, &question).unwrap_err().to_string();
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
    let steps = folder.ask(&Question {
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
            let question = Question {
                time_us,
                rules: port(),
                ..everything(&[By::Port])
            };
            let answer = folder.ask(&question);
            let expected = after_start(expected.start)..after_start(expected.end);
            assert_eq!(answer.windows_us.as_ref(), Some(&expected));
            assert_eq!(answer.period_us(&answer.groups[0]), Some(expected));
        }
        // The last step ends where the time does.
        let answer = folder.ask(&Question {
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
        folder.ask(&Question {
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
    let question = Question {
        steps: Some(stepping(20, 0..after_start(0))),
        ..everything(&[])
    };
    let error = answer(&["/nowhere".into()], &question, |_, _| {}).unwrap_err();
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
            folder.ask(&Question {
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
        let sums = |answer: &Answer, parts: &[Part]| {
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
    let question = Question {
        history: true,
        order: Order::Packets,
        ..everything(&[By::Source])
    };
    let answer = folder.ask(&question);
    let histories = answer.groups.iter().map(|group| &group.history[..]);
    // The answers have a packet each.
    assert_eq!(histories.collect::<Vec<_>>(), [[6, 0, 0, 10], [8, 0, 0, 0]]);
    let none = folder.ask(&everything(&[By::Source]));
    assert!(none.groups.iter().all(|group| group.history.is_empty()));
}

fn answer_of(folder: &Folder, question: &Question) -> Result<Answer> {
    answer(&[folder.path()], question, |_, _| {})
}

#[test]
fn each_way_to_add_up_has_its_groups() {
    let mut icmp = record(3, 0, 2);
    icmp.protocol = 1;
    icmp.src_mut().port = None;
    icmp.dst_mut().port = None;
    icmp.ifindex = 9;
    let folder = Folder::new();
    let batches = [batch(1, vec![record(1, 443, 5), record(2, 443, 7), icmp])];
    folder.complete("flows-1.parquet", MADE, &pieces(&batches));
    let groups = |by| packets(&folder.ask(&everything(&[by])));
    let name = |text: &str| Part::Name(text.into());
    let port = Part::Port(6, Some(443));
    assert_eq!(
        groups(By::Port),
        [(vec![port], [12, 2]), (vec![Part::Port(1, None)], [2, 1])]
    );
    assert_eq!(
        groups(By::Protocol),
        [
            (vec![Part::Protocol(6)], [12, 2]),
            (vec![Part::Protocol(1)], [2, 1])
        ]
    );
    assert_eq!(
        groups(By::Interface),
        [(vec![name("eth0")], [12, 2]), (vec![name("")], [2, 1])]
    );
    assert_eq!(groups(By::Host), [(vec![name("one")], [14, 3])]);
    assert_eq!(groups(By::Source)[0], (vec![address("10.0.0.2")], [7, 1]));
    assert_eq!(
        groups(By::Destination),
        [(vec![address("192.0.2.1")], [14, 3])]
    );
    let both = packets(&folder.ask(&everything(&[By::Protocol, By::Source])));
    assert_eq!(
        both[0],
        (vec![Part::Protocol(6), address("10.0.0.2")], [7, 1])
    );
    assert_eq!(both.len(), 3);
}

/// A batch whose records name these units, each in a cgroup of its number, and processes and hosts that are called like them.
fn with_units(batch: FlowBatch, units: &[(u64, &str)]) -> FlowBatch {
    let cgroups = units.iter().map(|&(id, unit)| Cgroup {
        id,
        unit: unit.to_owned(),
        ..Cgroup::default()
    });
    let processes = units.iter().map(|&(id, unit)| Process {
        key: id,
        name: unit.trim_end_matches(".service").to_owned(),
        ..Process::default()
    });
    let hosts = units.iter().map(|&(id, unit)| HostName {
        id,
        name: unit.trim_end_matches(".service").to_owned(),
    });
    FlowBatch {
        cgroups: cgroups.collect(),
        processes: processes.collect(),
        hosts: hosts.collect(),
        ..batch
    }
}

#[test]
fn a_unit_a_process_or_a_name_has_what_it_sent_and_what_it_received_at_either_end() {
    let of = |ids: [u64; 2], packets: u64| FlowRecord {
        src: Some(Endpoint {
            cgroup_id: Some(ids[0]).filter(|&id| id != 0),
            process_key: Some(ids[0]).filter(|&id| id != 0),
            host_id: Some(ids[0]).filter(|&id| id != 0),
            ..record(1, 443, packets).src().clone()
        }),
        dst: Some(Endpoint {
            cgroup_id: Some(ids[1]).filter(|&id| id != 0),
            process_key: Some(ids[1]).filter(|&id| id != 0),
            host_id: Some(ids[1]).filter(|&id| id != 0),
            ..record(1, 443, packets).dst().clone()
        }),
        ..record(1, 443, packets)
    };
    let units = [(1, "web.service"), (2, "db.service"), (3, "")];
    let records = vec![
        of([1, 0], 10),
        of([0, 1], 20),
        of([1, 2], 40),
        of([2, 2], 80),
        of([0, 0], 160),
        // In a cgroup that is in no unit.
        of([3, 2], 320),
    ];
    let batches = [with_units(batch(1, records), &units)];
    let name = |text: &str| Part::Name(text.into());
    let expected = [
        (
            vec![name("db.service")],
            [1 + 80 + 1 + 1, 40 + 80 + 1 + 320],
        ),
        (vec![name("")], [160, 1]),
        (vec![name("web.service")], [10 + 1 + 40, 1 + 20 + 1]),
    ];
    let (whole, open) = (Folder::new(), Folder::new());
    whole.complete("flows-1.parquet", MADE, &pieces(&batches));
    open.in_the_making(&pieces(&batches));
    for folder in [&whole, &open] {
        let answer = folder.ask(&everything(&[By::Unit]));
        assert_eq!(packets(&answer), expected);
        for by in [By::Unit, By::Process, By::Name] {
            let db = folder.ask(&everything(&[by])).groups.remove(0).sums;
            assert_eq!((db.records, db.begun), (3, 3), "one is with itself: {by:?}");
        }
        let by_process = packets(&folder.ask(&everything(&[By::Process])));
        let named = expected.clone().map(|(parts, sums)| {
            let unit = parts.into_iter().next();
            let Some(Part::Name(unit)) = unit else {
                panic!("{unit:?}");
            };
            (vec![name(unit.trim_end_matches(".service"))], sums)
        });
        assert_eq!(by_process, named);
        assert_eq!(packets(&folder.ask(&everything(&[By::Name]))), named);
        // A filter needs the names whatever the sums are by.
        for (filter, records) in [("host db", 3), ("host d*", 3), ("exclude host db", 3)] {
            let question = Question {
                rules: rules::set(&[filter.parse().unwrap()]),
                ..everything(&[By::Address])
            };
            assert_eq!(folder.ask(&question).total.records, records, "{filter}");
        }
        assert_eq!(answer.total.records, 6);
        // With addresses each end has its own unit, or none.
        let both = packets(&folder.ask(&everything(&[By::Address, By::Unit])));
        let of_web = (vec![address("10.0.0.1"), name("web.service")], [50, 2]);
        let of_nobody = (vec![address("192.0.2.1"), name("")], [2, 170]);
        assert!(
            both.contains(&of_web) && both.contains(&of_nobody),
            "{both:?}"
        );
    }
}

#[test]
fn a_record_belongs_to_the_time_in_which_its_window_ends() {
    let batches: Vec<_> = (1..=5)
        .map(|seq| batch(seq, vec![record(1, 443, 1 << seq)]))
        .collect();
    let (whole, open) = (Folder::new(), Folder::new());
    whole.complete("flows-1.parquet", MADE, &pieces(&batches));
    open.in_the_making(&pieces(&batches));
    let at = |seconds: i64| (i64::try_from(BEGAN_S).unwrap() + seconds) * SECOND_US;
    for (since, until, expected) in [
        (at(0), at(5), 0b11_1110),
        (at(1), at(4), 0b01_1100),
        (at(1) - 1, at(4) - 1, 0b00_1110),
        (at(5), at(9), 0),
        (i64::MIN, at(1), 0b10),
        (at(4), i64::MAX, 0b10_0000),
    ] {
        let question = Question {
            time_us: since..until,
            ..everything(&[By::Address])
        };
        for folder in [&whole, &open] {
            let answer = folder.ask(&question);
            assert_eq!(answer.total.packets[0], expected, "{since}..{until}");
            assert_eq!(answer.windows_us.is_some(), expected != 0);
        }
    }
}

#[test]
fn rules_choose_records_as_elsewhere() {
    let batches = [batch(1, vec![record(1, 443, 5), record(2, 80, 7)])];
    let (whole, open) = (Folder::new(), Folder::new());
    whole.complete("flows-1.parquet", MADE, &pieces(&batches));
    open.in_the_making(&pieces(&batches));
    for (rules, expected) in [
        ("exclude port 443", 7),
        ("include net 10.0.0.1; exclude all", 5),
        ("exclude on eth0", 0),
        ("include ingress; exclude all", 12),
        ("exclude egress; exclude ingress", 0),
        ("exclude proto udp", 12),
    ] {
        let question = Question {
            rules: rules::set(&[rules.parse().unwrap()]),
            ..everything(&[By::Address])
        };
        for folder in [&whole, &open] {
            assert_eq!(folder.ask(&question).total.packets[0], expected, "{rules}");
        }
    }
}

#[test]
fn rules_see_the_direction_of_what_was_sent() {
    // Nothing came back.
    let one_way = FlowRecord {
        dst: Some(Endpoint {
            total_packets: 0,
            delta_packets: 0,
            ..record(1, 443, 5).dst().clone()
        }),
        ..record(1, 443, 5)
    };
    // Both ways arrived, as at a mirror port.
    let mirrored = FlowRecord {
        src: Some(Endpoint {
            direction: Direction::Ingress.into(),
            ..record(2, 443, 7).src().clone()
        }),
        ..record(2, 443, 7)
    };
    let batches = [batch(1, vec![one_way, mirrored])];
    let (whole, open) = (Folder::new(), Folder::new());
    whole.complete("flows-1.parquet", MADE, &pieces(&batches));
    open.in_the_making(&pieces(&batches));
    for (rules, expected) in [
        ("exclude egress", 7),
        ("include egress; exclude all", 5),
        ("exclude ingress", 5),
        ("include ingress; exclude all", 7),
    ] {
        let question = Question {
            rules: rules::set(&[rules.parse().unwrap()]),
            ..everything(&[By::Address])
        };
        for folder in [&whole, &open] {
            assert_eq!(folder.ask(&question).total.packets[0], expected, "{rules}");
        }
    }
}

#[test]
fn flows_that_begin_and_end_are_counted_by_their_first_and_last_record() {
    let mut goes_on = record(1, 443, 5);
    goes_on.src_mut().total_packets = 50;
    let mut ends = record(2, 443, 7);
    ends.end_reason = Some(EndReason::EndOfFlow.into());
    let batches = [batch(1, vec![goes_on, ends])];
    for folder in [
        Folder::new().complete("flows-1.parquet", MADE, &pieces(&batches)),
        Folder::new().in_the_making(&pieces(&batches)),
    ] {
        let total = folder.ask(&everything(&[By::Address])).total;
        assert_eq!((total.begun, total.ended), (1, 1));
    }
}

#[test]
fn the_most_come_first_and_others_are_counted() {
    let folder = Folder::new();
    let mut wide = record(1, 443, 2);
    wide.src_mut().delta_bytes = 9000;
    folder.in_the_making(&pieces(&[batch(
        1,
        vec![wide, record(2, 443, 7), record(3, 443, 7)],
    )]));
    let first = |order| {
        let question = Question {
            order,
            top: 1,
            ..everything(&[By::Source])
        };
        let answer = folder.ask(&question);
        assert_eq!((answer.groups.len(), answer.all_groups), (1, 3));
        answer.groups[0].parts.clone()
    };
    assert_eq!(first(Order::Bytes), [address("10.0.0.1")]);
    // Of two with as much, the one with the lower address.
    assert_eq!(first(Order::Packets), [address("10.0.0.2")]);
}

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

fn asked(paths: &[PathBuf]) -> Answer {
    answer(paths, &everything(&[By::Source]), |_, _| {}).unwrap()
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
            delta_bytes: MOST_DELTA,
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
        if let Err(error) = answer(&[folder.path()], &everything(&[By::Source]), |_, _| {}) {
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

/// What is wrong with such a file, or such a folder.
fn refused(path: &Path) -> String {
    let error = answer(&[path.to_owned()], &everything(&[By::Source]), |_, _| {}).unwrap_err();
    format!("{error:#}")
}

#[test]
fn what_has_no_flows_is_refused_with_its_name() {
    let folder = Folder::new();
    let path = folder.path();
    fs::write(path.join("notes.txt"), "abc").unwrap();
    assert!(refused(&path).contains("there is no Parquet file in"));
    assert!(
        refused(&path.join("notes.txt"))
            .ends_with("notes.txt is no Parquet file, and no file of a spool")
    );
    assert!(refused(&path.join("none")).contains("none: No such file"));
    // Nobody waits for whoever writes into it.
    let fifo = path.join(".flows");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    assert!(refused(&path).ends_with(".flows is no file"));
    fs::remove_file(fifo).unwrap();
    // What cannot be opened is not taken for gone, and what has another name is not opened.
    let (ours, other) = (path.join(".flows-1.part"), path.join("other"));
    symlink(&ours, &ours).unwrap();
    assert!(refused(&path).contains(".flows-1.part: Too many levels"));
    fs::remove_file(&ours).unwrap();
    symlink(&other, &other).unwrap();
    assert!(refused(&path).contains("there is no Parquet file in"));
    // Complete by its name, and not by what is in it.
    fs::write(path.join("a.parquet"), "PAR1 and nothing else").unwrap();
    assert!(refused(&path).contains("a.parquet"), "{}", refused(&path));
}

#[test]
fn a_parquet_file_of_something_else_is_refused_with_the_column_that_it_lacks() {
    use parquet::{
        data_type::Int64Type, file::writer::SerializedFileWriter,
        schema::parser::parse_message_type,
    };
    let folder = Folder::new();
    for (schema, error) in [
        (
            "message other { required int64 height; }",
            "it has no column",
        ),
        (
            "message other { required int64 protocol; }",
            "it has no column",
        ),
    ] {
        let path = folder.path().join("other.parquet");
        let schema = parse_message_type(schema).unwrap();
        let file = File::create(&path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema.into(), Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column
            .typed::<Int64Type>()
            .write_batch(&[1], None, None)
            .unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        assert!(
            refused(&folder.path()).contains(error),
            "{}",
            refused(&folder.path())
        );
    }
}

mod whatever_the_records;
