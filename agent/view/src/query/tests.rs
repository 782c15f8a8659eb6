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
    Interface, Process, limits::MAX_DELTA_BYTES,
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

    fn ask(&self, query: &Query) -> QueryResult {
        run(&[self.path()], query, |_, _| {}).unwrap()
    }
}

fn everything(by: &[By]) -> Query {
    Query {
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
fn packets(answer: &QueryResult) -> Vec<(Vec<Part>, [u64; 2])> {
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

fn answer_of(folder: &Folder, query: &Query) -> Result<QueryResult> {
    run(&[folder.path()], query, |_, _| {})
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
            let query = Query {
                rules: rules::set(&[filter.parse().unwrap()]),
                ..everything(&[By::Address])
            };
            assert_eq!(folder.ask(&query).total.records, records, "{filter}");
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
        let query = Query {
            time_us: since..until,
            ..everything(&[By::Address])
        };
        for folder in [&whole, &open] {
            let answer = folder.ask(&query);
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
        let query = Query {
            rules: rules::set(&[rules.parse().unwrap()]),
            ..everything(&[By::Address])
        };
        for folder in [&whole, &open] {
            assert_eq!(folder.ask(&query).total.packets[0], expected, "{rules}");
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
        let query = Query {
            rules: rules::set(&[rules.parse().unwrap()]),
            ..everything(&[By::Address])
        };
        for folder in [&whole, &open] {
            assert_eq!(folder.ask(&query).total.packets[0], expected, "{rules}");
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
        let query = Query {
            order,
            top: 1,
            ..everything(&[By::Source])
        };
        let answer = folder.ask(&query);
        assert_eq!((answer.groups.len(), answer.all_groups), (1, 3));
        answer.groups[0].parts.clone()
    };
    assert_eq!(first(Order::Bytes), [address("10.0.0.1")]);
    // Of two with as much, the one with the lower address.
    assert_eq!(first(Order::Packets), [address("10.0.0.2")]);
}

/// What is wrong with such a file, or such a folder.
fn refused(path: &Path) -> String {
    let error = run(&[path.to_owned()], &everything(&[By::Source]), |_, _| {}).unwrap_err();
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

mod steps;
mod streams;
mod whatever_the_records;
