use super::*;
use crate::outputs::delivery::waiting::Point;

const MOST_BYTES: u64 = 16 << 20;
const BOOT: &str = "this boot";
/// What the queue has lost.
const IN_QUEUE: Volume = Volume {
    batches: 1,
    records: 2,
    packets: 3,
    bytes: 4,
};

/// A spool, and what a sender would know of its stream.
struct Stream {
    spool: Spool,
    last: Point,
    beginning: Beginning,
}

impl Stream {
    fn open(folder: &Path, most_bytes: u64, boot: &str) -> Self {
        let (spool, beginning) = Spool::open(folder.into(), most_bytes, 7, boot).unwrap();
        Self {
            spool,
            last: beginning.last,
            beginning,
        }
    }

    /// Writes a batch of so many bytes, which reports its number of packets.
    fn append(&mut self, bytes: usize) -> Volume {
        let seq = self.last.seq + 1;
        let own = sum(seq);
        let batch = Waiting {
            seq,
            unix_ns: 1,
            own,
            before: self.last.sum,
            parts: [Bytes::from_static(b"!"), vec![seq as u8; bytes].into()],
            is_on_disk: false,
        };
        self.last = batch.through();
        self.spool.note(self.last);
        let mut lost = Volume::default();
        let appended = self.spool.append(&batch, IN_QUEUE, &mut lost);
        appended.unwrap();
        lost
    }

    fn sync(&mut self, is_last: bool) {
        self.spool.sync(IN_QUEUE, is_last).unwrap();
    }

    /// All that can be read, and what turns out to be lost before and between it.
    fn read(&mut self) -> (Vec<u64>, Volume) {
        let mut all = Vec::new();
        let mut lost = Volume::default();
        while self.spool.is_ahead() {
            let (batches, missing) = self.spool.read(1).unwrap();
            lost += missing;
            for batch in &batches {
                let bytes = batch.parts.concat();
                assert!(bytes[0] == b'!' && bytes[1..].iter().all(|byte| *byte == batch.seq as u8));
                assert_eq!(batch.own, sum(batch.seq));
            }
            all.extend(batches.iter().map(|batch| batch.seq));
        }
        lost += self.spool.reach_to(self.last);
        (all, lost)
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

/// The files with batches, from old to new.
fn files(folder: &Path) -> Vec<PathBuf> {
    let files = segment_files(folder).unwrap();
    files.into_iter().map(|(_, path)| path).collect()
}

#[test]
fn a_spool_goes_on_where_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("made/with its parents");
    let mut stream = Stream::open(&folder, MOST_BYTES, BOOT);
    assert_eq!(stream.beginning.stream_id, 7);
    for _ in 0..10 {
        stream.append(1000);
    }
    let (read, lost) = stream.spool.read(3500).unwrap();
    let seqs: Vec<_> = read.iter().map(|batch| batch.seq).collect();
    assert_eq!((seqs, lost), (vec![1, 2, 3, 4], Volume::default()));
    stream.spool.acknowledge(read[2].through());
    stream.sync(false);
    stream.append(1000);
    // It ends without a word.
    drop(stream);
    let mut stream = Stream::open(&folder, MOST_BYTES, BOOT);
    let Beginning { last, waits, .. } = stream.beginning;
    assert_eq!((last.seq, waits.packets), (11, packets(4..=11)));
    assert_eq!(stream.beginning.faults, [""; 0]);
    stream.append(1000);
    assert_eq!(stream.read(), ((4..=12).collect(), Volume::default()));
    stream.spool.acknowledge(stream.last);
    stream.sync(true);
    drop(stream);
    let stream = Stream::open(&folder, MOST_BYTES, "another boot");
    assert_eq!(stream.beginning.last.seq, 12, "it ended in order");
    assert_eq!(stream.beginning.waits, RecordSum::default());
    assert!(files(&folder).is_empty());
    assert_eq!(stream.spool.bytes(), 0);
}

/// What a collector got before the system ended may not be on disk, so its numbers are not used again.
#[test]
fn numbers_that_may_be_known_are_not_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut stream = Stream::open(folder.path(), MOST_BYTES, BOOT);
    stream.append(1);
    stream.sync(false);
    drop(stream);
    let mut stream = Stream::open(folder.path(), MOST_BYTES, "another boot");
    assert_eq!(stream.beginning.last.seq, 1_000_001);
    stream.append(1);
    let (read, lost) = stream.read();
    assert_eq!((read, lost), (vec![1, 1_000_002], Volume::default()));
}

#[test]
fn nobody_else_uses_a_spool() {
    let folder = tempfile::tempdir().unwrap();
    let stream = Stream::open(folder.path(), MOST_BYTES, BOOT);
    let second = || Spool::open(folder.path().into(), MOST_BYTES, 8, BOOT);
    let Err(error) = second() else {
        panic!("it is in use")
    };
    assert!(error.is::<InUse>(), "{error:#}");
    drop(stream);
    assert!(second().is_ok());
}

/// In a spool of two files, whichever is damaged, and however.
#[test]
fn damage_costs_what_is_damaged_and_is_told_to_the_packet() {
    // Which file, what happens to its bytes, and which batches that costs.
    type Case<'a> = (usize, &'a dyn Fn(&mut Vec<u8>), &'a [u64]);
    const BATCHES: u64 = 8;
    let begin = |folder: &Path| {
        let mut stream = Stream::open(folder, MOST_BYTES, BOOT);
        for seq in 1..=BATCHES {
            // The first file is full after four.
            stream.append(if seq <= 4 { 600_000 } else { 1000 });
        }
        stream.sync(false);
    };
    let cases: [Case<'_>; 8] = [
        (0, &|_| {}, &[]),
        // In the second one's bytes.
        (0, &|file| file[700_000] ^= 1, &[2]),
        // In the second one's header, so nobody knows where the next one begins.
        (0, &|file| file[16 + 112 + 600_001 + 20] ^= 1, &[2, 3, 4]),
        (0, &|file| file.truncate(1_300_000), &[3, 4]),
        (0, &Vec::clear, &[1, 2, 3, 4]),
        (0, &|file| file[3] ^= 1, &[1, 2, 3, 4]),
        (1, &|file| file.truncate(file.len() - 1), &[8]),
        (1, &Vec::clear, &[5, 6, 7, 8]),
    ];
    for (number, (file, damage, missing)) in cases.into_iter().enumerate() {
        for is_removed in [false, true] {
            if is_removed && missing.len() != 4 {
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
            let mut stream = Stream::open(folder.path(), MOST_BYTES, BOOT);
            let Beginning { waits, lost, .. } = stream.beginning;
            let in_all = waits.packets + lost.packets;
            assert_eq!(in_all, packets(1..=BATCHES), "case {number}");
            assert_eq!(stream.beginning.lost_in_queue, IN_QUEUE);
            let next = stream.last.seq + 1;
            stream.append(1);
            let (read, later) = stream.read();
            let mut lost = lost;
            lost += later;
            assert_eq!(stream.spool.lost(), lost, "case {number}");
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

/// Damage that comes while the spool is in use.
#[test]
fn a_segment_that_is_cut_while_it_is_written_costs_what_was_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut stream = Stream::open(folder.path(), MOST_BYTES, BOOT);
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
    let mut stream = Stream::open(folder.path(), MOST_BYTES, BOOT);
    let mut lost = Volume::default();
    for _ in 0..100 {
        lost += stream.append(BYTES);
        assert!(stream.spool.bytes() <= MOST_BYTES);
    }
    let on_disk: u64 = files(folder.path())
        .iter()
        .map(|path| path.metadata().unwrap().len())
        .sum();
    assert_eq!(on_disk, stream.spool.bytes());
    let (read, missing) = stream.read();
    assert_eq!(missing, Volume::default());
    assert!(read.len() >= 12, "{read:?}");
    let first = read[0];
    assert!(read.iter().copied().eq(first..=100));
    assert_eq!((lost.batches, lost.packets), (first - 1, packets(1..first)));
    // What is in memory is not lost with its file.
    for _ in 0..100 {
        assert_eq!(stream.append(BYTES), Volume::default());
        let batch = stream.spool.read(1).unwrap();
        assert_eq!((batch.0.len(), batch.1), (1, Volume::default()));
    }
}

/// However often the spool is opened, and wherever it stands then.
#[test]
fn a_loss_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut stream = Stream::open(folder.path(), MOST_BYTES, BOOT);
    let mut lost = Volume::default();
    for _ in 0..40 {
        lost += stream.append(1 << 20);
    }
    assert!(lost.batches > 20);
    stream.sync(false);
    for acknowledges in 0..5 {
        drop(stream);
        stream = Stream::open(folder.path(), MOST_BYTES, BOOT);
        assert_eq!(stream.beginning.lost, Volume::default());
        assert_eq!(stream.spool.lost(), lost);
        let (batches, news) = stream.spool.read(acknowledges << 20).unwrap();
        assert_eq!(news, Volume::default());
        if let Some(last) = batches.last() {
            stream.spool.acknowledge(last.through());
        }
        stream.sync(false);
        assert_eq!(stream.spool.lost(), lost);
        let waits = stream.beginning.waits.packets;
        let done = batches.iter().map(|batch| batch.own.packets).sum::<u64>();
        let (read, news) = stream.read();
        assert_eq!(news, Volume::default());
        assert_eq!(waits, done + packets(read));
    }
    // One that nobody knows of is added.
    stream.sync(false);
    drop(stream);
    let oldest = files(folder.path()).remove(0);
    fs::remove_file(oldest).unwrap();
    let stream = Stream::open(folder.path(), MOST_BYTES, BOOT);
    let more = stream.beginning.lost;
    assert!(more.batches > 0 && more.packets > 0);
    let mut all = lost;
    all += more;
    assert_eq!(stream.spool.lost(), all);
}

/// Without the mark nobody knows what was acknowledged, but nothing that is there is taken for a loss.
#[test]
fn a_spool_without_its_mark_has_what_is_there() {
    for is_damaged in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut stream = Stream::open(folder.path(), MOST_BYTES, BOOT);
        for _ in 0..20 {
            stream.append(600_000);
        }
        let (batches, _) = stream.spool.read(6 << 20).unwrap();
        stream.spool.acknowledge(batches.last().unwrap().through());
        stream.sync(false);
        drop(stream);
        let mark = folder.path().join("mark.json");
        if is_damaged {
            fs::write(mark, "{").unwrap();
        } else {
            fs::remove_file(mark).unwrap();
        }
        let mut stream = Stream::open(folder.path(), MOST_BYTES, BOOT);
        let Beginning {
            stream_id,
            last,
            lost,
            waits,
            ref faults,
            ..
        } = stream.beginning;
        assert_eq!((stream_id, last.seq), (7, 1_000_020));
        assert_eq!(lost, Volume::default());
        assert_eq!(faults.len(), usize::from(is_damaged), "{faults:?}");
        let (read, lost) = stream.read();
        assert!(read[0] > 1 && read.iter().copied().eq(read[0]..=20));
        assert_eq!(lost, Volume::default());
        assert_eq!(waits.packets, packets(read));
    }
}
