use std::{fs, path::Path};

use bytes::Bytes;

use super::*;

const MIB: usize = 1 << 20;

#[test]
fn a_disk_that_takes_short_batches_alone_stays_at_fault_until_it_has_room() {
    let mut faults = Faults::default();
    let full = || io::Error::from(io::ErrorKind::StorageFull);
    faults.appended(1000, Err(full()));
    faults.appended(100, Ok(()));
    faults.synced(Ok(()), 999);
    assert!(faults.takes_no_batch.is_some());
    faults.synced(Err(full().into()), 5000);
    assert!(faults.takes_no_batch.is_some() && faults.cannot_be_synced.is_some());
    faults.synced(Ok(()), 1000);
    assert!(faults.takes_no_batch.is_none() && faults.cannot_be_synced.is_none());
    // With free space, the disk may be read-only.
    faults.appended(10, Err(full()));
    faults.synced(Ok(()), 5000);
    assert!(faults.takes_no_batch.is_some());
}

/// A backlog with a spool in this folder.
fn backlog(folder: &Path) -> Backlog {
    let (spool, beginning) = Spool::open(folder.to_owned(), 64 << 20, 7).unwrap();
    let mut backlog = Backlog::new(8);
    backlog.go_on(spool, &beginning);
    assert_eq!(backlog.stream_id(), 7);
    backlog
}

impl Backlog {
    /// The next batch, which reports as many packets as its number says.
    fn next(&mut self, len_bytes: usize) -> Waiting {
        let before = self.last;
        let seq = before.seq + 1;
        let own = RecordSum {
            records: 1,
            packets: seq,
            bytes: 0,
        };
        self.last = before.with(seq, own);
        Waiting {
            seq,
            unix_ns: seq,
            own,
            before: before.sum,
            parts: [Bytes::new(), vec![7; len_bytes].into()],
            is_on_disk: false,
        }
    }

    async fn keep_next(&mut self, len_bytes: usize) {
        let next = self.next(len_bytes);
        self.keep(next).await;
    }

    fn in_memory(&self) -> Vec<u64> {
        self.window.iter().map(|batch| batch.seq).collect()
    }
}

#[tokio::test]
async fn what_has_no_room_in_memory_comes_from_the_disk_behind_the_rest_in_order() {
    const FIRST: u64 = MOST_BATCHES as u64;
    let folder = tempfile::tempdir().unwrap();
    let mut backlog = backlog(folder.path());
    assert!(backlog.is_empty() && !backlog.is_behind() && backlog.has_spool());
    for _ in 0..FIRST + 10 {
        backlog.keep_next(1).await;
    }
    assert!(backlog.in_memory().into_iter().eq(1..=FIRST));
    assert!(backlog.is_behind() && backlog.oldest_unix_ns() == 1);
    let (sum, done) = backlog.acknowledge(500).unwrap();
    assert_eq!((sum.records, sum.packets), (500, (1..=500).sum()));
    backlog.forget(done).await;
    // Memory has room, but batches on disk come first.
    backlog.keep_next(1).await;
    assert!(backlog.in_memory().into_iter().eq(501..=FIRST));
    assert_eq!(backlog.after(500).unwrap().seq, 501);
    backlog.acknowledge(FIRST);
    assert!(backlog.in_memory().is_empty() && !backlog.is_empty());
    // The arrival time of the segment's oldest batch.
    assert_eq!(backlog.oldest_unix_ns(), 1);
    backlog.refill().await;
    assert!(backlog.in_memory().into_iter().eq(FIRST + 1..=FIRST + 11));
    assert!(!backlog.is_behind());
    assert_eq!(backlog.only_in_memory(), Volume::default());
}

#[tokio::test]
async fn what_neither_memory_nor_the_disk_takes_keeps_others_out_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("spool");
    let mut backlog = backlog(&folder);
    // This batch exceeds memory and a segment, so the next one begins a segment.
    backlog.keep_next(MOST_BYTES + MIB).await;
    assert!(backlog.has_room() && backlog.fault().is_none());
    backlog.sync().await;
    assert_eq!(backlog.sync_at(), None);
    fs::remove_dir_all(&folder).unwrap();
    backlog.keep_next(1).await;
    assert_eq!(backlog.in_memory(), [1]);
    assert!(backlog.is_behind() && !backlog.has_room());
    assert!(backlog.fault().is_some());
    assert!(backlog.sync_at().is_some());
    // The first batch was synced to a folder that is gone, which the spool cannot know.
    let only = backlog.only_in_memory();
    assert_eq!((only.batches, only.records, only.packets), (1, 1, 2));
    backlog.acknowledge(1);
    assert!(!backlog.is_empty());
    backlog.refill().await;
    assert_eq!(backlog.in_memory(), [2]);
    assert!(!backlog.is_behind() && backlog.has_room());
    assert_eq!(backlog.only_in_memory(), only);
    assert!(!backlog.leave(only).await);
}

#[tokio::test]
async fn without_a_spool_memory_is_all_there_is() {
    let mut backlog = Backlog::new(8);
    assert_eq!(backlog.stream_id(), 8);
    for _ in 0..MOST_BATCHES {
        assert!(backlog.has_room());
        backlog.keep_next(1).await;
    }
    assert!(!backlog.has_room() && !backlog.has_spool());
    assert_eq!((backlog.sync_at(), backlog.fault()), (None, None));
    assert_eq!(backlog.only_in_memory().batches, MOST_BATCHES as u64);
    backlog.acknowledge(1);
    assert!(backlog.has_room());
}
