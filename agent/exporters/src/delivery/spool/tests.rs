use std::{
    fs::Permissions,
    os::unix::fs::{PermissionsExt as _, symlink},
    thread,
    time::{Duration, Instant},
};

use lab::{
    Disk,
    privilege::{is_root_or_skip, skip},
};
use proto::FlowBatch;

use super::*;

const MOST_BYTES: u64 = 16 << 20;
/// The losses of the queue.
const IN_QUEUE: Volume = Volume {
    batches: 1,
    records: 2,
    packets: 3,
    bytes: 4,
};

/// A spool, and a sender's view of its stream.
struct Stream {
    spool: Spool,
    last: Point,
    beginning: Beginning,
}

impl Stream {
    fn open(folder: &Path) -> Self {
        let (spool, beginning) = Spool::open(folder.into(), MOST_BYTES, 7).unwrap();
        Self {
            spool,
            last: beginning.last,
            beginning,
        }
    }

    /// Assigns the next sequence number to a batch of this length. The batch reports as many packets as its number.
    fn give(&mut self, bytes: usize) -> Waiting {
        let before = self.last;
        let seq = before.seq + 1;
        self.last = before.with(seq, sum(seq));
        self.spool.note(self.last);
        Waiting {
            seq,
            unix_ns: 1,
            own: sum(seq),
            before: before.sum,
            parts: [Bytes::from_static(b"!"), vec![seq as u8; bytes].into()],
            is_on_disk: false,
        }
    }

    /// Writes a batch. Returns the loss that this causes.
    fn append(&mut self, bytes: usize) -> Volume {
        let batch = self.give(bytes);
        let before = self.lost();
        self.spool.append(&batch, IN_QUEUE).unwrap();
        without(self.lost(), before)
    }

    fn lost(&self) -> Volume {
        self.spool.stand().lost
    }

    fn sync(&mut self) {
        self.spool.sync(IN_QUEUE, None).unwrap();
    }

    fn end(mut self) {
        let nothing = Volume::default();
        self.spool.sync(IN_QUEUE, Some(nothing)).unwrap();
    }

    /// Reads everything. Also returns the losses found before and between the batches.
    fn read(&mut self) -> (Vec<u64>, Volume) {
        let before = self.lost();
        let mut all = Vec::new();
        while self.spool.stand().is_ahead {
            let batches = self.spool.read(100, 1).unwrap();
            for batch in &batches {
                let bytes = batch.parts.concat();
                assert!(bytes[0] == b'!' && bytes[1..].iter().all(|byte| *byte == batch.seq as u8));
                assert_eq!(batch.own, sum(batch.seq));
            }
            all.extend(batches.iter().map(|batch| batch.seq));
        }
        self.spool.reach_to(self.last);
        (all, without(self.lost(), before))
    }
}

fn sum(seq: u64) -> RecordSum {
    RecordSum {
        records: 1,
        packets: seq,
        bytes: 100 * seq,
    }
}

fn packets(seqs: impl IntoIterator<Item = u64>) -> u64 {
    seqs.into_iter().sum()
}

/// The segment files, oldest first.
fn files(folder: &Path) -> Vec<PathBuf> {
    let files = segment_files(folder).unwrap();
    files.into_iter().map(|(_, path)| path).collect()
}

#[test]
fn a_spool_goes_on_where_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("made/with its parents");
    let mut stream = Stream::open(&folder);
    assert_eq!(stream.beginning.stream_id, 7);
    for _ in 0..10 {
        stream.append(1000);
    }
    let read = stream.spool.read(100, 3500).unwrap();
    let seqs: Vec<_> = read.iter().map(|batch| batch.seq).collect();
    assert_eq!((seqs, stream.lost()), (vec![1, 2, 3, 4], Volume::default()));
    assert_eq!(stream.spool.read(2, 3500).unwrap().len(), 2);
    stream.spool.acknowledge(read[2].through());
    stream.append(1000);
    stream.end();
    let mut stream = Stream::open(&folder);
    let Beginning { last, waits, .. } = stream.beginning;
    assert_eq!((last.seq, waits.packets), (11, packets(4..=11)));
    assert_eq!(stream.beginning.faults, [""; 0]);
    stream.append(1000);
    assert_eq!(stream.read(), ((4..=12).collect(), Volume::default()));
    stream.spool.acknowledge(stream.last);
    stream.end();
    let stream = Stream::open(&folder);
    assert_eq!(stream.beginning.last.seq, 12);
    assert_eq!(stream.beginning.waits, RecordSum::default());
    assert!(files(&folder).is_empty());
    assert_eq!(stream.spool.stand().bytes, 0);
}

/// A collector may have batches whose numbers never reached the disk, so the spool does not reuse these numbers.
#[test]
fn numbers_that_may_be_known_are_not_given_again() {
    for refuses in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut stream = Stream::open(folder.path());
        stream.append(1);
        stream.sync();
        if refuses {
            // The disk takes neither the batch nor a mark.
            stream.give(1);
        }
        drop(stream);
        let mut stream = Stream::open(folder.path());
        assert_eq!(stream.beginning.last.seq, 1_000_001);
        stream.append(1);
        let read = stream.read();
        assert_eq!(read, (vec![1, 1_000_002], Volume::default()));
        stream.end();
        // Opening the spool already starts to assign numbers.
        drop(Stream::open(folder.path()));
        let stream = Stream::open(folder.path());
        assert_eq!(stream.beginning.last.seq, 2_000_002);
    }
}

#[test]
fn nobody_else_uses_a_spool() {
    let folder = tempfile::tempdir().unwrap();
    let stream = Stream::open(folder.path());
    let second = || Spool::open(folder.path().into(), MOST_BYTES, 8);
    let Err(error) = second() else {
        panic!("it is in use")
    };
    assert!(error.is::<InUse>(), "{error:#}");
    drop(stream);
    assert!(second().is_ok());
}

/// Damages any of a spool's three files in several ways.
#[test]
fn damage_costs_what_is_damaged_and_is_told_to_the_packet() {
    // The file, the damage, and the lost batches.
    type Case<'a> = (usize, &'a dyn Fn(&mut Vec<u8>), &'a [u64]);
    const BATCHES: u64 = 8;
    let begin = |folder: &Path| {
        let mut stream = Stream::open(folder);
        for seq in 1..=BATCHES {
            // The first two files hold two batches each.
            stream.append(if seq <= 4 { 600_000 } else { 1000 });
        }
        stream.sync();
    };
    let cases: [Case<'_>; 8] = [
        (0, &|_| {}, &[]),
        // In the second batch's body.
        (0, &|file| file[700_000] ^= 1, &[2]),
        (0, &|file| file.truncate(1_000_000), &[2]),
        (0, &Vec::clear, &[1, 2]),
        (0, &|file| file[3] ^= 1, &[1, 2]),
        // In the second batch's header, so the start of the next one is unknown.
        (2, &|file| file[20 + 120 + 1001 + 20] ^= 1, &[6, 7, 8]),
        (2, &|file| file.truncate(file.len() - 1), &[8]),
        (2, &Vec::clear, &[5, 6, 7, 8]),
    ];
    for (number, (file, damage, missing)) in cases.into_iter().enumerate() {
        for is_removed in [false, true] {
            if is_removed && ![&[1, 2][..], &[5, 6, 7, 8]].contains(&missing) {
                continue;
            }
            let folder = tempfile::tempdir().unwrap();
            begin(folder.path());
            let path = &files(folder.path())[file];
            let mut bytes = fs::read(path).unwrap();
            damage(&mut bytes);
            if is_removed {
                fs::remove_file(path).unwrap();
            } else {
                fs::write(path, bytes).unwrap();
            }
            let mut stream = Stream::open(folder.path());
            let Beginning { waits, lost, .. } = stream.beginning;
            let in_all = waits.packets + lost.packets;
            assert_eq!(in_all, packets(1..=BATCHES), "case {number}");
            assert_eq!(stream.beginning.lost_in_queue, IN_QUEUE);
            let next = stream.last.seq + 1;
            stream.append(1);
            let (read, later) = stream.read();
            let mut lost = lost;
            lost += later;
            assert_eq!(stream.lost(), lost, "case {number}");
            // The next start knows the loss already.
            stream.sync();
            drop(stream);
            let mut stream = Stream::open(folder.path());
            assert_eq!(stream.beginning.lost, Volume::default(), "case {number}");
            assert_eq!(stream.read().1, Volume::default(), "case {number}");
            assert_eq!(stream.lost(), lost, "case {number}");
            let expected = (1..=BATCHES).filter(|seq| !missing.contains(seq));
            let expected: Vec<_> = expected.chain([next]).collect();
            assert_eq!(read, expected, "case {number}");
            let told = (lost.batches, lost.records, lost.packets);
            let count = missing.len() as u64;
            let expected = (count, count, packets(missing.iter().copied()));
            assert_eq!(told, expected, "case {number}");
        }
    }
}

/// Damage while the spool is in use.
#[test]
fn a_segment_that_is_cut_while_it_is_written_costs_what_was_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut stream = Stream::open(folder.path());
    for _ in 0..3 {
        stream.append(1000);
    }
    let path = files(folder.path()).remove(0);
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(2000).unwrap();
    let (read, lost) = stream.read();
    assert_eq!((read, lost.packets), (vec![1], 2 + 3));
    stream.append(1000);
    assert_eq!(stream.read(), (vec![4], Volume::default()));
}

#[test]
fn the_oldest_make_room_and_what_they_report_is_told() {
    const BYTES: usize = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let mut stream = Stream::open(folder.path());
    let mut lost = Volume::default();
    for _ in 0..100 {
        lost += stream.append(BYTES);
        assert!(stream.spool.stand().bytes <= MOST_BYTES);
    }
    let on_disk: u64 = files(folder.path())
        .iter()
        .map(|path| path.metadata().unwrap().len())
        .sum();
    assert_eq!(on_disk, stream.spool.stand().bytes);
    let (read, missing) = stream.read();
    assert_eq!(missing, Volume::default());
    assert!(read.len() >= 12, "{read:?}");
    let first = read[0];
    assert!(read.iter().copied().eq(first..=100));
    assert_eq!((lost.batches, lost.packets), (first - 1, packets(1..first)));
    // Batches in memory survive the loss of their file.
    for _ in 0..100 {
        assert_eq!(stream.append(BYTES), Volume::default());
        assert_eq!(stream.spool.read(100, 1).unwrap().len(), 1);
    }
}

/// The loss counts once, however often and in whatever state the spool is opened.
#[test]
fn a_loss_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut stream = Stream::open(folder.path());
    let mut lost = Volume::default();
    for _ in 0..40 {
        lost += stream.append(1 << 20);
    }
    assert!(lost.batches > 20);
    for acknowledges in 0..5 {
        drop(stream);
        stream = Stream::open(folder.path());
        assert_eq!(stream.beginning.lost, Volume::default());
        assert_eq!(stream.lost(), lost);
        let batches = stream.spool.read(acknowledges, usize::MAX).unwrap();
        if let Some(last) = batches.last() {
            stream.spool.acknowledge(last.through());
        }
        if acknowledges % 2 == 0 {
            stream.sync();
        }
        let waits = stream.beginning.waits.packets;
        let done = batches.iter().map(|batch| batch.own.packets).sum::<u64>();
        let (read, news) = stream.read();
        assert_eq!((stream.lost(), news), (lost, Volume::default()));
        assert_eq!(waits, done + packets(read));
    }
    // Add a loss that the spool does not know of.
    stream.sync();
    drop(stream);
    let oldest = files(folder.path()).remove(0);
    fs::remove_file(oldest).unwrap();
    let stream = Stream::open(folder.path());
    let more = stream.beginning.lost;
    assert!(more.batches > 0 && more.packets > 0);
    lost += more;
    assert_eq!(stream.lost(), lost);
}

/// At shutdown the ending process reports the batches that are only in memory.
#[test]
fn what_was_told_at_the_end_is_not_told_by_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut stream = Stream::open(folder.path());
    stream.append(1);
    let batch = stream.give(1);
    let mut only = Volume::default();
    only += Point::default().with(batch.seq, batch.own).sum;
    stream.spool.sync(IN_QUEUE, Some(only)).unwrap();
    drop(stream);
    let mut stream = Stream::open(folder.path());
    let Beginning { waits, lost, .. } = stream.beginning;
    assert_eq!((waits.packets, lost), (1, Volume::default()));
    stream.append(1);
    assert_eq!(stream.read(), (vec![1, 3], Volume::default()));
    assert_eq!(stream.lost(), only);
}

/// An acknowledgement that is not in the mark yet removes nothing: the next start would count it as a loss.
#[test]
fn what_was_acknowledged_before_a_kill_is_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let mut stream = Stream::open(folder.path());
    for _ in 0..10 {
        stream.append(600_000);
    }
    let batches = stream.spool.read(7, usize::MAX).unwrap();
    stream.spool.acknowledge(batches[6].through());
    drop(stream);
    let mut stream = Stream::open(folder.path());
    assert_eq!(stream.beginning.lost, Volume::default());
    // This comes from the last batch, since no mark was written after it.
    assert_eq!(stream.beginning.lost_in_queue, IN_QUEUE);
    assert_eq!(stream.read(), ((1..=10).collect(), Volume::default()));
}

/// Otherwise the next start would report the loss again.
#[test]
fn a_loss_that_is_met_is_in_the_mark_before_another_batch_comes() {
    let folder = tempfile::tempdir().unwrap();
    let mut stream = Stream::open(folder.path());
    for _ in 0..6 {
        stream.append(600_000);
    }
    stream.sync();
    fs::remove_file(&files(folder.path())[1]).unwrap();
    let (read, lost) = stream.read();
    assert_eq!((read, lost.packets), (vec![1, 2, 5, 6], 3 + 4));
    stream.sync();
    drop(stream);
    let stream = Stream::open(folder.path());
    assert_eq!(stream.beginning.lost, Volume::default());
    assert_eq!(stream.lost(), lost);
}

/// A repeated number would stand for a second batch under a number that a collector already knows.
#[test]
fn batches_whose_numbers_do_not_rise_are_damage() {
    let batch = |seq| FlowBatch {
        stream_id: 7,
        stream_seq: seq,
        ..FlowBatch::default()
    };
    for second in [4, 5] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("00000000000000000005.spool");
        fs::write(path, segment_of(&[batch(5), batch(second)])).unwrap();
        let mut stream = Stream::open(folder.path());
        assert_eq!(stream.beginning.faults.len(), 1);
        let seqs = seqs(&mut stream);
        assert_eq!(seqs, [5], "{second}");
    }
}

#[test]
fn a_mark_that_cannot_be_read_or_be_true_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let at = |seq, packets| Point {
        seq,
        sum: Volume {
            packets,
            ..Volume::default()
        },
    };
    for (done, last, is_sound) in [
        (at(5, 5), at(5, 5), true),
        (at(5, 5), at(4, 5), false),
        (at(5, 5), at(6, 4), false),
    ] {
        let mark = Mark {
            done,
            last,
            ..Mark::default()
        };
        mark.write(folder.path()).unwrap();
        let read = Mark::read(folder.path()).unwrap().unwrap();
        assert_eq!(read.is_ok(), is_sound);
    }
    // An unreadable mark may be readable the next time, so the spool does not open without it.
    let mark = folder.path().join("mark.json");
    fs::remove_file(&mark).unwrap();
    fs::create_dir(&mark).unwrap();
    assert!(Spool::open(folder.path().into(), MOST_BYTES, 7).is_err());
}

#[test]
fn a_segment_is_a_file_with_a_number_and_has_a_part_of_the_room() {
    for (name, is_one) in [
        ("00000000000000000007.spool", true),
        ("7.spool", true),
        ("7.txt", false),
        ("0.spool", false),
        ("seven.spool", false),
    ] {
        assert_eq!(is_segment(Path::new(name)), is_one, "{name}");
    }
    for (most_mib, segment_mib) in [(1, 1), (320, 20), (4096, 64)] {
        let folder = tempfile::tempdir().unwrap();
        let (spool, _) = Spool::open(folder.path().into(), most_mib << 20, 7).unwrap();
        assert_eq!(spool.segment_bytes(), segment_mib << 20);
        assert!(spool.room_bytes() > 1);
    }
}

/// Removes the segment while the spool is in use.
#[test]
fn a_segment_that_is_removed_costs_what_was_in_it_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut stream = Stream::open(folder.path());
    for _ in 0..6 {
        stream.append(600_000);
    }
    let files = files(folder.path());
    assert_eq!(files.len(), 3);
    fs::remove_file(&files[1]).unwrap();
    let (read, lost) = stream.read();
    assert_eq!((read, lost.packets), (vec![1, 2, 5, 6], 3 + 4));
    stream.append(1);
    assert_eq!(stream.read(), (vec![7], Volume::default()));
}

/// Without the mark the acknowledged point is unknown, but no existing batch counts as lost.
#[test]
fn a_spool_without_its_mark_has_what_is_there() {
    type Case<'a> = (&'a dyn Fn(&Path), usize);
    let cases: [Case<'_>; 4] = [
        (&|mark| fs::remove_file(mark).unwrap(), 0),
        (&|mark| fs::write(mark, "{").unwrap(), 1),
        // Still valid JSON.
        (
            &|mark| fs::write(mark, flipped(mark, b'9', b'8')).unwrap(),
            1,
        ),
        (&|mark| fs::write(mark, "{}\n00000000\n").unwrap(), 1),
    ];
    for (damage, faults) in cases {
        let folder = tempfile::tempdir().unwrap();
        let mut stream = Stream::open(folder.path());
        for _ in 0..19 {
            stream.append(600_000);
        }
        let batches = stream.spool.read(100, 6 << 20).unwrap();
        let done = batches.last().unwrap().through();
        stream.spool.acknowledge(done);
        stream.sync();
        drop(stream);
        damage(&folder.path().join("mark.json"));
        let mut stream = Stream::open(folder.path());
        let Beginning {
            stream_id,
            last,
            lost,
            waits,
            faults: ref told,
            ..
        } = stream.beginning;
        assert_eq!((stream_id, last.seq), (7, 1_000_019));
        assert_eq!(lost, Volume::default());
        assert_eq!(told.len(), faults, "{told:?}");
        let (read, lost) = stream.read();
        assert!(read[0] > 1 && read.iter().copied().eq(read[0]..=19));
        assert_eq!(lost, Volume::default());
        assert_eq!(waits.packets, packets(read));
    }
}

/// The file's bytes with the first `from` replaced by `to`.
fn flipped(path: &Path, from: u8, to: u8) -> Vec<u8> {
    let mut bytes = fs::read(path).unwrap();
    let place = bytes.iter().position(|byte| *byte == from);
    bytes[place.expect("it is there")] = to;
    bytes
}

/// Unknown files are kept for inspection.
#[test]
fn what_is_no_part_of_a_spool_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let mut stream = Stream::open(folder.path());
    stream.append(1);
    stream.end();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("00000000000000000005.spool"), "something else").unwrap();
    fs::create_dir(path("6.spool")).unwrap();
    let mut stream = Stream::open(folder.path());
    assert_eq!(stream.beginning.faults.len(), 2);
    assert!(path("00000000000000000005.spool.bad").is_file());
    assert!(path("6.spool.bad").is_dir());
    assert_eq!(stream.read(), (vec![1], Volume::default()));
}

/// Otherwise anyone who may write in the folder could make root overwrite any file, or read other users' flows.
#[test]
fn no_link_in_a_spool_is_followed_and_its_files_are_its_users_alone() {
    let folder = tempfile::tempdir().unwrap();
    let spool = folder.path().join("spool");
    fs::create_dir(&spool).unwrap();
    fs::set_permissions(&spool, Permissions::from_mode(0o777)).unwrap();
    let victim = folder.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let link = |name: &str| symlink(&victim, spool.join(name)).unwrap();
    link("lock");
    assert!(Spool::open(spool.clone(), MOST_BYTES, 7).is_err());
    fs::remove_file(spool.join("lock")).unwrap();
    let dangling = folder.path().join("dangling");
    symlink(&dangling, spool.join("lock")).unwrap();
    assert!(Spool::open(spool.clone(), MOST_BYTES, 7).is_err());
    fs::remove_file(spool.join("lock")).unwrap();
    for name in [
        "mark.new",
        "mark.json",
        "segment.new",
        "00000000000000000001.spool",
    ] {
        link(name);
    }
    let pipe = spool.join("00000000000000000002.spool");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o666.into()).unwrap();
    let mut stream = Stream::open(&spool);
    // Everyone may write in the folder, the mark is damaged, and two files are not segments.
    assert_eq!(stream.beginning.faults.len(), 4);
    stream.append(100);
    stream.sync();
    stream.spool.segments.back().unwrap().renew().unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert!(!dangling.exists());
    for entry in fs::read_dir(&spool).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        if path.extension().is_none_or(|suffix| suffix != "bad") {
            let mode = metadata.permissions().mode() & 0o777;
            assert!(metadata.is_file() && mode == 0o600, "{path:?} {mode:o}");
        }
    }
    stream.end();
    let mut stream = Stream::open(&spool);
    assert_eq!(stream.read().0.len(), 1);
}

/// The kernel considers a page clean once it has reported that writing it failed.
#[test]
fn what_a_disk_did_not_take_is_written_again_when_it_does() {
    const NAME: &str = "spool::what_a_disk_did_not_take_is_written_again_when_it_does";
    let Some(disk) = failing_disk_or_skip(NAME) else {
        return;
    };
    let folder = disk.folder().join("spool");
    let mut stream = Stream::open(&folder);
    stream.append(1000);
    stream.sync();
    // A reader has the file open.
    assert_eq!(seqs(&mut stream), [1]);
    disk.fail().unwrap();
    append_noise(&mut stream);
    for _ in 0..3 {
        let error = stream.spool.sync(IN_QUEUE, None).unwrap_err();
        let told = format!("{error:#}");
        assert!(told.contains("write a segment to the disk"), "{told}");
    }
    disk.recover().unwrap();
    wait_until_synced(&mut stream);
    stream.append(1000);
    stream.sync();
    assert_eq!(seqs(&mut stream), [2, 3]);
    drop(stream);
    disk.remount().unwrap();
    let mut stream = Stream::open(&folder);
    assert_eq!(seqs(&mut stream), [1, 2, 3]);
    assert_eq!(stream.lost(), Volume::default());
    assert!(!folder.join("segment.new").exists());
    drop(stream);
}

/// The process that saw the failure is gone.
#[test]
fn what_a_disk_did_not_take_is_written_again_by_the_next_start() {
    const NAME: &str = "spool::what_a_disk_did_not_take_is_written_again_by_the_next_start";
    let Some(disk) = failing_disk_or_skip(NAME) else {
        return;
    };
    let folder = disk.folder().join("spool");
    let mut stream = Stream::open(&folder);
    disk.fail().unwrap();
    append_noise(&mut stream);
    stream.spool.sync(IN_QUEUE, None).unwrap_err();
    drop(stream);
    disk.recover().unwrap();
    drop(Stream::open(&folder));
    disk.remount().unwrap();
    let mut stream = Stream::open(&folder);
    assert_eq!(seqs(&mut stream), [1]);
    drop(stream);
}

fn wait_until_synced(stream: &mut Stream) {
    let deadline = Instant::now() + Duration::from_mins(2);
    while let Err(error) = stream.spool.sync(IN_QUEUE, None) {
        assert!(Instant::now() < deadline, "{error:#}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// The sequence numbers of the readable batches.
fn seqs(stream: &mut Stream) -> Vec<u64> {
    let mut seqs = Vec::new();
    while stream.spool.stand().is_ahead {
        let batches = stream.spool.read(100, 1).unwrap();
        seqs.extend(batches.iter().map(|batch| batch.seq));
    }
    seqs
}

fn failing_disk_or_skip(name: &str) -> Option<Disk> {
    if !is_root_or_skip(name) {
        return None;
    }
    let disk = Disk::new();
    if let Err(error) = &disk {
        skip(name, &format!("no disk can be made to fail: {error:#}"));
    }
    disk.ok()
}

/// A batch that does not compress, so a failing disk has no room for it.
fn append_noise(stream: &mut Stream) {
    let mut noise = vec![0; 3 << 20];
    let mut source = File::open("/dev/urandom").unwrap();
    io::Read::read_exact(&mut source, &mut noise).unwrap();
    let mut batch = stream.give(0);
    batch.parts = [Bytes::new(), noise.into()];
    stream.spool.append(&batch, IN_QUEUE).unwrap();
}
